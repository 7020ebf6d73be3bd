"""A child that counts: Poisson regression with a log link, y ~ Poisson(exp(alpha + beta' x)).

The log-likelihood is without log y!, which no coefficient changes.
"""

from dataclasses import dataclass

import numpy as np

from fedbnsl.families.regression import Sums
from fedbnsl.protocol.sparse import Index, Matrix

# Of linear predictors: beyond, a trial step is far too long, and numbers are still finite.
_LARGEST = 300.0
# Of what is counted in what is expected: of less, rounding leaves no digit.
_LEAST_SHARE = 1e-15


@dataclass(frozen=True, eq=False)
class Poisson:
    """At a site with so many records, and the sum of their counts."""

    sums_of: Matrix

    @staticmethod
    def totals(y: Index, n_levels: int) -> Matrix:
        """Sums over records: how many they are, and of their counts."""
        return np.array([len(y), y.sum()], dtype=np.float64)

    @property
    def varies(self) -> bool:
        """See `Family`: where nothing was counted, a mean of 0 is best whatever beta is."""
        return bool(self.sums_of[1] > 0.0)

    @property
    def intercepts(self) -> Matrix:
        """See `Family`."""
        return np.asarray(np.log(self.sums_of[[1]] / self.sums_of[0]))

    def step(self, sums: Sums) -> Matrix:
        """See `Family`: the best intercept at once, the logarithm of the counts' sum over that of their means."""
        return np.asarray(np.log1p(np.maximum(sums.gradient / sums.information[0], _LEAST_SHARE - 1.0)))

    def predictors(self, X: Matrix, beta: Matrix) -> Matrix:
        """See `Family`: (n, 1)."""
        return np.clip(X @ beta[:, None], -_LARGEST, _LARGEST)

    def sums(self, X: Matrix, y: Index, eta: Matrix, alpha: Matrix) -> Sums:
        """See `Family.sums`."""
        at = eta[:, 0] + alpha[0]
        mean = np.exp(at)
        Z = np.hstack([np.ones((len(y), 1)), X])
        dispersion = float(((y - mean) ** 2 / mean).sum())
        return Sums(float(y @ at - mean.sum()), dispersion, Z.T @ (y - mean), (Z * mean[:, None]).T @ Z)
