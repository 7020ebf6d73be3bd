"""Records that occur many times, and columns whose values occur once each.

Copies of a record count as independent ones, so that intervals are too narrow and false edges appear. A table of a few
categories repeats its records by itself. So repeats are told only where columns as they are by themselves, put together
at random, would give next to none.

A table larger than memory is looked at in blocks: a hash of each row is kept and sorted (see `sorted_rows`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import gathered, row_blocks
from fedbnsl_client.data.sorted_rows import sorted_columns

NOT_COMPARED = (
    "Dask workers hold the rows: copies of records, row numbers and codes such as 999 were not looked for. A row "
    "number among the columns may get edges, and copies count as independent records: keep each record once, and leave "
    "row numbers out"
)
"""Said at a site of a table whose rows are not in this process."""

_MANY = 0.1
"""Share of records that have an equal one, from which on they are told of."""

_BY_CHANCE = 0.01
"""Share of records that may have an equal one by chance in a table whose repeats are told of."""

_MEASURED = 10
"""A column of measurements has more distinct values; two such columns are needed."""

_FEWEST_ROWS = 20


@dataclass(frozen=True)
class _Times:
    """How often values occur.

    Attributes
    ----------
    distinct
        How many different values there are.
    repeated
        How many have an equal one.
    most
        How often the most frequent one occurs.
    pairs
        How many ordered pairs of values are equal; a value and itself are one of them.
    """

    distinct: int
    repeated: int
    most: int
    pairs: float

    @classmethod
    def of(cls, blocks: Iterable[Matrix]) -> Self:
        """Of ascending values in blocks."""
        distinct, repeated, most, pairs = 0, 0, 0, 0.0
        for counts in _runs(blocks):
            distinct += counts.size
            repeated += int(counts[counts > 1].sum())
            most = max(most, int(counts.max(initial=0)))
            pairs += float(np.square(counts.astype(np.float64)).sum())
        return cls(distinct, repeated, most, pairs)


def copied_records(X: Matrix) -> Iterator[str]:
    """Say of an (n, d) table that many of its records occur more than once, if chance would not do that."""
    n = len(X)
    if n < _FEWEST_ROWS:
        return
    records = _Times.of(next(sorted_columns(gathered(map(_digests, row_blocks(X)), 1))))
    if records.repeated < _MANY * n:
        return
    columns = [_Times.of(blocks) for blocks in sorted_columns(X)]
    by_chance = n * float(np.prod([column.pairs / n**2 for column in columns]))
    if by_chance <= _BY_CHANCE and sum(column.distinct > _MEASURED for column in columns) >= 2:
        yield (
            f"{records.repeated} of {n} records occur more than once, up to {records.most} times each; "
            f"{records.distinct} are different. Copies count as independent records: edges and intervals are then not "
            "to be trusted. Keep each record once, unless equal records are different people"
        )


def numbered_columns(names: Sequence[str], X: Matrix, *, of: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Ask of columns of whole numbers, by position, without a repeat whether they are row numbers or identifiers.

    Parameters
    ----------
    names
        d names.
    X
        (n, d) values, NaN where one is missing.
    of
        Positions of the columns that may be such numbers.
    """
    perhaps = list(of) if may_number_rows(len(X), most=1) else []
    for block in row_blocks(X):
        perhaps = [k for k in perhaps if _whole_without_repeat(block[:, k])]
        if not perhaps:
            return
    chosen = gathered((block[:, perhaps] for block in row_blocks(X)), len(perhaps))
    for k, blocks in zip(perhaps, sorted_columns(chosen), strict=True):
        if may_number_rows(len(X), most=_Times.of(blocks).most):
            yield (
                k,
                f"column {names[k]!r}: whole numbers, each in one row only. Is it a row number or an identifier? Then "
                "leave it out of the variables of the run: it may get edges, and they mean nothing",
            )


def may_number_rows(n_rows: int, *, most: int, least: float = 0.0) -> bool:
    """Whether whole numbers are asked about as row numbers: from 0 on, each in one row; the rule of drafts, too.

    `most, least`: how often the most frequent number occurs, and the smallest number.
    """
    return n_rows >= _FEWEST_ROWS and most == 1 and least >= 0


def _whole_without_repeat(column: Matrix) -> bool:
    """Whether these values, all of a block, are whole numbers from 0 on and different; a missing one is none."""
    return np.array_equal(np.abs(np.round(column)), column) and len(np.unique(column)) == len(column)


def _runs(blocks: Iterable[Matrix]) -> Iterator[Index]:
    """How often each value occurs, in their order, of ascending values in blocks."""
    last, times = np.nan, 0  # of the last value so far, which may go on in the next block
    for values in blocks:
        if not len(values):
            continue
        starts = np.flatnonzero(values[1:] != values[:-1]) + 1
        counts = np.diff(starts, prepend=0, append=len(values))
        if values[0] == last:
            counts[0] += times
        elif times:
            yield np.array([times])
        yield counts[:-1]
        last, times = values[-1], int(counts[-1])
    if times:
        yield np.array([times])


def _digests(X: Matrix) -> Matrix:
    """(n, 1) whole numbers that are equal for equal rows, and else by a chance of 1 in 2^53 only."""
    bits = np.ascontiguousarray(X + 0.0).view(np.uint64)  # + 0.0: -0.0 equals 0.0
    mixed = np.zeros(len(X), dtype=np.uint64)
    for column in bits.T:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(11)).astype(np.float64)[:, np.newaxis]
