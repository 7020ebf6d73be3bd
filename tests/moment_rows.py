"""Moments as rows, for methods that take a table; and the score by which searches over the same moments are compared.

The score of a DAG is that of a Gaussian network with a noise variance of its own for each variable. With v_j the
residual variance of variable j given its parents, of n rows,

    sum over j of n/2 log(v_j) + penalty * edges.

All DAGs of a Markov equivalence class have the same score (Chickering 2002).
"""

import math

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix

ROWS_A_COLUMN = 4
"""So many rows stand for the moments of each column."""


def rows_with_moments(R: Matrix) -> Matrix:
    """(4 d, d) rows without means whose second moments X'X / (4 d) are a (d, d) positive definite R.

    The score on these m rows is m/n of that on n rows with the same moments, if its penalty is m/n of theirs.
    """
    d = len(R)
    m = ROWS_A_COLUMN * d
    # Columns of an orthogonal matrix that has the constant as its first column have no means; here, those of the
    # discrete cosine transform, which need no random numbers.
    basis = np.cos(np.pi * (np.arange(m)[:, None] + 0.5) * np.arange(1, d + 1) / m) * math.sqrt(2.0)
    return np.asarray(basis @ np.linalg.cholesky(R).T)


def gaussian_score(R: Matrix, dag: Mask, *, n_samples: float, penalty: float) -> float:
    """Score of a (d, d) DAG on (d, d) second moments of n rows; less is better."""
    log_variances = 0.0
    for j, column in enumerate(dag.T):
        parents = np.flatnonzero(column)
        inverse: Matrix = np.asarray(np.linalg.inv(R[np.ix_(parents, parents)]), dtype=np.float64)
        log_variances += math.log(float(R[j, j] - R[j, parents] @ inverse @ R[parents, j]))
    return 0.5 * n_samples * log_variances + penalty * int(np.count_nonzero(dag))
