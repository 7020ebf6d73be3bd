"""Whether sites agree on an edge: a test that their coefficients are equal, and searches without each site."""

import math
from collections.abc import Sequence

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix, symmetric_of
from fedbnsl_server.inference.bootstrap import Search, best_of
from fedbnsl_server.search.linear_network import SiteMoments, pooled, pooled_accuracy
from fedbnsl_server.search.progress import UNWATCHED, Progress

MOST_LEFT_OUT = 20
"""Beyond so many sites none decides alone, and as many searches take long."""

# Sums that are functions of each other, such as those of steps of a column of few values.
_RANK = 1e-6


def cochran(estimates: Matrix, errors: Matrix) -> tuple[Matrix, Index]:
    """(E,) Cochran's Q and its degrees of freedom, from (P, E) estimates and standard errors; NaN: none.

    Q is the sum over the sites of ((estimate - mean) / error)^2, where the mean weights by 1 / error^2. If all sites
    have the same coefficient, it is chi-square with one degree of freedom less than there are sites.
    """
    known = np.isfinite(estimates) & np.isfinite(errors)
    weights = np.where(known, 1.0 / np.where(known, errors, 1.0) ** 2, 0.0)
    values = np.where(known, estimates, 0.0)
    mean = (weights * values).sum(axis=0) / np.maximum(weights.sum(axis=0), np.finfo(np.float64).tiny)
    degrees = np.maximum(known.sum(axis=0) - 1, 0)
    return np.where(degrees > 0, (weights * (values - mean) ** 2).sum(axis=0), 0.0), degrees


def kept_without_a_site(
    sites: Sequence[SiteMoments],
    weights: Sequence[float],
    rivals: Sequence[Mask],
    search: Search,
    *,
    progress: Progress = UNWATCHED,
) -> dict[int, Mask]:
    """By the place of a site: (V, V) symmetric which pairs a search without it has adjacent.

    There are as many searches as sites, or fewer, once it is enough.

    Parameters
    ----------
    weights
        Of the sites' moments in the pooled ones.
    rivals
        (V, V) graphs that may be the best; first that of all sites. If it is alone, each search is a full one.
    """
    progress.begin("without one site each")

    def without(p: int) -> Mask | None:
        if progress.is_enough:
            return None
        others = [one for k, one in enumerate(sites) if k != p]
        left = [weight for k, weight in enumerate(weights) if k != p]
        accuracy = pooled_accuracy([one.accuracy for one in others], left)
        problem = search.on(pooled([one.moments for one in others], left), accuracy, rivals[0])
        start, step = rivals[0], progress.step()
        alone = [problem.found(start=start, progress=step).dag] if len(rivals) == 1 else []
        found = best_of(problem, [*rivals, *alone], progress)
        if progress.is_enough:  # perhaps before its search was at its end
            return None
        progress.at(p / len(sites))
        return found | found.T

    return {p: found for p, found in enumerate(progress.each(without, range(len(sites)))) if found is not None}


def holm(p: Matrix) -> Matrix:
    """(m,) p-values adjusted for m tests (Holm 1979): below a level, the chance of one false alarm is below it."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (p.size - np.arange(p.size)))
    found = np.empty(p.size)
    found[order] = np.minimum(stepped, 1.0)
    return found


def chi_square_tails(q: Matrix, degrees: Index) -> Matrix:
    """Chance that a chi-square number with so many degrees of freedom, at least 1, exceeds q."""
    from scipy.special import chdtrc  # takes long to load, and few commands need it

    return np.asarray(chdtrc(degrees, q), dtype=np.float64)


def tails(z: Matrix) -> Matrix:
    """Chance that a standard normal number is farther from zero than z."""
    return np.array([math.erfc(abs(value) / math.sqrt(2.0)) for value in z.tolist()])


def statistic_of_sums(sums: Matrix) -> tuple[float, int]:
    """The statistic g' M^-1 g, and its degrees of freedom: 0 where nothing was told.

    `sums`: rows; q sums g; and their covariance M, i <= j. Where the sums have mean 0, the statistic is chi-square.
    """
    q = round((np.sqrt(8 * sums.size + 1) - 3) / 2)
    g, M = sums[1 : 1 + q], symmetric_of(sums[1 + q :], q)
    size = np.sqrt(M.diagonal())
    varies: Mask = size > 0.0
    if not varies.any():
        return 0.0, 0
    values, vectors = np.linalg.eigh(M[np.ix_(varies, varies)] / size[varies] / size[varies, None])
    large = values > _RANK
    parts = vectors[:, large].T @ (g[varies] / size[varies])
    return float(parts**2 @ (1.0 / values[large])), int(large.sum())
