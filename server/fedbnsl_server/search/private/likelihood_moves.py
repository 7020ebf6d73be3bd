"""Moves from one DAG to a better one, by the likelihood of all that a private run has released.

`improved` drops and adds single edges, as second-order estimates say which. It does not mend a wrong direction: where
x -> y is taken for y -> x, the parents of x seem to be those of y, and each of these edges is worth keeping while the
others are there. `with_edges_reversed` reverses an edge as Chickering (1995) does: x and y first get all parents of
both, as far as knowledge allows them; with all, nothing explains less. Then the direction makes no difference where all
noise variances are free, and tells where they are known; and the parents that are not needed go.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.private.levenberg_marquardt import CONVERGED
from fedbnsl_server.search.private.released_likelihood import Fit
from fedbnsl_server.search.progress import UNWATCHED, Progress

_STEPS_OF_A_MOVE, _STEPS_OF_A_REVERSAL = 6, 4
# Of the edges that might be added, so many are tried before none counts as good.
_TRIED = 3
# Each edge is reversed so many times at most.
_MOST_SWEEPS = 3


class Likelihood(Protocol):
    """Of DAGs, given what was released: moments (`released_likelihood`) or steps (`steps_likelihood`)."""

    @property
    def mask(self) -> EdgeMask:
        """What is known of the edges between columns."""
        ...

    @property
    def prices(self) -> Matrix:
        """(V, V) what an edge between two variables costs."""
        ...

    def explained(self, dag: Mask, W: Matrix, V: Matrix, *, steps: int = ..., target: float = ...) -> Fit:
        """The best explanation by a (V, V) DAG that some steps reach from a start, if a target is within reach."""
        ...

    def gains(self, found: Fit) -> Matrix:
        """(V, V) about how much the negative log-likelihood would fall with one more edge; 0: not to be added."""
        ...


def improved(likelihood: Likelihood, found: Fit, *, progress: Progress = UNWATCHED) -> Fit:
    """Drop and add edges, one at a time and refitted each time, as long as the score falls and nobody wants the end.

    `progress` is told how few are left of the edges that do not pay for themselves.
    """
    most = 1
    while math.isfinite(found.score) and not progress.is_enough:
        idle = _idle(likelihood, found)
        most = max(most, len(idle))
        progress.at(1.0 - len(idle) / most)
        better = with_fewer(likelihood, found, idle) or with_one_more(likelihood, found)
        if better is None:
            return likelihood.explained(found.dag, found.weights, found.covariance)
        found = better
    return found


def with_edges_reversed(
    likelihood: Likelihood,
    found: Fit,
    *,
    among: Callable[[Fit], Mask] = lambda found: found.dag,
    progress: Progress = UNWATCHED,
) -> Fit:
    """Reverse edges, and drop and add others after each, as long as the score falls and nobody wants the end.

    An edge that was better left as it is is tried again once one of its ends has other parents.

    Parameters
    ----------
    among
        (V, V) the edges of a graph that are tried.
    """
    if not math.isfinite(found.score):
        return found
    tried = among(found)
    families = dict[tuple[int, int], bytes]()  # of edges that were better left as they are
    for sweep in range(_MOST_SWEEPS):
        before = found
        edges = np.argwhere(before.dag).tolist()
        for k, (i, j) in enumerate(edges):
            if progress.is_enough:
                return found
            progress.at((sweep + k / len(edges)) / _MOST_SWEEPS)
            family = found.dag[:, [i, j]].tobytes()
            if not found.dag[i, j] or not tried[i, j] or families.get((i, j)) == family:
                continue
            reversed_ = _with_reversed(likelihood, found, i, j)
            other = found if reversed_ is None else improved(likelihood, reversed_, progress=progress.step())
            if other.score < found.score - CONVERGED:
                found, tried = other, among(other)
            else:
                families[i, j] = family
        if found is before:
            break
    return found


def pruned(likelihood: Likelihood, best: Fit, threshold: float, size: Matrix | float = 1.0) -> Fit:
    """The graph without edges whose weights do not exceed the threshold, explained again.

    Parameters
    ----------
    size
        (d,) units of the columns, in which the threshold is measured.
    """
    between, columns = likelihood.mask.of_variables, likelihood.mask.columns
    per_unit = np.divide.outer(1.0 / np.asarray(size), 1.0 / np.asarray(size))
    while True:
        small = best.dag & (np.abs(columns.largest(best.weights * per_unit)) <= threshold) & ~between.required
        if not small.any():
            return best
        best = likelihood.explained(best.dag & ~small, best.weights, best.covariance)


def _idle(likelihood: Likelihood, found: Fit) -> list[tuple[int, int]]:
    """Edges that do not pay for themselves, the worst first."""
    required = likelihood.mask.of_variables.required
    prices = likelihood.prices
    may = {edge: loss for edge, loss in losses(likelihood, found).items() if not required[edge]}
    return [
        edge for _, edge in sorted((loss - prices[edge], edge) for edge, loss in may.items() if loss < prices[edge])
    ]


def with_fewer(likelihood: Likelihood, found: Fit, idle: Sequence[tuple[int, int]]) -> Fit | None:
    """The graph without the worse half of these edges, or without the first and worst one."""
    for size in sorted({math.ceil(len(idle) / 2), min(len(idle), 1)} - {0}, reverse=True):
        dag = found.dag.copy()
        dag[tuple(np.array(idle[:size]).T)] = False
        other = _better(likelihood, found, dag)
        if other is not None:
            return other
    return None


def with_one_more(likelihood: Likelihood, found: Fit) -> Fit | None:
    """The graph with the edge that promises most, of the first few that keep it acyclic."""
    net = likelihood.gains(found) - likelihood.prices
    tried = 0
    for place in np.argsort(-net, axis=None).tolist():
        i, j = divmod(place, len(net))
        if net[i, j] <= 0.0 or tried >= _TRIED:
            break
        dag = found.dag.copy()
        dag[i, j] = True
        if not is_acyclic(dag):
            continue
        tried += 1
        other = _better(likelihood, found, dag)
        if other is not None:
            return other
    return None


def _better(likelihood: Likelihood, found: Fit, dag: Mask) -> Fit | None:
    """The explanation by another graph, if its score is lower."""
    least = found.score - CONVERGED
    target = least - float(likelihood.prices[dag].sum())
    other = likelihood.explained(dag, found.weights, found.covariance, steps=_STEPS_OF_A_MOVE, target=target)
    return other if other.score < least else None


def losses(likelihood: Likelihood, found: Fit) -> dict[tuple[int, int], float]:
    """By how much the negative log-likelihood would grow without an edge, to second order (Wald)."""
    edges = np.argwhere(likelihood.mask.columns.spread(found.dag))
    error = found.error[: len(edges), : len(edges)]
    weights = found.weights[edges[:, 0], edges[:, 1]]
    if not likelihood.mask.columns.has_blocks:
        of_edges = 0.5 * weights**2 / error.diagonal()
        return {(i, j): loss for (i, j), loss in zip(edges.tolist(), of_edges.tolist(), strict=True)}
    owner = np.asarray(likelihood.mask.columns.variable_of)[edges]
    found_losses: dict[tuple[int, int], float] = {}
    sources, targets = np.nonzero(found.dag)
    for i, j in zip(sources.tolist(), targets.tolist(), strict=True):
        own = np.flatnonzero((owner == (i, j)).all(axis=1))
        w = weights[own]
        found_losses[i, j] = 0.5 * float(w @ np.linalg.solve(error[np.ix_(own, own)], w))
    return found_losses


def _with_reversed(likelihood: Likelihood, found: Fit, i: int, j: int) -> Fit | None:
    """The graph with j -> i instead of i -> j, if it explains more once both have all their parents."""
    columns, between = likelihood.mask.columns, likelihood.mask.of_variables
    parents = found.dag[:, i] | found.dag[:, j]
    parents[[i, j]] = False
    dag = found.dag.copy()
    dag[:, i] = parents & (between.allowed[:, i] | found.dag[:, i])
    dag[:, j] = parents & (between.allowed[:, j] | found.dag[:, j])
    dag[j, i] = True
    if not between.allowed[j, i] or not is_acyclic(dag):
        return None
    S, W = found.moments, found.weights.copy()
    spread, owner = columns.spread(dag), np.asarray(columns.variable_of)
    for child in np.flatnonzero((owner == i) | (owner == j)).tolist():
        above = np.flatnonzero(spread[:, child])
        W[:, child] = 0.0
        W[above, child] = np.linalg.lstsq(S[np.ix_(above, above)], S[above, child])[0]
    covered = likelihood.explained(dag, W, found.covariance, steps=_STEPS_OF_A_REVERSAL, target=found.nll)
    return covered if covered.nll < found.nll - CONVERGED else None
