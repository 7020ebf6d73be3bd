"""Starts of a descent, compiled: an order by least variances, and the parents that stay of all that come before."""

import math

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.kernels.change import Graph, Problem, refill, relative_variance, residual_variance
from fedbnsl_server.search.kernels.family import (
    LEAST_RESIDUAL,
    Given,
    Ints,
    add_variable,
    child_left,
    condition,
    left_without,
)
from fedbnsl_server.search.kernels.score import cost, share
from fedbnsl_server.search.score import Score

# Of the parents that `least_variance_order` gives a variable, what this many explain is kept; the rest is recomputed.
_KEPT = 64


@compiled
def prune(P: Problem, score: Score, given: Given, graph: Graph) -> None:
    """Drop one parent after the other from each child, the least important first, as long as that lowers the score."""
    V, sizes = len(P.start) - 1, P.blocks.sizes
    n_sites, inverse, lone = len(P.R), np.empty(V), np.empty(V)
    for j in range(V):
        refill(P, graph, j)
        begin, m = P.start[j], graph.n_parents[j]
        parents = graph.parents[begin:]
        fixed, now, without = np.zeros(m, np.bool_), np.empty((n_sites, 1)), np.empty((n_sites, m))
        s = 0
        for e in range(begin, P.start[j + 1]):
            if graph.present[e]:
                fixed[s] = P.fixed[e]
                s += 1
        size = P.blocks.explained[j]
        plain = size == 1
        for s in range(m):
            plain = plain and sizes[parents[s]] == 1
        Q, b, rest = np.empty((n_sites, m, m)), np.empty((n_sites, m)), np.empty(n_sites)
        for site in range(n_sites):
            R = P.R[site]
            n = condition(R, P.blocks, given, parents, m, -1)
            rest[site] = child_left(R, P.blocks, given, j, 0, n)
            for s in range(n):
                plain = plain and not math.isinf(given.L[given.pivots[s], s])
            if plain:
                _precision(P, given, j, m, Q[site], b[site])
        while m > 0:
            for site in range(n_sites):
                now[site, 0] = relative_variance(P, score, site, j, rest[site])
                if not plain:
                    left_without(P.R[site], P.blocks, given, j, parents, m, inverse, lone)
                for s in range(m):
                    more = rest[site] + b[site, s] ** 2 / Q[site, s, s] if plain else lone[s]
                    without[site, s] = relative_variance(P, score, site, j, max(more, LEAST_RESIDUAL))
            worst, least, before = -1, 0.0, share(score, size, now, 0)
            for s in range(m):
                gain = (share(score, size, without, s) - before) / sizes[parents[s]] - cost(score, sizes[j], 1)
                if not fixed[s] and gain < least:
                    worst, least = s, gain
            if worst < 0:
                break
            for site in range(n_sites):
                if plain:
                    rest[site] += b[site, worst] ** 2 / Q[site, worst, worst]
                    _without(Q[site], b[site], m, worst)
            m -= 1
            for s in range(worst, m):
                parents[s], fixed[s] = parents[s + 1], fixed[s + 1]
            if not plain:
                for site in range(n_sites):
                    n = condition(P.R[site], P.blocks, given, parents, m, -1)
                    rest[site] = child_left(P.R[site], P.blocks, given, j, 0, n)
        graph.n_parents[j] = m
        for e in range(begin, P.start[j + 1]):
            graph.present[e] = False
        s = 0
        for e in range(begin, P.start[j + 1]):  # both ascend
            if s < m and parents[s] == P.source[e]:
                graph.present[e] = True
                s += 1


@compiled
def _precision(P: Problem, given: Given, j: int, m: int, Q: Matrix, b: Matrix) -> None:
    """Fill in the inverse moments of m pivots and the coefficients of child j on them, each of one column."""
    L, pivots = given
    c = P.blocks.columns[P.blocks.first[j]]
    X = np.zeros((m, m))  # L^-1
    for s in range(m):
        X[s, s] = 1.0 / L[pivots[s], s]
        for t in range(s + 1, m):
            total = 0.0
            for q in range(s, t):
                total -= L[pivots[t], q] * X[q, s]
            X[t, s] = total / L[pivots[t], t]
    for s in range(m):
        b[s] = 0.0
        for t in range(s, m):
            b[s] += X[t, s] * L[c, t]
        for u in range(s, m):
            total = 0.0
            for t in range(u, m):
                total += X[t, s] * X[t, u]
            Q[s, u] = Q[u, s] = total


@compiled
def _without(Q: Matrix, b: Matrix, m: int, s: int) -> None:
    """Take one of m columns out of inverse moments and coefficients; the others move up."""
    scale = 1.0 / Q[s, s]
    q = Q[s].copy()
    share = b[s] * scale
    for t in range(m):
        b[t] -= q[t] * share
        for u in range(m):
            Q[t, u] -= q[t] * q[u] * scale
    for t in range(s, m - 1):
        b[t] = b[t + 1]
        for u in range(m):
            Q[t, u] = Q[t + 1, u]
    for u in range(s, m - 1):
        for t in range(m - 1):
            Q[t, u] = Q[t, u + 1]


@compiled
def _recall(P: Problem, given: Given, graph: Graph, j: int, factor: Matrix) -> int:
    """Make the first parents of j pivots again, from what is kept of them, with the row of j; return how many."""
    L, pivots = given
    n, at = min(int(graph.n_parents[j]), _KEPT), 0
    for t in range(n):
        pivots[t] = P.blocks.columns[graph.parents[P.start[j] + t]]
        for q in range(t + 1):
            L[pivots[t], q] = factor[at]
            at += 1
        L[P.blocks.columns[j], t] = factor[at]
        at += 1
    return n


@compiled
def _variance_with(P: Problem, given: Given, graph: Graph, site: int, j: int, best: int, factor: Matrix) -> float:
    """Residual variance of j once `best` joins its parents; `factor` keeps what the first ones explain."""
    R, blocks, begin, m = P.R[site], P.blocks, P.start[j], graph.n_parents[j]
    if blocks.sizes[j] != 1 or len(blocks.columns) != len(blocks.sizes):  # blocks: nothing is kept
        n = condition(R, blocks, given, graph.parents[begin:], m, -1)
        n = add_variable(R, blocks, given, best, 0, n)
        return residual_variance(P, site, j, child_left(R, blocks, given, j, 0, n))
    n = known = _recall(P, given, graph, j, factor)
    for s in range(n, m):
        n = add_variable(R, blocks, given, graph.parents[begin + s], 0, n)
    n = add_variable(R, blocks, given, best, 0, n)
    variance = residual_variance(P, site, j, child_left(R, blocks, given, j, known, n))
    if n <= _KEPT:
        at = (n - 1) * n // 2 + n - 1
        for q in range(n):
            factor[at + q] = given.L[given.pivots[n - 1], q]
        factor[at + n] = given.L[blocks.columns[j], n - 1]
    return variance


@compiled
def least_variance_order(P: Problem, given: Given, graph: Graph, by_source: Ints, out: Ints, order: Ints) -> None:
    """Fill in `order`: each next variable has the least mean variance given its candidates among those before it.

    No variable comes before a fixed parent.

    Parameters
    ----------
    by_source, out
        Candidate edges that count, by source, and (V + 1,) where those of each begin.
    """
    V, n_sites = len(P.start) - 1, len(P.R)
    variance, waiting, taken = np.zeros(V), np.zeros(V, np.int64), np.zeros(V, np.bool_)
    room = np.zeros(V + 1, np.int64)  # where the factors of each begin
    for e in by_source:
        room[P.child[e] + 1] += 1
        waiting[P.child[e]] += P.fixed[e]
    for j in range(V):
        k = min(room[j + 1], _KEPT)
        room[j + 1] = room[j] + k * (k + 3) // 2
        graph.n_parents[j] = 0
        for site in range(n_sites):
            variance[j] += residual_variance(P, site, j, child_left(P.R[site], P.blocks, given, j, 0, 0))
    factors = np.empty((n_sites, room[V]))
    for k in range(V):
        best, least = -1, math.inf
        for j in range(V):
            if not taken[j] and waiting[j] == 0 and (best < 0 or variance[j] < least):
                best, least = j, variance[j]
        order[k] = best
        taken[best] = True
        for o in range(out[best], out[best + 1]):
            j = P.child[by_source[o]]
            if taken[j]:
                continue
            waiting[j] -= P.fixed[by_source[o]]
            variance[j] = 0.0
            for site in range(n_sites):
                variance[j] += _variance_with(P, given, graph, site, j, best, factors[site, room[j] : room[j + 1]])
            graph.parents[P.start[j] + graph.n_parents[j]] = best
            graph.n_parents[j] += 1
