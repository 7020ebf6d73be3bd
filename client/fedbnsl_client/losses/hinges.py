"""Second moments of columns and of their hinges max(z - s, 0), as sums over the rows."""

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import sum_over_rows

# Of a column's mean square: what is left of one that has the same value in all rows.
_ROUNDING = 1e-12


def with_hinges(Z: Matrix, columns: Index, knots: Matrix) -> Matrix:
    """(n, d + k m) rows of Z, and column by column their hinges; NaN where a value is missing."""
    return np.hstack([Z, *(np.maximum(Z[:, [c]] - knots, 0.0) for c in columns.tolist())])


def fewest_beyond(X: Matrix, centre: Matrix, scale: Matrix, columns: Index, knots: Matrix) -> int:
    """The least number above 0 of complete rows on one side of a knot; see `hinge_moments`."""

    def counts(block: Matrix) -> Matrix:
        complete = block[~np.isnan(block).any(axis=1)]
        z = ((complete - centre) / scale)[:, columns]
        above = (z[:, :, None] > knots).sum(axis=0).ravel()
        return np.asarray([above, len(z) - above], dtype=np.float64)

    found = sum_over_rows(X, counts)
    return int(found[found > 0.0].min(initial=np.inf)) if (found > 0.0).any() else 0


def hinge_moments(X: Matrix, centre: Matrix, scale: Matrix, columns: Index, knots: Matrix) -> tuple[int, Matrix]:
    """Rows without a missing value, and over them (D, D) of the columns and the hinges, all about their means.

    Parameters
    ----------
    X
        (n, d).
    centre, scale
        (d,) that z is measured from and in: (x - centre) / scale.
    columns, knots
        As in `with_hinges`.
    """

    def sums(block: Matrix) -> Matrix:
        complete = block[~np.isnan(block).any(axis=1)]
        rows = with_hinges((complete - centre) / scale, columns, knots)
        rows = np.column_stack([np.ones(len(rows)), rows])
        return np.asarray(rows.T @ rows)

    total = sum_over_rows(X, sums)
    found = total / max(total[0, 0], 1.0)
    S = found[1:, 1:] - np.outer(found[0, 1:], found[0, 1:])
    flat = S.diagonal() <= _ROUNDING * found.diagonal()[1:]
    S[flat] = S[:, flat] = 0.0
    return int(total[0, 0]), np.asarray(S)
