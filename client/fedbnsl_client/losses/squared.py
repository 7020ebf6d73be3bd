"""The least-squares loss of one table, 1/(2n) ||X - X B||_F^2, through its second moments."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.mapped_array import sum_over_rows


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """What the loss needs of a table: S = X'X / n."""

    # S: (d, d), in squared units of the columns, about zero or about what the plan takes off. As private as the table
    S: Matrix

    @classmethod
    def of(cls, X: Matrix, centre: Matrix | None = None, scale: Matrix | None = None) -> Self:
        """S of an (n, d) table, or of (X - centre) / scale with (d,) numbers for its columns."""

        def squares(block: Matrix) -> Matrix:
            x = block if centre is None else block - centre
            x = x if scale is None else x / scale
            return np.asarray(x.T @ x)

        return cls(sum_over_rows(X, squares) / X.shape[0])

    def gradient(self, B: Matrix) -> Matrix:
        """(d, d) gradient of the loss at B: S (B - I)."""
        return self.S @ B - self.S

    def smoothness(self, rho_2: float) -> Matrix:
        """(d,) M_i = S_ii + rho_2, the second derivative of the local objective in any B_ij of row i."""
        return np.asarray(self.S.diagonal() + rho_2, dtype=np.float64)

    def residual_variance(self, B: Matrix) -> Matrix:
        """(d,) mean square of each column of X - X B."""
        gap = np.eye(B.shape[0]) - B
        return np.asarray(np.maximum((gap * (self.S @ gap)).sum(axis=0), 0.0))

    def least_squares(self, support: Mask) -> Matrix:
        """(d, d) weights that minimise the loss among matrices on a (d, d) support.

        Each column is a regression of the child on its parents, without intercept; where the minimum is not unique, it
        is the one of least norm, each parent in units of its root mean square.
        """
        B = np.zeros_like(self.S)
        # In units of each parent's size: otherwise a parent on a small scale counts as rounding error of a large one.
        unit = np.sqrt(self.S.diagonal())
        unit[unit == 0.0] = 1.0
        for j in np.flatnonzero(support.any(axis=0)):
            parents = np.flatnonzero(support[:, j])
            u = unit[parents]
            S_parents = self.S[np.ix_(parents, parents)] / np.outer(u, u)
            B[parents, j] = np.linalg.lstsq(S_parents, self.S[parents, j] / u, rcond=None)[0] / u
        return B
