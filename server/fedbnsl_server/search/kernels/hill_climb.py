"""The compiled part of the descent over DAGs: the best move is made until none is left."""

import math

import numpy as np
from numpy.typing import NDArray

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.kernels.change import Graph, Problem, Work, renew, room_to_work
from fedbnsl_server.search.kernels.family import Given
from fedbnsl_server.search.kernels.score import cost
from fedbnsl_server.search.score import Score

Bits = NDArray[np.uint64]
"""(V, V / 64) sets of variables, a bit for each."""


@compiled
def _find_lowest(P: Problem, graph: Graph, j: int) -> None:
    """Fill in `lowest` of j."""
    lowest = math.inf
    for e in range(P.start[j], P.start[j + 1]):
        if not P.fixed[e]:
            lowest = min(lowest, graph.change[e])
            if graph.present[e] and P.reverse[e] >= 0:
                lowest = min(lowest, graph.change[e] + graph.change[P.reverse[e]])
    graph.lowest[j] = lowest


@compiled
def _find_lowest_near(P: Problem, graph: Graph, i: int) -> None:
    """Fill in `lowest` of i, whose changes are new, and of its children."""
    _find_lowest(P, graph, i)
    for e in range(P.start[i], P.start[i + 1]):
        r = P.reverse[e]
        if r >= 0 and graph.present[r]:
            _find_lowest(P, graph, P.child[r])


@compiled
def sort(P: Problem, graph: Graph, work: Work) -> None:
    """Fill in `place`: parents come before their children."""
    place, ahead, seen = work.place, work.ahead, work.seen
    placed = 0
    for v in range(len(place)):
        place[v], seen[v] = -1, 0
    for v in range(len(place)):
        n = 0
        if place[v] < 0:
            ahead[0], n = v, 1
        while n > 0:  # `seen` counts the parents that were looked at
            k = ahead[n - 1]
            if seen[k] == graph.n_parents[k]:
                place[k] = placed
                placed += 1
                n -= 1
                continue
            u = graph.parents[P.start[k] + seen[k]]
            seen[k] += 1
            if place[u] < 0:
                ahead[n] = u
                n += 1
    for v in range(len(place)):
        seen[v] = 0


@compiled
def find_ancestors(P: Problem, graph: Graph, work: Work, ancestors: Bits) -> None:
    """Fill in the ancestors of all variables, in the order of `place`."""
    for v in range(len(work.place)):
        work.ahead[work.place[v]] = v
    for j in work.ahead:
        of_j = ancestors[j]
        of_j[:] = 0
        for s in range(P.start[j], P.start[j] + graph.n_parents[j]):
            _add_ancestors(of_j, ancestors, graph.parents[s])


@compiled
def _add_ancestors(of_j: Bits, ancestors: Bits, i: int) -> None:
    """Add i and its ancestors to those of another variable."""
    of_i = ancestors[i]
    for word in range(len(of_j)):
        of_j[word] |= of_i[word]
    of_j[i >> 6] |= np.uint64(1) << np.uint64(i & 63)


@compiled
def is_ancestor(ancestors: Bits, i: int, j: int) -> bool:
    """Whether a directed path leads from i to j."""
    found: bool = (ancestors[j, i >> 6] >> np.uint64(i & 63)) & np.uint64(1) != 0
    return found


@compiled
def leads_otherwise(P: Problem, graph: Graph, ancestors: Bits, i: int, j: int) -> bool:
    """Whether a directed path leads from i to its child j, but for the edge itself."""
    found = False
    for s in range(P.start[j], P.start[j] + graph.n_parents[j]):
        found = found or is_ancestor(ancestors, i, graph.parents[s])
    return found


@compiled
def descend(P: Problem, score: Score, given: Given, graph: Graph, least: float, asked: Matrix) -> None:
    """Make the move that lowers the score most, until none lowers it by more than `least`.

    A move adds, drops or reverses one edge. Which of them close a cycle is read off the ancestors of each variable.

    Parameters
    ----------
    asked
        Of a `Progress`.
    """
    V, m = len(P.start) - 1, len(P.source)
    work = room_to_work(P)
    ancestors = np.empty((V, (V + 63) // 64), np.uint64)
    refused = np.zeros((2, m), np.int64)  # by move: the turn in which its gain was not real
    turn_number = 0
    sizes, change, present = P.blocks.sizes, graph.change, graph.present
    for j in range(V):
        renew(P, score, given, graph, j, -1, work)
    for j in range(V):
        _find_lowest(P, graph, j)
    sort(P, graph, work)
    find_ancestors(P, graph, work, ancestors)
    while asked[0] == 0.0:
        turn_number += 1
        while True:
            best, kind, least_change = -1, 0, -least
            for j in range(V):
                if graph.lowest[j] >= least_change:
                    continue
                for e in range(P.start[j], P.start[j + 1]):
                    if P.fixed[e]:
                        continue
                    i, r = P.source[e], P.reverse[e]
                    legal = present[e] or not is_ancestor(ancestors, j, i)
                    if legal and change[e] < least_change and refused[0, e] != turn_number:
                        best, kind, least_change = e, 0, change[e]
                    if r < 0 or not present[e] or refused[1, e] == turn_number:
                        continue
                    if change[e] + change[r] < least_change and not leads_otherwise(P, graph, ancestors, i, j):
                        best, kind, least_change = e, 1, change[e] + change[r]
            if best < 0:
                return
            i, j, r = P.source[best], P.child[best], P.reverse[best]
            before = graph.share[j] + (graph.share[i] if kind else 0.0)
            present[best] = not present[best]
            renew(P, score, given, graph, j, i, work)
            after = graph.share[j]
            if kind:
                present[r] = True
                renew(P, score, given, graph, i, j, work)
                after += graph.share[i]
            elif present[best]:
                after += cost(score, sizes[i], sizes[j])
            else:
                after -= cost(score, sizes[i], sizes[j])
            # For a variance near rounding error the predicted gain may not be real. Check the actual gain of every
            # move, so that the search terminates.
            if after - before <= -least:
                break
            present[best] = not present[best]
            renew(P, score, given, graph, j, i, work)
            if kind:
                present[r] = False
                renew(P, score, given, graph, i, j, work)
            refused[kind, best] = turn_number
        if kind or work.place[i] > work.place[j]:
            sort(P, graph, work)
        find_ancestors(P, graph, work, ancestors)
        if kind:
            _find_lowest_near(P, graph, i)
        _find_lowest_near(P, graph, j)
