"""Second moments of a table, released once a run with discrete Gaussian noise on integer sums."""

import numpy as np

from fedbnsl.price import LATTICE
from fedbnsl.sparse import Matrix
from fedbnsl_client.noise import Randbelow, discrete_gaussian


def release_second_moments(X: Matrix, bounds: Matrix, variance: int, randbelow: Randbelow) -> Matrix:
    """(d,) mean squares of the columns of an (n, d) table, noisy; may be negative.

    Parameters
    ----------
    bounds
        (d,) b_i: larger squares count as b_i. One record moves a sum by at most LATTICE units of b_i / LATTICE.
    variance
        Of the noise, in these units squared.
    """
    with np.errstate(over="ignore"):  # beyond the bound anyhow
        shares = np.minimum(X * X / bounds, 1.0)
    sums = np.rint(LATTICE * np.nan_to_num(shares, nan=0.0)).sum(axis=0)
    noisy = [int(total) + discrete_gaussian(variance, randbelow) for total in sums]
    return np.asarray(np.array(noisy) * bounds / (LATTICE * X.shape[0]))


def release_covariance(X: Matrix, norm_bound: float, variance: int, randbelow: Randbelow) -> Matrix:
    """(d, d) second moments X'X / n of an (n, d) table, noisy and made positive semidefinite (DP-Fed-BNSL).

    Parameters
    ----------
    norm_bound
        Longer records are shortened to this norm r. One record moves the sums by at most sqrt(2) LATTICE + d units of
        r^2 / LATTICE in Frobenius norm.
    variance
        Of the noise on the diagonal, in these units squared; half of it off the diagonal, where each number stands for
        two entries.
    """
    n, d = X.shape
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.maximum(np.sqrt((X * X).sum(axis=1)), norm_bound)
        columns = np.ascontiguousarray(np.nan_to_num(X / norms[:, None], nan=0.0).T) * LATTICE**0.5
    noisy = np.empty((d, d))
    for i in range(d):
        sums = np.rint(columns[i] * columns[i:]).sum(axis=1)
        for j, total in enumerate(sums, start=i):
            noisy[i, j] = noisy[j, i] = int(total) + discrete_gaussian(variance if i == j else variance // 2, randbelow)
    values, vectors = np.linalg.eigh(noisy * norm_bound**2 / (LATTICE * n))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
