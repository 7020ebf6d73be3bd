"""What a learned network says of a variable where others are known or set: a distribution of values or of levels."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.network.exact import Values, moments, probabilities
from fedbnsl.network.families import positions
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.results.effect_report import effect_of
from fedbnsl_server.results.network_of_run import NetworkOfRun

_DRAWS = 200_000
_FEW_DRAWS = 400  # that count: fewer tell no tails
_ENDS = (0.025, 0.975)
_FAR = 4.0  # standard deviations: of normal values, 1 in 16,000 lies further out
_NORMAL_95 = 1.959963984540054


def answer(
    fitted: NetworkOfRun,
    target: str,
    given: Mapping[str, str],
    do: Mapping[str, str],
    *,
    seed: int = 0,
    none_hidden: bool = False,
) -> dict[str, Any]:
    """JSON-ready: mean, spread and 95 % interval of a number, or probabilities of levels.

    `doubts`: what says against the network; `notes`: what to know of the question; `exact`: whether the numbers follow
    from formulas (of what it hangs on, all are lines with normal noise without ranges, or all have levels), and not
    from draws; then `draws` is null, else how many draws count.

    Parameters
    ----------
    given, do
        By variable, values that are known, and values that an intervention sets.
    none_hidden
        Whether to take it that no common cause is missing.

    Raises
    ------
    SetupError
        If there is no such variable or value, nothing has the known values, or the effect of an intervention is not
        identified.
    """
    fitted.require(target)
    if twice := sorted({*given} & {*do}):
        raise SetupError(f"{twice[0]!r} is both known and set: expected one of them")
    if target in given or target in do:
        raise SetupError(f"{target!r} is asked for, and its value is given")
    known = {name: fitted.coded(name, text) for name, text in given.items()}
    set_to = {name: fitted.coded(name, text) for name, text in do.items()}
    if do:
        _require_identified(fitted, target, given, list(do), none_hidden=none_hidden)
    asked: dict[str, Any] = {"target": target, "unit": fitted.entry(target).unit, "given": dict(given), "do": dict(do)}
    far = [f"{text}: hardly a row tells what is there" for text in _far(fitted, {**given, **do})]
    asked |= {"notes": [*far, *fitted.rough([target, *given, *do])], "doubts": fitted.doubts}
    if (told := _by_formula(fitted, target, known, set_to)) is not None:
        return asked | {"exact": True, "draws": None, **told}
    rng = np.random.default_rng(seed)
    X, weights = fitted.network.draws(_DRAWS, rng, known, set_to, fitted.members(target))
    n = float(1.0 / np.square(weights).sum())
    if n < _FEW_DRAWS:
        raise SetupError(
            f"of {_DRAWS:,} draws, only about {n:.0f} are like what is said to be known: this tells nothing",
            remedy="Leave out a value that hardly ever goes together with the others.",
        )
    if target in fitted.levels:
        levels = fitted.levels[target]
        at = positions(X, np.arange(len(fitted.members(target))), len(levels))
        p = np.bincount(at, weights=weights, minlength=len(levels))
        return asked | {"exact": False, "draws": round(n), "probabilities": dict(zip(levels, p.tolist(), strict=True))}
    values = fitted.entry(target).formula.back(X[:, 0])
    mean = float(weights @ values)
    spread = float(np.sqrt(weights @ np.square(values - mean)))
    return asked | {
        "exact": False,
        "draws": round(n),
        "mean": mean,
        "spread": spread,
        "interval": _quantiles(values, weights),
    }


def _far(fitted: NetworkOfRun, values: Mapping[str, str]) -> list[str]:
    """Numbers that hardly any row has, in words."""
    found: list[str] = []
    for name, text in values.items():
        if name not in fitted.levels:
            k = int(fitted.members(name)[0])
            widths = abs(fitted.coded(name, text)[0] - float(fitted.means[k])) / float(fitted.spread[k])
            if widths > _FAR:
                found.append(f"{name} = {text} lies {widths:.1f} standard deviations from the mean")
    return found


def _quantiles(values: Matrix, weights: Matrix) -> list[float]:
    order = np.argsort(values, kind="stable")
    at = np.searchsorted(np.cumsum(weights[order]), _ENDS)
    found: list[float] = values[order][np.minimum(at, len(values) - 1)].tolist()
    return found


def _by_formula(fitted: NetworkOfRun, target: str, known: Values, set_to: Values) -> dict[str, Any] | None:
    """Mean, spread and interval, or probabilities, of a network of lines or of levels; None: it has other families."""
    if target in fitted.levels:
        p = probabilities(fitted.network, target, known, set_to)
        return None if p is None else {"probabilities": dict(zip(fitted.levels[target], p.tolist(), strict=True))}
    told = moments(fitted.network, target, known, set_to) if fitted.entry(target).applied == "none" else None
    if told is None:
        return None
    mean, spread = told
    half = _NORMAL_95 * spread
    return {"mean": mean, "spread": spread, "interval": [mean - half, mean + half]}


def _require_identified(
    fitted: NetworkOfRun, target: str, given: Iterable[str], sources: list[str], *, none_hidden: bool
) -> None:
    """Raise SetupError where the class of graphs does not tell what setting the sources does to the target.

    Nor to what is given: below the sources, it says of the target what graphs disagree about. If common causes may be
    hidden, one DAG says nothing of an intervention: `fedbnsl effect` tells what is identified.
    """
    learned, names = fitted.learned, " and ".join(map(repr, sources))
    if learned.pag is not None and not none_hidden:
        raise SetupError(
            f"what happens to {target!r} if {names} is set rests on there being no hidden common cause",
            remedy="`fedbnsl effect` tells which effects hold whatever is hidden; --no-hidden-causes (in Python "
            "none_hidden) answers under the assumption that none is.",
        )
    for name in (target, *given):
        told = effect_of(replace(learned, pag=None, none_hidden=True), sources, name)
        if not {row["verdict"] for row in told["effects"]} <= {"identified", "no path"}:
            raise SetupError(
                f"the effect of {names} on {name!r}: {'; '.join(told['in_words'][:2])}",
                remedy="`fedbnsl effect` shows all values that the graphs give; --given in place of --do asks what is "
                "seen together, and says nothing of an intervention.",
            )
