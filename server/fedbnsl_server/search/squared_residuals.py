"""Heavy tails in the errors of mean products: how squares of residuals go together at each site.

The mean of z r over n rows has the variance E z^2 r^2 / n, where E z r = 0 (White 1980). Let e = x - W'x be residuals
under weights W that are near those of the graph, with variances v and correlations c. A site tells the mean of e_s^2
e_t^2 over v_s v_t; less 2 c_st^2 for other s and t, it is M_st: 1 for Gaussian residuals, and 3 for s = t. Of sums
z = sum of Z_s e_s and r = sum of R_s e_s, let a_s and b_s be the shares of Z_s^2 v_s and R_s^2 v_s in their totals, and
q_s the root of a_s b_s, with the sign of Z_s R_s. Then

    E z^2 r^2 / (E z^2 E r^2) = a'Mb + 2 sum over s and other t of q_s q_t M_st - 2 (sum of q_s)^2

if residuals are independent, and if they are Gaussian. Otherwise it is near that, and no wilder than M, whatever W is.
Where M has no limit, since fourth moments do not exist, a mean product over its error has tails like those of a normal
number all the same: one row that is large in both z and r is in both.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix

# Residuals that hold less than this share of both combinations add nothing by their products.
_NOTHING = 1e-4


@dataclass(frozen=True, eq=False)
class SquaredResiduals:
    """What a site tells of its residuals."""

    weights: Matrix  # (d, d) W
    products: Matrix  # (d, d) E e_s^2 e_t^2 / (v_s v_t); NaN where a pair was not asked for

    def over(self, kept: Index) -> Self:
        """Of some of the columns."""
        both = np.ix_(kept, kept)
        return type(self)(self.weights[both], self.products[both])

    def spread(self, S: Matrix, left: Matrix, right: Matrix, at: tuple[Index, Index]) -> Matrix:
        """(K,) E z^2 r^2 / (E z^2 E r^2) of pairs of a left and a right combination of columns; 0: one does not vary.

        Parameters
        ----------
        S
            (d, d) second moments of the columns, without NaN.
        left, right
            (d, L) and (d, R) coefficients of the columns, one combination a column.
        at
            (K,) places of the left and of the right one.
        """
        A = np.eye(len(S)) - self.weights
        covariance = A.T @ S @ A
        size = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        alone = np.eye(len(S), dtype=bool)
        over = np.where(size > 0.0, size, 1.0)
        c = np.where(alone, 0.0, covariance / over / over[:, None])
        M = np.where(np.isnan(self.products), 1.0 + 2.0 * alone, self.products - 2.0 * c**2)
        back = np.asarray(size[:, None] * np.linalg.inv(A), dtype=np.float64)
        Z, R = _of_length_1(back @ left), _of_length_1(back @ right)
        found = ((Z**2).T @ M @ R**2)[at]
        common = np.flatnonzero(((Z**2).T @ R**2)[at] > _NOTHING)
        q = (Z[:, at[0][common]] * R[:, at[1][common]]).T
        found[common] += 2.0 * ((q @ np.where(alone, 0.0, M)) * q).sum(axis=1) - 2.0 * q.sum(axis=1) ** 2
        return found


def _of_length_1(coefficients: Matrix) -> Matrix:
    """(d, K) columns of length 1, and 0."""
    size = np.sqrt((coefficients**2).sum(axis=0))
    return np.asarray(coefficients / np.where(size > 0.0, size, 1.0))
