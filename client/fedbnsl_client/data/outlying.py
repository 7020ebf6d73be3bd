"""Values that lie far apart from all others of their column: how a site counts them, and leaves them out.

The site tells how far values are from its own median, in units of its own spread, as counts on a public scale
(`fedbnsl.plan.preparation`): neither the median nor a value leaves it. Beyond the limit that the coordinator finds for
all sites, in spreads, values count as missing: the very values that were counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from fedbnsl.plan.preparation import BINS_AN_OCTAVE, FIRST_BIN, LAST_BIN, NORMAL
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import RowsElsewhere, gathered, row_blocks, sum_over_rows

# The median of a large table is that of about so many rows, evenly spread.
_SAMPLE = 100_000


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows, which add up by following each other."""

    X: Matrix  # (n, d)

    def __add__(self, later: Self) -> "_Rows":
        return _Rows(np.concatenate([self.X, later.X]))


@dataclass(frozen=True, eq=False)
class _Counts:
    """How many values are in which bin of which column: (k, 3) columns, bins and counts, in the order of both."""

    found: Index

    @classmethod
    def of(cls, parts: Iterable[Index]) -> "_Counts":
        """All of these, each place once."""
        told = np.concatenate([np.empty((0, 3), dtype=np.int64), *parts])
        places, where = np.unique(told[:, :2], axis=0, return_inverse=True)
        counts = np.bincount(where.reshape(-1), weights=told[:, 2], minlength=len(places)).astype(np.int64)
        return cls(np.column_stack([places, counts]))

    def __add__(self, later: Self) -> "_Counts":
        return _Counts.of([self.found, later.found])


class Middle(NamedTuple):
    """Where the values of each column are.

    Attributes
    ----------
    medians
        (d,) 0 of a column without values.
    spreads
        (d,) `NORMAL` times the median distance from the median.
    """

    medians: Matrix
    spreads: Matrix

    @classmethod
    def of(cls, X: Matrix | RowsElsewhere) -> Self:
        """Of an (n, d) table; of a large one, of some of its rows."""
        some = some_values(X)
        centre = _medians(some)
        return cls(centre, NORMAL * _medians(np.abs(some - centre)))

    def distances(self, block: Matrix) -> Matrix:
        """(rows, d) of values above their median, in spreads, negative below; 0 where the spread is."""
        spreads = np.where(self.spreads > 0.0, self.spreads, np.inf)
        return np.asarray((block - self.medians) / spreads)


def tails(X: Matrix | RowsElsewhere, numbers: Mask) -> tuple[Matrix, Index]:
    """What a site tells of the values of an (n, d) table that are far from its own medians.

    Parameters
    ----------
    numbers
        (d,) which columns to look at: those that hold no levels.

    Returns
    -------
    spreads
        (d,) 0 in the other columns.
    far
        (k, 3) columns, bins and counts, as in `fedbnsl.rounds.statistics`.
    """
    middle = Middle.of(X)
    middle = middle._replace(spreads=np.where(numbers, middle.spreads, 0.0))

    def far(block: Matrix) -> NDArray[np.object_]:
        distances = middle.distances(block)
        row, column = np.nonzero(np.abs(distances) >= 2.0 ** (FIRST_BIN / BINS_AN_OCTAVE))
        away = distances[row, column]
        bins = np.floor(BINS_AN_OCTAVE * np.log2(np.abs(away))).astype(np.int64)
        bins = np.where(away > 0.0, 1, -1) * np.clip(bins, FIRST_BIN, LAST_BIN)
        return np.array([_Counts.of([np.column_stack([column, bins, np.ones_like(bins)])])])

    found: NDArray[np.object_] = sum_over_rows(X, far)
    return middle.spreads, cast(_Counts, found[0]).found


def without_outlying(X: Matrix | RowsElsewhere, limits: Matrix) -> Matrix:
    """The (n, d) table, NaN where a value is as far above or below its median as these (2, d) limits, in spreads."""
    gaps = partial(_with_gaps, middle=Middle.of(X), limits=limits)
    if isinstance(X, RowsElsewhere):
        return cast(Matrix, X.after(gaps))
    return gathered(map(gaps, row_blocks(X)), X.shape[1])


def _with_gaps(block: Matrix, *, middle: Middle, limits: Matrix) -> Matrix:
    with_gaps = block.copy()
    above, below = limits
    distances = middle.distances(block)
    with_gaps[(distances >= above) | (distances <= -below)] = np.nan
    return with_gaps


def some_values(X: Matrix | RowsElsewhere) -> Matrix:
    """Rows of the whole table, evenly spread; all rows of one that is not large."""
    each = max(len(X) // _SAMPLE, 1)
    found: NDArray[np.object_] = sum_over_rows(X, lambda block: np.array([_Rows(np.array(block[::each]))]))
    return cast(_Rows, found[0]).X


def _medians(X: Matrix) -> Matrix:
    """(d,) medians of the values of each column; 0 for one without."""
    return np.asarray(np.nanmedian(np.where(np.isnan(X).all(axis=0), 0.0, X), axis=0))
