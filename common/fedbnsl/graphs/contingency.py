"""Contingency tables of sets of categorical variables: which cell a record is in, and how large a table may be.

The variables of a set are in ascending order, and its cells are numbered row by row: the levels of the last variable
change fastest. A binary variable has one column of zeros and ones, an ordinal one a column of positions of levels, a
nominal one with K levels K - 1 columns of zeros and ones.
"""

from collections.abc import Sequence

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.limits import MOST_CELLS as MOST_CELLS
from fedbnsl.plan.limits import MOST_CELLS_A_ROUND as MOST_CELLS_A_ROUND
from fedbnsl.plan.limits import MOST_IN_TABLE as MOST_IN_TABLE
from fedbnsl.protocol.sparse import Index

VariableSet = tuple[int, ...]
"""Positions of variables, ascending."""


def levels_of(columns: Columns, dictionary: Dictionary) -> Index:
    """(V,) levels of each variable."""
    return np.array([len(dictionary[name].levels) for name in columns.variables], dtype=np.int64)


def cells_of(variables: Sequence[int], levels: Index) -> int:
    """How many cells the table of a set has."""
    found = 1
    for v in variables:  # not np.prod, which overflows without a word
        found *= int(levels[v])
    return found


def is_too_large(variables: Sequence[int], levels: Index) -> bool:
    """Whether no site is asked for the table of a set."""
    return len(variables) > MOST_IN_TABLE or cells_of(variables, levels) > MOST_CELLS


def shape_of(variables: Sequence[int], levels: Index) -> tuple[int, ...]:
    """Levels of the variables of a set."""
    return tuple(int(levels[v]) for v in variables)
