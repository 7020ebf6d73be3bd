"""Parents of one variable among those before it, compiled: add the best one after the other, then drop needless ones.

Between single columns, candidates are compared by what they explain of the child, and logarithms are taken of chosen
families only. Where variables have several columns, a bound says which candidates cannot be worth their columns; what
the others leave of the child is computed.
"""

import math

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.kernels.family import (
    LEAST_RESIDUAL,
    LEAST_SHARE,
    Blocks,
    Given,
    Ints,
    add_variable,
    child_left,
    condition,
    explain,
    explain_blocks,
    left_with,
    left_without_each,
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
def _bound(own: Matrix, shared: Matrix, spread: Matrix, source: Ints, first_at: Ints) -> None:
    """Turn the squares of `explain_blocks` into bounds: what share of the child each candidate k explains, at most.

    With A what the pivots leave of a candidate's moments, and B its moments with the child's columns as there, it
    leaves a share det(I - B'A^-1 B) of the child. That is at least 1 - |B|^2 / a, with a the least eigenvalue of A.
    That of all its moments is larger by no more than what the pivots explain of its columns.
    """
    for k in range(len(source)):
        least, squares = spread[source[k]], 0.0
        for x in range(first_at[k] - first_at[0], first_at[k + 1] - first_at[0]):
            least += own[x]
            squares += shared[x]
        shared[k] = math.inf if least <= 0.0 else squares / least  # NaN: a moment is unknown


# Not the whole problem and room: numba counts the uses of every array that it hands over, and this is called often.
@compiled
def _left_with(
    R: Matrix, blocks: Blocks, given: Given, rows: Matrix, at: Ints, first: int, i: int, j: int, n: int
) -> float:
    """What would be left of child j if variable i, with `rows` from `first` on, joined the n pivots."""
    for k in range(first, first + blocks.sizes[i]):
        for t in range(n):
            given.L[at[k], t] = rows[t, k]
    return left_with(R, blocks, given, i, n, j, n)


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
    source, first_at = P.source[begin:end], P.first_at[begin : end + 1]
    at = P.at[first_at[0] : first_at[-1]]
    c, of_column = blocks.columns[blocks.first[j]], cost(P.score, sizes[j], 1)
    plain = len(blocks.columns) == len(sizes)
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
        line_up(R, own, shared, at, c)
        known = 0
        while True:  # grow
            if plain:
                for t in range(known, n):
                    explain(R, given.L, own, shared, rows, at, c, given.pivots[t], t)
            else:
                explain_blocks(R, blocks, given, room.beside, at, j, known, n)
                _bound(own, shared, P.spread, source, first_at)
            best = -1
            if gained and plain and n < P.most:
                best = _most_explaining(own, shared, source, chosen, rank, rank[j], _worth(rest, enough))
            elif gained and not plain:
                best_gain = P.least
                for k in range(end - begin):
                    i = source[k]
                    possible = not chosen[i] and rank[i] < rank[j] and n + sizes[i] <= P.most
                    if possible and shared[k] > 1.0 - share_left(of_column * sizes[i] + best_gain):
                        after = _left_with(R, blocks, given, rows, at, first_at[k] - first_at[0], i, j, n)
                        gain = fall(rest, after) - of_column * sizes[i]
                        if gain > best_gain:
                            best, best_gain = k, gain
            if best < 0:
                break
            i, known = source[best], n
            n = add_variable(R, blocks, given, i, 0, n)
            rest = child_left(R, blocks, given, j, known, n)
            parents[m] = i
            chosen[i] = True
            m += 1
        for k in range(end - begin):  # now: shrinking needs the room
            i = source[k]
            gains[k] = not chosen[i] and n + sizes[i] <= P.most
        if plain:
            _mark_explaining(own, shared, _worth(rest, enough), gains)
        else:
            for k in range(end - begin):
                i = source[k]
                gains[k] = gains[k] and shared[k] > 1.0 - share_left(of_column * sizes[i] + P.least)
                if gains[k]:
                    after = _left_with(R, blocks, given, rows, at, first_at[k] - first_at[0], i, j, n)
                    gains[k] = fall(rest, after) - of_column * sizes[i] > P.least
        if not gained:
            break
        shrunk = False
        while m > 0:
            if shrunk:
                n = condition(R, blocks, given, parents, m, -1)
                rest = child_left(R, blocks, given, j, 0, n)
            left_without_each(R, blocks, given, j, parents, m, rest, room.inverse, room.lone)
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
