"""The largest log-likelihood that a variable can have, on some rows, with the parents that a network gives it.

A number is a line in its parents, and in what their bends add; levels have odds of their own, or, in a table of levels,
shares of their own in each combination; grades have proportional odds; counts are negative
binomial, without regard to their range.
"""

import math

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, expit, gammaln, ndtr

from fedbnsl.families.categorical import Categorical
from fedbnsl.families.ordinal import Ordinal
from fedbnsl.network.families import Count, Family, Grade, Levels, Number, Table, positions
from fedbnsl.protocol.sparse import Index, Matrix

_MOST_STEPS, _LONGEST = 60, 5.0
_SETTLED = 1e-9  # of the log-likelihood, that a step gains
_TINY = 1e-300
_MOST_LOG, _LARGEST_LOG_SIZE = 27.0, 14.0  # of rates; of a count's size
_LEAST_LEFT = 1e-12  # of a number's variance: less is rounding, and its parents determine it

SIZES = 2.0 ** (np.arange(-8, 17) / 2.0)
"""Of negative binomial counts: the variance is mean + mean^2 / size."""


def best_log_likelihood(family: Family, X: Matrix) -> float | None:
    """On (n, d) rows without a gap in the family; None: there are too few for its coefficients, or no noise."""
    if isinstance(family, Table):
        return _of_table(family, X)
    if isinstance(family, Levels):
        K = len(family.columns) + 1
        return _of_levels(Categorical, _standardised(X[:, family.parents]), positions(X, family.columns, K), K)
    if not isinstance(family, Number | Count | Grade):
        return None
    terms = _standardised(family.terms(X))
    if isinstance(family, Grade):
        return _of_levels(Ordinal, terms, positions(X, family.columns, family.n_levels), family.n_levels)
    Z = np.column_stack([np.ones(len(X)), terms])
    if len(X) <= Z.shape[1] + 1:
        return None
    return _of_counts(Z, family.counts(X)) if isinstance(family, Count) else _of_numbers(family, Z, X[:, family.column])


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


def counted_log_likelihood(n: int, total: float, of_factorials: float, of_sizes: Matrix) -> float:
    """The largest one of n negative binomial counts k with one mean, from sums over them.

    Parameters
    ----------
    total, of_factorials
        Sums of k and of log k!.
    of_sizes
        Sums of log Gamma(k + r) for each r of `SIZES`; between them, the log-likelihood is a parabola in log r.
    """
    mean = total / n
    if mean <= 0.0:
        return 0.0
    r = SIZES
    told = (
        of_sizes - n * gammaln(r) - of_factorials + n * r * np.log(r / (r + mean)) + total * np.log(mean / (r + mean))
    )
    poisson = total * math.log(mean) - n * mean - of_factorials
    at = int(np.argmax(told))
    best = float(told[at])
    if 0 < at < len(told) - 1:
        first, last = told[at] - told[at - 1], told[at] - told[at + 1]
        if first + last > 0.0:
            best += float((first - last) ** 2 / (8.0 * (first + last)))
    return max(best, poisson)


def _standardised(X: Matrix) -> Matrix:
    """(n, p) columns of the same span, with the constant, whose steps are of one size."""
    spread = X.std(axis=0)
    return np.asarray((X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0))


def _of_numbers(family: Number, Z: Matrix, x: Matrix) -> float | None:
    beta = np.asarray(np.linalg.lstsq(Z, x, rcond=None)[0], dtype=np.float64)
    left = float(np.mean(np.square(x - Z @ beta)))
    if left <= _LEAST_LEFT * float(x.var()) or left == 0.0:
        return None
    if math.isfinite(family.low) or math.isfinite(family.high):
        return _truncated(Z, x, beta, math.sqrt(left), family.low, family.high)
    return -0.5 * len(x) * (math.log(2.0 * math.pi * left) + 1.0)


def _of_counts(Z: Matrix, k: Matrix) -> float | None:
    """Of negative binomial counts, whose rates are exponentials of lines."""
    if not k.any():
        return 0.0

    def loss(theta: Matrix) -> tuple[float, Matrix]:
        eta, r = np.clip(Z @ theta[:-1], -_MOST_LOG, _MOST_LOG), math.exp(float(theta[-1]))
        p = expit(math.log(r) - eta)  # r / (r + rate)
        value = gammaln(k + r) - gammaln(r) - gammaln(k + 1.0) + r * np.log(p) + k * np.log1p(-p)
        by_eta = k * p - r * (1.0 - p)
        by_log_r = r * (digamma(k + r) - digamma(r) + np.log(p)) + r * (1.0 - p) - k * p
        return -float(value.sum()), -np.append(Z.T @ by_eta, by_log_r.sum())

    mean, variance = float(k.mean()), float(k.var())
    log_r = math.log(mean**2 / (variance - mean)) if variance > mean else _LARGEST_LOG_SIZE
    start = np.zeros(Z.shape[1] + 1)
    start[0], start[-1] = math.log(mean), min(max(log_r, -_LARGEST_LOG_SIZE), _LARGEST_LOG_SIZE)
    # A size at its bound is Poisson's distribution but for rounding.
    bounds = [(None, None)] * Z.shape[1] + [(-_LARGEST_LOG_SIZE, _LARGEST_LOG_SIZE)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500})
    return -float(found.fun)


def _of_table(family: Table, X: Matrix) -> float:
    own, cells = positions(X, family.columns, family.n_levels), np.zeros(len(X), dtype=np.int64)
    for columns, n in family.of_parents:
        cells = cells * n + positions(X, columns, n)
    _, at = np.unique(cells, return_inverse=True)
    counts = np.zeros((int(at.max()) + 1, family.n_levels))
    np.add.at(counts, (at.ravel(), own), 1.0)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float((counts * np.log(np.where(counts > 0.0, shares, 1.0))).sum())


def _of_levels(kind: type[Categorical] | type[Ordinal], X: Matrix, y: Index, K: int) -> float | None:
    """Newton's steps of all coefficients, halved where they go too far."""
    family = kind(kind.totals(y, K))
    beta = np.zeros(X.shape[1] * (K - 1 if kind is Categorical else 1))
    if len(X) <= len(beta) + K - 1:
        return None
    if not family.varies:
        return 0.0
    alpha = family.intercepts
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


def _truncated(Z: Matrix, x: Matrix, beta: Matrix, std: float, low: float, high: float) -> float:
    """The largest log-likelihood of (n,) normal values within their range."""

    def loss(theta: Matrix) -> tuple[float, Matrix]:
        at, s = Z @ theta[:-1], math.exp(float(theta[-1]))
        a, b, z = (low - at) / s, (high - at) / s, (x - at) / s
        up = a > 0.0  # by the tail in which the difference keeps its digits
        D = np.maximum(np.where(up, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a)), _TINY)
        fa, fb = _density(a), _density(b)
        value = -0.5 * z**2 - math.log(s * math.sqrt(2.0 * math.pi)) - np.log(D)
        by_at, by_log_s = z / s + (fb - fa) / (s * D), z**2 - 1.0 + (_product(b, fb) - _product(a, fa)) / D
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
