"""What the sites released of their residuals as one, and a graph search in moments that were made from it.

A round of residual moments asks every site for the moments of z = (x - W'x) / scales, with public W and scales. If W is
nearly right, the z are nearly uncorrelated and of similar size, so the same noise is small compared with all of them.
`combined_releases` maps them back through W and scales to moments of x with little noise. A search finds a better W,
and the next round asks again.

All of this works on what was released: it costs no privacy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.algorithm.consensus import RobustRule

NOISE_WIDTHS = 3.0
"""A covariance of residuals within so many standard deviations of its noise counts as zero."""

# The least square of a next scale, as a share of the residuals' median variance.
_LEAST_SCALE = 0.3
# Residuals that are correlated by more than this show an edge that a search has missed.
_MISSED = 0.1


@dataclass(frozen=True, eq=False)
class PooledMoments:
    """Second moments of the variables over all sites' records."""

    # (d, d), positive definite, in squared units of the variables, up to a common factor: clipped records tell
    # directions, not lengths
    moments: Matrix
    noise_std: float  # of the noise of a covariance of residuals, relative to their median variance
    correlated: Mask  # (d, d) symmetric: pairs of variables whose residuals' covariance stood out of the noise

    def edge_penalty(self, threshold: float) -> float:
        """By how much an edge must lower half a residual variance, in units of that variance.

        As much as an edge of weight `threshold`, and more than the largest of d^2 edges that are pure noise.
        """
        return max(0.5 * threshold**2, 2.0 * math.log(len(self.moments)) * self.noise_std**2)


def mean_over_records(means: Sequence[Matrix], n_samples: Sequence[float], rule: RobustRule | None = None) -> Matrix:
    """The mean over all sites' records, from a mean and a number of rows a site; or what a rule puts in its place."""
    if rule is not None:
        return rule(np.stack(list(means)))
    zero = np.zeros(means[0].shape)
    return sum((n * mean for n, mean in zip(n_samples, means, strict=True)), zero) / sum(n_samples)


def noise_of_moments(n_samples: Sequence[int], variances: Sequence[int], norm_bound: float, rule: RobustRule) -> float:
    """Standard deviation of the noise of a covariance of residuals under a rule.

    Parameters
    ----------
    n_samples, variances
        Records of the sites, and of the noise of their released sums on the fixed-point grid, on the diagonal.
    norm_bound
        Of records of residuals.
    """
    unit = norm_bound**2 / LATTICE
    return rule.noise_std([math.sqrt(v / 2.0) * unit / n for n, v in zip(n_samples, variances, strict=True)])


class SiteRelease(NamedTuple):
    """What one site released of its residuals, about its mean where that is known."""

    moments: Matrix  # (d, d) means over its records
    # of an entry off the diagonal, the noise of the mean included; infinity: nothing is known of the mean
    noise_std: float
    weight: float  # mean weight of its clipped records, 0 to 1; NaN: not known
    n_samples: float  # records

    @classmethod
    def plain(cls, S: Matrix, *, noise_std: float, n_samples: float) -> Self:
        """Of records without a constant: as they are."""
        return cls(S, noise_std, math.nan, n_samples)

    @classmethod
    def about_own_means(
        cls, S: Matrix, *, noise_std: float, of_means: float, constant: float, n_samples: float
    ) -> Self:
        """From (d + 1, d + 1) moments of which sites have taken off their own noisy means.

        Parameters
        ----------
        of_means
            Standard deviation of the sum of the squares of their noise, which is in the moments, times the weight.
        """
        told = float(S[-1, -1])
        weight = min(max(told / constant**2, 0.0), 1.0)
        if told <= NOISE_WIDTHS * math.sqrt(2.0) * noise_std:
            return cls(S[:-1, :-1].copy(), math.inf, weight, n_samples)
        return cls(S[:-1, :-1].copy(), math.hypot(noise_std, of_means / told), weight, n_samples)

    @classmethod
    def about_mean(cls, S: Matrix, *, noise_std: float, constant: float, n_samples: float) -> Self:
        """From (d + 1, d + 1) moments whose last residual is the constant: about the mean, up to a factor.

        Records may be clipped or left out: with weights w, S holds the means of w^2 z z', w^2 z and w^2. The square
        of a noisy mean has the variance of the noise in it, which is taken off. Its noise grows with the mean: the
        mean square over the columns counts for all.
        """
        mean, told = S[:-1, -1], float(S[-1, -1])
        weight = min(max(told / constant**2, 0.0), 1.0)
        if told <= NOISE_WIDTHS * math.sqrt(2.0) * noise_std:
            return cls(S[:-1, :-1].copy(), math.inf, weight, n_samples)
        square = np.outer(mean, mean) - noise_std**2 * np.eye(len(mean))
        off = max(float(np.square(mean).mean()) - noise_std**2, 0.0) / told**2
        grown = math.sqrt((1.0 + off) ** 2 + off**2)
        return cls(np.asarray(S[:-1, :-1] - square / told), noise_std * grown, weight, n_samples)


def mean_by_precision(sites: Sequence[SiteRelease]) -> SiteRelease:
    """All sites as one: each by the inverse variance of its noise and sampling, relative to its weight.

    Sites with few records, or with records that errors of the mean have made short, count for less than by their rows.
    Sampling counts as if a small weight came from records that are left out: so none counts for more by a small one.
    Where no site tells its mean, noise counts as large as the moments are.
    """
    n = [one.n_samples for one in sites]
    plain = mean_over_records([one.moments for one in sites], n)
    weight = np.array([one.weight for one in sites])
    noise = np.array([one.noise_std for one in sites])
    signal = np.ones(len(sites)) if np.isnan(weight).any() else weight
    size = max(float(np.median(plain.diagonal())), 0.0) / max(float(np.average(signal, weights=n)), 1e-12)
    with np.errstate(divide="ignore"):
        precision = 1.0 / (noise**2 + signal * size**2 / np.array(n))
    shares = signal * precision
    if not shares.sum() > 0.0:
        least = float(np.finfo(np.float64).tiny)
        return SiteRelease(plain, max(size, float(np.sqrt(np.square(plain).mean())), least), math.nan, sum(n))
    shares /= shares.sum()
    told = shares > 0.0
    by_sampling = float(np.square(shares * signal) @ (1.0 / np.array(n))) / float(shares @ signal) ** 2
    return SiteRelease(
        sum((share * one.moments for share, one in zip(shares, sites, strict=True)), np.zeros_like(plain)),
        math.sqrt(float(np.square(shares[told] * noise[told]).sum())),
        float(shares @ weight),
        1.0 / by_sampling,
    )


def neighbours(pooled: PooledMoments, dag: Mask, scales: Matrix, threshold: float, *, most: int = 12) -> Mask:
    """(d, d) pairs that a search over the moments should try as edges.

    The edges of the last graph; if it has any, pairs with correlated residuals; and for each variable at most `most`
    that forward selection finds, if their weight may exceed the threshold. The residuals were made with a (d, d) `dag`
    and (d,) scales, to which the noise of a variable's moments is in proportion.
    """
    found = dag.copy()
    if dag.any():
        found |= pooled.correlated
    # Lower than the gain that a search asks of an edge: other selected variables may take part of a true parent's gain.
    least = 0.3 * threshold**2 * float(np.median(scales)) ** 2
    noise = 4.0 * math.log(len(dag)) * (pooled.noise_std * scales) ** 2
    for j, gain in enumerate(np.maximum(least, noise)):
        found[_selected(pooled.moments, j, float(gain), most), j] = True
    return found


def least_noise(variances: Sequence[int], n_samples: Sequence[int], n_variables: int, n_rounds: int) -> float:
    """Lower bound on the noise of all rounds together, from public numbers.

    It is reached if all residuals are as long as the norm bound allows, and all rounds asked for the same ones.
    """
    return math.sqrt(sum(variances) / (2.0 * n_rounds)) * n_variables / (LATTICE * sum(n_samples))


def _selected(S: Matrix, j: int, least: float, most: int) -> list[int]:
    """Forward selection: add the variable that lowers the residual variance of j most, as long as it is by `least`."""
    rest, selected = S.copy(), list[int]()
    left = np.ones(len(S), dtype=bool)
    left[j] = False
    while len(selected) < most:
        variance = rest.diagonal()
        usable = left & (variance > 1e-6 * S.diagonal())
        gains = np.where(usable, rest[j] ** 2 / np.where(usable, variance, 1.0), 0.0)
        k = int(np.argmax(gains))
        if gains[k] <= least:
            break
        selected.append(k)
        left[k] = False
        rest -= np.outer(rest[k], rest[k]) / rest[k, k]  # what k does not explain
    return selected


def missed_neighbours(pooled: PooledMoments, W: Matrix, residual_variance: Matrix) -> Mask:
    """(d, d) pairs whose residuals are still correlated under the (d, d) weights that a search found.

    `residual_variance` has the (d,) variances under these weights, in the units of `pooled.moments`.
    """
    A = (np.eye(len(W)) - W) / next_scales(residual_variance)
    missed = np.abs(A.T @ pooled.moments @ A) > max(_MISSED, NOISE_WIDTHS * pooled.noise_std)
    np.fill_diagonal(missed, val=False)
    return missed


def mean_square_noise(variances: Sequence[int], n_samples: Sequence[int], rule: RobustRule | None = None) -> float:
    """Standard deviation of the noise of a mean square over all sites' records, as a share of its feature bound.

    From the `setup_variance` of the sites' prices, their rows, and the rule that replaces the mean, if there is one.
    """
    if rule is not None:
        return rule.noise_std([math.sqrt(v) / (LATTICE * n) for n, v in zip(n_samples, variances, strict=True)])
    return math.sqrt(sum(variances)) / (LATTICE * sum(n_samples))


def first_scales(mean_squares: Matrix, noise_std: float, bounds: Matrix) -> Matrix:
    """(d,) scales for the first round, from noisy mean squares; their noise is in units of their feature bounds."""
    return np.asarray(np.sqrt(np.maximum(mean_squares, max(0.005, noise_std) * bounds)))


def next_scales(residual_variance: Matrix) -> Matrix:
    """(d,) scales for the next round, from the (d,) residual variances under its W."""
    least = _LEAST_SCALE * float(np.median(residual_variance))
    return np.asarray(np.sqrt(np.maximum(residual_variance, least)))
