"""What shortening records does to their moments, and how to take it back.

A site shortens a record (z, c) to the norm R before it adds its products: it counts with w = min(1, R^2 / |(z, c)|^2).
Long records lie along the directions of large variance, so that these are understated: the moments of Gaussian z with
covariance P = U diag(l) U' become U diag(l_i E[w g_i^2]) U', g standard normal. In well-chosen residuals all l are
about equal, and only a factor is lost; in those of the first rounds they are not. Given P, up to a factor, from
everything that was released, the difference can be taken off. The factor follows from the mean of w, which the
constant c tells; without a constant from the mean of w |z|^2, unless nearly all records were shortened, and then the
difference hardly depends on it.

What is taken back depends on the P that the noisy moments tell. If one covariance of z changes by e, the shortened
moments change by e E[w g_i^2 g_j^2], which is less than e E[w]: so P follows the noise by more than it is, and its
errors are those of noise that is stretched by the ratio.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedbnsl.sparse import Matrix

# Points of a Sobol sequence, as a power of 2, and halvings of the interval that the factor lies in.
_POINTS, _HALVINGS = 13, 50
_WIDEST = 1e6


class Shortening(NamedTuple):
    """What shortening has done.

    Attributes
    ----------
    bias
        (d, d) what to add to the mean of w z z' over all records, to make it proportional to P.
    stretch
        How much more P errs, where it is told by these sums, than the noise in them says; at least 1.
    """

    bias: Matrix
    stretch: float


def shortening(P: Matrix, *, size: float, weight: float, norm_bound: float, constant: float) -> Shortening:
    """What shortening does to the moments of Gaussian records.

    Parameters
    ----------
    P
        (d, d) covariance of z, up to a factor; positive semidefinite.
    size
        Trace of the mean of w z z', as released.
    weight
        Mean of w, as released, over all records; those with a missing value have none. Without a constant it is not
        told, and does not count.
    norm_bound, constant
        R and c; 0: there is no constant.
    """
    values, vectors = np.linalg.eigh(P)
    values = np.maximum(values, 0.0)
    plain = constant == 0.0
    if not (size > 0.0 and (plain or weight > 0.0) and values.sum() > 0.0):  # noise: nothing is known of the records
        return Shortening(np.zeros_like(P), 1.0)
    squares = _squares_of_normals(len(P))
    lengths = squares @ values
    told = size if plain else size / weight
    middle = told / float(values.sum())
    low, high, factor, w = middle / _WIDEST, middle * _WIDEST, middle, np.ones(len(squares))
    for _ in range(_HALVINGS):
        factor = float(np.sqrt(low * high))
        w = np.minimum(1.0, norm_bound**2 / (factor * lengths + constant**2))
        if (w * lengths).mean() * factor / (1.0 if plain else w.mean()) < told:
            low = factor
        else:
            high = factor
    # w differs little from its mean: the rest of the average converges faster.
    mean = float(w.mean())
    along = mean + (w - mean) @ (squares - 1.0) / len(squares)
    factor *= 1.0 if plain else weight / mean
    shortened = (vectors * (factor * values * along)) @ vectors.T
    bias = np.asarray(factor * mean * (vectors * values) @ vectors.T - shortened)
    return Shortening(bias, _stretch(w, squares))


def _stretch(w: Matrix, squares: Matrix) -> float:
    """E[w] / E[w g_i^2 g_j^2], typical of all i != j."""
    if squares.shape[1] == 1:
        return 1.0
    products = squares.sum(axis=1) ** 2 - np.square(squares).sum(axis=1)
    average = (products / products.mean()) @ w / len(w)
    return max(float(w.mean() / average), 1.0)


@lru_cache(maxsize=2)
def _squares_of_normals(d: int) -> Matrix:
    """(2^13, d) squares of standard normal numbers that fill the space evenly; always the same."""
    from scipy.special import ndtri  # here: takes long to load
    from scipy.stats.qmc import Sobol

    points = Sobol(d, scramble=True, rng=0).random_base2(_POINTS)
    return np.asarray(np.square(ndtri(np.clip(points, 1e-12, 1.0 - 1e-12))))
