"""Recognise tables that hold the same data, by keyed hashes that only the holder of the key can compute."""

import hashlib
import hmac
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.sorted_rows import sorted_columns, sorted_rows

ENOUGH = 10
"""The count that the shared columns of two tables must reach; see `of_the_same_rows`."""


def fingerprint(key: bytes, variables: Sequence[str], X: Matrix) -> bytes:
    """HMAC-SHA-256 of a table, the same for every order of its rows and of its columns.

    A plain hash would be a release: anyone who guesses a table could check the guess. Neither the key nor this value
    leaves the site.

    Raises ValueError if names and array do not fit each other.

    Parameters
    ----------
    key
        32 random bytes.
    variables
        d distinct column names.
    X
        (n, d) values; NaN where one is missing.

    Returns
    -------
    bytes
        32 bytes. Names, shape, which values are missing and every bit of the others count, except the sign of zero.
    """
    if X.ndim != 2 or X.shape[1] != len(variables) or len(set(variables)) < len(variables):
        raise ValueError(f"{len(variables)} names, {len(set(variables))} of them distinct, for an array {X.shape}")
    order = sorted(range(len(variables)), key=lambda k: variables[k])
    # The shape gives the numbers of names and values, and each name follows its length: the encoding is unambiguous.
    code = hmac.new(key, digestmod=hashlib.sha256)
    for size in X.shape:
        code.update(size.to_bytes(8, "little"))
    for name in (variables[k].encode() for k in order):
        code.update(len(name).to_bytes(8, "little") + name)
    for rows in sorted_rows(X, order):
        code.update(np.ascontiguousarray(rows, dtype="<f8").reshape(-1).data.cast("B"))
    return code.digest()


def column_fingerprints(key: bytes, X: Matrix) -> list[str]:
    """A fingerprint of each column: the number of its distinct values, and an HMAC-SHA-256 of all its values.

    It does not depend on names or the order of the rows. One row more or less, or another unit, changes it.

    Parameters
    ----------
    key
        32 random bytes.
    X
        (n, d) values; NaN where one is missing.
    """
    found: list[str] = []
    for blocks in sorted_columns(X):
        code, n_distinct, last = hmac.new(key, b"column", hashlib.sha256), 0, np.nan
        for values in blocks:
            code.update(np.ascontiguousarray(values, dtype="<f8").data.cast("B"))
            n_distinct += int(np.count_nonzero(np.diff(values, prepend=last)))
            last = values[-1]
        found.append(f"{n_distinct}:{code.hexdigest()[:32]}")
    return found


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
