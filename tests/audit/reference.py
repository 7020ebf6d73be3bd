"""What the audits compare with: the mechanisms of docs/explanation/privacy.md once more, slow and plain.

Nothing here calls the code under audit.
"""

import math
from decimal import Decimal, localcontext
from functools import cache

import mpmath
import numpy as np
from scipy.special import ndtr

from fedbnsl.protocol.sparse import Matrix

LATTICE = 2**20


def thresholds(M: Matrix, clip: float) -> Matrix:
    """C_i = C sqrt(M_i / sum M)."""
    return clip * np.sqrt(M / M.sum())


def clipped_sums(X: Matrix, B: Matrix, clips: Matrix) -> Matrix:
    """(d, d) sums over records of the clipped loss gradient, entry (i, j) in units of C_i / LATTICE."""
    sums = np.zeros(B.shape)
    with np.errstate(all="ignore"):
        for x in X:
            residual = x - B.T @ x
            gradient = -np.outer(x, residual)
            gradient[np.isnan(gradient)] = 0.0
            sums += np.rint(np.clip(gradient, -clips[:, None], clips[:, None]) / clips[:, None] * LATTICE)
    return sums


def clipped_sum(X: Matrix, B: Matrix, clips: Matrix, i: int, j: int) -> float:
    """Entry (i, j) of `clipped_sums`."""
    gradient = -X[:, i] * (X[:, j] - X @ B[:, j])
    return float(np.rint(np.clip(gradient, -clips[i], clips[i]) / clips[i] * LATTICE).sum())


def moment_sums(X: Matrix, W: Matrix, scales: Matrix, bound: float) -> Matrix:
    """(d, d) sums of zz' over the scaled and clipped residuals z, in units of bound^2 / LATTICE, record by record."""
    total = np.zeros(W.shape)
    for x in X:
        z = (x - W.T @ x) / scales
        z /= max(float(np.linalg.norm(z)), bound)
        total += np.rint(np.outer(z, z) * LATTICE)
    return total


def square_sums(X: Matrix, bounds: Matrix) -> Matrix:
    """(d,) sums of the clipped squares, entry i in units of bounds[i] / LATTICE, record by record."""
    total = np.zeros(bounds.shape)
    for x in X:
        total += np.rint(np.minimum(x * x / bounds, 1.0) * LATTICE)
    return total


def epsilon_of(zcdp: float, delta: float) -> float:
    """Corollary 13 of Canonne, Kamath, Steinke 2020 by trying a great many orders."""
    a = 1.0 + np.geomspace(1e-4, 1e6, 400_001)
    return max(0.0, float(np.min(zcdp * a + np.log(1 / (a * delta)) / (a - 1) + np.log1p(-1 / a))))


def gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Corollary 1 of Dong, Roth, Su 2022, word for word, to 60 digits."""
    with mpmath.workdps(60):
        shift, half = mpmath.mpf(epsilon) / mpmath.mpf(mu), mpmath.mpf(mu) / 2
        return mpmath.ncdf(half - shift) - mpmath.exp(epsilon) * mpmath.ncdf(-half - shift)


def gaussian_epsilon_of(zcdp: float, delta: float) -> float:
    """Epsilon of Gaussian releases that cost so much together, by halving an interval that holds it."""
    low, high = 0.0, 4096.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(math.sqrt(2 * zcdp), middle) > delta else (low, middle)
    return high


@cache
def gaussian_budget(epsilon: float, delta: float) -> float:
    """The zCDP of Gaussian releases whose `gaussian_epsilon_of` is epsilon."""
    low, high = 0.0, 64.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low**2 / 2


def steps_and_selections(selection: float, update: float, steps: int) -> float:
    """The zCDP of one Gaussian release that tells more than this many steps, each a selection and then an update.

    Parameters
    ----------
    selection, update
        zCDP of each. docs/explanation/privacy.md#selections, from the last step to the first, in units of mu^2.
    """
    v, after = 2 * selection, max(0.0, 4 * selection - 2 * update)
    for _ in range(steps):
        after += 2 * update
        after += v * after / (after - v)
    return after / 2


@cache
def budget(epsilon: float, delta: float) -> float:
    """The zCDP whose `epsilon_of` is epsilon."""
    low, high = 0.0, 2.0 * epsilon
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low


def gaussian_law(variance: int, reach: int) -> Matrix:
    """Probabilities of -reach, ..., reach under the discrete Gaussian."""
    x = np.arange(-reach, reach + 1, dtype=float)
    weights = np.exp(-x * x / (2.0 * variance))
    return weights / weights.sum()


def rounded_gaussian_law(sigma: int, reach: int) -> Matrix:
    """Probabilities of -reach, ..., reach under a normal law of this standard deviation, rounded."""
    x = np.abs(np.arange(-reach, reach + 1, dtype=float))
    return np.asarray(ndtr((0.5 - x) / sigma) - ndtr((-0.5 - x) / sigma))  # in the lower tail, where digits are kept


def laplace_law(scale: int, reach: int) -> Matrix:
    """Probabilities of -reach, ..., reach under the discrete Laplace law."""
    x = np.arange(-reach, reach + 1, dtype=float)
    return np.exp(-np.abs(x) / scale) * math.tanh(0.5 / scale)


def exact_exp(x: Decimal) -> Decimal:
    """To 60 digits."""
    with localcontext() as context:
        context.prec = 60
        return x.exp()
