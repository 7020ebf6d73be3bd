"""Sums of products of columns, each product rounded to an integer: the moments that noise is added to.

And products of rows that are rounded in the same way beside any other rows.
"""

import numpy as np
from numpy.typing import NDArray

from fedbnsl.compiled import compiled, exact_sums
from fedbnsl.protocol.sparse import Matrix


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
