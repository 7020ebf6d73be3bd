"""The compiled part of the search over orders: parents by growing and shrinking, and moves of single variables.

Names follow the mathematics: R (d, d) moments in units of size; a family is a child j with its parents S. Residual
variances come from a Cholesky factorisation whose pivots are the parents' columns, one after the other: L[x, t] is what
pivot t explains of column x. A candidate's gain then takes one more row, not a new regression.

The parts of the problem that do not change travel as one tuple `P`; memory is a few arrays of (d, d) and (V, V).
"""

import math
from typing import Any, NamedTuple, Self

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.sparse import Mask, Matrix

# Arrays of int64, whose entries are int in compiled code.
_Ints = Any

# If what is given leaves less than this share of a column, it is determined by it, and explains nothing more.
_LEAST_SHARE = 1e-7
# Of a neighbourhood, at most so many variables change places at once in every other pass. Few stay near what is good,
# all of them reach graphs that few do not.
_MOST_SHUFFLED = 4
# The least residual variance in units of size: noisy moments may give less than zero.
_LEAST_RESIDUAL = 1e-12


class Problem(NamedTuple):
    """What a search does not change.

    Attributes
    ----------
    R
        (d, d) moments in units of each column's size; NaN where unknown.
    first, sizes, columns
        (V,) where the columns of a variable begin in `columns`, and how many it has; (d,) all columns by variable.
    candidates, required
        (V, V) edges i -> j that may be, and that must be.
    penalty
        Of an edge, for each pair of a column of one end and one of the other, in units of the score of a row.
    least
        A smaller gain is none.
    """

    R: Matrix
    first: _Ints
    sizes: _Ints
    columns: _Ints
    candidates: Mask
    required: Mask
    penalty: float
    least: float


class State(NamedTuple):
    """An order and its graph.

    Attributes
    ----------
    order, place
        (V,) variables in their order, and the place of each.
    parents, n_parents
        (V, V), (V,): row j begins with the `n_parents[j]` parents of j.
    scores
        (V,) of the families.
    gains
        (V, V) [j, i]: by how much i as one more parent of j would lower its score, its cost taken off.
    """

    order: _Ints
    place: _Ints
    parents: _Ints
    n_parents: _Ints
    scores: Matrix
    gains: Matrix

    @classmethod
    def of(cls, order: _Ints) -> Self:
        """With nothing known but the order."""
        V = len(order)
        return cls(
            order=order,
            place=np.empty(V, np.int64),
            parents=np.empty((V, V), np.int64),
            n_parents=np.zeros(V, np.int64),
            scores=np.empty(V),
            gains=np.empty((V, V)),
        )


class Room(NamedTuple):
    """Room for work: L and pivots for the d columns, the rest for V variables; all of `chosen` is False between calls.

    `stale` has the variables for which a better place may be found.
    """

    L: Matrix
    pivots: _Ints
    known: _Ints
    chosen: Mask
    rank: Matrix
    stale: Mask
    new: _Ints
    n_new: _Ints
    new_scores: Matrix
    own: _Ints
    best_own: _Ints
    own_gains: Matrix
    places: _Ints

    @classmethod
    def of(cls, V: int, d: int) -> Self:
        """Room for V variables with d columns."""
        return cls(
            L=np.empty((d, d + 1)),
            pivots=np.empty(d + 1, np.int64),
            known=np.empty(V, np.int64),
            chosen=np.zeros(V, np.bool_),
            rank=np.empty(V),
            stale=np.ones(V, np.bool_),
            new=np.empty((V, V), np.int64),
            n_new=np.empty(V, np.int64),
            new_scores=np.empty(V),
            own=np.empty(V, np.int64),
            best_own=np.empty(V, np.int64),
            own_gains=np.empty(V),
            places=np.empty(V, np.int64),
        )


@compiled
def _put(source: Any, target: Any, n: int) -> None:
    """Copy n numbers; a slice would do, but takes seconds to compile."""
    for k in range(n):
        target[k] = source[k]


@compiled
def _extend(R: Matrix, L: Matrix, pivots: _Ints, x: int, known: int, n: int) -> None:
    """Continue row x of L from `known` pivots to n."""
    for t in range(known, n):
        p = pivots[t]
        rest = R[x, p]
        for q in range(t):
            rest -= L[x, q] * L[p, q]
        L[x, t] = rest / L[p, t]


@compiled
def _left(R: Matrix, L: Matrix, x: int, n: int) -> float:
    """What n pivots leave of the variance of column x, whose row is known so far."""
    rest: float = R[x, x]
    for q in range(n):
        rest -= L[x, q] * L[x, q]
    return rest


@compiled
def _add_pivot(R: Matrix, L: Matrix, pivots: _Ints, x: int, n: int) -> None:
    """Make x, whose row is known up to n, pivot n."""
    rest = _left(R, L, x, n)
    pivots[n] = x
    # An infinite pivot explains nothing. A NaN goes on into all that depends on it.
    L[x, n] = math.inf if rest <= _LEAST_SHARE else math.sqrt(rest)


@compiled
def _child_score(P: Problem, L: Matrix, pivots: _Ints, j: int, known: int, n: int) -> float:
    """Half the logarithm of the child's generalised residual variance given n pivots, times its columns.

    The rows of its columns are known up to `known` pivots.
    """
    R, total = P.R, 0.0
    for k in range(P.sizes[j]):
        c = P.columns[P.first[j] + k]
        _extend(R, L, pivots, c, known, n + k)
        rest = _left(R, L, c, n + k)
        if rest < _LEAST_RESIDUAL:
            rest = _LEAST_RESIDUAL
        total += 0.5 * math.log(rest)
        pivots[n + k] = c
        L[c, n + k] = math.sqrt(rest)
    return total


@compiled
def _condition(P: Problem, L: Matrix, pivots: _Ints, parents: _Ints, m: int, without: int) -> int:
    """Make the columns of the first m parents pivots, but for those of one variable; return how many there are."""
    n = 0
    for s in range(m):
        i = parents[s]
        if i == without:
            continue
        for k in range(P.sizes[i]):
            x = P.columns[P.first[i] + k]
            _extend(P.R, L, pivots, x, 0, n)
            _add_pivot(P.R, L, pivots, x, n)
            n += 1
    return n


@compiled
def _with_candidate(P: Problem, L: Matrix, pivots: _Ints, i: int, j: int, known: int, n: int) -> float:
    """The child's score if candidate i, whose rows are known up to `known`, joined the n pivots."""
    for k in range(P.sizes[i]):
        x = P.columns[P.first[i] + k]
        _extend(P.R, L, pivots, x, known, n + k)
        _add_pivot(P.R, L, pivots, x, n + k)
    return _child_score(P, L, pivots, j, n, n + P.sizes[i])


@compiled
def _set_gains(P: Problem, room: Room, parents: _Ints, m: int, j: int, gains: Matrix) -> None:
    """By how much each candidate that is no parent yet would lower the score of child j, its cost taken off."""
    L, pivots = room.L, room.pivots
    n = _condition(P, L, pivots, parents, m, -1)
    before = _child_score(P, L, pivots, j, 0, n)
    # Parents are pivots already: a second time, they would not fit into `room`.
    for s in range(m):
        room.chosen[parents[s]] = True
    for i in range(len(gains)):
        gains[i] = -1.0
        if P.candidates[i, j] and not room.chosen[i]:
            gains[i] = before - _with_candidate(P, L, pivots, i, j, 0, n) - P.penalty * P.sizes[i] * P.sizes[j]
    for s in range(m):
        room.chosen[parents[s]] = False


@compiled
def grow_and_shrink(P: Problem, room: Room, j: int, parents: _Ints, m: int) -> tuple[int, float]:
    """Add and drop parents of j, of those with a lower rank in `room`, as long as that lowers its score.

    Parameters
    ----------
    parents
        The first m are what to start from, all required ones among them; changed in place.

    Returns
    -------
    m, score
    """
    L, pivots, known, chosen, rank = room.L, room.pivots, room.known, room.chosen, room.rank
    V, cost = len(P.first), P.penalty * P.sizes[j]
    for s in range(m):
        chosen[parents[s]] = True
    while True:
        n = _condition(P, L, pivots, parents, m, -1)
        score = _child_score(P, L, pivots, j, 0, n) + cost * n
        for i in range(V):
            known[i] = 0
        while True:  # grow
            best, best_score = -1, score - P.least
            for i in range(V):
                if not P.candidates[i, j] or chosen[i] or not rank[i] < rank[j]:
                    continue
                after = _with_candidate(P, L, pivots, i, j, known[i], n) + cost * (n + P.sizes[i])
                known[i] = n
                if after < best_score:
                    best, best_score = i, after
            if best < 0:
                break
            for k in range(P.sizes[best]):
                x = P.columns[P.first[best] + k]
                _extend(P.R, L, pivots, x, known[best], n)
                _add_pivot(P.R, L, pivots, x, n)
                n += 1
            parents[m] = best
            chosen[best] = True
            m += 1
            score = _child_score(P, L, pivots, j, 0, n) + cost * n
        shrunk = False
        while True:
            worst, worst_score = -1, score - P.least
            for s in range(m):
                i = parents[s]
                if P.required[i, j]:
                    continue
                rest = _condition(P, L, pivots, parents, m, i)
                after = _child_score(P, L, pivots, j, 0, rest) + cost * rest
                if after < worst_score:
                    worst, worst_score = s, after
            if worst < 0:
                break
            chosen[parents[worst]] = False
            m -= 1
            for s in range(worst, m):
                parents[s] = parents[s + 1]
            score, shrunk = worst_score, True
        if not shrunk:
            break
    for s in range(m):
        chosen[parents[s]] = False
    return m, score


@compiled
def _drop(parents: _Ints, m: int, i: int) -> int:
    """Take i out of the first m parents, if it is there; return how many are left."""
    for s in range(m):
        if parents[s] == i:
            for t in range(s, m - 1):
                parents[t] = parents[t + 1]
            return m - 1
    return m


@compiled
def fit(P: Problem, room: Room, state: State) -> None:
    """Parents for the order, from those given that come before; families that stay as good as they were are kept.

    All required parents must come before their child.
    """
    order, place, parents, n_parents, scores, gains = state
    V = len(order)
    for k in range(V):
        place[order[k]] = k
        room.rank[order[k]] = k
    for j in range(V):
        m, changed = 0, False
        for s in range(n_parents[j]):
            if place[parents[j, s]] < place[j]:
                parents[j, m] = parents[j, s]
                m += 1
            else:
                room.stale[parents[j, s]] = changed = True
        for i in range(V):
            changed = changed or (gains[j, i] > P.least and place[i] < place[j])
        if changed:
            n_parents[j], scores[j] = grow_and_shrink(P, room, j, parents[j], m)
            _set_gains(P, room, parents[j], n_parents[j], j, gains[j])
            room.stale[j] = True
            for s in range(n_parents[j]):
                room.stale[parents[j, s]] = True


@compiled
def _adopt(P: Problem, room: Room, state: State, j: int, parents: _Ints, m: int, score: float) -> None:
    """Give j other parents; they, the former ones and j itself become stale."""
    room.stale[j] = True
    for s in range(state.n_parents[j]):
        room.stale[state.parents[j, s]] = True
    for s in range(m):
        room.stale[parents[s]] = True
    _put(parents, state.parents[j], m)
    state.n_parents[j], state.scores[j] = m, score
    _set_gains(P, room, parents, m, j, state.gains[j])


@compiled
def improve(P: Problem, room: Room, state: State) -> None:
    """Move single stale variables to better places until none has one; what a move changes becomes stale."""
    order, place, parents, n_parents, scores, gains = state
    new, n_new, new_scores, stale = room.new, room.n_new, room.new_scores, room.stale
    V, rank = len(order), room.rank
    own, best_own, own_gains = room.own, room.best_own, room.own_gains
    unmoved, v = 0, 0
    while unmoved < V:
        v = (v + 1) % V
        if not stale[v]:
            unmoved += 1
            continue
        stale[v] = False
        start = place[v]
        best_place, best_change, best_m, best_score = start, -P.least, 0, 0.0
        for step in (-1, 1):
            m, change, score = n_parents[v], 0.0, scores[v]
            _put(parents[v], own, m)
            _put(gains[v], own_gains, V)
            k = start + step
            while 0 <= k < V:
                u = order[k]
                if (step < 0 and P.required[u, v]) or (step > 0 and P.required[v, u]):
                    break
                rank[v] = k + 0.5 * step
                n_new[u] = -1
                if step < 0:
                    left = _drop(own, m, u)
                    if left < m:
                        m, score = grow_and_shrink(P, room, v, own, left)
                        _set_gains(P, room, own, m, v, own_gains)
                    if gains[u, v] > P.least:
                        _put(parents[u], new[u], n_parents[u])
                        n_new[u], new_scores[u] = grow_and_shrink(P, room, u, new[u], n_parents[u])
                else:
                    _put(parents[u], new[u], n_parents[u])
                    left = _drop(new[u], n_parents[u], v)
                    if left < n_parents[u]:
                        n_new[u], new_scores[u] = grow_and_shrink(P, room, u, new[u], left)
                    if own_gains[u] > P.least:
                        m, score = grow_and_shrink(P, room, v, own, m)
                        _set_gains(P, room, own, m, v, own_gains)
                if n_new[u] >= 0:
                    change += new_scores[u] - scores[u]
                if change + score - scores[v] < best_change:
                    best_place, best_change, best_m, best_score = k, change + score - scores[v], m, score
                    _put(own, best_own, m)
                k += step
            rank[v] = start
        if best_place == start:
            unmoved += 1
            continue
        unmoved = 0
        step = 1 if best_place > start else -1
        for k in range(start, best_place, step):
            u = order[k + step]
            order[k] = u
            place[u] = k
            rank[u] = k
            if n_new[u] >= 0:
                _adopt(P, room, state, u, new[u], n_new[u], float(new_scores[u]))
        order[best_place] = v
        place[v] = best_place
        rank[v] = best_place
        _adopt(P, room, state, v, best_own, best_m, best_score)


@compiled
def _neighbourhood(state: State, v: int, places: _Ints) -> int:
    """Fill in the places of v and of those next to it in the graph, ascending; return how many there are."""
    n = 0
    for k in range(len(places)):
        u = state.order[k]
        near = u == v
        for s in range(state.n_parents[u]):
            near = near or state.parents[u, s] == v
        for s in range(state.n_parents[v]):
            near = near or state.parents[v, s] == u
        if near:
            places[n] = k
            n += 1
    return n


@compiled
def _shuffled(items: _Ints, n: int, draw: int) -> int:
    """Permute the first n items; draws are those of the generator of Park and Miller, the last is returned."""
    for a in range(n - 1, 0, -1):
        draw = draw * 48271 % 2147483647
        b = draw % (a + 1)
        items[a], items[b] = items[b], items[a]
    return draw


@compiled
def obey(P: Problem, order: _Ints) -> None:
    """Move each variable behind its required parents."""
    V, k = len(order), 0
    while k < V:
        last = -1
        for i in range(k + 1, V):
            if P.required[order[i], order[k]]:
                last = i
        if last < 0:
            k += 1
            continue
        v = order[k]
        for i in range(k, last):
            order[i] = order[i + 1]
        order[last] = v


@compiled
def _copy(source: State, target: State) -> None:
    V = len(source.order)
    _put(source.order, target.order, V)
    _put(source.place, target.place, V)
    _put(source.n_parents, target.n_parents, V)
    _put(source.scores, target.scores, V)
    for j in range(V):
        _put(source.parents[j], target.parents[j], source.n_parents[j])
        _put(source.gains[j], target.gains[j], V)


@compiled
def _total(scores: Matrix) -> float:
    total = 0.0
    for score in scores:
        total += score
    return total


@compiled
def search(P: Problem, room: Room, best: State, tried: State, patience: int, draw: int) -> None:
    """Iterated local search: improve, shuffle a neighbourhood, improve again; keep what is no worse.

    One pass shuffles the neighbourhood of each variable once. The search ends after `patience` passes that found
    nothing better.

    Parameters
    ----------
    best
        Its order is what to start from; all of it is found.
    tried
        Room for another one.
    draw
        What the draws start from, 1 to 2^31 - 2.
    """
    V = len(best.order)
    obey(P, best.order)
    for j in range(V):
        best.n_parents[j], room.stale[j], room.chosen[j] = 0, True, False
        for i in range(V):
            if P.required[i, j]:
                best.parents[j, best.n_parents[j]] = i
                best.n_parents[j] += 1
        n = _condition(P, room.L, room.pivots, best.parents[j], best.n_parents[j], -1)
        best.scores[j] = _child_score(P, room.L, room.pivots, j, 0, n) + P.penalty * P.sizes[j] * n
        _set_gains(P, room, best.parents[j], best.n_parents[j], j, best.gains[j])
    fit(P, room, best)
    improve(P, room, best)
    _copy(best, tried)
    least, unimproved, v = _total(best.scores), 0, 0
    while unimproved < patience * V:
        v = (v + 1) % V
        unimproved += 1
        n = _neighbourhood(best, v, room.places)
        if n < 3:  # two variables: their order alone tells nothing new
            continue
        draw = _shuffled(room.places, n, draw)
        if unimproved // V % 2 == 0:
            n = min(n, _MOST_SHUFFLED)
        for k in range(n):
            u = best.order[room.places[k]]
            room.stale[u] = True
            room.own[k] = u
        draw = _shuffled(room.own, n, draw)
        for k in range(n):
            tried.order[room.places[k]] = room.own[k]
        obey(P, tried.order)
        fit(P, room, tried)
        improve(P, room, tried)
        score = _total(tried.scores)
        if score > least + P.least:
            _copy(best, tried)
        else:
            if score < least - P.least:
                unimproved = 0
            least = score
            _copy(tried, best)
