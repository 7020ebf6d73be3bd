"""What result.json says of numbers whose effects bend."""

from collections.abc import Mapping
from typing import Any

from fedbnsl_server.algorithm.admm import AdmmState

# Chance that a run calls any straight effect bent.
_LEVEL = 0.01


def curves_of(state: AdmmState | None, columns: tuple[str, ...]) -> dict[str, Any] | None:
    """Which columns bend, and their effects, in the tables' units; None: a graph with curves was not searched.

    Parameters
    ----------
    columns
        d names, of all columns of the run.
    """
    if state is None or state.curves is None:
        return None
    found = state.curves
    return {
        "rows": found.n_rows,
        "variables": [columns[c] for c in found.columns.tolist()],
        "effects": [one._asdict() for one in found.effects],
        "total": [{**one._asdict(), "below": [each._asdict() for each in one.below]} for one in found.total],
    }


def clearly_bent(curves: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of the told effects, those that are no straight lines (1 % false alarms in a run); all, where none is clear."""
    effects: list[Mapping[str, Any]] = curves["effects"]
    level = _LEVEL / max(len(effects), 1)
    return [one for one in effects if (p := one.get("p_straight")) is None or p < level] or effects
