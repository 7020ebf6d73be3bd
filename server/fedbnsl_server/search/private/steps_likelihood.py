"""How well a DAG explains all steps that a private run has released: by least squares, as `released_likelihood` does.

Under weights W and residual variances V the moments of the columns are S = T'V T with T = (I - W)^-1. A step tells the
clipped mean of x_i r for r = b'x (`released_steps`), a function of S_ii, b'S b and (S b)_i (`clipped_products`), plus
Gaussian noise of known size. So the likelihood is a sum of squares, and Gauss-Newton steps find its optimum. Clipping
costs no bias: its mean is what is fitted, as for Gaussian records.
"""

import math
from typing import NamedTuple

import numpy as np

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.private.clipped_products import ClippedMean, clipped_mean
from fedbnsl_server.search.private.levenberg_marquardt import CONVERGED, Ends, descended, gain_left
from fedbnsl_server.search.private.released_likelihood import (
    CONSIDERED,
    MOST_STEPS,
    Fit,
    total_effects,
)
from fedbnsl_server.search.private.released_steps import ReleasedSteps
from fedbnsl_server.search.score import NoisyScore

_LARGEST_WEIGHT = 1e6
# A residual variance changes by no more than this factor in a step.
_LARGEST_FACTOR = 3.0
_LEAST_VARIANCE = 1e-12
# Of a number about which the steps say anything.
_LEAST_CURVATURE = 1e-9


class StepsLikelihood:
    """The likelihood of DAGs, given released steps; `share`, `penalty` and `prices` are as in `ReleasedLikelihood`.

    Parameters
    ----------
    steps
        At least one.
    n_samples
        Records: their sampling error is in all steps.
    mask
        What is known of the edges; each variable is one column.
    W, V
        (d, d) weights and residual covariances that are about right: they tell how much the steps say.
    fixed
        Whether residual variances are known up to a common factor: only that factor is fitted.
    """

    def __init__(
        self, steps: ReleasedSteps, n_samples: float, mask: EdgeMask, W: Matrix, V: Matrix, *, fixed: bool = True
    ) -> None:
        self.mask, self._steps, self._fixed = mask, steps, fixed
        d = len(mask.allowed)
        point = _Point(steps, W, V)
        size = point.clipped.by_covariance * np.sqrt(point.S.diagonal()[steps.parent] * point.of_residual)
        squared = 0.5 * d * (d - 1) / float(np.square(size / steps.noise_std).sum())  # noise of a correlation
        self.share, self.penalty = NoisyScore.of(squared, n_samples, d)
        self.prices = np.full((d, d), self.penalty)

    def explained(self, dag: Mask, W: Matrix, V: Matrix, *, steps: int = MOST_STEPS, target: float = math.inf) -> Fit:
        """The best fit of a (d, d) DAG; see `ReleasedLikelihood.explained`."""
        edges = np.argwhere(dag)

        def at(W: Matrix, V: Matrix) -> _Fitted:
            return _Fitted(W, V, self._nll(W, V))

        def equations(point: _Fitted) -> tuple[Matrix, Matrix]:
            J, missed = self._derivatives(point.W, point.V, edges)
            return _information(J), J.T @ missed

        def moved(point: _Fitted, step: Matrix) -> _Fitted:
            W = point.W.copy()
            W[edges[:, 0], edges[:, 1]] += step[: len(edges)]
            factor = np.exp(np.clip(step[len(edges) :], -math.log(_LARGEST_FACTOR), math.log(_LARGEST_FACTOR)))
            return at(W, point.V * factor)

        start = at(np.where(dag, W, 0.0), V)
        ends = Ends(steps if math.isfinite(start.nll) else 0, target, settled=-math.inf, converged=CONVERGED)
        now, information, is_of_use = descended(start, equations, moved, ends)
        score = now.nll + self.penalty * len(edges) if is_of_use else math.inf
        return Fit(dag, now.W, now.V, now.nll, score, np.ones(1), information)

    def gains(self, found: Fit) -> Matrix:
        """(d, d) about how much the negative log-likelihood would fall with one more edge (score test).

        0 for what may not be added, or where little speaks for it.
        """
        W, V, dag = found.weights, found.covariance, found.dag
        may = self.mask.of_variables.allowed & ~(dag | dag.T | np.eye(len(dag), dtype=bool))
        plain = self._plain_gains(W, V)
        places = np.argsort(-np.where(may, plain, -1.0), axis=None)[: min(CONSIDERED, int(may.sum()))]
        others = np.stack(np.divmod(places, len(dag)), axis=1)
        J, _ = self._derivatives(W, V, np.argwhere(dag))
        added, missed = self._derivatives(W, V, others)
        added = added[:, : len(others)]
        gained = np.zeros_like(W)
        gained[others[:, 0], others[:, 1]] = gain_left(
            added.T @ missed, np.square(added).sum(axis=0), added.T @ J, found.error
        )
        return gained

    def _nll(self, W: Matrix, V: Matrix) -> float:
        """Minus the log-likelihood."""
        if not (np.abs(W) <= _LARGEST_WEIGHT).all():  # a step too far
            return math.inf
        with np.errstate(all="ignore"):
            missed = (self._steps.mean - _Point(self._steps, W, V).clipped.value) / self._steps.noise_std
            nll = 0.5 * self.share * float(missed @ missed)
        return nll if math.isfinite(nll) else math.inf

    def _derivatives(self, W: Matrix, V: Matrix, edges: Index) -> tuple[Matrix, Matrix]:
        """(N, E + K) by the weights of edges and the logarithms of the variances, and (N,) what is not explained.

        Both in units of the noise. K is 1 where the variances have a common factor only. With u -> v, S changes by
        T_v' S_u + S_u' T_v.
        """
        at, steps = _Point(self._steps, W, V), self._steps
        by, (u, v) = at.clipped, edges.T
        T_i, S_i = at.T[:, steps.parent].T, at.S[:, steps.parent].T
        of_edges = (
            by.by_covariance[:, None] * (T_i[:, v] * at.SR[:, u] + S_i[:, u] * at.TR[:, v])
            + 2.0 * by.by_x[:, None] * T_i[:, v] * S_i[:, u]
            + 2.0 * by.by_y[:, None] * at.TR[:, v] * at.SR[:, u]
        )
        of_variances = V.diagonal() * (
            by.by_covariance[:, None] * T_i * at.TR + by.by_x[:, None] * T_i**2 + by.by_y[:, None] * at.TR**2
        )
        if self._fixed:
            of_variances = of_variances.sum(axis=1, keepdims=True)
        scale = math.sqrt(self.share) / steps.noise_std
        return np.hstack([of_edges, of_variances]) * scale[:, None], (steps.mean - by.value) * scale

    def _plain_gains(self, W: Matrix, V: Matrix) -> Matrix:
        """(d, d) roughly what each edge would gain if no other number followed: which are worth a closer look."""
        at, steps = _Point(self._steps, W, V), self._steps
        by, weight = at.clipped, self.share / steps.noise_std**2
        T_i, S_i, missed = at.T[:, steps.parent].T, at.S[:, steps.parent].T, weight * (steps.mean - by.value)
        cov, x, y = ((missed * one)[:, None] for one in (by.by_covariance, by.by_x, by.by_y))
        gradient = (cov * at.SR).T @ T_i + (cov * S_i).T @ at.TR + 2.0 * ((x * S_i).T @ T_i + (y * at.SR).T @ at.TR)
        squared = (weight * by.by_covariance**2)[:, None]
        curvature = (squared * at.SR**2).T @ T_i**2 + (squared * S_i**2).T @ at.TR**2
        return np.asarray(np.divide(gradient**2, curvature, out=np.zeros_like(W), where=curvature > _LEAST_CURVATURE))


class _Fitted(NamedTuple):
    """Weights, residual covariances, and the negative log-likelihood that they have."""

    W: Matrix
    V: Matrix
    nll: float


def _information(J: Matrix) -> Matrix:
    """(K, K) of the numbers with these (N, K) derivatives; never quite zero, so that it has an inverse."""
    return np.asarray(J.T @ J + _LEAST_CURVATURE * np.eye(J.shape[1]))


class _Point:
    """What weights and covariances say of every step.

    T = (I - W)^-1, the moments S, and (N, d) each: S b and T b; then the variance of r, and the clipped mean.
    """

    def __init__(self, steps: ReleasedSteps, W: Matrix, V: Matrix) -> None:
        R = steps.residual
        self.T = total_effects(W)
        self.S = self.T.T @ V @ self.T
        self.SR, self.TR = R @ self.S, R @ self.T.T
        self.of_residual = np.maximum((self.SR * R).sum(axis=1), _LEAST_VARIANCE)
        covariance = self.SR[np.arange(len(R)), steps.parent]
        variance = np.maximum(self.S.diagonal()[steps.parent], _LEAST_VARIANCE)
        self.clipped: ClippedMean = clipped_mean(covariance, variance, self.of_residual, steps.bound)
