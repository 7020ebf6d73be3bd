"""The class of least BIC from a private run's noisy moments of residuals.

Sites release moments of z = A'x, with A = (I - W) / scales from the round before, and independent noise of one size on
all entries. If W is nearly right, most entries are noise, and those that stand out of it are what W misses. So an entry
within its noise counts as zero, the rest is mapped back to the columns, and the class is searched there.

That proposes graphs: at two prices of an edge, since one that is wrong leads to others. Which of them is best, the
likelihood of all that was released says (`released_likelihood`); it also drops and adds edges, and gives the weights.
With them, all releases are mapped to better residuals, combined by the inverse variances of their noise, cleared again
there, and searched again, until nothing gets better. This works on what was released: it costs no privacy.

Noise takes the place of sampling error in the penalty: an edge that is none gains as much as among 1 / s^2 records, if
s is the standard deviation of a correlation of residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.search.class_search import search_class
from fedbnsl_server.search.fitted_network import Accuracy, fitted
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.order_search import extended_penalty
from fedbnsl_server.search.pooled_moments import NOISE_WIDTHS
from fedbnsl_server.search.released_likelihood import Explanation, Release, ReleasedLikelihood

# The least eigenvalue of cleared correlations of residuals where noise is large; the least residual variance, as a
# share of the median one.
_LEAST_EIGENVALUE, _LEAST_VARIANCE = 0.05, 1e-6
# What an edge costs where graphs are proposed, in units of the extended BIC's penalty; and where draws are searched.
_PRICES, _PRICE_OF_DRAWS = (1.0, 2.0), 1.5
# Of each of these searches but the first: in rough moments, where it would take longest, it would tell least.
_PATIENCE, _MOST_TIMES = 2, 3
# The squared error may be so many times what it would be with all releases.
_MOST_LOST = 1.2
# A residual variance can be told from so many standard deviations of the noise on.
_TELLABLE = 3.0


@dataclass(frozen=True, eq=False)
class Released:
    """Moments of residuals over all records: of one release, or of several that were mapped to the same residuals.

    Attributes
    ----------
    moments
        (d, d) of z = A'x, in units of their median; noise may have made eigenvalues negative.
    noise
        (d, d) variance of the noise of the entries.
    A
        (d, d), invertible.
    n_samples
        Records.
    """

    moments: Matrix
    noise: Matrix
    A: Matrix
    n_samples: float

    @property
    def noise_std(self) -> float:
        """The typical noise of an entry off the diagonal."""
        return math.sqrt(float(np.median(self.noise[~np.eye(len(self.noise), dtype=bool)])))

    @property
    def error(self) -> float:
        """The typical standard deviation of an entry off the diagonal, by noise and sampling."""
        return math.sqrt(self.noise_std**2 + 1.0 / self.n_samples)

    @property
    def units(self) -> Matrix:
        """(d,) of the residuals in which their mean squares all have the typical noise, in units of x."""
        in_z = (self.noise.diagonal() / (2.0 * self.noise_std**2)) ** 0.25
        return np.asarray(in_z / self.A.diagonal())

    @property
    def of_columns(self) -> Matrix:
        """(d, d) moments of x, up to a factor, with all their noise."""
        return self._mapped_back(self.moments)

    @property
    def cleared(self) -> Matrix:
        """(d, d) moments of x, up to a factor: entries within their noise are zero, and all eigenvalues positive."""
        error = np.sqrt(self.noise + 1.0 / self.n_samples)
        large = np.abs(self.moments) > NOISE_WIDTHS * error
        np.fill_diagonal(large, val=True)
        # A residual variance within its error counts as the error.
        size = np.sqrt(np.maximum(self.moments.diagonal(), error.diagonal()))
        R = np.where(large, self.moments, 0.0) / size / size[:, None]
        np.fill_diagonal(R, 1.0)
        values, vectors = np.linalg.eigh(R)
        least = min(_LEAST_EIGENVALUE, NOISE_WIDTHS * self.error)
        R = (vectors * np.maximum(values, least)) @ vectors.T
        return self._mapped_back(R * size * size[:, None])

    def _mapped_back(self, S_z: Matrix) -> Matrix:
        back = np.linalg.inv(self.A)
        S = back.T @ S_z @ back
        return np.asarray(0.5 * (S + S.T), dtype=np.float64)


def released(
    S_z: Matrix,
    *,
    noise_std: float,
    W: Matrix,
    scales: Matrix,
    weight: float = math.nan,
    norm_bound: float = math.inf,
    constant: float = 0.0,
) -> Release:
    """What a round released.

    Parameters
    ----------
    S_z
        (d, d) mean over all records of the moments of (x - W'x) / scales.
    noise_std
        Of an entry off the diagonal; sqrt(2) times that on it.
    weight, norm_bound, constant
        See `Release`.
    """
    size = _typical(S_z, math.sqrt(2.0) * noise_std)
    A, unit = (np.eye(len(S_z)) - W) / scales, math.sqrt(size)
    return Release(S_z / size, noise_std / size, A, weight, norm_bound / unit, constant / unit)


def combined(releases: Sequence[Release], n_samples: float, A: Matrix) -> Released:
    """All releases as moments of the residuals A'x: the mean by inverse variances of their noise.

    Errors of different entries count as independent.
    """
    moments, precision = np.zeros_like(A), np.zeros_like(A)
    for one in releases:
        M = np.linalg.solve(one.A, A)
        # Entry (i, j) of the noise and (j, i) are one number, so that u'Nv has the variance |u|^2 |v|^2 + (u'v)^2.
        G = M.T @ M
        mapped, noise = M.T @ one.moments @ M, one.noise_std**2 * (np.outer(G.diagonal(), G.diagonal()) + G * G)
        size = _typical(mapped, math.sqrt(float(np.median(noise.diagonal()))))
        moments += mapped * size / noise
        precision += size**2 / noise
    moments /= precision
    return Released(0.5 * (moments + moments.T), 1.0 / precision, A, n_samples)


def _typical(moments: Matrix, noise_std: float) -> float:
    """The median mean square; noise alone may have any size or sign, and counts as its standard deviation."""
    return max(float(np.median(moments.diagonal())), noise_std, float(np.finfo(np.float64).tiny))


class Learned(NamedTuple):
    """The graph that explains all releases best.

    Attributes
    ----------
    graph
        Its score is that of the likelihood.
    moments
        (d, d) of the columns, up to a factor, as the graph says.
    accuracy
        Of these moments, in residuals of the graph.
    weight_error
        (E,) standard errors of its weights, in the order of `Columns.spread`.
    seen
        All releases as moments of its residuals.
    """

    graph: FoundGraph
    moments: Matrix
    accuracy: Accuracy
    weight_error: Matrix
    seen: Released


@dataclass(frozen=True, eq=False)
class NoisyClassSearch:
    """The search between two private rounds, and after the last one.

    Attributes
    ----------
    mask
        What is known of the edges between columns.
    threshold, seed
        See `search_class`.
    """

    mask: EdgeMask
    threshold: float
    seed: int

    def found(self, releases: Sequence[Release], n_samples: float) -> Learned:
        """The graph that explains all releases best, without edges whose weights do not exceed the threshold.

        What shortening does to moments is taken back by what is known of them: at first from the graph whose residuals
        were asked for last, then from the best one.
        """
        releases, A = _worth_it(releases, n_samples), releases[-1].A
        back = np.linalg.inv(A)
        known, best = back.T @ back, None
        for _ in range(_MOST_TIMES):
            likelihood, straight = self._likelihood(releases, n_samples, known)
            given = combined(straight, n_samples, A)
            before = None if best is None else likelihood.explained(best.dag, best.weights, best.covariance)
            best = self._best_proposed(likelihood, given, before)
            known, A = best.moments, _residuals_of(best)
            if best is before:
                break
        likelihood, straight = self._likelihood(releases, n_samples, known)
        best = self._without_small(cast(Explanation, best), likelihood)
        seen, variance = combined(straight, n_samples, A), best.covariance.diagonal()
        # In units of the residuals' own spread, but for columns whose noise is of another size.
        units = seen.units / np.sqrt(variance)
        unit = float(np.median(units))
        precision = [one.noise_std**-2 for one in straight]
        stretch = math.sqrt(np.average([one.stretch**2 for one in straight], weights=precision))
        accuracy = Accuracy(n_samples, stretch * seen.noise_std * unit**2, seen.units / unit)
        graph = FoundGraph(best.dag, best.weights, variance, best.score)
        return Learned(graph, best.moments, accuracy, likelihood.weight_errors(best), seen)

    def _likelihood(
        self, releases: Sequence[Release], n_samples: float, moments: Matrix
    ) -> tuple[ReleasedLikelihood, list[Release]]:
        straight = [one.unshortened(moments) for one in releases]
        return ReleasedLikelihood(straight, n_samples, self.mask), straight

    def _best_proposed(self, likelihood: ReleasedLikelihood, given: Released, best: Explanation | None) -> Explanation:
        """What explains all releases best: the best so far, or a graph found in `given` and improved."""
        start = None if best is None else topological_order(best.dag)
        for price in _PRICES:
            found = self._search(given, price, 0 if start is None else _PATIENCE, start)
            one = likelihood.explained(found.dag, found.weights, np.diag(found.residual_variance))
            one = likelihood.improved(one)
            if best is None or one.score < best.score:
                best = one
        return cast(Explanation, best)

    def __call__(self, moments: Matrix, accuracy: Accuracy, start: Mask, /) -> Mask:
        """The best DAG for drawn moments with the same noise, from the order of one that is probably near."""
        network = fitted(start, moments, self.mask.columns)
        d = len(moments)
        size = np.sqrt(network.residual_variance)
        A, share = (np.eye(d) - network.weights) / size, (network.units(accuracy) / size) ** 2
        noise = accuracy.noise_std**2 * np.outer(share, share) * (1.0 + np.eye(d))
        drawn = Released(A.T @ moments @ A, noise, A, accuracy.n_samples)
        return self._search(drawn, _PRICE_OF_DRAWS, 0, topological_order(start)).dag

    def _search(self, given: Released, price: float, patience: int | None, start: Sequence[int] | None) -> FoundGraph:
        between = self.mask.of_variables
        everything = ~np.eye(len(between.allowed), dtype=bool)
        return search_class(
            given.cleared,
            candidates=everything & between.allowed,
            mask=self.mask,
            penalty=price * extended_penalty(1.0 / given.error**2, len(between.allowed)),
            threshold=self.threshold,
            seed=self.seed,
            patience=patience,
            start=start,
        )

    def _without_small(self, best: Explanation, likelihood: ReleasedLikelihood) -> Explanation:
        """The graph without edges whose weights do not exceed the threshold, explained again."""
        between, columns = self.mask.of_variables, self.mask.columns
        while True:
            small = best.dag & (np.abs(columns.largest(best.weights)) <= self.threshold) & ~between.required
            if not small.any():
                return best
            best = likelihood.explained(best.dag & ~small, best.weights, best.covariance)


def next_scales(found: FoundGraph, noise_std: float, scales: Matrix) -> Matrix:
    """(d,) scales for the next round: standard deviations of the new residuals, none below what noise lets us tell.

    Parameters
    ----------
    noise_std, scales
        Of the last release, and its scales: noise is of one size in their units.
    """
    least = _TELLABLE * noise_std * scales**2
    return np.asarray(np.sqrt(np.maximum(found.residual_variance, least)))


def _worth_it(releases: Sequence[Release], n_samples: float) -> Sequence[Release]:
    """The last ones, as few as tell nearly as much as all.

    Sampling error is the same in all. Where it is most of the error, early releases add little, and in their residuals,
    which are far from uncorrelated, it is of different sizes.
    """
    precision = np.cumsum([one.noise_std**-2 for one in reversed(releases)])
    error = 1.0 / precision + 1.0 / n_samples
    return releases[-1 - int(np.argmax(error <= _MOST_LOST * error[-1])) :]


def _residuals_of(best: Explanation) -> Matrix:
    variance = best.covariance.diagonal()
    least = _LEAST_VARIANCE * float(np.median(variance))
    return np.asarray((np.eye(len(variance)) - best.weights) / np.sqrt(np.maximum(variance, least)))
