"""Residual variances after private moments rounds, in squared units of the variables.

Clipped records tell residual variances up to a common factor. The sites also released the mean square of each
variable, in its units: the factor is the least-squares fit of these to the mean squares of the pooled moments. The
released ones all have the same noise once they are divided by their feature bounds.

All of this works on what was released: it costs no privacy.
"""

import math

import numpy as np

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.pooled_moments import PooledMoments

LARGEST_ERROR = 0.25
"""Noise beyond this share of the common factor, or of the median residual variance, makes the variances useless."""

# Of a feature bound: below, a Gaussian variable loses less than 2 % of its mean square to the bound.
_WHOLE = 0.15


def residual_variances(
    relative: Matrix,
    pooled: PooledMoments,
    scales: Matrix,
    *,
    mean_squares: Matrix,
    bounds: Matrix,
    noise_std: float,
    cut_off: bool = True,
) -> Matrix:
    """(d,) residual variances, none below one standard deviation of its noise; empty if noise or bounds hide them.

    Parameters
    ----------
    relative
        (d,) residual variances in the units of `pooled.moments`.
    scales
        (d,) those that the residuals were made with.
    mean_squares, bounds
        (d,) means over the sites of the released mean squares, and their feature bounds. Empty mean squares are
        unknown.
    noise_std
        Of the mean squares, divided by their bounds.
    cut_off
        Whether squares were cut off at the bounds; otherwise nothing lies beyond them.
    """
    unknown = np.empty(0)
    own_noise = math.sqrt(2.0) * pooled.noise_std
    if not mean_squares.size or not own_noise <= LARGEST_ERROR:
        return unknown
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that no table gives: unknown, see below
        released = mean_squares / bounds
        whole = released <= (_WHOLE if cut_off else np.inf)
        fitted = (pooled.moments.diagonal() / bounds)[whole]
        size, along = float(fitted @ fitted), float(fitted @ released[whole])
        if not (0.0 < size < math.inf and noise_std * math.sqrt(size) <= LARGEST_ERROR * along < math.inf):
            return unknown
        return np.asarray(along / size * np.maximum(relative, own_noise * scales**2))
