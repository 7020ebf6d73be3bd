"""Values that lie far apart from all others of their column: from which distance on, by counts of all sites.

Distances are from the median of a value's site, in spreads of this site: sites may vary more or less. Tails that are
heavy are smooth: t, exponential and lognormal values are left alone, whatever their variance. A limit is where a gap is
that no smooth tail has, in one of two ways:

many values
    Far fewer values lie in the gap than in the range of the same width, on a logarithmic scale, behind it: by an exact
    binomial test, where a falling density has at least as many in the gap.
few values
    Nothing lies in a gap of a factor f, and b values behind it. In a tail that falls as slowly as this column does
    between 1.4 and 5.7 spreads (tails of smooth laws fall off faster farther out) this has the chance f^(-alpha b).

Both sides of the median are looked at together, and each by itself: a long tail on one side hides no gap on the other.
More than `_MOST` of the values are no errors but a population of their own, and stay.
"""

import math

import numpy as np

from fedbnsl.plan.preparation import BINS_AN_OCTAVE, FIRST_BIN
from fedbnsl.protocol.sparse import Index, Matrix

# Chance of a gap in a smooth tail; a column has some hundred places and widths to look at.
_CHANCE = 1e-6
# Limits are at least so many spreads from the median.
_LEAST = 5.0
_MOST = 0.05
# A tail counts as heavier than this: few values near the middle do not tell how light it is.
_LIGHTEST = 4.0
_OCTAVES = (0.5, 1.0, 2.0, 4.0, 8.0, 10.0)  # widths of gaps, as powers of two
_WIDEST_OF_MANY = 1.0


def limits(bins: Index, counts: Index, n_values: float) -> tuple[float, float]:
    """How far above its median, and how far below, values of a column lie apart, in spreads; infinite where none does.

    Parameters
    ----------
    bins, counts
        (k,) bins of distances (`fedbnsl.plan.preparation.FIRST_BIN`), negative below the median; the values in each.
    n_values
        Of the whole column.
    """
    of_both = _limit(abs(bins), counts, n_values)
    above, below = (_limit(abs(bins[side]), counts[side], n_values) for side in (bins > 0, bins < 0))
    return min(above, of_both), min(below, of_both)


def _limit(bins: Index, counts: Index, n_values: float) -> float:
    """From which distance on values lie apart, whatever their side."""
    if not bins.size:
        return math.inf
    within = np.concatenate([[0], np.cumsum(np.bincount(bins - FIRST_BIN, weights=counts))])

    from scipy.special import bdtr  # here: it takes long to load, and a coordinator should listen at once

    def between(low: int, high: int) -> int:
        places = np.clip([low, high], 0, len(within) - 1)
        return int(within[places[1]] - within[places[0]])

    near, farther = (between(k * BINS_AN_OCTAVE, (k + 1) * BINS_AN_OCTAVE) for k in (0, 1))
    alpha = min(_LIGHTEST, max(math.log2((near + 1) / (farther + 1)), 0.0))
    for edge in range(math.ceil(BINS_AN_OCTAVE * math.log2(_LEAST)) - FIRST_BIN, len(within) - 1):
        behind = between(edge, len(within))
        for octaves in _OCTAVES if 0 < behind <= _MOST * n_values else ():
            width = round(octaves * BINS_AN_OCTAVE)
            in_gap, after = between(edge - width, edge), between(edge, edge + width)
            many = octaves <= _WIDEST_OF_MANY and bdtr(in_gap, in_gap + after, 0.5) < _CHANCE
            few = not in_gap and octaves * alpha * behind > -math.log2(_CHANCE)
            if many or few:
                return float(2.0 ** ((edge + FIRST_BIN) / BINS_AN_OCTAVE))
    return math.inf


def weighted_median(values: Matrix, weights: Matrix) -> Matrix:
    """(d,) of (P, d) values, each with its weight: the least that half of the weight does not exceed."""
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(np.take_along_axis(weights, order, axis=0), axis=0)
    places = (reached >= reached[-1] / 2.0).argmax(axis=0)
    return np.asarray(np.take_along_axis(values, order, axis=0)[places, np.arange(values.shape[1])])
