"""Residuals of records with gaps, completed by what was released: what such a record adds to the moments.

By the model that a task tells, the residuals z = A'x of a record are independent, with known spreads t. Then
K = A diag(t)^-2 A' is the precision of x, and what a record lacks has, given the rest, the mean -C K_mo x_o and the
covariance C = K_mm^-1. Such a record adds the expectation z z' + V of what it would add: z are the residuals with these
means in its gaps, and V = B'B with B = L^-1 A_m, K_mm = L L'.

z z' + V is positive semidefinite, as the z z' of a whole record is, and a function of the record and of the task. Its
Frobenius norm, the root of |z|^4 + 2 |B z|^2 + |V|^2, is a sum of squares, which rounding cannot make too small. Where
it is above R^2 the record counts that much less, as |z|^2 of a whole record: two records move the sums no further.

Source: Dempster, Laird and Rubin (1977): the E step, here of one record.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.losses.pattern_groups import numbered
from fedbnsl_client.privacy.grid_products import rows_times


@dataclass(frozen=True, eq=False)
class Model:
    """What is told of residuals; privacy holds for any numbers.

    Attributes
    ----------
    A
        (d, d) of the residuals z = A'x.
    spreads
        (d,) their standard deviations.
    """

    A: Matrix
    spreads: Matrix

    def expected(self, x: Matrix) -> Iterator[tuple[Index, Matrix, Matrix]]:
        """The (k,) places of the records that have the same columns, their (k, d) expected residuals, and (m, d) B.

        m are the gaps.

        `x`: (n, d) prepared records, each with gaps, where it is NaN. Numbers without use give residuals that are not
        finite.
        """
        with np.errstate(all="ignore"):
            K = (self.A / self.spreads**2) @ self.A.T
        for seen, which in _by_gaps(x):
            T, B = self._expected(seen, K)
            yield which, rows_times(np.ascontiguousarray(x[which][:, seen]), T), B

    def _expected(self, seen: Mask, K: Matrix) -> tuple[Matrix, Matrix]:
        """(d - m, d) T of the expected residuals T'x of the columns that are there, and B."""
        lacking = ~seen
        try:
            with np.errstate(all="ignore"):
                # K of columns in any units: a Cholesky factor does not hang on them
                L = np.linalg.cholesky(K[np.ix_(lacking, lacking)])
                B = np.asarray(np.linalg.solve(L, self.A[lacking]), dtype=np.float64)
                return self.A[seen] - K[np.ix_(seen, lacking)] @ np.linalg.solve(L.T, B), B
        except np.linalg.LinAlgError:  # a task without use, whatever the records
            return np.full_like(self.A[seen], np.nan), np.full_like(self.A[lacking], np.nan)


def _by_gaps(block: Matrix) -> list[tuple[Mask, Index]]:
    """The (d,) columns that rows have, and which of the (n, d) rows have just these: all rows, by their gaps."""
    seen = ~np.isnan(block)
    group = numbered(np.packbits(seen, axis=1))
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    return [(seen[which[0]], which) for which in rows if which.size]
