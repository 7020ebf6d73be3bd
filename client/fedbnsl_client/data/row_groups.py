"""Prepare rows that belong together, such as the visits of a patient, as the data dictionary says.

between: one record a group, the mean of each column over the rows that have a value. An indicator becomes the share of
rows that have its level: averages of linear equations are linear equations, and a most frequent level would hide part
of a cause, whose effects then look like edges.

within: of a group of m rows, m - 1 records: each row but the last less the mean of the later ones, times
sqrt(k / (k + 1)) for k later rows (forward orthogonal deviations, Arellano and Bover 1995). Sums of products are those
of deviations from the group's means, and there are as many records as these have degrees of freedom. Where rows have
gaps, each is compared with those that have all of its values, see `_deviations_with_gaps`.

lags: beside each row the values of the one before. The first row of a group has none: they are missing there.

Rows are sorted by group and time, on disk if they lie in a file. Memory: about 100 bytes a group for its name, and for
`within` the rows of the largest group.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.plan.row_groups import RowGroups
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import gathered, row_blocks
from fedbnsl_client.data.person_rows import PersonRows
from fedbnsl_client.data.sorted_rows import MISSING, sorted_rows

GROUP, TIME, ROW, KEYS = 0, 1, 2, 3
"""Places of the keys before the columns of a table, and how many there are."""

_NO_ORDER = (
    "Correct the cells, or leave lags out: they need the order of the rows of a group. Nothing of the table was sent."
)


@dataclass(frozen=True)
class Belonging:
    """How the rows of a table belong together; see `rows` and `losses.between_rows` for what of it leaves the site.

    Attributes
    ----------
    sizes
        (G,) rows of each group.
    icc
        (d,) share of each column's variance that lies between groups (0 to 1); NaN where it cannot be told.
    """

    sizes: Index
    icc: Matrix

    def said(self, rows: RowGroups, columns: Sequence[str]) -> list[str]:
        """What people at the site should know."""
        if not rows.group:
            return []
        least, most, median = int(self.sizes.min()), int(self.sizes.max()), float(np.median(self.sizes))
        told = [(name, share) for name, share in zip(columns, self.icc.tolist(), strict=True) if share == share]
        text = f"{len(self.sizes)} groups of {least} to {most} rows, median {median:g}"
        if most == 1:
            return [f"{text}: no two rows belong together"]
        shares = ", ".join(f"{name!r} {share:.2f}" for name, share in told[:20])
        more = f", ... and {len(told) - 20} more" if len(told) > 20 else ""
        what = rows.in_words()
        if rows.averages:  # what counts of the rows is a setting of the plan
            what = f"rows with the same {rows.group!r} are one record, and a private run protects them together"
        return [
            f"{text}, {int(self.sizes.sum())} in all; {what}",
            f"share of the variance between groups (ICC): {shares}{more}",
        ]


def person_rows(X: Matrix, belonging: Belonging) -> PersonRows:
    """The rows themselves, those of a group after each other; X as in `prepared_rows`."""
    return PersonRows(gathered((block[:, KEYS:] for block in _ordered(X)), X.shape[1] - KEYS), belonging.sizes)


def prepared_rows(X: Matrix, rows: RowGroups, lagged: Sequence[int], origin: str) -> tuple[Matrix, Belonging]:
    """The records of a run, and how the rows belong together.

    Raises DataError if the keys cannot be used; by count.

    Parameters
    ----------
    X
        (n, KEYS + d) the keys and values of a table; NaN where one is missing.
    lagged
        Of the d columns, those that are put one row before beside the others, behind them.
    """
    _require_keys(X, rows, origin)
    ordered, counts = _ordered(X), _Counts(X.shape[1] - KEYS)
    blocks = _whole_groups(ordered) if rows.within == "within" else ordered
    if rows.averages:
        made, width = _means(counts.counted(blocks)), X.shape[1] - KEYS
    elif rows.within == "within":
        made, width = map(_deviations, counts.counted(blocks)), X.shape[1] - KEYS
    elif rows.lags:
        made, width = _with_lags(counts.counted(blocks), lagged, rows, origin), X.shape[1] - KEYS + len(lagged)
    else:
        made, width = (block[:, KEYS:] for block in counts.counted(blocks)), X.shape[1] - KEYS
    records = gathered(made, width)
    belonging = counts.belonging()
    if rows.group and len(belonging.sizes) < 2:
        raise DataError(
            f"{origin}: all rows have the same {rows.group!r}: one group, of which nothing can be compared",
            remedy="Is it the column that tells patients apart? If the table is one series, leave the entry of kind "
            "'group' out of the data dictionary and keep that of kind 'time'. Nothing of the table was sent.",
        )
    alone = int((belonging.sizes == 1).sum())
    if (rows.lags or rows.within == "within") and alone == len(belonging.sizes):
        raise DataError(
            f"{origin}: no {rows.group!r} has two rows, and {'lags need' if rows.lags else 'deviations within need'} "
            "them",
            remedy="Use within = 'between' without lags in the data dictionary. Nothing of the table was sent.",
        )
    return records, belonging


def _require_keys(X: Matrix, rows: RowGroups, origin: str) -> None:
    """Refuse rows that belong to no group, or have no place in time where lags need one."""
    without = np.zeros(2, dtype=np.int64)
    for block in row_blocks(X):
        without += np.isnan(block[:, [GROUP, TIME]]).sum(axis=0)
    if without[GROUP]:
        raise DataError(
            f"{origin}: column {rows.group!r}: {without[GROUP]} row(s) lack a value, so that it is open which rows "
            "belong together",
            remedy="Fill the cells in, or leave these rows out of the table. Nothing of it was sent.",
        )
    if rows.lags and without[TIME]:
        raise DataError(f"{origin}: column {rows.time!r}: {without[TIME]} row(s) lack a value", remedy=_NO_ORDER)


def _ordered(X: Matrix) -> Iterator[Matrix]:
    """The rows by group, time and place, in blocks, NaN where a value is missing."""
    last, is_sorted = np.full((1, 2), -np.inf), True
    for block in row_blocks(X):
        keys = np.nan_to_num(np.vstack([last, block[:, : TIME + 1]]), nan=MISSING)
        earlier, later = keys[:-1], keys[1:]
        after = (later[:, GROUP] > earlier[:, GROUP]) | (
            (later[:, GROUP] == earlier[:, GROUP]) & (later[:, TIME] >= earlier[:, TIME])
        )
        is_sorted = is_sorted and bool(after.all())
        last = block[-1:, : TIME + 1] if len(block) else last
    if is_sorted:
        yield from row_blocks(X)
        return
    for block in sorted_rows(X, range(X.shape[1])):
        yield np.where(block == MISSING, np.nan, block)


def _starts(groups: Matrix) -> Index:
    """Where groups start in ascending keys of rows, of which there is at least one."""
    return np.flatnonzero(np.diff(groups, prepend=np.nan) != 0.0)


def _whole_groups(blocks: Iterable[Matrix]) -> Iterator[Matrix]:
    """The same rows in blocks that part no group."""
    held: list[Matrix] = []
    for block in blocks:
        if not len(block):
            continue
        begins = int(_starts(block[:, GROUP])[-1])
        if held and (begins or block[0, GROUP] != held[0][0, GROUP]):
            yield np.concatenate([*held, block[:begins]])
            held = []
        elif begins:
            yield block[:begins]
        held.append(block[begins:].copy())
    if held:
        yield np.concatenate(held)


class _Counts:
    """Counts over the sorted rows that have passed: sizes of groups, and sums that tell shares of variance.

    `d`: number of columns behind the keys.
    """

    def __init__(self, d: int) -> None:
        self._sizes: list[Index] = []
        self._last: float | None = None
        self._shift = np.full(d, np.nan)  # squares of large values would hide a small spread
        self._open = np.zeros((2, d))  # number and sum of the values of the last group so far
        self._n, self._sum, self._squares = np.zeros(d), np.zeros(d), np.zeros(d)
        self._groups, self._of_squares, self._between = np.zeros(d), np.zeros(d), np.zeros(d)

    def counted(self, blocks: Iterable[Matrix]) -> Iterator[Matrix]:
        """The same blocks."""
        for block in blocks:
            if len(block):
                self._count(block)
            yield block

    def _count(self, block: Matrix) -> None:
        keys, X = block[:, GROUP], block[:, KEYS:]
        there = ~np.isnan(X)
        first = X[np.argmax(there, axis=0), np.arange(X.shape[1])]
        self._shift = np.where(np.isnan(self._shift), first, self._shift)
        with np.errstate(over="ignore", invalid="ignore"):  # a table that overflows is refused
            moved = np.where(there, X - np.nan_to_num(self._shift), 0.0)
            starts = _starts(keys)
            sizes, n = np.diff(starts, append=len(block)), np.add.reduceat(there.astype(np.float64), starts, axis=0)
            sums = np.add.reduceat(moved, starts, axis=0)
            self._squares += np.einsum("ij,ij->j", moved, moved)
            if self._last == keys[0]:
                sizes[0] += self._sizes[-1][-1]
                self._sizes[-1] = self._sizes[-1][:-1]
                n[0] += self._open[0]
                sums[0] += self._open[1]
            else:
                self._close(self._open[:1], self._open[1:])
            self._sizes.append(sizes)
            self._close(n[:-1], sums[:-1])
        self._open, self._last = np.stack([n[-1], sums[-1]]), float(keys[-1])

    def _close(self, n: Matrix, sums: Matrix) -> None:
        """Take note of whole groups by their (G, d) numbers and sums of values."""
        self._n += n.sum(axis=0)
        self._sum += sums.sum(axis=0)
        self._groups += (n > 0.0).sum(axis=0)
        self._of_squares += np.square(n).sum(axis=0)
        self._between += (np.square(sums) / np.maximum(n, 1.0)).sum(axis=0)

    def belonging(self) -> Belonging:
        """What there was, by one-way analysis of variance (Donner 1986, for groups of different sizes)."""
        self._close(self._open[:1], self._open[1:])
        self._open = np.zeros_like(self._open)
        n, groups = self._n, self._groups
        with np.errstate(all="ignore"):
            between = (self._between - np.square(self._sum) / n) / (groups - 1.0)
            within = (self._squares - self._between) / (n - groups)
            size = (n - self._of_squares / n) / (groups - 1.0)
            icc = np.clip((between - within) / (between + (size - 1.0) * within), 0.0, 1.0)
        told = (groups > 1.0) & (n > groups) & np.isfinite(icc)
        sizes = np.concatenate(self._sizes) if self._sizes else np.zeros(0, dtype=np.int64)
        return Belonging(sizes, np.where(told, icc, np.nan))


def _means(blocks: Iterable[Matrix]) -> Iterator[Matrix]:
    """(G, d) means over the rows of each group that have a value; within the group's smallest and largest."""
    held: tuple[float, Matrix] | None = None  # of the last group so far: its key; sum, number, smallest and largest

    def mean(parts: Matrix) -> Matrix:
        sums, n, low, high = parts
        with np.errstate(invalid="ignore"):
            # Rounding would take the mean of equal values off them, and off public bounds.
            return np.asarray(np.clip(sums / np.where(n > 0.0, n, np.nan), low, high))

    for block in blocks:
        if not len(block):
            continue
        X, starts = block[:, KEYS:], _starts(block[:, GROUP])
        there = ~np.isnan(X)
        parts = np.stack(
            [
                np.add.reduceat(np.where(there, X, 0.0), starts, axis=0),
                np.add.reduceat(there.astype(np.float64), starts, axis=0),
                np.fmin.reduceat(X, starts, axis=0),
                np.fmax.reduceat(X, starts, axis=0),
            ]
        )
        if held is not None and held[0] == block[0, GROUP]:
            before = held[1]
            parts[:2, 0] += before[:2]
            parts[2, 0], parts[3, 0] = np.fmin(parts[2, 0], before[2]), np.fmax(parts[3, 0], before[3])
        elif held is not None:
            yield mean(held[1][:, None])
        if len(starts) > 1:
            yield mean(parts[:, :-1])
        held = float(block[-1, GROUP]), parts[:, -1].copy()
    if held is not None:
        yield mean(held[1][:, None])


def _deviations(block: Matrix) -> Matrix:
    """Records of whole groups: forward orthogonal deviations of their rows."""
    X, starts = block[:, KEYS:], _starts(block[:, GROUP])
    there = ~np.isnan(X)
    sizes = np.diff(starts, append=len(X))
    group = np.repeat(np.arange(len(starts)), sizes)
    # Columns that a whole group lacks, as those that the site does not have, are no gaps of single rows.
    alike = np.logical_and.reduceat((there == there[starts[group]]).all(axis=1), starts)
    records = [_deviations_of_alike(X[alike[group]], there[alike[group]], sizes[alike])]
    for g in np.flatnonzero(~alike).tolist():
        records.append(_deviations_with_gaps(X[starts[g] : starts[g] + sizes[g]]))
    return np.concatenate(records)


def _deviations_of_alike(X: Matrix, there: Mask, sizes: Index) -> Matrix:
    """Records of groups of these sizes, in each of which all rows have the same columns."""
    if not len(X):
        return X
    ends = np.cumsum(sizes)
    starts, group = ends - sizes, np.repeat(np.arange(len(sizes)), sizes)
    used = np.where(there, X, 0.0)
    means = np.add.reduceat(used, starts, axis=0) / sizes[:, None]
    centred = used - means[group]  # sums of what is left lose no digits
    later = np.add.reduceat(centred, starts, axis=0)[group] - _cumulated(centred, starts, group)
    k = (ends[group] - 1 - np.arange(len(used))).astype(np.float64)[:, None]  # rows after this one
    left = k[:, 0] > 0.0
    deviations = np.sqrt(k[left] / (k[left] + 1.0)) * (centred[left] - later[left] / k[left])
    return np.where(there[left], deviations, np.nan)


def _deviations_with_gaps(X: Matrix) -> Matrix:
    """Records of one group whose (m, d) rows differ in what they lack; those with fewer values come first.

    Each row is compared with all later ones that have its values: so a record's columns are about the same rows, and
    its products have the means of those of deviations. Where no later row has them all, the row keeps the values that
    some later row has. One with no value of a later row tells nothing.
    """
    there = ~np.isnan(X)
    order = np.argsort(there.sum(axis=1), kind="stable")
    X, there = X[order], there[order]
    records = np.full((len(X) - 1, X.shape[1]), np.nan)
    for i in range(len(X) - 1):
        shared = there[i + 1 :] & there[i]
        kept = shared[np.argmax(shared.sum(axis=1))]
        later = X[i + 1 :][(shared | ~kept).all(axis=1)][:, kept]
        records[i, kept] = math.sqrt(len(later) / (len(later) + 1.0)) * (X[i, kept] - later.mean(axis=0))
    return records


def _cumulated(X: Matrix, starts: Index, group: Index) -> Matrix:
    """(n, d) sums of the rows of a group up to each row."""
    total = np.cumsum(X, axis=0)
    before = np.vstack([np.zeros((1, X.shape[1])), total])[starts]
    return np.asarray(total - before[group])


def _with_lags(blocks: Iterable[Matrix], lagged: Sequence[int], rows: RowGroups, origin: str) -> Iterator[Matrix]:
    """Rows, and beside them the lagged columns of the row before in the same group."""
    places, last, same = [KEYS + k for k in lagged], None, 0
    for block in blocks:
        if not len(block):
            continue
        before = np.vstack([np.full((1, block.shape[1]), np.nan) if last is None else last, block[:-1]])
        follows = before[:, GROUP] == block[:, GROUP]
        same += int((follows & (before[:, TIME] == block[:, TIME])).sum())
        values = before[:, places]
        values[~follows] = np.nan
        last = block[-1:].copy()
        yield np.hstack([block[:, KEYS:], values])
    if same:
        raise DataError(
            f"{origin}: {same} row(s) have the {rows.time!r} of the row before"
            + (f" with the same {rows.group!r}" if rows.group else "")
            + ", so that it is open which of them was first",
            remedy="Keep one row for each time, or give the time more exactly. " + _NO_ORDER,
        )
