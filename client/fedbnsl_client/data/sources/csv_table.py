"""Tables in CSV, a block of rows at a time: UTF-8, column names in the first line, commas or another `csv_form`."""

import csv
import io
import warnings
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.files.csv_form import USUAL, Form, form_of, header_of, opened
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems, UnreadableCellsError
from fedbnsl_client.data.checks import in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.mapped_array import rows_a_block
from fedbnsl_client.data.reading import MISSING, Reading
from fedbnsl_client.data.sources.arrow_cells import codes_of
from fedbnsl_client.data.sources.decimals import Decimals

# In smaller files, importing pyarrow takes longer than reading with numpy.
_LARGE_BYTES = 16 * 2**20

_ARROW_BLOCK_BYTES = 4 * 2**20

_Converters = Mapping[int | str, Callable[[str], float]]


class Read:
    """How much of a file was read: `n` bytes or letters."""

    n = 0


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


def read_header(path: Path, *, named: bool = False) -> list[str]:
    """The column names of a table.

    Parameters
    ----------
    named
        Whether the columns to use are named elsewhere: names may all be numbers then.

    Raises
    ------
    DataError
        If the file cannot be read, or its first line is not a usable header.
    """
    with said_in_words(path):
        header = header_of(path)
    if not header:
        raise DataError(f"{path}: the file is empty; expected a line of column names and at least one row")
    if not named and all(_is_number(name) for name in header):
        raise DataError(
            f"{path}: no header: the first line holds {len(header)} numbers instead of column names",
            remedy="If they are names, such as gene identifiers, name the columns to use: --columns, or a data "
            "dictionary. Otherwise put a line of names on top of the table.",
        )
    return read_names(path, header)


class CsvTable:
    """A CSV file, as a `fedbnsl_client.data.sources.source.Source`.

    Parameters
    ----------
    named
        Whether the columns to use are named, which tells a header of numbers alone from a row of values.
    """

    def __init__(self, path: Path, *, named: bool) -> None:
        self.origin = str(path)
        self._path, self._named = path, named
        self._read = Read()

    @property
    def share(self) -> float | None:
        """Of the file's bytes, about: a letter counts as one."""
        size = self._path.stat().st_size
        return min(self._read.n / size, 1.0) if size else None

    def header(self) -> list[str]:
        """See `read_header`."""
        return read_header(self._path, named=self._named)

    def codes(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        """See `Source.codes`."""
        done, self._read.n = 0, 0
        with suppress(NotPlainError):
            for block in self._quick(header, chosen, readings):
                done += len(block)
                yield block
            return
        self._read.n = 0
        for block in blocks(
            self._path, header, chosen, readings, read=self._read
        ):  # the same rows again, from the first to the last
            if done < len(block):
                yield block[done:]
            done = max(done - len(block), 0)

    def _quick(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        if form_of(self._path) != USUAL:
            raise NotPlainError
        if has_fast_reader(self._path):
            return fast_blocks(self._path, header, chosen, readings, read=self._read)
        if all(reading.is_plain for reading in readings):
            return plain_blocks(self._path, header, chosen, read=self._read)
        raise NotPlainError


def has_fast_reader(path: Path) -> bool:
    """Whether `fast_blocks` can be used and saves time."""
    return path.stat().st_size >= _LARGE_BYTES and find_spec("pyarrow") is not None


def fast_blocks(
    path: Path,
    header: Sequence[str],
    chosen: Sequence[int],
    readings: Sequence[Reading],
    *,
    read: "Read | None" = None,
) -> Iterator[Matrix]:
    """Like `blocks`, but by pyarrow: several times faster, with the same bits.

    Raises
    ------
    NotPlainError
        If any cell cannot be read.
    """
    arrow: Any = import_module("pyarrow")
    arrow_csv: Any = import_module("pyarrow.csv")
    names = [str(k) for k in chosen]
    # Where other cells than usual stand for a missing value, or for a level, they are read as text.
    kinds = [arrow.string() if reading.codes or reading.missing != MISSING else arrow.float64() for reading in readings]
    try:
        with (
            _Utf8File(path, read) as file,
            arrow_csv.open_csv(
                file,
                read_options=arrow_csv.ReadOptions(
                    column_names=[str(k) for k in range(len(header))], skip_rows=1, block_size=_ARROW_BLOCK_BYTES
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict(zip(names, kinds, strict=True)),
                    include_columns=names,
                    null_values=sorted(MISSING),
                ),
            ) as batches,
        ):
            for batch in batches:
                found = [codes_of(column, reading) for column, reading in zip(batch.columns, readings, strict=True)]
                if any(bad.any() for _, bad in found):
                    raise NotPlainError
                yield np.column_stack([codes for codes, _ in found])
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise NotPlainError from error


class _Utf8File(io.FileIO):
    """The bytes of a file, unchanged; refuses bytes that are not UTF-8."""

    def __init__(self, path: Path, read: "Read | None") -> None:
        super().__init__(path)
        self._read = read or Read()
        self._decoder = getincrementaldecoder("utf-8")()

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._decoder.decode(data, final=not data)
        self._read.n += len(data)
        return data


def plain_blocks(
    path: Path, header: Sequence[str], chosen: Sequence[int], *, read: "Read | None" = None
) -> Iterator[Matrix]:
    """Like `blocks`, for numbers as they stand, without a missing value.

    Raises
    ------
    NotPlainError
        If any cell is no number.
    """
    try:
        yield from _loaded(path, header, chosen, None, read)
    except (ValueError, UnicodeDecodeError) as error:
        raise NotPlainError from error


def blocks(
    path: Path,
    header: Sequence[str],
    chosen: Sequence[int],
    readings: Sequence[Reading],
    *,
    read: "Read | None" = None,
) -> Iterator[Matrix]:
    """(rows, V) codes of the chosen columns, from the first row to the last; NaN where a value is missing.

    Raises
    ------
    DataError
        If a row has more or fewer fields than the header, or a cell cannot be read; by column and count.
    """
    form = form_of(path)
    decimals = Decimals(path, form)
    converters: _Converters = {
        k: decimals.code(reading, header[k]) for k, reading in zip(chosen, readings, strict=True)
    }
    try:
        yield from _loaded(path, header, chosen, converters, read, form)
        decimals.require_one()
    except UnicodeDecodeError:
        raise
    except ValueError:
        problems = unreadable_cells(path, header, chosen, readings)
        if not problems:
            raise DataError(f"{path}: the table cannot be read") from None
        raise UnreadableCellsError(f"{path}: " + in_one_line(problems)) from None


def _loaded(
    path: Path,
    header: Sequence[str],
    chosen: Sequence[int],
    converters: _Converters | None,
    read: "Read | None",
    form: Form = USUAL,
) -> Iterator[Matrix]:
    rows = rows_a_block(len(chosen))
    with opened(path, form) as file:
        next(csv.reader(file, delimiter=form.separator))
        lines = _Lines(file, len(header), read or Read(), form.separator)
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "input contained no data": counted by the caller
                X = np.loadtxt(
                    lines,
                    delimiter=form.separator,
                    usecols=chosen,
                    ndmin=2,
                    comments=None,
                    quotechar='"',
                    max_rows=rows,
                    converters=converters,
                )
            if X.size:
                yield X
            if len(X) < rows:
                break
    if lines.quoted:
        _check_widths(path, len(header), form)


class _Lines:
    """Lines of a file, with their separators counted: numpy ignores surplus fields.

    Files with quotes are checked later.

    Raises
    ------
    ValueError
        At a line that does not have one field for each column.
    """

    def __init__(self, lines: Iterable[str], width: int, read: "Read", separator: str) -> None:
        self._lines, self._width, self._read, self._separator = iter(lines), width, read, separator
        self.quoted = False

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._read.n += len(line)
            if '"' in line:
                self.quoted = True
            elif line.count(self._separator) != self._width - 1 and line.strip("\r\n") and not self.quoted:
                raise ValueError("a row of another width")
            yield line


def _check_widths(path: Path, width: int, form: Form) -> None:
    """Refuse lines with more or fewer fields than the header."""
    count = first = 0
    with opened(path, form) as file:
        reader = csv.reader(file, delimiter=form.separator)
        for row in reader:
            if row and len(row) != width:
                count += 1
                first = first or form.before + reader.line_num
    if count:
        raise DataError(f"{path}: {count} row(s) without exactly {width} fields, the first in line {first}")


def unreadable_cells(
    path: Path, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]
) -> list[str]:
    """What cannot be read, by column, with the count and the first few line numbers.

    Raises
    ------
    DataError
        If a row has more or fewer fields than the header.
    """
    form = form_of(path)
    _check_widths(path, len(header), form)
    decimals, found = Decimals(path, form), CellProblems(header, "line")
    codes = [decimals.code(reading, header[k]) for k, reading in zip(chosen, readings, strict=True)]
    with opened(path, form) as file:
        rows = csv.reader(file, delimiter=form.separator)
        next(rows)
        for row in rows:
            for k, reading, code in zip(chosen, readings, codes, strict=True) if row else ():
                try:
                    code(row[k])
                except ValueError:
                    found.add(k, reading, [form.before + rows.line_num], [row[k]])
    return found.lines()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # 1_000 is a number only in Python
