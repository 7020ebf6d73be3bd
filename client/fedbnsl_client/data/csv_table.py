"""Tables in CSV, a block of rows at a time: UTF-8, commas, column names in the first line."""

import csv
import io
import math
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
from fedbnsl_client.data.checks import Places, in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.mapped_array import rows_a_block
from fedbnsl_client.data.reading import MISSING

# In smaller files, importing pyarrow takes longer than reading with numpy.
_LARGE_BYTES = 16 * 2**20

_ARROW_BLOCK_BYTES = 4 * 2**20


class NotPlainError(Exception):
    """The fast reader cannot read the file; the slow one reads it, or says what is wrong."""


@contextmanager
def said_in_words(path: Path) -> Generator[None]:
    """Turn the errors of reading a file into a DataError."""
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
        If the file cannot be read, or its first line is not a usable header.
    """
    with said_in_words(path), path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(file), list[str]())
    if not header:
        raise DataError(f"{path}: the file is empty; expected a line of column names and at least one row")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        mark = "semicolons" if ";" in header[0] else "tabs"
        raise DataError(f"{path}: the columns are separated by {mark}; use commas, and points in decimal numbers")
    if all(_is_number(name) for name in header):
        raise DataError(f"{path}: no header: the first line holds {len(header)} numbers instead of column names")
    return read_names(path, header)


def has_fast_reader(path: Path) -> bool:
    """Whether `fast_blocks` can be used and saves time."""
    return path.stat().st_size >= _LARGE_BYTES and find_spec("pyarrow") is not None


def fast_blocks(path: Path, header: Sequence[str], chosen: Sequence[int], *, gaps: bool = False) -> Iterator[Matrix]:
    """Like `blocks`, but by pyarrow: several times faster, with the same bits.

    Raises
    ------
    NotPlainError
        If any row holds anything but numbers.
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
                    column_types=dict.fromkeys(names, arrow.float64()),
                    include_columns=names,
                    null_values=sorted(MISSING) if gaps else [],
                ),
            ) as batches,
        ):
            for batch in batches:
                yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])
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


def blocks(path: Path, header: Sequence[str], chosen: Sequence[int], *, gaps: bool = False) -> Iterator[Matrix]:
    """(rows, d) values of the chosen columns, from the first row to the last.

    Parameters
    ----------
    gaps
        Whether a cell may be one of MISSING, which is NaN then.

    Raises
    ------
    DataError
        If a row has more or fewer fields than the header, or a field that is not a number; by column and count.
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
                        lines,
                        delimiter=",",
                        usecols=chosen,
                        ndmin=2,
                        comments=None,
                        quotechar='"',
                        max_rows=rows,
                        converters=_number_or_gap if gaps else None,
                    )
                if X.size:
                    yield X
                if len(X) < rows:
                    break
    except ValueError:
        problems = unreadable_cells(path, header, chosen, gaps=gaps)
        raise DataError(f"{path}: " + in_one_line(problems or ["the table cannot be parsed as numbers"])) from None
    if lines.quoted:
        _check_widths(path, len(header))


def _number_or_gap(cell: str) -> float:
    return math.nan if cell.strip() in MISSING else float(cell)


class _Lines:
    """Lines of a file, with their commas counted: numpy ignores surplus fields. Files with quotes are checked later.

    Raises
    ------
    ValueError
        At a line that does not have one field for each column.
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


def unreadable_cells(path: Path, header: Sequence[str], chosen: Sequence[int], *, gaps: bool = False) -> list[str]:
    """What cannot be read as a number, by column, with the count and the first few line numbers; `gaps` as in `blocks`.

    Raises
    ------
    DataError
        If a row has more or fewer fields than the header.
    """
    _check_widths(path, len(header))
    found: dict[str, dict[int, Places]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        for row in rows:
            for k in chosen if row else ():
                if not (gaps and row[k].strip() in MISSING) and (what := _unreadable(row[k])):
                    found.setdefault(what, {}).setdefault(k, Places()).add([rows.line_num])
    return no_numbers(header, found, "line")


def _unreadable(cell: str) -> str:
    """What a cell is instead of a finite number; empty: it is one."""
    if not cell.strip():
        return "empty"
    if not _is_number(cell):
        return "not numbers"
    return "" if math.isfinite(number := float(cell)) else "NaN" if math.isnan(number) else "infinite"


def no_numbers(header: Sequence[str], found: Mapping[str, Mapping[int, Places]], unit: str) -> list[str]:
    """What to say of columns where rows are empty, or hold something else than numbers.

    Parameters
    ----------
    found
        By what the rows are, and by column: where.
    unit
        What the numbers of the rows count, such as "line".
    """
    return [
        f"column {header[k]!r}: {places.count} row(s) are {what} {places.said(unit)}"
        for what, columns in found.items()
        for k, places in sorted(columns.items())
        if places.count
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # 1_000 is a number only in Python
