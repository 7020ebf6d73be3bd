"""Parents of one variable among those before it, compiled: add the best one after the other, then drop needless ones.

Logarithms are taken of families that are chosen only: what is tried is compared by what it leaves of the child.
"""

import math

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.kernels.family import (
    LEAST_RESIDUAL,
    LEAST_SHARE,
    Ints,
    add_variable,
    child_left,
    condition,
    explain,
    left_beside,
    left_with,
    left_without,
    line_up,
)
from fedbnsl_server.search.kernels.order_state import Problem, Room
from fedbnsl_server.search.kernels.score import cost, fall, share, share_left


@compiled
def _most_explaining(
    own: Matrix, shared: Matrix, source: Ints, chosen: Mask, rank: Matrix, limit: float, least: float
) -> int:
    """Which candidate of lower rank than the limit explains most of the child, and more than `least`; -1: none."""
    best, most = -1, least
    for k in range(len(source)):
        if own[k] > LEAST_SHARE and shared[k] * shared[k] > most * own[k]:
            i = source[k]
            if not chosen[i] and rank[i] < limit:
                best, most = k, shared[k] * shared[k] / own[k]
    return best


@compiled
def _mark_explaining(own: Matrix, shared: Matrix, least: float, marks: Mask) -> None:
    """Keep the marks of candidates that explain more than `least` of the child."""
    for k in range(len(marks)):
        marks[k] = marks[k] and own[k] > LEAST_SHARE and shared[k] * shared[k] > least * own[k]


@compiled
def _worth(rest: float, enough: float) -> float:
    """What a candidate must explain of a child of which `rest` is left, so that no more than that share of it is."""
    return rest * (1.0 - enough) if rest * enough > LEAST_RESIDUAL else math.inf


@compiled
def _gain(P: Problem, room: Room, j: int, e: int, n: int, rest: float) -> float:
    """By how much the source of candidate edge e would lower the score of child j, of which n pivots leave `rest`."""
    i, sizes = P.source[e], P.blocks.sizes
    if sizes[j] == 1 and sizes[i] == 1:
        k, (own, shared, _) = e - P.start[j], room.beside
        after = left_beside(float(own[k]), float(shared[k]), rest)
    else:
        after = left_with(P.R, P.blocks, room.given, i, j, n)
    gain: float = fall(rest, after) - cost(P.score, sizes[i], sizes[j])
    return gain


@compiled
def grow_and_shrink(P: Problem, room: Room, j: int, parents: Ints, m: int, gains: Mask) -> tuple[int, float]:
    """Add and drop parents of j, of those with a lower rank in `room`, as long as that lowers its score.

    Parameters
    ----------
    parents
        The first m are what to start from, all required ones among them; changed in place.
    gains
        (w,) of the candidates of j in the end: filled in.

    Returns
    -------
    m, score
    """
    R, blocks, given, chosen, rank = P.R, P.blocks, room.given, room.chosen, room.rank
    own, shared, rows = room.beside
    begin, end, sizes = P.start[j], P.start[j + 1], blocks.sizes
    at, c, of_column = P.at[begin:end], blocks.columns[blocks.first[j]], cost(P.score, sizes[j], 1)
    plain = sizes[j] == 1 and len(blocks.columns) == len(sizes)
    enough = share_left(of_column + P.least)  # what leaves no smaller share than this is not worth one column
    lowest = math.inf
    for s in range(m):
        chosen[parents[s]] = True
    while True:
        n = condition(R, blocks, given, parents, m, -1)
        rest = child_left(R, blocks, given, j, 0, n)
        room.left[0, 0] = rest
        score = share(P.score, 1, room.left, 0) + of_column * n
        # For a variance near rounding error a gain may not be real. Check that of every turn, so that the search ends.
        gained = score < lowest - P.least
        lowest = score
        if sizes[j] == 1:
            line_up(R, own, shared, at, c)
            for t in range(n):
                explain(R, given.L, own, shared, rows, at, c, given.pivots[t], t)
        while gained:  # grow
            best = -1
            if plain:
                k = -1
                if n < P.most:
                    k = _most_explaining(own, shared, P.source[begin:end], chosen, rank, rank[j], _worth(rest, enough))
                best = -1 if k < 0 else begin + k
            else:
                best_gain = P.least
                for e in range(begin, end):
                    i = P.source[e]
                    if not chosen[i] and rank[i] < rank[j] and n + sizes[i] <= P.most:
                        gain = _gain(P, room, j, e, n, rest)
                        if gain > best_gain:
                            best, best_gain = e, gain
            if best < 0:
                break
            i, before = P.source[best], n
            n = add_variable(R, blocks, given, i, 0, n)
            rest = child_left(R, blocks, given, j, before, n)
            if sizes[j] == 1:
                for t in range(before, n):
                    explain(R, given.L, own, shared, rows, at, c, given.pivots[t], t)
            parents[m] = i
            chosen[i] = True
            m += 1
        for k in range(end - begin):  # now: shrinking needs the room
            i = P.source[begin + k]
            gains[k] = not chosen[i] and n + sizes[i] <= P.most
        if plain:
            _mark_explaining(own, shared, _worth(rest, enough), gains)
        else:
            for e in range(begin, end):
                gains[e - begin] = gains[e - begin] and _gain(P, room, j, e, n, rest) > P.least
        if not gained:
            break
        shrunk = False
        while m > 0:
            left_without(R, blocks, given, j, parents, m, room.inverse, room.lone)
            worst, worst_gain = -1, P.least
            for s in range(m):
                i = parents[s]
                if not P.required[P.edge[i, j]]:
                    gain = of_column * sizes[i] - fall(room.lone[s], rest)
                    if gain > worst_gain:
                        worst, worst_gain = s, gain
            if worst < 0:
                break
            chosen[parents[worst]] = False
            rest, shrunk = room.lone[worst], True
            m -= 1
            for s in range(worst, m):
                parents[s] = parents[s + 1]
        if not shrunk:
            break
    columns = 0
    for s in range(m):
        chosen[parents[s]] = False
        columns += sizes[parents[s]]
    room.left[0, 0] = rest
    return m, share(P.score, 1, room.left, 0) + of_column * columns
