"""Two baselines that read an order off the variances of a table.

In generated data, variance often grows along the edges, and equal noise variances alone identify an order. Results on
such data mean little unless compared with these baselines, which only sort and regress. All functions take the
second moments X'X/n of centred data: the diagonal must hold variances.

`sortnregress` and `varsortability` follow Reisach, Seiler and Weichwald (2021); `equal_variance` follows Chen, Drton
and Wang (2019), top-down. For both orders, the edges come from an adaptive lasso of each variable on its predecessors,
with the penalty of least BIC.
"""

import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import sklearn.linear_model
from sklearn.exceptions import ConvergenceWarning

from fedbnsl.protocol.sparse import Matrix

_lars_path_gram: Any = cast(Any, sklearn.linear_model).lars_path_gram  # has no types


def sortnregress(S: Matrix, n: int) -> Matrix:
    """(d, d) weights along the order of increasing variance, from the (d, d) second moments of n centred rows."""
    return regress_along([int(j) for j in np.argsort(S.diagonal(), kind="stable")], S, n)


def equal_variance(S: Matrix, n: int) -> Matrix:
    """(d, d) weights along the order in which each next variable has the least variance given those before it.

    With equal noise variances and enough rows that is an order of the true graph.
    """
    return regress_along(conditional_variance_order(S), S, n)


def conditional_variance_order(S: Matrix) -> list[int]:
    """Order of the variables: each step takes the one of least variance given those taken; O(d^3) in all."""
    # Covariance of what the taken variables do not explain.
    rest = S.copy()
    left = np.ones(len(S), dtype=bool)
    order: list[int] = []
    for _ in range(len(S)):
        j = int(np.argmin(np.where(left, rest.diagonal(), np.inf)))
        order.append(j)
        left[j] = False
        if rest[j, j] > 0.0:
            rest -= np.outer(rest[j], rest[j]) / rest[j, j]
    return order


def regress_along(order: Sequence[int], S: Matrix, n: int) -> Matrix:
    """(d, d) weights of each variable on those before it in the order, few of them not zero.

    The adaptive lasso is a lasso on predecessors that are scaled by the absolute least-squares coefficients. Of the
    points of its path at which a variable enters or leaves, the one with the least n log(residual variance) + log(n)
    times the number of variables is taken.

    Parameters
    ----------
    order
        The d variables.
    S, n
        Second moments of n centred rows.
    """
    W = np.zeros_like(S)
    for position in range(1, len(order)):
        j, before = order[position], np.array(order[:position])
        G, c = S[np.ix_(before, before)], S[before, j]
        size: Matrix = np.abs(np.asarray(np.linalg.lstsq(G, c, rcond=None)[0], dtype=np.float64))
        path = _lasso_path(G * np.outer(size, size), c * size, n)
        coefficients = path * size[:, None]
        residual = S[j, j] - 2.0 * c @ coefficients + (coefficients * (G @ coefficients)).sum(axis=0)
        # A variance of the size of rounding errors counts as zero.
        residual = np.maximum(residual, np.finfo(np.float64).eps * max(float(S[j, j]), np.finfo(np.float64).tiny))
        bic = n * np.log(residual) + np.log(n) * np.count_nonzero(coefficients, axis=0)
        W[before, j] = coefficients[:, int(np.argmin(bic))]
    return W


def _lasso_path(G: Matrix, c: Matrix, n: int) -> Matrix:
    """(k, points) coefficients at every knot of the lasso path, for a (k, k) Gram matrix and (k,) correlations."""
    with warnings.catch_warnings():
        # A predecessor that others determine is left out of the path, as it should be.
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, _, path = _lars_path_gram(Xy=n * c, Gram=n * G, n_samples=n, method="lasso")
    return np.asarray(path, dtype=np.float64)
