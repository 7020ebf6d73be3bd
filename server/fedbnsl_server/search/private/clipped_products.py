"""The mean of a clipped product of two Gaussian variables, and its derivatives.

For x and y of mean 0, with variances s_x and s_y and covariance c, let q = sqrt(s_x s_y). Then

    E[clip(x y, -C, C)] = q g(c / q, C / q),

where g is the mean for variables of variance 1. Given x, y is Gaussian and the clipped mean a formula; g is its
integral over x, tabulated once and interpolated by a cubic spline.
"""

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Matrix

if TYPE_CHECKING:
    from scipy.interpolate import RectBivariateSpline

# Bounds beyond these clip next to everything, or next to nothing.
_LEAST_BOUND, _LARGEST_BOUND = 0.02, 60.0
# At a correlation of 1 the formula is a limit.
_LARGEST_CORRELATION = 0.9999
_CORRELATIONS, _BOUNDS, _NODES = 61, 60, 80
# x beyond so many standard deviations does not count.
_FARTHEST = 8.0


class ClippedMean(NamedTuple):
    """(N,) each: the mean, and its derivatives by the covariance, the variance of x and that of y."""

    value: Matrix
    by_covariance: Matrix
    by_x: Matrix
    by_y: Matrix


def clipped_mean(covariance: Matrix, x: Matrix, y: Matrix, bound: Matrix) -> ClippedMean:
    """Of (N,) products.

    Parameters
    ----------
    covariance, x, y
        (N,) covariances and variances; above 0 the latter.
    bound
        (N,) C.
    """
    table, q = _table(), np.sqrt(x * y)
    rho = np.clip(covariance / q, -_LARGEST_CORRELATION, _LARGEST_CORRELATION)
    log_c = np.clip(np.log(bound / q), math.log(_LEAST_BOUND), math.log(_LARGEST_BOUND))
    g, by_rho, by_log_c = (np.asarray(table.ev(rho, log_c, dx=dx, dy=dy)) for dx, dy in ((0, 0), (1, 0), (0, 1)))
    by_log_q = 0.5 * q * (g - by_rho * rho - by_log_c)
    return ClippedMean(q * g, by_rho, by_log_q / x, by_log_q / y)


@cache
def _table() -> "RectBivariateSpline":
    """The function g(rho, c) by rho and log c."""
    from scipy.interpolate import RectBivariateSpline  # here: see `global_step.warm_up`
    from scipy.special import ndtr

    node, weight = np.polynomial.legendre.leggauss(_NODES)
    x = (node + 1.0) * _FARTHEST / 2.0
    weight = weight * _FARTHEST * _density(x)  # both signs of x give the same
    rho = _LARGEST_CORRELATION * np.sin(np.linspace(-0.5, 0.5, _CORRELATIONS) * math.pi)  # denser where g bends
    log_c = np.linspace(math.log(_LEAST_BOUND), math.log(_LARGEST_BOUND), _BOUNDS)
    mean, t = rho[:, None, None] * x, np.exp(log_c)[:, None] / x  # of y given x, and where y is cut off
    std = np.sqrt(1.0 - rho**2)[:, None, None]
    low, high = (-t - mean) / std, (t - mean) / std
    inside = mean * (ndtr(high) - ndtr(low)) - std * (_density(high) - _density(low))
    return RectBivariateSpline(rho, log_c, (inside + t * (ndtr(-high) - ndtr(low))) @ (x * weight))


def _density(z: Matrix) -> Matrix:
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))
