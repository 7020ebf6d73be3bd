"""A child with ordered levels: proportional odds (McCullagh 1980).

    P(y > k) = 1 / (1 + exp(alpha_k - beta' x))    for k = 0, ..., K - 2,    alpha_0 < alpha_1 < ...

One more of a parent multiplies the odds of every "above k" by the same exp(beta). The thresholds alpha are the site's
own. A level that no record of the site has is impossible there: the thresholds around it are equal, so that the levels
that occur, in their order, have all the thresholds that there are.
"""

import math

import numpy as np

from fedbnsl.families.levels import Levels, newton_step
from fedbnsl.families.regression import Sums
from fedbnsl.protocol.sparse import Index, Matrix

# A step of a threshold is at most this long.
_LONGEST = 2.0


class Ordinal(Levels):
    """alpha are one threshold fewer than there are levels that occur."""

    @property
    def intercepts(self) -> Matrix:
        """See `Family`: logarithms of the odds of a level up to each of those that occur, but the last."""
        up_to = self.counts[self.present].cumsum()[:-1]
        total = float(self.counts.sum())
        return np.array([math.log(n / (total - n)) for n in up_to.tolist()], dtype=np.float64)

    def step(self, sums: Sums) -> Matrix:
        """See `Family`: Newton's."""
        return newton_step(sums, longest=_LONGEST)

    def predictors(self, X: Matrix, beta: Matrix) -> Matrix:
        """See `Family`: (n, 1)."""
        return X @ beta[:, None]

    def sums(self, X: Matrix, y: Index, eta: Matrix, alpha: Matrix) -> Sums:
        """See `Family.sums`: the second derivatives are the observed ones, of a concave log-likelihood.

        With s the logistic function, u = alpha_r - eta above the level of a record and l below it, the likelihood is
        s(u) - s(l), d log / du = s(u) (1 - s(u)) / (s(u) - s(l)), and so on; u is infinite at the last level.
        """
        n, a = len(y), len(alpha)
        rank = np.searchsorted(self.present, y)
        ends = np.concatenate([[-np.inf], alpha, [np.inf]])
        if (np.diff(alpha) <= 0.0).any():  # a step that went too far: impossible
            return Sums(-np.inf, 0.0, np.zeros(a + X.shape[1]), np.zeros((a + X.shape[1],) * 2))
        upper, lower = ends[rank + 1] - eta[:, 0], ends[rank] - eta[:, 0]
        s_u, s_l = _logistic(upper), _logistic(lower)
        # s(u) - s(l) = s(u) s(-l) (1 - exp(l - u)), which keeps its digits in both tails.
        gap = -np.expm1(np.minimum(np.where(np.isfinite(upper - lower), lower - upper, -np.inf), 0.0))
        log_p = np.log(gap) - np.logaddexp(0.0, -upper) - np.logaddexp(0.0, lower)
        # d log p / du = s(-u) + 1 / (exp(u - l) - 1), and of l the same but for the sign, with s(l)
        with np.errstate(over="ignore", divide="ignore"):
            between = np.where(np.isfinite(upper - lower), 1.0 / np.expm1(upper - lower), 0.0)
        at_upper = np.where(np.isfinite(upper), _logistic(-upper) + between, 0.0)
        at_lower = np.where(np.isfinite(lower), -(s_l + between), 0.0)
        shared = between * (1.0 + between)  # -d2 log p / du dl
        of_u = np.where(np.isfinite(upper), s_u * _logistic(-upper) + shared, 0.0)
        of_l = np.where(np.isfinite(lower), s_l * _logistic(-lower) + shared, 0.0)
        across = np.where(np.isfinite(upper) & np.isfinite(lower), -shared, 0.0)
        U, L = np.zeros((n, a)), np.zeros((n, a))
        U[np.flatnonzero(rank < a), rank[rank < a]] = 1.0
        L[np.flatnonzero(rank > 0), rank[rank > 0] - 1] = 1.0
        rows_u, rows_l = np.hstack([U, -X * (rank < a)[:, None]]), np.hstack([L, -X * (rank > 0)[:, None]])
        gradient = at_upper @ rows_u + at_lower @ rows_l
        mixed = (rows_u * across[:, None]).T @ rows_l
        information = (rows_u * of_u[:, None]).T @ rows_u + (rows_l * of_l[:, None]).T @ rows_l + mixed + mixed.T
        return Sums(float(log_p.sum()), 0.0, gradient, information)


def _logistic(x: Matrix) -> Matrix:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x)))
