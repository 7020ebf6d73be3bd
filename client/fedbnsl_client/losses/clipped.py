"""The gradient of the loss, clipped record by record and summed as integers: what private steps look at.

A record x with residual r = x - B'x has the loss gradient -x_i r_j. It is clipped to [-C_i, C_i] and rounded to a
multiple of C_i / LATTICE. Integer sums do not depend on the order of the records, and one record moves each by at most
2 LATTICE. Where a person has several rows, the mean of their gradients is clipped and rounded.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedbnsl.compiled import compiled, exact_sums
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.person_rows import PersonRows, Table

Integers = NDArray[np.int64]

_LIMIT = float(LATTICE)


class ClippedGradient:
    """Clipped gradient sums of one (n, d) table at a moving B, with (d,) thresholds C_i > 0.

    `empty` makes the two (d, rows) arrays that are kept.
    """

    def __init__(self, X: Table, clips: Matrix, *, empty: Callable[[tuple[int, int]], Matrix] = np.empty) -> None:
        rows = X.X if isinstance(X, PersonRows) else X
        self._sizes = X.sizes if isinstance(X, PersonRows) else None
        n, d = len(X), rows.shape[1]
        # (d,) what one fixed-point grid unit of a sum is worth in the mean gradient of row i
        self.unit = clips / (n * LATTICE)
        # (d, d) transposed: sums[j, i] belongs to the coordinate (i, j). As private as the table.
        self.sums: Integers = np.zeros((d, d), dtype=np.int64)
        self._spacing = clips / LATTICE
        with np.errstate(over="ignore"):  # a record too large for the fixed-point grid is infinite there, and clipped
            self._grid_X = np.divide(rows.T, self._spacing[:, None], out=empty((d, len(rows))))
        self._residual = empty((d, len(rows)))
        self._B = np.full((d, d), np.nan)  # the B that the residuals belong to; none yet

    def move_to(self, B: Matrix) -> None:
        """Bring sums and residuals to B: one pass over the table for each column that differs."""
        for j in np.flatnonzero((self._B != B).any(axis=0)).tolist():
            weights = -B[:, j] * self._spacing
            weights[j] += self._spacing[j]
            # An infinite record stays infinite, or becomes NaN, which counts as zero.
            with np.errstate(over="ignore", invalid="ignore"):
                # No product of a library: how it rounds a row hangs on where it stands, and so on other persons' rows.
                self._residual[j] = 0.0
                for x, weight in zip(self._grid_X, weights.tolist(), strict=True):
                    _move_residual(x, self._residual[j], -weight)
            self._sum(j)
        self._B = B.copy()

    def step(self, i: int, j: int, value: float) -> None:
        """Set B_ij = value and update sums and residuals of column j in one pass over the table."""
        change = value - self._B[i, j]
        self._B[i, j] = value
        _move_residual(self._grid_X[i], self._residual[j], change * self._spacing[i])
        self._sum(j)

    def _sum(self, j: int) -> None:
        if self._sizes is None:
            _sum_clipped(self._grid_X, self._residual[j], self.sums[j])
        else:
            _sum_clipped_means(self._grid_X, self._residual[j], self._sizes, self.sums[j])


@exact_sums
def _sum_clipped(grid_X: Matrix, residual: Matrix, sums: Integers) -> None:
    """Sums over records of -clip(x_i r_j) for one j, for all i, each term rounded to an integer; NaN counts as zero."""
    for i in range(grid_X.shape[0]):
        x = grid_X[i]
        total = 0.0
        for k in range(residual.size):
            product = x[k] * residual[k]
            product = product if product == product else 0.0
            total += np.rint(min(max(product, -_LIMIT), _LIMIT))
        sums[i] = -np.int64(total)


@compiled
def _sum_clipped_means(grid_X: Matrix, residual: Matrix, sizes: Index, sums: Integers) -> None:
    """The same sums over persons of the clipped mean of x_i r_j over their rows, in the order of the rows."""
    for i in range(grid_X.shape[0]):
        total, row = 0.0, 0
        for size in sizes:
            mean = 0.0
            for k in range(row, row + size):
                product = grid_X[i, k] * residual[k]
                mean += product if product == product else 0.0
            row += size
            mean = mean / size if mean == mean else 0.0
            total += np.rint(min(max(mean, -_LIMIT), _LIMIT))
        sums[i] = -np.int64(total)


@compiled
def _move_residual(x: Matrix, residual: Matrix, amount: float) -> None:
    """Residuals of column j after B_ij moved by amount / spacing_i."""
    for k in range(residual.size):
        residual[k] -= amount * x[k]
