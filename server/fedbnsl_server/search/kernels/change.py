"""What adding or dropping an edge would change of the score of a DAG, compiled.

Candidate edges are numbered by child: those into j are `start[j]` to `start[j + 1]`. `Graph` has the parents of j from
`start[j]` on. Every site has regressions of its own; what they leave of a child is in the common score.
"""

import math
from typing import NamedTuple

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.kernels.family import (
    Blocks,
    Given,
    Ints,
    add_variable,
    child_left,
    condition,
    explain,
    is_clear,
    left,
    left_beside,
    left_with,
    left_without_each,
    line_up,
    move_pivot,
)
from fedbnsl_server.search.kernels.score import cost, share
from fedbnsl_server.search.score import Score

# Candidates that are looked at side by side.
_WIDTH = 128
# What parents leave of candidates is recomputed after this many changes: rounding errors add up.
_MOST_TIMES = 32


class Problem(NamedTuple):
    """What a descent does not change."""

    R: Matrix  # (P, d, d) moments of the sites in units of each column's size; NaN where unknown
    unit: Matrix  # (P, V) squared unit of each variable
    blocks: Blocks  # the columns of the V variables
    # start, source, child: (V + 1,) where the candidate edges into each variable begin; (m,) ends of each,
    # sources ascending
    start: Ints
    source: Ints
    at: Ints  # (m,) first column of each source
    child: Ints
    reverse: Ints  # (m,) the candidate edge the other way; -1: there is none
    fixed: Mask  # (m,) edges that stay


class Graph(NamedTuple):
    """A DAG of candidates and what moves would change."""

    present: Mask  # (m,) candidate edges that it has
    # parents, n_parents: (m,), (V,): the first `n_parents[j]` from `start[j]` on are the parents of j
    parents: Ints
    n_parents: Ints
    change: Matrix  # (m,) of the score by adding or dropping each candidate edge; infinite where a moment is unknown
    share: Matrix  # (V,) of the score, edges apart
    lowest: Matrix  # (V,) of the changes by moves of the edges into each variable, apart from cycles

    @classmethod
    def room(cls, n_edges: int, n_variables: int) -> "Graph":
        """For so many candidate edges."""
        return cls(
            present=np.zeros(n_edges, np.bool_),
            parents=np.empty(n_edges, np.int64),
            n_parents=np.zeros(n_variables, np.int64),
            change=np.empty(n_edges),
            share=np.empty(n_variables),
            lowest=np.empty(n_variables),
        )


class Work(NamedTuple):
    """Room for work."""

    # own, shared: (P, m) what the parents of each candidate edge's child leave of its source's variance, and of
    # both ends' moment
    own: Matrix
    shared: Matrix
    age: Ints  # (V,) how often these were changed since they were last recomputed, for the edges into each variable
    # lone, inverse, weight: of the parents of one child: what is left without each of them; and for products
    lone: Matrix
    inverse: Matrix
    weight: Matrix
    # now, apart: (P, 1) and (P, m) residual variances of a child as it is, and with one of the candidates more or
    # less, in units of the common ones: a score takes those of all sites together
    now: Matrix
    apart: Matrix
    rows: Matrix  # (d, w) for so many candidates side by side
    place: Ints  # (V,) an order in which parents come before their children
    # seen, ahead: (V,) for a walk
    seen: Ints
    ahead: Ints


@compiled
def room_to_work(P: Problem) -> Work:
    """Room for work on a problem."""
    V, d, n_edges = len(P.start) - 1, P.R.shape[1], len(P.source)
    return Work(
        np.empty((len(P.R), n_edges)),
        np.empty((len(P.R), n_edges)),
        np.zeros(V, np.int64),
        np.empty(V),
        np.empty(V),
        np.empty(d + 1 + V),
        np.empty((len(P.R), 1)),
        np.empty((len(P.R), n_edges)),
        np.empty((d + 1, _WIDTH)),
        np.zeros(V, np.int64),
        np.zeros(V, np.int64),
        np.empty(V, np.int64),
    )


@compiled
def residual_variance(P: Problem, site: int, j: int, product: float) -> float:
    """Generalised residual variance, from what is left of the columns of j in units of size."""
    size = P.blocks.explained[j]
    variance: float = P.unit[site, j] * (product if size == 1 else product ** (1.0 / size))
    return variance


@compiled
def relative_variance(P: Problem, score: Score, site: int, j: int, product: float) -> float:
    """Residual variance in units of the score's common one; NaN if a moment is unknown."""
    apart: float = residual_variance(P, site, j, product) / float(score.common[site])
    return apart


@compiled
def refill(P: Problem, graph: Graph, j: int) -> None:
    """List the parents of j by `present`."""
    m = 0
    for e in range(P.start[j], P.start[j + 1]):
        if graph.present[e]:
            graph.parents[P.start[j] + m] = P.source[e]
            m += 1
    graph.n_parents[j] = m


@compiled
def _look_at_candidates(P: Problem, site: int, given: Given, j: int, n: int, work: Work) -> None:
    """Fill in what n pivots leave of all candidates of single columns, if j is one."""
    R, begin, end = P.R[site], P.start[j], P.start[j + 1]
    c = P.blocks.columns[P.blocks.first[j]]
    for low in range(begin, end, _WIDTH):
        high = min(low + _WIDTH, end)
        at, own, shared = P.at[low:high], work.own[site, low:high], work.shared[site, low:high]
        line_up(R, own, shared, at, c)
        for t in range(n):
            explain(R, given.L, own, shared, work.rows, at, c, given.pivots[t], t)


@compiled
def _look_again(P: Problem, site: int, given: Given, j: int, n: int, changed: int, place: int, work: Work) -> bool:
    """The same if all but one of the parents were there the last time; False: that would not be exact enough.

    `changed` is new, and pivot number `place`; or it was dropped, and `place` is -1.
    """
    R, begin, end = P.R[site], P.start[j], P.start[j + 1]
    sign = -1.0
    if place < 0:
        n, place, sign = add_variable(R, P.blocks, given, changed, 0, n), n, 1.0
    if not is_clear(given, n):
        return False
    c, own, shared = P.blocks.columns[P.blocks.first[j]], work.own[site, begin:end], work.shared[site, begin:end]
    move_pivot(R, given, own, shared, P.at[begin:end], c, place, n, sign, work.weight)
    return True


@compiled
def _try_candidates(
    P: Problem, score: Score, site: int, given: Given, graph: Graph, j: int, n: int, work: Work
) -> None:
    """Fill in `apart` of one site with each candidate that is no parent; the parents are n pivots."""
    R, blocks, begin, end = P.R[site], P.blocks, P.start[j], P.start[j + 1]
    sizes, source, present, apart = blocks.sizes, P.source, graph.present, work.apart[site]
    alone = blocks.explained[j] == 1
    if alone:
        residual = left(R, given, blocks.columns[blocks.first[j]], n)
        own, shared = work.own[site], work.shared[site]
        unit = P.unit[site, j] / score.common[site]
        for e in range(begin, end):
            if not present[e] and sizes[source[e]] == 1:
                apart[e] = unit * left_beside(own[e], shared[e], residual)
    for e in range(begin, end):
        if not present[e] and not (alone and sizes[source[e]] == 1):
            apart[e] = relative_variance(P, score, site, j, left_with(R, blocks, given, source[e], 0, j, n))


@compiled
def renew(P: Problem, score: Score, given: Given, graph: Graph, j: int, changed: int, work: Work) -> None:
    """List the parents of j by `present`, and compute what adding or dropping each candidate changes, and its share.

    Parameters
    ----------
    changed
        The only parent that has come or gone since the last time; -1: there was no last time.
    """
    blocks, begin, end = P.blocks, P.start[j], P.start[j + 1]
    sizes, size = blocks.sizes, blocks.explained[j]
    refill(P, graph, j)
    parents, m = graph.parents[begin:], graph.n_parents[j]
    work.age[j] += 1
    near, place = changed >= 0 and len(sizes) == len(blocks.columns) and work.age[j] < _MOST_TIMES, -1
    for t in range(m):
        if parents[t] == changed:
            place = t
    if near and place < 0:
        for site in range(len(P.R)):
            for e in range(begin, end):  # what was unknown with it is known again
                near = near and not math.isnan(P.R[site, blocks.columns[blocks.first[changed]], P.at[e]])
    for site in range(len(P.R)):
        R = P.R[site]
        n = condition(R, blocks, given, parents, m, -1)
        left_of_child = child_left(R, blocks, given, j, 0, n)
        work.now[site, 0] = relative_variance(P, score, site, j, left_of_child)
        if not (near and _look_again(P, site, given, j, n, changed, place, work)) and size == 1:
            _look_at_candidates(P, site, given, j, n, work)
        _try_candidates(P, score, site, given, graph, j, n, work)
        left_without_each(R, blocks, given, j, parents, m, left_of_child, work.inverse, work.lone)
        s = 0
        for e in range(begin, end):
            if graph.present[e]:
                work.apart[site, e] = relative_variance(P, score, site, j, float(work.lone[s]))
                s += 1
    if not near:
        work.age[j] = 0
    total = share(score, size, work.now, 0)
    for e in range(begin, end):
        edge = cost(score, sizes[P.source[e]], sizes[j])
        after = share(score, size, work.apart, e)
        graph.change[e] = after + ((-edge if graph.present[e] else edge) - total)
    graph.share[j] = total


@compiled
def residuals(P: Problem, given: Given, graph: Graph, found: Matrix) -> None:
    """Fill in (P, V) `found`: residual variances of all variables, by the present edges."""
    for j in range(len(P.start) - 1):
        refill(P, graph, j)
        for site in range(len(P.R)):
            R = P.R[site]
            n = condition(R, P.blocks, given, graph.parents[P.start[j] :], graph.n_parents[j], -1)
            found[site, j] = residual_variance(P, site, j, child_left(R, P.blocks, given, j, 0, n))
