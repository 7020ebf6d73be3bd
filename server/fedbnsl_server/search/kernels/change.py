"""What adding or dropping an edge would change of the score of a DAG, compiled.

Candidate edges are numbered by child: those into j are `start[j]` to `start[j + 1]`. `Graph` has the parents of j from
`start[j]` on. Every site has regressions of its own; what they leave of a child is in the common score.
"""

import math
from typing import NamedTuple

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.search.kernels.family import (
    Beside,
    Blocks,
    Given,
    Ints,
    child_left,
    condition,
    explain,
    left,
    left_beside,
    left_with,
    left_without,
    line_up,
)

# Candidates that are looked at side by side.
_WIDTH = 128


class Problem(NamedTuple):
    """What a descent does not change.

    Attributes
    ----------
    R
        (P, d, d) moments of the sites in units of each column's size; NaN where unknown.
    unit
        (P, V) squared unit of each variable.
    blocks
        The columns of the V variables.
    start, source, child
        (V + 1,) where the candidate edges into each variable begin; (m,) ends of each, sources ascending.
    at
        (m,) first column of each source.
    turned
        (m,) the candidate edge the other way; -1: there is none.
    fixed
        (m,) edges that stay.
    """

    R: Matrix
    unit: Matrix
    blocks: Blocks
    start: Ints
    source: Ints
    at: Ints
    child: Ints
    turned: Ints
    fixed: Mask


class Loss(NamedTuple):
    """What residual variances add to the score: the mean over the sites of a function of v / common.

    Attributes
    ----------
    logarithmic
        Whether that is log(v) / 2 + log(v / common)^2 / (2 n); otherwise v / (2 common), the same to first order.
    common, log_common
        (P,) variance that all are near, and half its logarithm.
    n_samples
        n.
    penalty
        Of an edge, for each pair of a column of one end and one of the other.
    """

    logarithmic: bool
    common: Matrix
    log_common: Matrix
    n_samples: float
    penalty: float

    @classmethod
    def near(cls, common: Matrix, *, logarithmic: bool, n_samples: float, penalty: float) -> "Loss":
        """With a common variance."""
        return cls(logarithmic, common, 0.5 * np.log(common), float(n_samples), float(penalty))


class Graph(NamedTuple):
    """A DAG of candidates and what moves would change.

    Attributes
    ----------
    present
        (m,) candidate edges that it has.
    parents, n_parents
        (m,), (V,): the first `n_parents[j]` from `start[j]` on are the parents of j.
    change
        (m,) of the score by adding or dropping each candidate edge; infinite where a moment is unknown.
    share
        (V,) of the score, edges apart.
    lowest
        (V,) of the changes by moves of the edges into each variable, apart from cycles.
    """

    present: Mask
    parents: Ints
    n_parents: Ints
    change: Matrix
    share: Matrix
    lowest: Matrix

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
    """Room for work: (V,) arrays, and for so many candidates side by side.

    `place` has an order in which parents come before their children.
    """

    lone: Matrix
    inverse: Matrix
    place: Ints
    seen: Ints
    ahead: Ints
    beside: Beside


@compiled
def room_to_work(P: Problem) -> Work:
    """Room for work on a problem."""
    V, d = len(P.start) - 1, P.R.shape[1]
    return Work(
        np.empty(V),
        np.empty(V),
        np.zeros(V, np.int64),
        np.zeros(V, np.int64),
        np.empty(V, np.int64),
        Beside(np.empty(_WIDTH), np.empty(_WIDTH), np.empty((d + 1, _WIDTH))),
    )


@compiled
def residual_variance(P: Problem, site: int, j: int, product: float) -> float:
    """Generalised residual variance, from what is left of the columns of j in units of size."""
    size = P.blocks.sizes[j]
    variance: float = P.unit[site, j] * (product if size == 1 else product ** (1.0 / size))
    return variance


@compiled
def term(P: Problem, loss: Loss, site: int, j: int, product: float) -> float:
    """What one site adds to the share of a child of as many columns; infinite if a moment is unknown."""
    if math.isnan(product):
        return math.inf
    apart = residual_variance(P, site, j, product) / float(loss.common[site])
    if loss.logarithmic:
        x = math.log(apart)
        found = 0.5 * x + 0.5 * x * x / loss.n_samples + float(loss.log_common[site])
    else:
        found = 0.5 * apart
    return found * int(P.blocks.sizes[j]) / len(loss.common)


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
def share(P: Problem, loss: Loss, given: Given, graph: Graph, j: int) -> float:
    """What j adds to the score with the parents that it has."""
    total = 0.0
    for site in range(len(P.R)):
        R = P.R[site]
        n = condition(R, P.blocks, given, graph.parents[P.start[j] :], graph.n_parents[j], -1)
        total += term(P, loss, site, j, child_left(R, P.blocks, given, j, 0, n))
    return total


@compiled
def _add_candidates(P: Problem, loss: Loss, site: int, given: Given, graph: Graph, j: int, n: int, work: Work) -> None:
    """Add to `change` what one site says of each candidate that is no parent; the parents are n pivots."""
    R, blocks, begin, end = P.R[site], P.blocks, P.start[j], P.start[j + 1]
    sizes, c = blocks.sizes, blocks.columns[blocks.first[j]]
    alone, (own, shared, rows) = sizes[j] == 1, work.beside
    if alone:
        residual = left(R, given, c, n)
        for low in range(begin, end, _WIDTH):
            high = min(low + _WIDTH, end)
            at = P.at[low:high]
            line_up(R, own, shared, at, c)
            for t in range(n):
                explain(R, given.L, own, shared, rows, at, c, given.pivots[t], t)
            for e in range(low, high):
                if not graph.present[e] and sizes[P.source[e]] == 1:
                    graph.change[e] += term(P, loss, site, j, left_beside(work.beside, e - low, residual))
    for e in range(begin, end):
        if not graph.present[e] and not (alone and sizes[P.source[e]] == 1):
            graph.change[e] += term(P, loss, site, j, left_with(R, blocks, given, P.source[e], j, 0, n))


@compiled
def renew(P: Problem, loss: Loss, given: Given, graph: Graph, j: int, work: Work) -> None:
    """Compute again what adding or dropping each candidate parent of j would change, and its share."""
    blocks, begin, end = P.blocks, P.start[j], P.start[j + 1]
    sizes, change, total = blocks.sizes, graph.change, 0.0
    for e in range(begin, end):
        change[e] = 0.0
    for site in range(len(P.R)):
        R = P.R[site]
        n = condition(R, blocks, given, graph.parents[begin:], graph.n_parents[j], -1)
        total += term(P, loss, site, j, child_left(R, blocks, given, j, 0, n))
        _add_candidates(P, loss, site, given, graph, j, n, work)
        left_without(R, blocks, given, j, graph.parents[begin:], graph.n_parents[j], work.inverse, work.lone)
        s = 0
        for e in range(begin, end):
            if graph.present[e]:
                change[e] += term(P, loss, site, j, work.lone[s])
                s += 1
    for e in range(begin, end):
        edge = loss.penalty * sizes[P.source[e]] * sizes[j]
        change[e] += (-edge if graph.present[e] else edge) - total
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
