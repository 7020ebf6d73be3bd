"""Weights that are changes of a probability: those between columns of zeros and ones, of binary and nominal variables.

Without noise least squares may leave [-1, 1], too, but its interval says how little that means. The noise of a private
run takes weights of rare levels to thousands, with intervals that are wrong as well: results of private runs withhold
what is beyond 1.
"""

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import Mask, Matrix


def probabilities(plan: Plan, columns: Columns) -> Mask:
    """(d, d) pairs of columns between which a weight of a private run is a change of a probability; else none."""
    dictionary, is_private = plan.dictionary, plan.privacy is not None
    zero_one = np.array(
        [is_private and name in dictionary and dictionary[name].is_indicator for name in columns.variables], dtype=bool
    )
    of_columns = zero_one[columns.variable_of]
    return np.asarray(of_columns[:, None] & of_columns)


def withheld(weights: Matrix, bounded: Mask) -> Mask:
    """(d, d) which (d, d) weights, in units of the tables, are changes of a probability beyond 1."""
    return np.asarray(bounded & (np.abs(weights) > 1.0))


def told(weights: Matrix, bounded: Mask) -> Matrix:
    """The weights with NaN in place of those that are withheld."""
    return np.asarray(np.where(withheld(weights, bounded), np.nan, weights))
