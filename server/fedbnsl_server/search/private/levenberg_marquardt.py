"""Levenberg-Marquardt: the steps by which the fit of a graph to noisy releases finds its optimum."""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from fedbnsl.protocol.sparse import Matrix

CONVERGED = 1e-3
"""A move between graphs must gain more."""

REACH = 2.0
"""A target that takes more than so many times what the next step promises is out of reach.

Where one was reached, it took 1.02 times that at most (moves that reverse edges, 20 to 100 variables).
"""

_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e-6, 1e6
# What keeps an information from being singular.
_RIDGE = 1e-10
# The least share of a curvature that is left if other numbers follow.
_LEAST_LEFT = 1e-3
# A curvature that says nothing.
_NO_CURVATURE = 1e-100


class Point(Protocol):
    """Numbers that are fitted, and how well they do."""

    @property
    def nll(self) -> float:
        """The negative log-likelihood, up to a constant."""
        ...


_P = TypeVar("_P", bound=Point)


class Descended(NamedTuple, Generic[_P]):
    """Where a descent ended, the information there, and whether its target was within reach all the way."""

    point: _P
    information: Matrix
    is_of_use: bool


class Ends(NamedTuple):
    """When a descent ends."""

    steps: int  # after so many
    target: float  # where this negative log-likelihood is out of reach: the rest would be of no use
    # settled, converged: if a step promises less than the one, or has gained less than the other
    settled: float
    converged: float


def descended(
    point: _P, equations: Callable[[_P], tuple[Matrix, Matrix]], moved: Callable[[_P, Matrix], _P], ends: Ends
) -> Descended[_P]:
    """Take steps that lower the negative log-likelihood until there is no more to gain.

    Parameters
    ----------
    equations
        (K, K) information and (K,) gradient of the log-likelihood at a point.
    moved
        The point after a (K,) step.
    """
    information, gradient = equations(point)
    damping = _DAMPING
    for _ in range(ends.steps):
        before, step = point, step_of(information, gradient, damping)
        promised = 0.5 * float(gradient @ step)
        if promised < ends.settled:
            break
        if point.nll - ends.target > REACH * promised:
            return Descended(point, information, is_of_use=False)
        while point is before and damping <= _MOST_DAMPING:
            other = moved(point, step)
            if other.nll < point.nll:
                point, damping = other, max(damping / 10.0, _LEAST_DAMPING)
            else:
                damping *= 10.0
                step = step_of(information, gradient, damping)
        if point is before:
            break
        information, gradient = equations(point)
        if before.nll - point.nll < ends.converged:
            break
    return Descended(point, information, is_of_use=True)


def step_of(information: Matrix, gradient: Matrix, damping: float) -> Matrix:
    """(K,) with (1 + damping) times the diagonal; without damping that of `inverse_of`, with less work."""
    from scipy.linalg.lapack import dposv  # here: see `global_step.warm_up`

    size, relative = _relative(information, damping)
    _, step, failed = dposv(relative.T, gradient / size, overwrite_a=True)
    if failed != 0:  # rounding, or numbers beyond use
        return np.asarray(np.linalg.solve(_relative(information, damping)[1], gradient / size) / size)
    return np.asarray(step / size)


def inverse_of(information: Matrix) -> Matrix:
    """In units of the diagonal, so that nothing is singular by its size alone."""
    from scipy.linalg.lapack import dpotrf, dpotri

    size, relative = _relative(information, 0.0)
    L, failed = dpotrf(relative.T, lower=True, overwrite_a=True)
    if failed != 0:
        return np.asarray(np.linalg.inv(_relative(information, 0.0)[1]) / size / size[:, None])
    lower, _ = dpotri(L, lower=True, overwrite_c=True)
    return np.asarray((np.tril(lower) + np.tril(lower, -1).T) / size / size[:, None])


def _relative(information: Matrix, damping: float) -> tuple[Matrix, Matrix]:
    """(K,) units, and (K, K) information in these, damped."""
    size = np.sqrt(np.maximum(information.diagonal(), np.finfo(np.float64).tiny))
    relative = information / size
    relative /= size[:, None]
    relative[np.diag_indices(len(size))] += damping + _RIDGE
    return size, relative


def gain_left(gradient: Matrix, curvature: Matrix, crossed: Matrix, error: Matrix) -> Matrix:
    """(N,) by how much N further numbers lower the NLL, each alone, to second order, if all K fitted ones follow.

    Parameters
    ----------
    gradient, curvature, crossed
        (N,), (N,) and (N, K) derivatives of the log-likelihood.
    error
        (K, K) inverse of the information of the fitted ones.
    """
    followed = ((crossed @ error) * crossed).sum(axis=1)
    left = np.maximum(curvature - followed, _LEAST_LEFT * curvature)
    some = left > _NO_CURVATURE
    return np.asarray(np.divide(0.5 * gradient**2, left, out=np.zeros_like(left), where=some))
