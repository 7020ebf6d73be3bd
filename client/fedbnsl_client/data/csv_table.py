"""Tables in CSV, a block of rows at a time: UTF-8, commas, column names in the first line."""

import csv
import io
import warnings
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.sparse import Matrix
from fedbnsl_client.data.checks import listed
from fedbnsl_client.data.columns import check_names
from fedbnsl_client.data.mapped_array import rows_a_block

# Below it, pyarrow takes longer to import than numpy to read.
_LARGE_BYTES = 16 * 2**20

_ARROW_BLOCK_BYTES = 4 * 2**20


class NotPlainError(Exception):
    """The fast reader does not take the file; the careful one reads it, or says what is wrong."""


@contextmanager
def said_in_words(path: Path) -> Generator[None]:
    """Turn what the system says about a file into a DataError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); save the table as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a table in CSV form ({error}); is there a quote that is never closed?") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_header(path: Path) -> list[str]:
    """The column names of a table.

    Raises
    ------
    DataError
        If the file cannot be read or its first line is no usable header.
    """
    with said_in_words(path), path.open(encoding="utf-8-sig", newline="") as file:
        header = [name.strip() for name in next(csv.reader(file), list[str]())]
    if not header:
        raise DataError(f"{path}: the file is empty; expected a line of column names and at least one row")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        mark = "semicolons" if ";" in header[0] else "tabs"
        raise DataError(f"{path}: the columns are separated by {mark}; use commas, and points in decimal numbers")
    if all(_is_number(name) for name in header):
        raise DataError(f"{path}: no header: the first line holds {len(header)} numbers instead of column names")
    check_names(path, header)
    return header


def has_fast_reader(path: Path) -> bool:
    """Whether `fast_blocks` can be tried, and pays."""
    return path.stat().st_size >= _LARGE_BYTES and find_spec("pyarrow") is not None


def fast_blocks(path: Path, header: Sequence[str], chosen: Sequence[int]) -> Iterator[Matrix]:
    """As `blocks`, by pyarrow: several times faster, with the same values, to the bit.

    Raises
    ------
    NotPlainError
        If there is anything but numbers, in whatever row.
    """
    arrow: Any = import_module("pyarrow")
    arrow_csv: Any = import_module("pyarrow.csv")
    names = [str(k) for k in chosen]
    try:
        with (
            _Utf8File(path) as file,
            arrow_csv.open_csv(
                file,
                read_options=arrow_csv.ReadOptions(
                    column_names=[str(k) for k in range(len(header))], skip_rows=1, block_size=_ARROW_BLOCK_BYTES
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, arrow.float64()), include_columns=names, null_values=[]
                ),
            ) as batches,
        ):
            for batch in batches:
                yield np.column_stack([column.to_numpy() for column in batch.columns])
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise NotPlainError from error


class _Utf8File(io.FileIO):
    """The bytes of a file, unchanged; refuses bytes that are not UTF-8."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._decoder = getincrementaldecoder("utf-8")()

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._decoder.decode(data, final=not data)
        return data


def blocks(path: Path, header: Sequence[str], chosen: Sequence[int]) -> Iterator[Matrix]:
    """(rows, d) values of the chosen columns, from the first row to the last.

    Raises
    ------
    DataError
        If a row has more or fewer fields than the header, or one that is no number; by column and count.
    """
    rows = rows_a_block(len(chosen))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            next(csv.reader(file))
            lines = _Lines(file, len(header))
            while True:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # "input contained no data": counted by the caller
                    X = np.loadtxt(
                        lines, delimiter=",", usecols=chosen, ndmin=2, comments=None, quotechar='"', max_rows=rows
                    )
                if X.size:
                    yield X
                if len(X) < rows:
                    break
    except ValueError:
        _explain_values(path, header, chosen)
        raise
    if lines.quoted:
        _check_widths(path, len(header))


class _Lines:
    """Lines of a file, with their commas counted: numpy ignores surplus fields. Files with quotes are checked later.

    Raises
    ------
    ValueError
        At a line that has not one field for each column.
    """

    def __init__(self, lines: Iterable[str], width: int) -> None:
        self._lines, self._width = iter(lines), width
        self.quoted = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            if '"' in line:
                self.quoted = True
            elif line.count(",") != self._width - 1 and line.strip("\r\n") and not self.quoted:
                raise ValueError("a row of another width")
            yield line


def _check_widths(path: Path, width: int) -> None:
    """Refuse lines with more or fewer fields than the header."""
    count = first = 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        for row in reader:
            if row and len(row) != width:
                count += 1
                first = first or reader.line_num
    if count:
        raise DataError(f"{path}: {count} row(s) without exactly {width} fields, the first in line {first}")


def _explain_values(path: Path, header: Sequence[str], chosen: Sequence[int]) -> None:
    """Raise the DataError that says which columns hold text or nothing, and in how many rows."""
    text = dict.fromkeys(chosen, 0)
    empty = dict.fromkeys(chosen, 0)
    _check_widths(path, len(header))
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        for row in rows:
            if not row:
                continue
            for k in chosen:
                if not row[k].strip():
                    empty[k] += 1
                elif not _is_number(row[k]):
                    text[k] += 1
    problems = no_numbers(header, empty, text)
    raise DataError(f"{path}: " + listed(problems or ["the table cannot be parsed as numbers"]))


def no_numbers(header: Sequence[str], empty: Mapping[int, int], text: Mapping[int, int]) -> list[str]:
    """What to say of columns in which so many rows are empty, or hold something else than numbers."""
    return [
        f"column {header[k]!r}: {count} row(s) are {what}"
        for counts, what in ((empty, "empty"), (text, "not numbers"))
        for k, count in counts.items()
        if count
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # 1_000: a number in Python only
