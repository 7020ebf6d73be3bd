"""A child with levels: logistic regression of two levels, multinomial logit of more.

    P(y = k) = exp(eta_k + alpha_k) / sum over l of exp(eta_l + alpha_l),    eta_k = beta_k' x,    eta_0 = 0.

A level that no record of the site has is impossible there: alpha_k = -inf makes the likelihood largest, whatever beta
is. Of the levels that occur, the first has alpha 0. It need not be the reference level 0: each site has an intercept
for each level, and all but one of them are free.
"""

import math

import numpy as np

from fedbnsl.families.levels import Levels, newton_step
from fedbnsl.families.regression import Sums
from fedbnsl.protocol.sparse import Index, Matrix

# A step of an intercept is at most this long: further out, probabilities are far from what one point tells of them.
_LONGEST = 5.0


class Categorical(Levels):
    """beta are K - 1 rows of p coefficients, one after another."""

    @property
    def intercepts(self) -> Matrix:
        """See `Family`: logarithms of odds against the first level that occurs."""
        first, *others = self.counts[self.present].tolist()
        return np.array([math.log(n / first) for n in others], dtype=np.float64)

    def step(self, sums: Sums) -> Matrix:
        """See `Family`: Newton's."""
        return newton_step(sums, longest=_LONGEST)

    def predictors(self, X: Matrix, beta: Matrix) -> Matrix:
        """See `Family`: (n, K)."""
        return np.pad(X @ beta.reshape(len(self.counts) - 1, -1).T, ((0, 0), (1, 0)))

    def sums(self, X: Matrix, y: Index, eta: Matrix, alpha: Matrix) -> Sums:
        """See `Family.sums`."""
        n, p, a, K = *X.shape, len(alpha), len(self.counts)
        shift = np.full(K, -np.inf)
        shift[self.present] = [0.0, *alpha]
        at = eta + shift
        at -= at.max(axis=1, keepdims=True, initial=-np.inf)
        P = np.exp(at)
        total = P.sum(axis=1)
        P /= total[:, None]
        own = at[np.arange(n), y] - np.log(total)
        left = -P
        left[np.arange(n), y] += 1.0
        free = self.present[1:]
        gradient = np.concatenate([left[:, free].sum(axis=0), (left[:, 1:].T @ X).ravel()])
        rows = np.hstack([P[:, free], *(P[:, [k]] * X for k in range(1, K))])
        information = -rows.T @ rows
        for k in range(1, K):
            first = a + (k - 1) * p
            of_level = [*np.flatnonzero(free == k).tolist(), *range(first, first + p)]
            Z = np.hstack([np.ones((n, int((free == k).any()))), X])
            information[np.ix_(of_level, of_level)] += (Z * P[:, [k]]).T @ Z
        return Sums(float(own.sum()), 0.0, gradient, information)
