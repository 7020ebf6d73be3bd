"""The graph as it forms: the edges that count after the last round."""

from typing import Any

import numpy as np

from fedbnsl.graphs.graph import threshold
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph, present_weights

MOST_EDGES = 5000
"""That a page is sent; of more the heaviest."""

_DIGITS = 4


def present_graph(state: AdmmState, plan: Plan, mask: EdgeMask) -> dict[str, Any]:
    """Edges between variables beyond the plan's threshold, as the round's record counts them.

    Returns
    -------
    dict
        `edges`: [from, to, weight, 1 if it has a direction], by the numbers of the variables; the weight of an edge
        between variables of several columns is the largest. `left_out`: how many are not in it.
    """
    weights = present_weights(state)
    columns = mask.columns
    if plan.graph_class == "cpdag" and state.refitted is not None:
        marks = consensus_graph(state, plan, mask).marks
        both = marks & marks.T
    else:  # while W forms, i -> j and j -> i are two edges of a cycle
        marks = columns.joined(threshold(weights, plan.threshold))
        both = np.zeros_like(marks)
    size = columns.largest(weights).tolist()
    shown = marks & ~np.tril(both)  # an edge without a direction comes once
    pairs: list[list[int]] = np.argwhere(shown).tolist()
    pairs.sort(key=lambda pair: -abs(_weight(size, *pair)))
    return {
        "round": state.round,
        "edges": [[i, j, _weight(size, i, j), 0 if both[i, j] else 1] for i, j in pairs[:MOST_EDGES]],
        "left_out": max(0, len(pairs) - MOST_EDGES),
    }


def _weight(size: list[list[float]], i: int, j: int) -> float:
    """Of i -> j, or of an edge without a direction, whose weight is that of one of its directions."""
    return float(f"{size[i][j] or size[j][i]:.{_DIGITS}g}")
