"""Tables in CSV: UTF-8, column names in the first line, commas or another `csv_form`. Every CSV table is read here.

pyarrow would read 100 MB in 2 s instead of 5, with twice the memory. But it adds 55 MB to 130 MB of a site's wheels,
and 0.2 s to every command that reads a small table.
"""

import csv
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.files.csv_form import form_of, header_of, opened
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems, UnreadableCellsError
from fedbnsl_client.data.checks import in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.mapped_array import rows_a_block
from fedbnsl_client.data.reading import Reading, number_in
from fedbnsl_client.data.sources.decimals import Decimals

_ROWS_AS_TEXT = 256  # at a time: more text than fits in the cache takes twice as long


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

    `named`: whether the columns to use are named elsewhere: names may all be numbers then. Raises DataError if the file
    cannot be read, or its first line is not a usable header.
    """
    with said_in_words(path):
        header = header_of(path)
    if not header:
        raise DataError(f"{path}: the file is empty; expected a line of column names and at least one row")
    if not named and None not in map(number_in, header):
        raise DataError(
            f"{path}: no header: the first line holds {len(header)} numbers instead of column names",
            remedy="If they are names, such as gene identifiers, name the columns to use: --columns, or a data "
            "dictionary. Otherwise put a line of names on top of the table.",
        )
    return read_names(path, header)


class _Rows:
    """The rows of a CSV file after its header, without empty lines.

    Raises DataError if the file cannot be read or, after the last row, if some have more or fewer fields than the
    header.

    Attributes
    ----------
    line
        Of the file, where the last row that was given ends.
    """

    def __init__(self, path: Path, width: int) -> None:
        self._path, self._width = path, width
        self._file: TextIO | None = None
        with said_in_words(path):
            self.form = form_of(path)
        self.line = 0

    def bytes_read(self) -> int:
        """How far into the file the rows are; 0 where it is not open."""
        return 0 if self._file is None or self._file.closed else self._file.buffer.tell()

    def __iter__(self) -> Iterator[list[str]]:
        wrong = first = 0
        with said_in_words(self._path), opened(self._path, self.form) as self._file:
            reader = csv.reader(self._file, delimiter=self.form.separator)
            next(reader)
            for row in reader:
                self.line = self.form.before + reader.line_num
                if len(row) == self._width:
                    yield row
                elif row:
                    wrong += 1
                    first = first or self.line
        if wrong:
            raise DataError(
                f"{self._path}: {wrong} row(s) without exactly {self._width} fields, the first in line {first}"
            )


def rows_of(
    path: Path, header: Sequence[str], codes: Mapping[str, Collection[str]] | None = None
) -> Iterator[list[str]]:
    """The rows of a CSV table as text; numbers have decimal points.

    `codes`: by column, cells that stand for a missing value: they stay as they stand, as a site reads them. Raises
    DataError if it cannot be read, a row has another width than the header, or it is open what marks decimals.
    """
    rows, codes = _Rows(path, len(header)), codes or {}
    decimals = Decimals(path, rows.form)
    if rows.form.separator == ",":
        yield from rows
        return
    for row in rows:
        yield [
            cell if cell.strip() in codes.get(name, ()) else decimals.with_point(cell, name)
            for cell, name in zip(row, header, strict=True)
        ]
    decimals.require_one()


class CsvTable:
    """A CSV file, as a `fedbnsl_client.data.sources.source.Source`.

    `named`: whether the columns to use are named, which tells a header of numbers alone from a row of values.
    """

    def __init__(self, path: Path, *, named: bool) -> None:
        self.origin = str(path)
        self._path, self._named = path, named
        self._rows: _Rows | None = None

    @property
    def share(self) -> float | None:
        """Of the file's bytes."""
        size = self._path.stat().st_size
        return self._rows.bytes_read() / size if size and self._rows else None

    def header(self) -> list[str]:
        """See `read_header`."""
        return read_header(self._path, named=self._named)

    def codes(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        """See `Source.codes`; refuses rows with more or fewer fields than the header, too."""
        rows = self._rows = _Rows(self._path, len(header))
        decimals, found = Decimals(self._path, rows.form), CellProblems(header, "line")
        code_of = [decimals.code(reading, header[k]) for k, reading in zip(chosen, readings, strict=True)]
        numbered = ((rows.line, row) for row in rows)
        n, block = 0, np.empty((rows_a_block(len(chosen)), len(chosen)))
        while some := list(islice(numbered, min(_ROWS_AS_TEXT, len(block) - n))):
            columns = list(zip(*(row for _, row in some), strict=True))
            for place, (k, reading, code) in enumerate(zip(chosen, readings, code_of, strict=True)):
                codes, bad = _codes(columns[k], reading, code, has_commas=rows.form.separator != ",")
                block[n : n + len(some), place] = codes
                found.add(k, reading, [some[row][0] for row in bad], [columns[k][row] for row in bad])
            n += len(some)
            if n == len(block):
                yield block
                n, block = 0, np.empty_like(block)
        if n:
            yield block[:n]
        decimals.require_one()
        if problems := found.lines():  # last: of a guarded table they are gaps, and nothing else is forgiven with them
            raise UnreadableCellsError(f"{self.origin}: " + in_one_line(problems))


def _codes(
    cells: Sequence[str], reading: Reading, code: Callable[[str], float], *, has_commas: bool
) -> tuple[Matrix, list[int]]:
    """(n,) codes of the cells of a column, and which of them cannot be read.

    `has_commas`: whether numbers of the file may have decimal commas: `code` has to see whether some have points.
    """
    text = "".join(cells) if reading.takes_numbers else ""
    if text and "_" not in text and not (has_commas and "." in text):  # 1_000 is a number only in Python
        with suppress(ValueError):
            return reading.of_numbers(np.fromiter(map(float, cells), np.float64, len(cells))), []
    known, unknown = dict[str, float](), set[str]()
    for cell in dict.fromkeys(cells):
        try:
            known[cell] = code(cell)
        except ValueError:
            known[cell] = np.nan
            unknown.add(cell)
    bad = [row for row, cell in enumerate(cells) if cell in unknown] if unknown else []
    return np.array([known[cell] for cell in cells]), bad
