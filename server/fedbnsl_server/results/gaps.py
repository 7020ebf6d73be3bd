"""What result.json says of values that are missing, and of how EM used the rows that have gaps."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import never_together
from fedbnsl_server.results.sentences import Note, note


def gaps_of(state: AdmmState | None, columns: Columns) -> dict[str, Any] | None:
    """Iterations of EM, and how many rows have a value, by site and variable; None: EM was not needed, or not used."""
    if state is None or state.completion is None or not state.completion.n_pairs:
        return None
    told, first = state.completion, [int(own[0]) for own in columns.members()]
    return {
        "iterations": told.iterations,
        "converged": told.has_converged,
        "known_share": told.known_share,
        "values": {
            site: dict(zip(columns.variables, n.diagonal()[first].astype(int).tolist(), strict=True))
            for site, n in told.n_pairs.items()
        },
        "never_together": [list(pair) for pair in _unknown(state, columns)],
    }


def of_gaps(state: AdmmState, columns: Columns) -> Iterator[Note]:
    """Warn of pairs of variables that nothing is known about, and of EM that did not end."""
    told = state.completion
    if told is None or not told.n_pairs:
        return
    pairs = [f"{one} and {other}" for one, other in _unknown(state, columns)]
    if pairs:
        yield note("never_together", pairs=pairs, one=len(pairs) == 1)
    if told.done and not told.has_converged:
        yield note("not_converged", iterations=told.iterations, change=told.change)


def _unknown(state: AdmmState, columns: Columns) -> list[tuple[str, str]]:
    """Pairs of variables that no row has a value of both of."""
    found, names = never_together(state, columns), columns.variables
    pairs: list[list[int]] = [] if found is None else np.argwhere(np.triu(found, k=1)).tolist()
    return [(names[i], names[j]) for i, j in pairs]
