"""The class of least BIC from a private run's noisy moments of residuals.

Sites release moments of z = A'x, with A = (I - W) / scales from the round before, and independent noise of one size on
all entries. If W is nearly right, most entries are noise, and those that stand out of it are what W misses. So an entry
within its noise counts as zero, the rest is mapped back to the columns, and the class is searched there.

The graph that is found gives better residuals than those that were asked for. The released moments are mapped to them,
with their noise, cleared again there, and searched again, until the graph stays. This works on what was released: it
costs no privacy.

Noise takes the place of sampling error in the penalty: an edge that is none gains as much as among 1 / s^2 records, if
s is the standard deviation of a correlation of residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.search.class_search import search_class
from fedbnsl_server.search.fitted_network import Accuracy, fitted
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.order_search import extended_penalty
from fedbnsl_server.search.pooled_moments import NOISE_WIDTHS

# The least eigenvalue of cleared correlations of residuals where noise is large; the least residual variance, as a
# share of the median one.
_LEAST_EIGENVALUE, _LEAST_VARIANCE = 0.05, 1e-6
# Of noise, one chance dependence in the search leads to others: an edge costs so many times what it would in records.
_COSTS = (2.0, 2.0, 1.5)  # in the first rounds, and in all later ones
_MOST_TIMES = 3
# A residual variance can be told from so many standard deviations of the noise on.
_TELLABLE = 3.0


@dataclass(frozen=True, eq=False)
class Released:
    """Moments of residuals over all records, as they were released.

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

    def of(self, A: Matrix) -> "Released":
        """The same as moments of the residuals A'x; errors of different entries count as independent."""
        M = np.linalg.solve(self.A, A)
        square = M * M
        moments, noise = M.T @ self.moments @ M, square.T @ self.noise @ square
        size = _typical(moments, math.sqrt(float(np.median(noise.diagonal()))))
        return Released(0.5 * (moments + moments.T) / size, noise / size**2, A, self.n_samples)

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


def released(S_z: Matrix, *, noise_std: float, n_samples: float, W: Matrix, scales: Matrix) -> Released:
    """What a round released.

    Parameters
    ----------
    S_z
        (d, d) mean over all records of the moments of (x - W'x) / scales.
    noise_std
        Of an entry off the diagonal; sqrt(2) times that on it.
    n_samples
        Records.
    """
    d = len(S_z)
    size = _typical(S_z, math.sqrt(2.0) * noise_std)
    noise = (noise_std / size) ** 2 * (1.0 + np.eye(d))
    return Released(S_z / size, noise, (np.eye(d) - W) / scales, n_samples)


def _typical(moments: Matrix, noise_std: float) -> float:
    """The median mean square; noise alone may have any size or sign, and counts as its standard deviation."""
    return max(float(np.median(moments.diagonal())), noise_std, float(np.finfo(np.float64).tiny))


@dataclass(frozen=True, eq=False)
class NoisyClassSearch:
    """The search between two private rounds, and after the last one.

    Attributes
    ----------
    mask
        What is known of the edges between columns.
    cost
        Of an edge, in units of the extended BIC's penalty.
    threshold, seed
        See `search_class`.
    """

    mask: EdgeMask
    cost: float
    threshold: float
    seed: int

    def found(self, given: Released, *, patience: int | None = None) -> tuple[FoundGraph, Released]:
        """The graph, with the weights of cleared moments, and the moments of its residuals."""
        found = self._search(given.cleared, given.error, patience, None)
        for _ in range(_MOST_TIMES - 1):
            now, before = given.of(_residuals_of(found)), found.dag
            found = self._search(now.cleared, now.error, patience, topological_order(before))
            if (found.dag == before).all():
                break
        return found, given.of(_residuals_of(found))

    def __call__(self, moments: Matrix, accuracy: Accuracy, start: Mask, /) -> Mask:
        """The best DAG for drawn moments with the same noise, from the order of one that is probably near."""
        network = fitted(start, moments, self.mask.columns)
        d = len(moments)
        A = (np.eye(d) - network.weights) / np.sqrt(network.residual_variance)
        noise = accuracy.noise_std**2 * (1.0 + np.eye(d))
        drawn = Released(A.T @ moments @ A, noise, A, accuracy.n_samples)
        return self._search(drawn.cleared, drawn.error, 0, topological_order(start)).dag

    def _search(self, S: Matrix, error: float, patience: int | None, start: Sequence[int] | None) -> FoundGraph:
        between = self.mask.of_variables
        everything = ~np.eye(len(between.allowed), dtype=bool)
        return search_class(
            S,
            candidates=everything & between.allowed,
            mask=self.mask,
            penalty=self.cost * extended_penalty(1.0 / error**2, len(between.allowed)),
            threshold=self.threshold,
            seed=self.seed,
            patience=patience,
            start=start,
        )


def cost_of(step: int) -> float:
    """What an edge costs in a round, from 1, in units of the extended BIC's penalty: more where W is still far off."""
    return _COSTS[min(step, len(_COSTS)) - 1]


def next_scales(found: FoundGraph, given: Released, scales: Matrix) -> Matrix:
    """(d,) scales for the next round: standard deviations of the new residuals, none below what noise lets us tell.

    Parameters
    ----------
    given, scales
        What the last round released, and its scales: noise is of one size in their units.
    """
    least = _TELLABLE * given.noise_std * scales**2
    return np.asarray(np.sqrt(np.maximum(found.residual_variance, least)))


def with_released_weights(found: FoundGraph, of_residuals: Released, mask: EdgeMask) -> FoundGraph:
    """The graph with weights and residual variances from the moments as they were released.

    Where entries were set to zero the errors of weights are not what the noise says.
    """
    network = fitted(found.dag, of_residuals.of_columns, mask.columns)
    return replace(found, weights=network.weights, residual_variance=network.residual_variance)


def _residuals_of(found: FoundGraph) -> Matrix:
    variance = found.residual_variance
    least = _LEAST_VARIANCE * float(np.median(variance))
    return np.asarray((np.eye(len(variance)) - found.weights) / np.sqrt(np.maximum(variance, least)))
