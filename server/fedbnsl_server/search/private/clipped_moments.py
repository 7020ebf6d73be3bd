"""What clipping records does to their moments, and how to take it back.

A site shortens a record (z, c) to the norm R before it adds its products: it counts with w = min(1, R^2 / |(z, c)|^2).
Long records lie along the directions of large variance, so that these are understated: the moments of Gaussian z with
covariance P = U diag(l) U' become U diag(l_i E[w g_i^2]) U', g standard normal. In well-chosen residuals all l are
about equal, and only a factor is lost; in those of the first rounds they are not. Given P, up to a factor, from
everything that was released, the difference can be taken off. The factor follows from the mean of w, which the
constant c tells; without a constant from the mean of w |z|^2, unless nearly all records were clipped, and then the
difference hardly depends on it.

What is taken back depends on the P that the noisy moments tell. If one covariance of z changes by e, the clipped
moments change by e E[w g_i^2 g_j^2], which is less than e E[w]: so P follows the noise by more than it is, and its
errors are those of noise that is stretched by the ratio.

Records with levels are not Gaussian: which of them are long hangs on which levels go together, and what clipping has
done to them nobody can take back. So records are clipped no more than the noise demands (`room`): the noise that a
wider bound costs is not felt where sampling error outweighs it. What is taken back is in proportion to the weight that
the records have lost by what was released. The error that is left is the same in all releases, as sampling error is,
and counts as such (`records_worth`).
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypedDict, Unpack

import numpy as np

from fedbnsl.protocol.sparse import Matrix

POINTS = 13
"""Of a Sobol sequence, as a power of 2."""

# Of the interval that the factor lies in.
_HALVINGS = 50
_WIDEST = 1e6
# Records whose shape hangs on their variance are drawn at most so many times, until that is known to this share.
_TIMES, _KNOWN = 6, 0.02

# The noise of all rounds may be so much of the sampling error where that lets records be longer.
_OF_SAMPLING = 0.5
# Beyond it next to no record is clipped, and rounding on the fixed-point grid would begin to count.
_MOST_ROOM = 10.0
# What is tried where records have levels, for which clipping is an error of its own.
_ROOMS = tuple(math.sqrt(square) for square in (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0))
# Where clipping took a share t of the weight, the error of a correlation of residuals of records with levels is about
# 0.06 t / (t + 0.07): in tables of surveys and registers, with residuals of the complete graph.
_ERROR_OF_LEVELS, _HALF_OF_IT = 0.06, 0.07


class Clipping(NamedTuple):
    """What clipping has done."""

    bias: Matrix  # (d, d) what to add to the mean of w z z' over all records, to make it proportional to P
    stretch: float  # how much more P errs, where it is told by these sums, than the noise in them says; at least 1


class Told(TypedDict):
    """What was released of clipped records."""

    size: float  # trace of the mean of w z z'
    weight: float  # mean of w, over all records. Without a constant it is not told, and does not count.
    # norm_bound, constant: R and c; 0: there is no constant
    norm_bound: float
    constant: float


def room(noise_std: float, n_samples: float, *, d: int, norm_bound: float, constant: float, levels: bool) -> float:
    """How many times wider than the spread of residuals their scales should be: then fewer records are clipped.

    Noise of a moment of the residuals grows with the square of it.

    Parameters
    ----------
    noise_std
        Of an entry off the diagonal, by all rounds together, for residuals of variance 1.
    n_samples
        Records that count.
    d, norm_bound, constant
        Residuals of a record, R and c.
    levels
        Whether a column has levels.
    """
    wide = math.sqrt(_OF_SAMPLING / (math.sqrt(n_samples) * noise_std))
    if levels:
        lengths = np.square(normals(d)).sum(axis=1)

        def error(k: float) -> float:
            weight = float(np.minimum(1.0, norm_bound**2 / (lengths / k**2 + constant**2)).mean())
            return math.hypot(noise_std * k**2 / weight, _error_of_levels(1.0 - weight))

        wide = max(wide, min(_ROOMS, key=error))
    return min(max(wide, 1.0), _MOST_ROOM)


def records_worth(n_samples: float, lost: float) -> float:
    """How many records with levels that were not clipped would tell as much.

    Parameters
    ----------
    n_samples
        Records that count.
    lost
        Mean share of their weight that clipping took.
    """
    return n_samples / (1.0 + n_samples * _error_of_levels(lost) ** 2)


def _error_of_levels(lost: float) -> float:
    return _ERROR_OF_LEVELS * lost / (lost + _HALF_OF_IT)


def clipping(P: Matrix, **told: Unpack[Told]) -> Clipping:
    """What clipping does to the moments of Gaussian records.

    Parameters
    ----------
    P
        (d, d) covariance of z, up to a factor; positive semidefinite.
    """
    values, vectors = np.linalg.eigh(P)
    values = np.maximum(values, 0.0)
    of_normals = np.square(normals(len(P)))
    found = _weights(of_normals @ values, **told)
    if found is None:  # noise: nothing is known of the records
        return Clipping(np.zeros_like(P), 1.0)
    w, factor = found
    # w differs little from its mean: the rest of the average converges faster.
    lost = (float(w.mean()) - w) @ (of_normals - 1.0) / len(w)
    factor *= _seen(w, told)
    return Clipping(np.asarray((vectors * (factor * values * lost)) @ vectors.T), _stretch(w, of_normals))


def clipping_of(records: Callable[[float], Matrix], **told: Unpack[Told]) -> Clipping:
    """What clipping does to the moments of records that are not Gaussian, and have a constant.

    Parameters
    ----------
    records
        (N, d) z, of columns whose variances are as many times as large as they are known to be.
    """
    factor, larger, w, Z = 1.0, 1.0, np.empty(0), np.empty((0, 0))
    for _ in range(_TIMES):
        Z = records(factor)
        found = _weights(np.square(Z).sum(axis=1), **told)
        if found is None:
            return Clipping(np.zeros((Z.shape[1],) * 2), 1.0)
        w, larger = found
        if abs(larger - 1.0) < _KNOWN:
            break
        factor *= larger
    lost = (float(w.mean()) - w)[:, None] * Z
    stretch = _stretch_of(w, larger * np.square(Z), told["norm_bound"])
    return Clipping(np.asarray(larger * _seen(w, told) * lost.T @ Z / len(Z)), stretch)


def _weights(
    lengths: Matrix, *, size: float, weight: float, norm_bound: float, constant: float
) -> tuple[Matrix, float] | None:
    """(N,) weights w of records of squared lengths that are known up to a factor, and that factor.

    None where noise leaves nothing known of the records.
    """
    plain, mean = constant == 0.0, float(lengths.mean())
    if not (size > 0.0 and (plain or weight > 0.0) and mean > 0.0):
        return None
    told = size if plain else size / weight
    middle = told / mean
    low, high, factor, w = middle / _WIDEST, middle * _WIDEST, middle, np.ones(len(lengths))
    for _ in range(_HALVINGS):
        factor = float(np.sqrt(low * high))
        w = np.minimum(1.0, norm_bound**2 / (factor * lengths + constant**2))
        if (w * lengths).mean() * factor / (1.0 if plain else w.mean()) < told:
            low = factor
        else:
            high = factor
    return w, factor


def _seen(w: Matrix, told: Told) -> float:
    """How much of what (N,) weights take away was taken away where the mean weight is another one.

    Other records than these lose less where few are long.
    """
    mean, weight = float(w.mean()), told["weight"]
    if told["constant"] == 0.0:
        return 1.0
    return weight / mean * (min(max(1.0 - weight, 0.0) / (1.0 - mean), 1.0) if mean < 1.0 else 1.0)


def _stretch(w: Matrix, squares: Matrix) -> float:
    """E[w] / E[w g_i^2 g_j^2], typical of all i != j."""
    if squares.shape[1] == 1:
        return 1.0
    products = squares.sum(axis=1) ** 2 - np.square(squares).sum(axis=1)
    average = (products / products.mean()) @ w / len(w)
    return max(float(w.mean() / average), 1.0)


def _stretch_of(w: Matrix, squares: Matrix, norm_bound: float) -> float:
    """The same of records that are not Gaussian, of (N, d) squares of z that have about equal means.

    If z_j grows by e z_i, the mean of w z_i z_j grows by e E[w z_i^2 - 2 (w^2 / R^2) z_i^2 z_j^2], of the second part
    where records are clipped. Of Gaussian records that is e E[w g_i^2 g_j^2].
    """
    d, lengths = squares.shape[1], squares.sum(axis=1)
    if d == 1:
        return 1.0
    products = lengths**2 - np.square(squares).sum(axis=1)
    shortened = np.where(w < 1.0, w**2, 0.0) @ products / norm_bound**2
    average = (w @ lengths - 2.0 * shortened / (d - 1)) / lengths.sum()
    return max(float(w.mean() / average), 1.0)


@lru_cache(maxsize=2)
def normals(d: int, points: int = POINTS) -> Matrix:
    """(2^points, d) standard normal numbers that fill the space evenly; always the same."""
    from scipy.special import ndtri  # here: takes long to load
    from scipy.stats.qmc import Sobol

    uniform = Sobol(d, scramble=True, rng=0).random_base2(points)
    return np.asarray(ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12)))
