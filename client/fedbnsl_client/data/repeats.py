"""Records that occur many times, and columns whose values occur once: for people at the site, nothing of it is sent.

Copies of a record count as independent ones, so that intervals are too narrow and false edges appear. A table of a few
categories repeats its records by itself. So repeats are told only where columns as they are by themselves, put together
at random, would give next to none.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedbnsl.sparse import Index, Matrix

_MANY = 0.1
"""Share of records that have an equal one, from which on they are told of."""

_BY_CHANCE = 0.01
"""Share of records that may have an equal one by chance in a table whose repeats are told of."""

_MEASURED = 10
"""A column of measurements has more distinct values; two such columns are needed."""

_FEWEST_ROWS = 20


def copied_records(X: Matrix) -> Iterator[str]:
    """Say of an (n, d) table that many of its records occur more than once, if chance would not do that."""
    n = len(X)
    if n < _FEWEST_ROWS:
        return
    _, times = np.unique(_digests(X), return_counts=True)
    repeated = int(times[times > 1].sum())
    if repeated < _MANY * n:
        return
    columns = [np.unique(column, return_counts=True)[1] for column in X.T]
    equal = np.prod([float(np.square(counts / n).sum()) for counts in columns])
    if n * equal <= _BY_CHANCE and sum(len(counts) > _MEASURED for counts in columns) >= 2:
        yield (
            f"{repeated} of {n} records occur more than once, up to {times.max()} times each; {len(times)} are "
            "different. Copies count as independent records: edges and intervals are then not to be trusted. Keep each "
            "record once, unless equal records are different people"
        )


def numbered_columns(names: Sequence[str], X: Matrix) -> Iterator[str]:
    """Ask of columns of whole numbers without a repeat whether they are row numbers or identifiers."""
    n = len(X)
    for name, column in zip(names, X.T, strict=True):
        numbers: Matrix = np.asarray(column)
        whole = np.array_equal(np.abs(np.round(numbers)), numbers)
        if n >= _FEWEST_ROWS and whole and len(np.unique(column)) == n:
            yield (
                f"column {name!r}: whole numbers, each in one row only. Is it a row number or an identifier? Then "
                "leave it out (--columns, or the data dictionary): it may get edges, and they mean nothing"
            )


def _digests(X: Matrix) -> Index:
    """(n,) numbers that are equal for equal rows, and else by a chance of 1 in 2^64 only."""
    bits = np.ascontiguousarray(X + 0.0).view(np.uint64)  # + 0.0: -0.0 equals 0.0
    mixed = np.zeros(len(X), dtype=np.uint64)
    for column in bits.T:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed.view(np.int64)
