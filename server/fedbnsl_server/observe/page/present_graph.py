"""The graph as it forms: the edges that count after the last round."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedbnsl.graphs.graph import Edge, threshold
from fedbnsl.graphs.layout import box_widths, curve, layout, ports, shortened, tips
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph, present_weights

MOST_EDGES = 5000
"""That a page is sent; of more the heaviest."""

MOST_DRAWN = 60, 120
"""Nodes and edges that are laid out: of more, a drawing is slow to make and hard to read."""

_DIGITS = 4


def present_graph(state: AdmmState, plan: Plan, mask: EdgeMask) -> dict[str, Any]:
    """Edges between variables beyond the plan's threshold, as the round's record counts them.

    Returns
    -------
    dict
        `edges`: [from, to, weight, 1 if it has a direction], by the numbers of the variables; the weight of an edge
        between variables of several columns is the largest. `left_out`: how many are not in it. `drawing`: where
        nodes and edges go, None where there are too many.
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
    drawing = None
    if len(both) <= MOST_DRAWN[0] and len(pairs) <= MOST_DRAWN[1]:
        drawing = _drawing(tuple(columns.variables), tuple((i, j) for i, j in sorted(pairs)))
    return {
        "round": state.round,
        "drawing": drawing,
        "edges": [[i, j, _weight(size, i, j), 0 if both[i, j] else 1] for i, j in pairs[:MOST_EDGES]],
        "left_out": max(0, len(pairs) - MOST_EDGES),
    }


@lru_cache(maxsize=8)  # a graph whose edges stay the same stays where it is
def _drawing(names: Sequence[str], pairs: Sequence[Edge]) -> dict[str, Any]:
    """The size, `nodes`: [number, x, y, width, label], and `lines`: [from, to, path]."""
    widths = box_widths(names, pairs)
    placed = layout(widths, [], pairs)  # while W forms, there may be cycles
    shifts = ports(placed.routes, widths)
    return {
        "width": round(placed.width),
        "height": round(placed.height),
        "nodes": [
            [node, round(x, 1), round(y, 1), round(widths[node], 1), shortened(names[node])]
            for node, (x, y) in sorted(placed.centres.items())
        ],
        "lines": [[*edge, curve(tips(route, *shifts[edge]))] for edge, route in sorted(placed.routes.items())],
    }


def _weight(size: list[list[float]], i: int, j: int) -> float:
    """Of i -> j, or of an edge without a direction, whose weight is that of one of its directions."""
    return float(f"{size[i][j] or size[j][i]:.{_DIGITS}g}")
