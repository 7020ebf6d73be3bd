"""Signs in a private run's released moments that the columns' means are far from zero.

Second moments do not hold the means: means far from zero look like a common cause of all variables. Two signs are
left: a mean square near its feature bound, and records that all point in one direction, more than the records of a
centred Gaussian network can.

For the second, let z be a record in units of its scales, v a direction, f = v'z, and R the norm that records are
clipped to: the clipped moment along v is the mean of f^2 min(1, R^2 / |z|^2), which is at most the mean of
min(f^2, R^2). For a centred Gaussian f, whose variance is at most E |z|^2, this is R^2 `capped(E |z|^2 / R^2)`: with
R = 0.55 sqrt(d), 72 % of R^2. If all means are three standard deviations from zero it is 90 %.

All of this works on what was released: it costs no privacy.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.consensus import RobustRule
from fedbnsl_server.search.private.pooled_moments import mean_over_records, mean_square_noise

# A noise or sampling error beyond so many standard deviations is not expected.
_WIDTHS = 3.0
# Of a feature bound: a centred Gaussian variable with this mean square has 3 of 10 squares beyond the bound.
_NEAR_BOUND = 0.5
_MOST_CUT_OFF = 0.9


def capped(u: float) -> float:
    """E min(u g^2, 1) for a standard normal g: the mean square of a variable in units of the bound on its square."""
    edge = 1.0 / math.sqrt(u)
    within = math.erf(edge / math.sqrt(2.0))
    return u * (within - 2.0 * edge * math.exp(-0.5 * edge**2) / math.sqrt(2.0 * math.pi)) + 1.0 - within


def _uncapped(share: float) -> float:
    """The inverse of `capped`."""
    from scipy.optimize import brentq  # takes long to load, and few runs need it

    return float(brentq(lambda u: capped(u) - share, share / 2, 1e6))


def near_bounds(mean_squares: Matrix, noise_std: float, bounds: Matrix) -> list[int]:
    """Variables whose mean square is above half of its bound; arguments as in `pooled_moments.first_scales`."""
    return np.flatnonzero(mean_squares / bounds > _NEAR_BOUND + _WIDTHS * noise_std).tolist()


def in_one_direction(
    released: Sequence[Matrix],
    n_samples: Sequence[int],
    variances: Sequence[int],
    *,
    scales: Matrix,
    scale_variances: Sequence[int],
    bounds: Matrix,
    norm_bound: float,
    rule: RobustRule | None = None,
) -> bool:
    """Whether records point in one direction more than centred Gaussian ones can.

    Parameters
    ----------
    released
        (d, d) moments of x / scales, one a site, of records clipped to the norm R = `norm_bound`.
    n_samples, variances, scale_variances
        Rows of these sites, and `moments_variance` and `setup_variance` of their prices.
    scales, bounds
        (d,) roots of the released mean squares, or larger, and the feature bounds that those were made with.
    rule
        What replaces the mean over the sites' records; None: nothing.
    """
    d = len(scales)
    S = mean_over_records(released, n_samples, rule) / norm_bound**2
    # Released mean squares over bounds; from these follow the mean squares of Gaussian variables without clipping.
    shares = scales**2 / bounds
    if (shares > _MOST_CUT_OFF).any():  # so much is cut off there that nothing bounds E |z|^2; `near_bounds` says it
        return False
    whole = [_uncapped(share) / share for share in shares.tolist()]
    relative = mean_square_noise(scale_variances, n_samples, rule) / shares
    size = sum(whole) + _WIDTHS * math.sqrt(float((relative**2).sum()))  # at least E |z|^2
    noise_std = mean_square_noise(variances, n_samples, rule) / math.sqrt(2.0)
    sampling_std = 1.0 / math.sqrt(sum(n_samples))
    if rule is not None:
        sampling_std = rule.noise_std([1.0 / math.sqrt(n) for n in n_samples])
    # The largest eigenvalue of symmetric noise is about 2 sqrt(d) standard deviations of an entry.
    error = (2.0 * math.sqrt(d) + 2.0 * _WIDTHS) * noise_std + _WIDTHS * sampling_std
    return bool(np.linalg.eigvalsh(S)[-1] > capped(size / norm_bound**2) + error)
