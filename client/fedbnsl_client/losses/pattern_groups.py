"""Rows of a table with gaps, grouped by which values they have; and batches of groups for stacked linear algebra."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import BLOCK_BYTES, forget, zeros_in_file

Keys = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Batch:
    """Groups with equally many columns.

    Attributes
    ----------
    n
        (k,) records of each group.
    seen, gaps
        (k, p) columns that the records have, and (k, m) those that they lack.
    rows
        (k, r, 1 + d) rows as in `PatternGroups`, with zeros for those that a group does not have.
    by_gaps
        Whether the inverse over the gaps is asked for, not that over the values.
    """

    n: Matrix
    seen: Index
    gaps: Index
    rows: Matrix
    by_gaps: bool

    def about(self, mean: Matrix) -> Matrix:
        """(k, r, d) rows of x - mean, zeros in the gaps."""
        x = self.rows[..., 1:] - self.rows[..., :1] * mean
        np.put_along_axis(x, self.gaps[:, None, :], 0.0, axis=2)
        return x


@dataclass(frozen=True, eq=False)
class PatternGroups:
    """Records in groups that have the same columns; each has at least one.

    Attributes
    ----------
    keys
        (G, bytes) packed bits of the columns that each group has, ascending.
    sizes
        (G,) rows of each group: at most one more than it has columns.
    rows
        (R, 1 + d) rows, group after group, whose products with each other add up to those of the group's records
        (1, x), with zeros in the gaps.
    """

    keys: Keys
    sizes: Index
    rows: Matrix

    @classmethod
    def of(cls, X: Matrix) -> Self:
        """Those of an (n, d) table, NaN in the gaps; records without any value are left out."""
        seen = ~np.isnan(X)
        there = seen.any(axis=1)
        if not there.all():
            X, seen = X[there], seen[there]
        return cls._of_rows(np.packbits(seen, axis=1), np.column_stack([np.ones(len(X)), np.where(seen, X, 0.0)]))

    @classmethod
    def _of_rows(cls, keys: Keys, rows: Matrix) -> Self:
        """From (n, 1 + d) rows, and the key of each."""
        group = numbered(keys)
        order = np.argsort(group, kind="stable")
        sizes = np.bincount(group).astype(np.int64)
        ends = np.cumsum(sizes)
        keys, rows = keys[order[ends - sizes]], rows[order]
        most = 1 + np.unpackbits(keys, axis=1).sum(axis=1, dtype=np.int64)
        parts, done = list[Matrix](), 0
        for g in np.flatnonzero(sizes > most):
            start, end = int(ends[g] - sizes[g]), int(ends[g])
            parts += [rows[done:start], _compressed(rows[start:end], np.flatnonzero(_bits(keys[g], rows.shape[1] - 1)))]
            done = end
        return cls(keys, np.minimum(sizes, most), np.concatenate([*parts, rows[done:]]) if parts else rows)

    def __add__(self, other: Self) -> Self:
        """Those of both tables together."""
        keys = [np.repeat(one.keys, one.sizes, axis=0) for one in (self, other)]
        return self._of_rows(np.concatenate(keys), np.concatenate([self.rows, other.rows]))

    def in_file(self) -> Self:
        """The same with its rows in a file. Raises DataError if TMPDIR has no room."""
        rows = zeros_in_file(self.rows.shape)
        rows[:] = self.rows
        forget(rows)
        return type(self)(self.keys, self.sizes, rows)

    @cached_property
    def n(self) -> Matrix:
        """(G,) records of each group."""
        if not len(self.sizes):
            return np.zeros(0)
        return np.asarray(np.rint(np.add.reduceat(np.square(self.rows[:, 0]), np.cumsum(self.sizes) - self.sizes)))

    def seen(self, first: int = 0, last: int | None = None) -> Mask:
        """(G, d) the columns that some groups have."""
        return _bits(self.keys[first:last], self.rows.shape[1] - 1)

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Groups whose rows fit in memory: the first one, the one after the last, and the first row."""
        ends: Index = np.cumsum(self.sizes)
        a_block = max(BLOCK_BYTES // (8 * self.rows.shape[1]), 1)
        first = 0
        while first < len(ends):
            start = int(ends[first] - self.sizes[first])
            last = max(int((ends <= start + a_block).sum()), first + 1)
            yield first, last, start
            forget(self.rows)
            first = last

    def batches(self, columns: Index, *, by_gaps: bool) -> Iterator[Batch]:
        """All groups that have some of these columns, restricted to them.

        `by_gaps`: whether those with no more gaps than values are completed by the inverse over their gaps.
        """
        d = len(columns)
        for first, last, start in self.blocks():
            seen, sizes, n = self.seen(first, last), self.sizes[first:last], self.n[first:last]
            padded = np.minimum(1 << np.ceil(np.log2(sizes)).astype(np.int64), 1 + seen.sum(axis=1))
            seen = seen[:, columns]
            starts, p = start + np.cumsum(sizes) - sizes, seen.sum(axis=1)
            kinds = p * (2 + self.rows.shape[1]) + padded
            for kind in np.unique(kinds[p > 0]):
                same: Index = np.flatnonzero(kinds == kind)
                n_seen, r = int(p[same[0]]), int(padded[same[0]])
                shorter = by_gaps and d - n_seen <= n_seen
                side = d - n_seen if shorter else n_seen  # of a matrix for each group
                at_once = max(BLOCK_BYTES // (8 * max(side * side, r * (1 + d))), 1)
                for which in np.split(same, range(at_once, len(same), at_once)):
                    there = np.arange(r) < sizes[which, None]
                    rows = self.rows[np.where(there, starts[which, None] + np.arange(r), 0)]
                    if d < rows.shape[2] - 1:
                        rows = rows[..., np.concatenate([[0], 1 + columns])]
                    rows[~there] = 0.0
                    mine = seen[which]
                    k = len(which)
                    yield Batch(
                        n[which],
                        np.nonzero(mine)[1].reshape(k, -1),
                        np.nonzero(~mine)[1].reshape(k, d - n_seen),
                        rows,
                        shorter,
                    )


def numbered(keys: Keys) -> Index:
    """(n,) number of each (n, bytes) key among the distinct ones, in their order."""
    width = -(-keys.shape[1] // 8) * 8
    padded = np.zeros((len(keys), width), dtype=np.uint8)
    padded[:, : keys.shape[1]] = keys
    found = np.zeros(len(keys), dtype=np.int64)
    for word in padded.view(">u8").T:
        number = np.unique(word.astype(np.uint64), return_inverse=True)[1]
        found = np.unique(found * (1 + number.max(initial=0)) + number, return_inverse=True)[1]
    return found


def _bits(keys: Keys, d: int) -> Mask:
    return np.unpackbits(keys, axis=-1, count=d).astype(bool)


def _compressed(rows: Matrix, seen: Index) -> Matrix:
    """One more row than columns that are seen, with the same sums of products."""
    used = np.concatenate([[0], 1 + seen])
    found = np.zeros((len(used), rows.shape[1]))
    found[:, used] = np.linalg.qr(rows[:, used], mode="r")
    return found
