"""The largest log-likelihood that a variable can have, on some rows, with the parents that a network gives it.

A number is a line in its parents, and in what their bends add; levels have odds of their own, or, in a table of levels,
shares of their own in each combination; grades are cut from a normal value.
"""

import math

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtr

from fedbnsl.families.categorical import Categorical
from fedbnsl.network.families import Family, Grade, Levels, Number, Table, positions
from fedbnsl.protocol.sparse import Index, Matrix

_MOST_STEPS, _LONGEST = 60, 5.0
_SETTLED = 1e-9  # of the log-likelihood, that a step gains
_TINY = 1e-300
_LEAST_LEFT = 1e-12  # of a number's variance: less is rounding, and its parents determine it


def best_log_likelihood(family: Family, X: Matrix) -> float | None:
    """On (n, d) rows without a gap in the family; None: there are fewer rows than coefficients, or no noise."""
    if isinstance(family, Table):
        return _of_table(family, X)
    if isinstance(family, Levels):
        parents, y = _standardised(X[:, family.parents]), positions(X, family.columns, len(family.columns) + 1)
        K = len(family.columns) + 1
        return _of_levels(parents, y, K) if len(X) > (K - 1) * (1 + parents.shape[1]) else None
    if not isinstance(family, Grade | Number):
        return None
    number = family
    terms = np.column_stack([X[:, number.lines], *(bend.of(X[:, bend.parent]) for bend in number.bends)])
    if len(X) <= terms.shape[1] + 2:
        return None
    Z = np.column_stack([np.ones(len(X)), _standardised(terms)])
    x = X[:, number.column]
    beta = np.asarray(np.linalg.lstsq(Z, x, rcond=None)[0], dtype=np.float64)
    left = float(np.mean(np.square(x - Z @ beta)))
    if left <= _LEAST_LEFT * float(x.var()) or left == 0.0:
        return None
    if isinstance(family, Grade):
        at = np.rint(x)
        low = np.where(at <= 0, -np.inf, at - 0.5)
        high = np.where(at >= family.n_levels - 1, np.inf, at + 0.5)
        return _climbed(Z, beta, math.sqrt(left), low, high, None)
    if np.isfinite(family.low) or np.isfinite(family.high):
        ends = np.full(len(X), family.low), np.full(len(X), family.high)
        return _climbed(Z, beta, math.sqrt(left), *ends, x)
    return -0.5 * len(X) * (math.log(2.0 * math.pi * left) + 1.0)


def marginal_log_likelihood(n: int, total: float, squares: float, low: float, high: float) -> float | None:
    """The largest one of n normal values within their range, from their sum and the sum of their squares.

    Without a range, mean and variance are those of the values. None: they do not vary.
    """
    mean, variance = total / n, squares / n - (total / n) ** 2
    if variance <= _LEAST_LEFT * squares / n:
        return None
    at_mean = -0.5 * n * (math.log(2.0 * math.pi * variance) + 1.0)
    if not (math.isfinite(low) or math.isfinite(high)):
        return at_mean
    std = math.sqrt(variance)

    def loss(theta: Matrix) -> float:  # in units of the values' mean and spread
        at, s = float(theta[0]), math.exp(float(theta[1]))
        a, b = (((end - mean) / std - at) / s for end in (low, high))
        D = float(ndtr(-a) - ndtr(-b) if a > 0.0 else ndtr(b) - ndtr(a))
        return (1.0 + at**2) / (2.0 * s**2) + math.log(s) + math.log(max(D, _TINY))

    found = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 2000})
    return float(-n * (found.fun + math.log(std * math.sqrt(2.0 * math.pi))))


def _standardised(X: Matrix) -> Matrix:
    """(n, p) columns of the same span, with the constant, whose steps are of one size."""
    spread = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0))


def _of_table(family: Table, X: Matrix) -> float:
    own, cells = positions(X, family.columns, family.n_levels), np.zeros(len(X), dtype=np.int64)
    for columns, n in family.of_parents:
        cells = cells * n + positions(X, columns, n)
    _, at = np.unique(cells, return_inverse=True)
    counts = np.zeros((int(at.max()) + 1, family.n_levels))
    np.add.at(counts, (at.ravel(), own), 1.0)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float((counts * np.log(np.where(counts > 0.0, shares, 1.0))).sum())


def _of_levels(X: Matrix, y: Index, K: int) -> float:
    """Newton's steps of all coefficients, halved where they go too far."""
    family = Categorical(Categorical.totals(y, K))
    if not family.varies:
        return 0.0
    alpha, beta = family.intercepts, np.zeros((K - 1) * X.shape[1])
    a, found = len(alpha), family.sums(X, y, family.predictors(X, beta), alpha)
    for _ in range(_MOST_STEPS):
        step = np.linalg.lstsq(found.information, found.gradient, rcond=None)[0]
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), _LONGEST))
        for _ in range(_MOST_STEPS):
            at = alpha + step[:a], beta + step[a:]
            trial = family.sums(X, y, family.predictors(X, at[1]), at[0])
            if trial.log_likelihood >= found.log_likelihood:
                break
            step = step / 2.0
        else:
            break
        gained = trial.log_likelihood - found.log_likelihood
        (alpha, beta), found = at, trial
        if gained <= _SETTLED * abs(found.log_likelihood):
            break
    return found.log_likelihood


def _climbed(Z: Matrix, beta: Matrix, std: float, low: Matrix, high: Matrix, x: Matrix | None) -> float:
    """The largest log-likelihood of (n,) normal values x within low and high; None: all that is known of them."""

    def loss(theta: Matrix) -> tuple[float, Matrix]:
        at, s = Z @ theta[:-1], float(np.exp(theta[-1]))
        a, b = (low - at) / s, (high - at) / s
        up = a > 0.0  # by the tail in which the difference keeps its digits
        D = np.maximum(np.where(up, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a)), _TINY)
        fa, fb = _density(a), _density(b)
        of_at, of_log_s = -(fb - fa) / (s * D), -(_product(b, fb) - _product(a, fa)) / D
        if x is None:
            value, by_at, by_log_s = np.log(D), of_at, of_log_s
        else:
            z = (x - at) / s
            value = -0.5 * z**2 - np.log(s * np.sqrt(2.0 * np.pi)) - np.log(D)
            by_at, by_log_s = z / s - of_at, z**2 - 1.0 - of_log_s
        return -float(value.sum()), -np.append(Z.T @ by_at, by_log_s.sum())

    start = np.append(beta, math.log(std))
    # A truncated normal distribution that tends to an exponential one has no best mean: its spread is bounded.
    bounds = [(None, None)] * len(beta) + [(start[-1] - 7.0, start[-1] + 7.0)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500})
    return -float(found.fun)


def _density(z: Matrix) -> Matrix:
    return np.asarray(np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi))


def _product(z: Matrix, f: Matrix) -> Matrix:
    return np.where(np.isfinite(z), z, 0.0) * f
