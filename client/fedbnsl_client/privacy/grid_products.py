"""Sums of products of columns, each product rounded to an integer: the moments that noise is added to.

And products of rows that are rounded in the same way beside any other rows, and mean products of a person's rows.
"""

import numpy as np
from numpy.typing import NDArray

from fedbnsl.compiled import compiled, exact_sums
from fedbnsl.protocol.sparse import Index, Matrix


@exact_sums
def add_products(columns: Matrix, sums: NDArray[np.int64]) -> None:
    """Add the sums of the rounded products of (d, n) columns, i <= j: whole numbers below 2^53.

    Four columns i are multiplied with a column j at a time: each number is read a quarter as often.
    """
    d, n = columns.shape
    for start in range(0, d, 4):
        if start + 4 > d:
            for i in range(start, d):
                for j in range(i, d):
                    total = 0.0
                    for k in range(n):
                        total += np.rint(columns[i, k] * columns[j, k])
                    sums[i, j] += np.int64(total)
            return
        x0, x1, x2, x3 = columns[start], columns[start + 1], columns[start + 2], columns[start + 3]
        for j in range(start, d):
            y = columns[j]
            s0 = s1 = s2 = s3 = 0.0
            for k in range(n):
                s0 += np.rint(x0[k] * y[k])
                s1 += np.rint(x1[k] * y[k])
                s2 += np.rint(x2[k] * y[k])
                s3 += np.rint(x3[k] * y[k])
            sums[start, j] += np.int64(s0)
            if j > start:
                sums[start + 1, j] += np.int64(s1)
            if j > start + 1:
                sums[start + 2, j] += np.int64(s2)
            if j > start + 2:
                sums[start + 3, j] += np.int64(s3)


@exact_sums
def add_expected_products(columns: Matrix, V: Matrix, shares: Matrix, sums: NDArray[np.int64]) -> None:
    """The same with a (d, d) matrix V added to the products of every record, times its (n,) share."""
    d, n = columns.shape
    for i in range(d):
        for j in range(i, d):
            total = 0.0
            for k in range(n):
                total += np.rint(columns[i, k] * columns[j, k] + V[i, j] * shares[k])
            sums[i, j] += np.int64(total)


@compiled
def add_person_products(
    Z: Matrix, gaps: Index, V: Matrix, sizes: Index, bound: float, unit: float, sums: NDArray[np.int64]
) -> None:
    """Add of each person the mean of z z' + V over all rows, shortened to a Frobenius norm and rounded, i <= j.

    It is added up with compensation (Neumaier 1974): so rounding does not grow with the rows of a person.

    Parameters
    ----------
    Z
        (n, d) rows, those of a person after each other; one that is not finite counts as zeros.
    gaps, V
        (n,) which of the (p, d, d) covariances a row adds; negative: none.
    sizes
        (G,) rows of each person.
    bound, unit
        A longer mean has this norm; of which `unit` is the value on the grid.
    """
    d, row = Z.shape[1], 0
    for size in sizes:
        total, lost = np.zeros((d, d)), np.zeros((d, d))
        for k in range(row, row + size):
            square = 0.0
            for i in range(d):
                square += Z[k, i] * Z[k, i]
            if not np.isfinite(square):
                continue
            for i in range(d):
                for j in range(i, d):
                    more = Z[k, i] * Z[k, j] + (V[gaps[k], i, j] if gaps[k] >= 0 else 0.0)
                    new = total[i, j] + more
                    if abs(total[i, j]) >= abs(more):
                        lost[i, j] += (total[i, j] - new) + more
                    else:
                        lost[i, j] += (more - new) + total[i, j]
                    total[i, j] = new
        row += size
        square = 0.0
        for i in range(d):
            for j in range(i, d):
                total[i, j] = (total[i, j] + lost[i, j]) / size
                square += (1.0 if i == j else 2.0) * total[i, j] * total[i, j]
        if not np.isfinite(square):
            continue
        share = unit / max(np.sqrt(square), bound)
        for i in range(d):
            for j in range(i, d):
                sums[i, j] += np.int64(np.rint(total[i, j] * share))


@compiled
def rows_times(x: Matrix, T: Matrix) -> Matrix:
    """(n, d) x T, where each row takes the same steps, however many others there are.

    How a library rounds a product of matrices depends on their shapes. Then a record would change what others of its
    group add; and of a T that a coordinator chooses, rounding may be all that is left.
    """
    found = np.zeros((x.shape[0], T.shape[1]))
    for k in range(x.shape[0]):
        for j in range(x.shape[1]):
            for i in range(T.shape[1]):
                found[k, i] += x[k, j] * T[j, i]
    return found


def warm_up() -> None:
    """Compile the kernels, or load them from the cache, before a round waits for them."""
    one, sums = np.zeros((1, 1)), np.zeros((1, 1), dtype=np.int64)
    add_products(one, sums)
    add_expected_products(one, one, one[0], sums)
    rows_times(one, one)
    none = np.zeros(1, dtype=np.int64)
    add_person_products(one, none - 1, np.zeros((1, 1, 1)), none + 1, 1.0, 1.0, sums)
