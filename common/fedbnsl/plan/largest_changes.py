"""By how much a level can change another column: a probability by 1, another mean by the range of its variable.

So much is a weight of a column of zeros and ones (of a binary or nominal variable) at most. The noise of a private run
takes weights of rare levels to thousands, with intervals that are wrong as well: results of private runs withhold
what is beyond it. Without noise least squares may pass it, too, but intervals then say how little that means.
"""

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix


def largest_changes(plan: Plan, columns: Columns) -> Matrix | None:
    """(d, d) largest size of weights of a private run, in units of the tables; infinite where nothing bounds them.

    None without privacy.
    """
    if plan.privacy is None:
        return None
    found = np.full((len(columns.names),) * 2, np.inf)
    dictionary, ranges = plan.dictionary, {column.name: column for column in plan.dictionary.columns()}
    zero_one = np.array([one in ranges and dictionary[ranges[one].variable].is_indicator for one in columns.names])
    found[zero_one] = [ranges[one].high - ranges[one].low if one in ranges else np.inf for one in columns.names]
    return found


def withheld(weights: Matrix, largest: Matrix | None) -> Mask:
    """(d, d) which (d, d) weights, in units of the tables, are larger than possible; no limits: none."""
    return np.zeros(weights.shape, dtype=bool) if largest is None else np.asarray(np.abs(weights) > largest)


def told(weights: Matrix, largest: Matrix | None) -> Matrix:
    """The weights with NaN in place of those that are withheld."""
    return np.asarray(np.where(withheld(weights, largest), np.nan, weights))
