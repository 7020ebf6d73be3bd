"""The search over orders, compiled: moves of single variables, shuffles of neighbourhoods, and what they change.

The work of a shuffle follows what it changes: families that keep their candidates are not looked at again.
"""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.kernels.family import Ints
from fedbnsl_server.search.kernels.grow_shrink import grow_and_shrink
from fedbnsl_server.search.kernels.order_state import Problem, Room, State

# Of a neighbourhood, at most so many variables change places at once in every other pass. Few stay near what is good,
# all of them reach graphs that few do not.
_MOST_SHUFFLED = 4
# A bound on the work where better graphs follow each other in small steps, as with hardly more rows than variables.
_MOST_TURNS = 20


@compiled
def _drop(parents: Ints, m: int, i: int) -> int:
    """Take i out of the first m parents, if it is there; return how many are left."""
    for s in range(m):
        if parents[s] == i:
            for t in range(s, m - 1):
                parents[t] = parents[t + 1]
            return m - 1
    return m


@compiled
def _copy_family(P: Problem, source: State, target: State, j: int) -> None:
    target.n_parents[j], target.scores[j] = source.n_parents[j], source.scores[j]
    for e in range(P.start[j], P.start[j + 1]):
        target.parents[e], target.gains[e] = source.parents[e], source.gains[e]


@compiled
def _fit_family(P: Problem, room: Room, state: State, j: int) -> None:
    """Parents for j, from those that come before it; a family that is as good as it was is kept."""
    begin, place = P.start[j], state.place
    m, changed = 0, False
    for s in range(begin, begin + state.n_parents[j]):
        i = state.parents[s]
        if place[i] < place[j]:
            state.parents[begin + m] = i
            m += 1
        else:
            room.stale[i] = changed = True
    for e in range(begin, P.start[j + 1]):
        changed = changed or (state.gains[e] and place[P.source[e]] < place[j])
    if changed:
        room.stale[j] = room.changed[j] = True
        end = P.start[j + 1]
        m, score = grow_and_shrink(P, room, j, state.parents[begin:end], m, state.gains[begin:end])
        state.n_parents[j], state.scores[j] = m, score
        for s in range(begin, begin + m):
            room.stale[state.parents[s]] = True


@compiled
def fit(P: Problem, room: Room, state: State) -> None:
    """Parents for an order that is not that of `state.place` any more, from those given that come before.

    All required parents must come before their child. Of two variables that both keep their places nothing changes.
    """
    order, place, edge = state.order, state.place, P.edge
    V = len(order)
    low, high, n = V, -1, 0
    for k in range(V):
        if place[order[k]] != k:
            room.shuffled[n] = order[k]
            n += 1
            low, high = min(low, k), k
    for k in range(V):
        place[order[k]] = k
        room.rank[order[k]] = k
    for k in range(low, high + 1):
        j, near = order[k], False
        for s in range(n):
            near = near or room.shuffled[s] == j or edge[room.shuffled[s], j] >= 0
        if near:
            _fit_family(P, room, state, j)


@compiled
def _adopt(P: Problem, room: Room, state: State, j: int, parents: Ints, m: int, score: float, gains: Mask) -> None:
    """Give j other parents; they, the former ones and j itself become stale."""
    begin = P.start[j]
    room.stale[j] = room.changed[j] = True
    for s in range(state.n_parents[j]):
        room.stale[state.parents[begin + s]] = True
    for s in range(m):
        state.parents[begin + s] = parents[s]
        room.stale[parents[s]] = True
    state.n_parents[j], state.scores[j] = m, score
    for k in range(P.start[j + 1] - begin):
        state.gains[begin + k] = gains[k]


@compiled
def _try_new(P: Problem, room: Room, state: State, u: int, without: int) -> None:
    """Fit u again as `new`, without one of its parents; -1: with all."""
    begin, end = P.start[u], P.start[u + 1]
    m = state.n_parents[u]
    for s in range(begin, begin + m):
        room.new[s] = state.parents[s]
    if without >= 0:
        m = _drop(room.new[begin:end], m, without)
    m, score = grow_and_shrink(P, room, u, room.new[begin:end], m, room.new_gains[begin:end])
    room.n_new[u], room.new_scores[u] = m, score


@compiled
def _is_parent(P: Problem, state: State, i: int, j: int) -> bool:
    found = False
    for s in range(P.start[j], P.start[j] + state.n_parents[j]):
        found = found or state.parents[s] == i
    return found


@compiled
def improve(P: Problem, room: Room, state: State, asked: Matrix) -> None:
    """Move single stale variables to better places until none has one; what a move changes becomes stale.

    Parameters
    ----------
    asked
        Of a `Progress`.
    """
    order, place, parents, n_parents, scores, gains = state
    n_new, new_scores, stale, rank = room.n_new, room.new_scores, room.stale, room.rank
    own, own_gains, edge = room.own, room.own_gains, P.edge
    V = len(order)
    unmoved, v = 0, 0
    while unmoved < V and asked[0] == 0.0:
        v = (v + 1) % V
        if not stale[v]:
            unmoved += 1
            continue
        stale[v] = False
        start, begin, width = place[v], P.start[v], P.start[v + 1] - P.start[v]
        # Equally good places differ by rounding: the first of them is taken, on every processor.
        best_place, best_change, best_m, best_score = start, 0.0, 0, 0.0
        for step in (-1, 1):
            m, change, score = n_parents[v], 0.0, scores[v]
            for k in range(m):
                own[k] = parents[begin + k]
            for k in range(width):
                own_gains[k] = gains[begin + k]
            k = start + step
            while 0 <= k < V:
                u = order[k]
                into_v, into_u = edge[u, v], edge[v, u]
                if into_v < 0 and into_u < 0:
                    n_new[u] = -1
                    k += step
                    continue
                if (step < 0 and into_v >= 0 and P.required[into_v]) or (
                    step > 0 and into_u >= 0 and P.required[into_u]
                ):
                    break
                rank[v] = k + 0.5 * step
                n_new[u] = -1
                if step < 0:
                    left = _drop(own, m, u)
                    if left < m:
                        m, score = grow_and_shrink(P, room, v, own, left, own_gains)
                    if into_u >= 0 and gains[into_u]:
                        _try_new(P, room, state, u, -1)
                else:
                    if into_u >= 0 and _is_parent(P, state, v, u):
                        _try_new(P, room, state, u, v)
                    if into_v >= 0 and own_gains[into_v - begin]:
                        m, score = grow_and_shrink(P, room, v, own, m, own_gains)
                if n_new[u] >= 0:
                    change += new_scores[u] - scores[u]
                if change + score - scores[v] < best_change - P.least:
                    best_place, best_change, best_m, best_score = k, change + score - scores[v], m, score
                    for s in range(m):
                        room.best_own[s] = own[s]
                    for s in range(width):
                        room.best_gains[s] = own_gains[s]
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
                low, high = P.start[u], P.start[u + 1]
                _adopt(P, room, state, u, room.new[low:high], n_new[u], float(new_scores[u]), room.new_gains[low:high])
        order[best_place] = v
        place[v] = best_place
        rank[v] = best_place
        _adopt(P, room, state, v, room.best_own, best_m, best_score, room.best_gains)


@compiled
def _neighbourhood(P: Problem, state: State, v: int, places: Ints) -> int:
    """Fill in the places of v and of those next to it in the graph, ascending; return how many there are."""
    n = 0
    for k in range(len(places)):
        u = state.order[k]
        near = u == v
        if not near and P.edge[v, u] >= 0:
            near = _is_parent(P, state, v, u)
        if not near and P.edge[u, v] >= 0:
            near = _is_parent(P, state, u, v)
        if near:
            places[n] = k
            n += 1
    return n


@compiled
def _shuffled(items: Ints, n: int, draw: int) -> int:
    """Permute the first n items; draws are those of the generator of Park and Miller, the last is returned."""
    for a in range(n - 1, 0, -1):
        draw = draw * 48271 % 2147483647
        b = draw % (a + 1)
        items[a], items[b] = items[b], items[a]
    return draw


@compiled
def obey(P: Problem, order: Ints) -> None:
    """Move each variable behind its required parents."""
    if not P.binds:
        return
    V, k = len(order), 0
    while k < V:
        last = -1
        for i in range(k + 1, V):
            e = P.edge[order[i], order[k]]
            if e >= 0 and P.required[e]:
                last = i
        if last < 0:
            k += 1
            continue
        v = order[k]
        for i in range(k, last):
            order[i] = order[i + 1]
        order[last] = v


@compiled
def _copy_changes(P: Problem, room: Room, source: State, target: State) -> None:
    """Make the target the same; families that have not changed are the same already."""
    for v in range(len(source.order)):
        target.order[v], target.place[v] = source.order[v], source.place[v]
        if room.changed[v]:
            room.changed[v] = False
            _copy_family(P, source, target, v)


@compiled
def first_families(P: Problem, room: Room, state: State) -> None:
    """Give each variable the parents that the order of the state allows, all required ones among them."""
    obey(P, state.order)
    for k in range(len(state.order)):
        state.place[state.order[k]] = k
        room.rank[state.order[k]] = k
    for j in range(len(state.order)):
        low, high, m = P.start[j], P.start[j + 1], 0
        for e in range(low, high):
            if P.required[e]:
                state.parents[low + m] = P.source[e]
                m += 1
        state.n_parents[j], state.scores[j] = grow_and_shrink(
            P, room, j, state.parents[low:high], m, state.gains[low:high]
        )


@compiled
def _total(scores: Matrix) -> float:
    total = 0.0
    for score in scores:
        total += score
    return total


@compiled
def search(
    P: Problem, room: Room, best: State, tried: State, patience: int, draw: int, share: Matrix, asked: Matrix
) -> None:
    """Iterated local search: improve, shuffle a neighbourhood, improve again; keep what is no worse.

    One pass shuffles the neighbourhood of each variable once. The search ends after `patience` passes that found
    nothing better, and after `_MOST_TURNS` times as many shuffles in all.

    Parameters
    ----------
    best
        Its order is what to start from; all of it is found.
    tried
        Room for another one.
    draw
        What the draws start from, 1 to 2^31 - 2.
    share, asked
        Of a `Progress`.
    """
    V = len(best.order)
    first_families(P, room, best)
    improve(P, room, best, np.zeros(1))  # to its end: before, the parents follow from an order that says nothing
    for j in range(V):
        room.changed[j] = True
    _copy_changes(P, room, best, tried)
    least, unimproved, v, turns = _total(best.scores), 0, 0, 0
    while unimproved < patience * V and turns < _MOST_TURNS * patience * V and asked[0] == 0.0:
        v = (v + 1) % V
        unimproved += 1
        turns += 1
        share[0] = max(share[0], unimproved / (patience * V))  # a better graph restarts the count
        n = _neighbourhood(P, best, v, room.places)
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
        improve(P, room, tried, asked)
        score = _total(tried.scores)
        if score > least + P.least:
            _copy_changes(P, room, best, tried)
        else:
            if score < least - P.least:
                unimproved = 0
            least = score
            _copy_changes(P, room, tried, best)
