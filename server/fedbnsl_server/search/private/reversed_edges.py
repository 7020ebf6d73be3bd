"""How much a negative log-likelihood grows if an edge is reversed, to second order.

Given what both ends have as parents, i -> j with x_j = w x_i + e says of the moments what j -> i with x_i = b x_j + e'
says, if it has other residual variances. Where these are known, three numbers get other values: w and both variances.
All other numbers follow.
"""

import numpy as np

from fedbnsl.protocol.sparse import Matrix

# Weights of reversed edges that are tried, in units of the residuals' standard deviations, and none.
_SIZES = np.geomspace(1e-4, 2.0, 30)
_WEIGHTS = np.concatenate([-_SIZES, [0.0], _SIZES])


def ends_error(weight: Matrix, of_i: Matrix, of_j: Matrix, left_ii: Matrix, left_ij: Matrix, left_jj: Matrix) -> Matrix:
    """(E, 3, 3) covariances of the errors of E weights and, beside each, the residual variances of both ends.

    Parameters
    ----------
    weight
        (E,) variances of the weights, were residual variances known.
    of_i, of_j
        (E,) how far a weight moves with either variance, with the opposite sign.
    left_ii, left_ij, left_jj
        (E,) information of the two variances, if all other numbers follow them.
    """
    error = np.empty((len(weight), 3, 3))
    ends = np.linalg.inv(np.stack([left_ii, left_ij, left_ij, left_jj], axis=1).reshape(-1, 2, 2))
    moved = np.stack([of_i, of_j], axis=1)
    both = -np.einsum("ea,eab->eb", moved, ends)
    error[:, 1:, 1:], error[:, 0, 1:], error[:, 1:, 0] = ends, both, both
    error[:, 0, 0] = weight - np.einsum("ea,ea->e", both, moved)
    return error


def reversal_growth(w: Matrix, v_i: Matrix, v_j: Matrix, error: Matrix, slope_i: Matrix, slope_j: Matrix) -> Matrix:
    """(E,) by how much the NLL grows at least if an edge i -> j is reversed; below 0 if it falls.

    Parameters
    ----------
    w, v_i, v_j
        (E,) weights, and the residual variances that both ends have before and after.
    error
        (E, 3, 3) of `ends_error`.
    slope_i, slope_j
        (E,) derivatives of the log-likelihood by these variances; by w it is 0.
    """
    w, v_i, v_j = (one[:, None] for one in (w, v_i, v_j))
    b = _WEIGHTS * np.sqrt(v_i / v_j)
    of_i = b**2 * v_j + v_i  # the variance that i has after it, given its parents but for j
    moved = np.stack([b * v_j / of_i - w, of_i - v_i, v_i * v_j / of_i - v_j], axis=2)
    grown = 0.5 * np.einsum("eba,eac,ebc->eb", moved, np.linalg.inv(error), moved)
    grown -= moved[:, :, 1] * slope_i[:, None] + moved[:, :, 2] * slope_j[:, None]
    return np.asarray(grown.min(axis=1))
