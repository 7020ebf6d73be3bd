"""What result.json says of numbers whose effects bend."""

from typing import Any

from fedbnsl_server.algorithm.admm import AdmmState


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
