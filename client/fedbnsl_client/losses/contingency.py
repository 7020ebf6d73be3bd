"""Contingency tables: how many records of a table have each combination of levels of a few variables."""

from collections.abc import Sequence

import numpy as np

from fedbnsl.graphs.contingency import VariableSet, cells_of
from fedbnsl.protocol.sparse import Index, Matrix


def counted(X: Matrix, sets: Sequence[VariableSet], members: Sequence[Index], n_levels: Index) -> Matrix:
    """Records of an (n, d) table without gaps in the cells of the tables of these sets, one after the other.

    `members`: the columns of each variable.
    """
    own = [(X[:, one] @ np.arange(1.0, len(one) + 1.0)).astype(np.int64) for one in members]
    found: list[Matrix] = []
    for one in sets:
        cell = np.zeros(len(X), dtype=np.int64)
        for v in one:
            cell = cell * int(n_levels[v]) + own[v]
        found.append(np.bincount(cell, minlength=cells_of(one, n_levels)).astype(np.float64))
    return np.concatenate(found)
