"""Tables larger than memory: keep arrays in a temporary file, or elsewhere, and work on blocks of rows.

A file is made in TMPDIR with mode 0600 and without a name (or its name is removed at once), so nobody can open it.
The system frees its space when the array is deleted or the process ends, even by a crash.
"""

import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import IO, Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedbnsl.errors import DataError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.watched import followed

MAPPED_BYTES = 256 * 2**20
"""A table with more bytes of values is kept in a file."""

BLOCK_BYTES = 16 * 2**20

# A multiple of the vector width, so that a row gives the same bits in a block and in the whole table.
_ROWS_ALIKE = 64

Sums = TypeVar("Sums", bound=NDArray[Any])
Made = TypeVar("Made")


class RowsElsewhere(ABC):
    """An (n, d) table whose rows are not in this process: here are sums over them, and what needs no more than these.

    Attributes
    ----------
    shape
        (n, d).
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def summed(self, f: Callable[[Matrix], Sums]) -> Sums:
        """The sum of f over blocks of rows, in their order; a block may be without rows."""

    @abstractmethod
    def each(self, f: Callable[[Matrix], Made]) -> Iterator[Made]:
        """What f makes of each block of rows, in their order."""

    @abstractmethod
    def some(self, n_rows: int) -> Matrix:
        """About so many rows, spread over some of the first; all if there are fewer."""

    @abstractmethod
    def columns(self, order: Sequence[int]) -> Self:
        """The table with these columns alone, in this order."""

    @abstractmethod
    def complete(self, n_rows: int) -> Self:
        """The table without rows that hold a NaN; so many are left."""

    @abstractmethod
    def with_values(self, n_rows: int) -> Self:
        """The table without rows that are NaN throughout; so many are left."""

    @abstractmethod
    def with_zeros(self) -> Self:
        """The table with zeros in the rows that hold a NaN."""

    @abstractmethod
    def after(self, step: Callable[[Matrix], Matrix]) -> Self:
        """The table of as many rows and columns that this makes of each block."""


def rows_a_block(n_columns: int) -> int:
    """How many rows are in memory at a time."""
    return max(BLOCK_BYTES // (8 * n_columns * _ROWS_ALIKE), 1) * _ROWS_ALIKE


def gathered(blocks: Iterable[Matrix], n_columns: int) -> Matrix:
    """Blocks of rows as one (n, d) array: in memory, or, if it has more than MAPPED_BYTES, read-only in a file.

    Raises DataError if TMPDIR has no room.
    """
    held: list[Matrix] = []
    n_rows, file = 0, None
    with ExitStack() as files:
        for block in blocks:
            held.append(block)
            n_rows += len(block)
            if file is None and 8 * n_rows * n_columns > MAPPED_BYTES:
                file = files.enter_context(_new_file())
            if file is not None:
                _append(file, held)
                held.clear()
        if file is None:
            return np.ascontiguousarray(np.concatenate([np.empty((0, n_columns)), *held]))
        return _mapped(file, (n_rows, n_columns), mmap.ACCESS_READ)


def zeros_in_file(shape: tuple[int, ...]) -> Matrix:
    """A writable array in a file.

    Raises DataError if TMPDIR has no room. All space is reserved now, because a full disk at a later write would kill
    the process.
    """
    with _new_file() as file, _said_in_words():
        size = 8 * int(np.prod(shape))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return _mapped(file, shape, mmap.ACCESS_WRITE)


def row_blocks(X: Matrix | RowsElsewhere) -> Iterator[Matrix]:
    """An (n, d) table in blocks of rows; one in memory is a single block.

    No block is smaller than `rows_a_block` unless the table is: the last one takes what would be left over.

    Raises DataError if its rows are elsewhere.
    """
    if isinstance(X, RowsElsewhere):
        raise DataError(
            "this needs the rows of the table, which Dask workers hold: only sums over rows come from them",
            remedy="Leave out --engine, or use a plan whose steps need sums over rows alone, such as standard.",
        )
    if not lies_in_file(X):
        yield X
        return
    rows = rows_a_block(X.shape[1])
    starts, done = range(0, max(len(X) - rows, 0) + 1, rows), 0

    def blocks() -> Iterator[Matrix]:
        nonlocal done
        for start in starts:
            done = start
            yield X[start : len(X) if start == starts[-1] else start + rows]
            forget(X)

    yield from followed("going through the rows", blocks(), lambda: done / len(X))


def sum_over_rows(X: Matrix | RowsElsewhere, f: Callable[[Matrix], Sums]) -> Sums:
    """The sum of f over the blocks of a table; exactly f(X) for one in memory."""
    if isinstance(X, RowsElsewhere):
        return X.summed(f)
    return reduce(added, map(f, row_blocks(X)))


def of_each_block(X: Matrix | RowsElsewhere, f: Callable[[Matrix], Made]) -> Iterator[Made]:
    """What f makes of each block of rows of a table, in their order; it should be small."""
    return X.each(f) if isinstance(X, RowsElsewhere) else map(f, row_blocks(X))


def added(total: Sums, block: Sums) -> Sums:
    """Their sum, in this order."""
    return cast(Sums, np.add(total, block))


def some_rows(X: Matrix | RowsElsewhere, n_rows: int) -> Matrix:
    """About so many rows, spread over the first block; all if there are fewer."""
    if isinstance(X, RowsElsewhere):
        return X.some(n_rows)
    block = next(row_blocks(X))
    return block[:: max(len(block) // n_rows, 1)]


def lies_in_file(X: Matrix | RowsElsewhere) -> bool:
    """Whether an array, or what it is a view of, is mapped from a file."""
    return _map_below(X) is not None


def forget(X: Matrix) -> None:
    """Free the memory of a mapped array; its content stays in the file."""
    pages = _map_below(X)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)


def _map_below(X: Matrix | RowsElsewhere) -> mmap.mmap | None:
    below: Any = X
    while isinstance(below, np.ndarray):
        below = below.base
    return below if isinstance(below, mmap.mmap) else None


def _mapped(file: IO[bytes], shape: tuple[int, ...], access: int) -> Matrix:
    return np.ndarray(shape, dtype=np.float64, buffer=mmap.mmap(file.fileno(), 0, access=access))


def _new_file() -> IO[bytes]:
    with _said_in_words():
        return tempfile.TemporaryFile(prefix="fedbnsl-", buffering=0)


def _append(file: IO[bytes], blocks: Iterable[Matrix]) -> None:
    with _said_in_words():
        for block in blocks:
            rest = np.ascontiguousarray(block, dtype=np.float64).reshape(-1).data.cast("B")
            while rest:  # a disk that is nearly full writes a part, and the next write fails
                rest = rest[file.write(rest) :]


@contextmanager
def _said_in_words() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{tempfile.gettempdir()}: no temporary file for a large table: {error.strerror or error}; it takes 8 "
            "bytes a value, and three times that for private steps (TMPDIR names another folder)"
        ) from None
