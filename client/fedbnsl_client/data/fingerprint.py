"""Recognise tables that hold the same data, by keyed hashes that only the holder of the key can compute.

A table is known by the tags of its records, and a column by sums over hashes of its values: neither hangs on the order
of the rows, and both are made of blocks of rows, wherever these are.
"""

import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.mapped_array import RowsElsewhere, of_each_block
from fedbnsl_client.data.person_rows import Persons
from fedbnsl_client.data.record_tags import RecordTags, Tags, record_tags
from fedbnsl_client.data.sorted_rows import comparable, sorted_columns, sorted_rows

ENOUGH = 10
"""The count that the shared columns of two tables must reach; see `of_the_same_rows`."""

_BY_TAGS = "records:"
_FIRST_ROWS = 4096


class Recognised(NamedTuple):
    """What a table is known by. Neither this nor the key leaves the site.

    Attributes
    ----------
    tags
        (n,) of its records, see `record_tags`.
    fingerprint
        The same for every order of rows and of columns. Names, number of rows, which values are missing and every bit
        of the others count, except the sign of zero. Where a record is the mean of a person's rows, all of these
        count, and whose they are: a run may read any of that.
    columns
        A fingerprint of each column: the number of its distinct values, or ENOUGH + 1 if there are more, and a keyed
        hash of all its values. It does not depend on names or the order of the rows. One row more or less, or another
        unit, changes it.
    """

    tags: Tags
    fingerprint: str
    columns: list[str]


def recognised(
    key: bytes, variables: Sequence[str], X: Matrix | RowsElsewhere, persons: Persons | None = None
) -> Recognised:
    """What a table is known by, in one pass over its rows.

    A plain hash would be a release: anyone who guesses a table could check the guess. Raises ValueError if names and
    array do not fit each other.

    Parameters
    ----------
    key
        32 random bytes.
    variables
        d distinct column names.
    X
        (n, d) values; NaN where one is missing.
    persons
        As in `record_tags`.
    """
    _require_names(variables, X)
    tags: list[Tags] = []
    columns = _Columns.nothing(X.shape[1])
    for of_block, columns_of_block in of_each_block(X, _OfBlock(RecordTags.of(key, variables), _ColumnSums.of(key))):
        tags.append(of_block)
        columns = columns.joined(columns_of_block)
    if persons is None:
        whole = np.concatenate(tags)
        return Recognised(whole, _of_tags(key, whole), columns.said(key))
    by_name = record_tags(key, variables, X, persons)
    return Recognised(by_name, _of_persons(key, variables, persons, by_name), columns.said(key))


def fingerprint(key: bytes, variables: Sequence[str], X: Matrix | RowsElsewhere, persons: Persons | None = None) -> str:
    """That of a table, see `Recognised`."""
    _require_names(variables, X)
    tags = record_tags(key, variables, X, persons)
    return _of_tags(key, tags) if persons is None else _of_persons(key, variables, persons, tags)


def _require_names(variables: Sequence[str], X: Matrix | RowsElsewhere) -> None:
    if X.ndim != 2 or X.shape[1] != len(variables) or len(set(variables)) < len(variables):
        raise ValueError(f"{len(variables)} names, {len(set(variables))} of them distinct, for an array {X.shape}")


def _of_persons(key: bytes, variables: Sequence[str], persons: Persons, by_name: Tags) -> str:
    of_rows, whose = record_tags(key, variables, persons.rows.X), np.repeat(by_name, persons.rows.sizes)
    order = np.lexsort((of_rows, whose))
    code = hmac.new(key, b"rows of persons" + len(order).to_bytes(8, "little"), hashlib.sha256)
    for one in (whose, of_rows):
        code.update(one[order].astype("<u8").data.cast("B"))
    return _BY_TAGS + code.hexdigest()


def _of_tags(key: bytes, tags: Tags) -> str:
    code = hmac.new(key, b"records" + len(tags).to_bytes(8, "little"), hashlib.sha256)
    code.update(np.sort(tags).astype("<u8").data.cast("B"))
    return _BY_TAGS + code.hexdigest()


@dataclass(frozen=True)
class _Columns:
    """What is known of the columns of some rows.

    Attributes
    ----------
    sums
        (2, d) modulo 2^64, over hashes of the values by two keys: equal ones of different values have a chance of
        2^-128.
    few
        Hashes of distinct values of each column; all of them where there are fewer than ENOUGH + 1.
    """

    sums: NDArray[np.uint64]
    few: tuple[frozenset[int], ...]

    @classmethod
    def nothing(cls, d: int) -> "_Columns":
        return cls(np.zeros((2, d), dtype=np.uint64), (frozenset[int](),) * d)

    def joined(self, other: "_Columns") -> "_Columns":
        few = (one | another for one, another in zip(self.few, other.few, strict=True))
        return _Columns(self.sums + other.sums, tuple(frozenset(sorted(one)[: ENOUGH + 1]) for one in few))

    def said(self, key: bytes) -> list[str]:
        return [
            f"{len(few)}:sum-{hmac.digest(key, b'column' + sums.astype('<u8').tobytes(), 'sha256').hex()[:32]}"
            for few, sums in zip(self.few, self.sums.T, strict=True)
        ]


@dataclass(frozen=True)
class _ColumnSums:
    """Hash the values of blocks of rows column by column."""

    seeds: tuple[int, int] = field(repr=False)

    @classmethod
    def of(cls, key: bytes) -> "_ColumnSums":
        drawn = hmac.digest(key, b"column sums", "sha256")
        return cls((int.from_bytes(drawn[:8], "little"), int.from_bytes(drawn[8:16], "little")))

    def __call__(self, block: Matrix) -> _Columns:
        bits = np.ascontiguousarray(comparable(block).T).view(np.uint64)
        hashes = [_mixed(bits, seed) for seed in self.seeds]
        return _Columns(
            np.array([one.sum(axis=1, dtype=np.uint64) for one in hashes]), tuple(map(_some_distinct, hashes[0]))
        )


def _some_distinct(hashes: NDArray[np.uint64]) -> frozenset[int]:
    found = np.unique(hashes[:_FIRST_ROWS])
    return frozenset((found if len(found) > ENOUGH else np.unique(hashes))[: ENOUGH + 1].tolist())


def _mixed(bits: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A bijection of 64 bits that depends on all of them (the output function of splitmix64)."""
    z = bits + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class _OfBlock:
    """Both of a block of rows."""

    tags: RecordTags
    columns: Callable[[Matrix], _Columns]

    def __call__(self, block: Matrix) -> tuple[Tags, _Columns]:
        return self.tags(block), self.columns(block)


# ---- what ledgers of an older fedbnsl hold ---------------------------------------------------------------------------


def is_of_before(found: str) -> bool:
    """Whether an older fedbnsl has made this fingerprint of a table, and the ones of its columns."""
    return not found.startswith(_BY_TAGS)


def fingerprint_before(key: bytes, variables: Sequence[str], X: Matrix) -> str:
    """What `fingerprint` was: HMAC-SHA-256 of the sorted rows of a table that is here."""
    order = sorted(range(len(variables)), key=lambda k: variables[k])
    # The shape gives the numbers of names and values, and each name follows its length: the encoding is unambiguous.
    code = hmac.new(key, digestmod=hashlib.sha256)
    for size in X.shape:
        code.update(size.to_bytes(8, "little"))
    for name in (variables[k].encode() for k in order):
        code.update(len(name).to_bytes(8, "little") + name)
    for rows in sorted_rows(X, order):
        code.update(np.ascontiguousarray(rows, dtype="<f8").reshape(-1).data.cast("B"))
    return code.hexdigest()


def columns_before(key: bytes, X: Matrix) -> list[str]:
    """What the fingerprints of columns were: the number of distinct values, and an HMAC-SHA-256 of the sorted ones."""
    found: list[str] = []
    for blocks in sorted_columns(X):
        code, n_distinct, last = hmac.new(key, b"column", hashlib.sha256), 0, np.nan
        for values in blocks:
            code.update(np.ascontiguousarray(values, dtype="<f8").data.cast("B"))
            n_distinct += int(np.count_nonzero(np.diff(values, prepend=last)))
            last = values[-1]
        found.append(f"{n_distinct}:{code.hexdigest()[:32]}")
    return found


# ---- comparing -------------------------------------------------------------------------------------------------------


def of_the_same_rows(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the column fingerprints of two tables show that they hold the same records.

    A shared column with v distinct values counts v - 1: columns with few values may agree by chance, as do any two
    columns of zeros and ones with equally many ones. The counts must add up to ENOUGH, or all columns must agree.
    """
    shared = Counter(one) & Counter(other)
    return sum(int(column.partition(":")[0]) - 1 for column in shared.elements()) >= ENOUGH or sorted(one) == sorted(
        other
    )


def file_identity(path: Path) -> tuple[str, ...]:
    """What identifies a file under any name: its real path and, if it exists, its device and inode numbers.

    Of a folder of Parquet files, also what identifies these.
    """
    inner = sorted(path.rglob("*.parquet")) if path.is_dir() else []
    return (*_of_one(path), *(mark for one in inner for mark in _of_one(one)))


def _of_one(path: Path) -> tuple[str, ...]:
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:  # the reader reports a missing file
        return (real,)
    return real, f"{status.st_dev}:{status.st_ino}"
