"""Sort the rows of a table or the values of its columns, even if larger than memory, by an external merge sort.

A missing value (NaN) is sorted, and given back, as MISSING: a NaN has no order, and many forms.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.mapped_array import forget, lies_in_file, row_blocks, rows_a_block, zeros_in_file

MISSING = -1.7e308
"""Stands for a missing value; no value of a table is as large."""


def sorted_rows(X: Matrix, order: Sequence[int]) -> Iterator[Matrix]:
    """Rows of an (n, d) table with its columns in the given order, ascending, in blocks; -0.0 becomes 0.0.

    A table that lies in a file is sorted by means of a second file of its size.
    """
    runs = (_sorted(comparable(X[:, order])) for X in row_blocks(X))
    if not lies_in_file(X):
        yield from runs
        return
    kept = zeros_in_file(X.shape)
    starts = [0]
    for run in runs:
        starts.append(starts[-1] + len(run))
        kept[starts[-2] : starts[-1]] = run
        forget(kept)
    yield from _merged(kept, starts)


def sorted_columns(X: Matrix) -> Iterator[Iterator[Matrix]]:
    """The values of each column of an (n, d) table, ascending, in blocks; -0.0 becomes 0.0.

    A table that lies in a file is sorted by means of a second file of its size.
    """
    if not lies_in_file(X):
        yield from (iter([np.sort(comparable(column))]) for column in X.T)
        return
    kept = zeros_in_file((X.shape[1], len(X)))
    starts = [0]
    for block in row_blocks(X):
        starts.append(starts[-1] + len(block))
        kept[:, starts[-2] : starts[-1]] = np.sort(comparable(block), axis=0).T
        forget(kept)
    for column in kept:
        yield (rows[:, 0] for rows in _merged(column[:, np.newaxis], starts))


def comparable(values: Matrix) -> Matrix:
    """A copy of values in which equal ones have equal bits: without NaN and -0.0."""
    copy: Matrix = values + 0.0  # -0.0 + 0.0 is 0.0
    copy[np.isnan(copy)] = MISSING
    return copy


def _merged(kept: Matrix, starts: Sequence[int]) -> Iterator[Matrix]:
    """Merge sorted runs, each from one start to the next, into one ascending sequence."""
    ends, now = np.array(starts[1:]), np.array(starts[:-1])
    share = max(rows_a_block(kept.shape[1]) // len(ends), 1)
    while (now < ends).any():
        stops = np.minimum(now + share, ends)
        heads = [_read(kept, start, stop) for start, stop in zip(now, stops, strict=True)]
        # The unread rows of a run do not come before the last row read of it.
        goes_on = np.flatnonzero(stops < ends)
        if goes_on.size:
            # Cheap first cut: a row waits if its first column exceeds that of any such last row.
            bound = min(heads[k][-1, 0] for k in goes_on)
            for k, head in enumerate(heads):
                heads[k] = head[: np.searchsorted(head[:, 0], bound, "right")]
        sizes = np.array([len(head) for head in heads])
        rows = np.concatenate(heads)
        order = _ascending(rows)
        last = (np.cumsum(sizes) - 1)[(now + sizes == stops) & (stops < ends)]
        if last.size:
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            order = order[: place[last].min() + 1]
        yield rows[order]
        now = now + np.bincount(np.repeat(np.arange(len(ends)), sizes)[order], minlength=len(ends))


def _read(kept: Matrix, start: int, stop: int) -> Matrix:
    rows = kept[start:stop].copy()
    forget(kept)
    return rows


def _sorted(rows: Matrix) -> Matrix:
    return rows[_ascending(rows)]


def _ascending(rows: Matrix) -> NDArray[np.intp]:
    """(n,) the order that sorts the rows; equal rows keep their order."""
    d = rows.shape[1]
    n_keys = 1
    while True:
        order = np.lexsort(rows[:, :n_keys].T[::-1])  # the least significant key first
        keys = rows[order, :n_keys]
        if n_keys >= d or not (keys[1:] == keys[:-1]).all(axis=1).any():
            return order
        n_keys = min(4 * n_keys, d)
