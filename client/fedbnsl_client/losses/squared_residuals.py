"""How squares of residuals go together in a table: what tells heavy tails, which errors of products must allow for."""

import numpy as np

from fedbnsl.protocol.sparse import Matrix


def products_of_squares(X: Matrix, weights: Matrix) -> Matrix:
    """(d, d) E e_i^2 e_j^2 / (E e_i^2 E e_j^2) of the residuals e = x - W'x, each over the rows that have both.

    1 where no row has both, or one of them is zero throughout. Of independent normal residuals 1, and 3 for i = j.

    Parameters
    ----------
    X
        (n, d) columns, NaN where a value is missing.
    weights
        (d, d) W.
    """
    there, A = ~np.isnan(X), np.eye(X.shape[1]) - weights
    e = np.where(there, X, 0.0) @ A
    known = (~there).astype(np.float64) @ (A != 0.0) == 0.0
    squares, known = np.where(known, e, 0.0) ** 2, known.astype(np.float64)
    size = np.max(squares, axis=0, initial=0.0)
    squares = squares / np.where(size > 0.0, size, 1.0)  # else they may overflow
    n, sums = known.T @ known, squares.T @ known
    below = sums * sums.T
    return np.asarray(np.where(below > 0.0, n * (squares.T @ squares) / np.where(below > 0.0, below, 1.0), 1.0))
