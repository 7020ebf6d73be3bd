"""How well a network describes rows, in one line for people."""

from collections.abc import Collection, Mapping
from typing import Any

from fedbnsl.console.wording import counted


def in_one_line(variables: Mapping[str, Any], children: Collection[str]) -> str:
    """The range of scores of variables that have parents, with the means of each site.

    Parameters
    ----------
    variables
        Scores by variable, as `validation_scores.scores_of_both` has them.
    children
        Variables that have parents.
    """
    told = [both["own_means"] for name, both in variables.items() if name in children]
    parts = list[str]()
    for key, words, what in (("r2", "R^2", "number"), ("auc", "AUC", "variable")):
        known = _sorted(told, key)
        if known:
            ends = f"{known[0]:z.2f}" + f" to {known[-1]:z.2f}" * (len(known) > 1)
            parts.append(f"{words} {ends} ({counted(len(known), what)} with parents)")
    kept = [f"{100.0 * one:.0f}" for one in _sorted(told, "within")]
    if kept:
        parts.append(f"95 % intervals hold {' to '.join(dict.fromkeys((kept[0], kept[-1])))} % of values")
    return "; ".join(parts) or "of variables with parents nothing is told"


def _sorted(told: list[Mapping[str, Any]], key: str) -> list[float]:
    return sorted(one[key] for one in told if one.get(key) is not None)
