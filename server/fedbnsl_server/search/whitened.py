"""Correlations between variables of several columns, as they are whichever level of a variable has no column."""

from collections.abc import Sequence

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix

# What rounding may leave of the variance of a column that the others of its variable determine.
_ROUNDING = 1e-6


def whitened(R: Matrix, members: Sequence[Index]) -> Matrix:
    """(d, d) correlations with the columns of each variable replaced by uncorrelated ones of variance 1.

    Between two variables they are then those of canonical correlation analysis, up to a rotation.

    Parameters
    ----------
    R
        (d, d) moments in units of each column's size; NaN where unknown, which counts as 0.
    members
        The columns of each variable.
    """
    found = np.nan_to_num(R)
    for block in members:
        if len(block) > 1:
            values, vectors = np.linalg.eigh(found[np.ix_(block, block)])
            apart = vectors / np.sqrt(np.maximum(values, _ROUNDING))
            found[block] = apart.T @ found[block]
            found[:, block] = found[:, block] @ apart
    return found
