"""How a CSV file is written: what separates its columns, and whether commas mark decimals.

The first line tells: `sep=;`, which spreadsheets write and read, or a header without a comma that holds semicolons or
tabs. In such files a comma in a number marks its decimals, as half of Europe writes them, unless others have points, or
each comma may as well mark thousands.
"""

import csv
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

from fedbnsl.errors import DataError
from fedbnsl.wording import first_few
from fedbnsl_client.data.reading import Reading

_SEPARATORS = ",;\t"
_MAY_BE_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


class Form(NamedTuple):
    """What separates columns, and how many lines come before the header."""

    separator: str = ","
    before: int = 0


USUAL = Form()


def form_of(path: Path) -> Form:
    """The form that the first line of a file leaves no doubt of; else the usual one."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline().rstrip("\r\n")
    if first.lower().startswith("sep=") and len(first) == len("sep=,") and first[-1] in _SEPARATORS:
        return Form(first[-1], 1)
    header = next(csv.reader([first]), list[str]())
    found = [mark for mark in ";\t" if mark in first]
    return Form(found[0]) if len(header) == 1 and len(found) == 1 else USUAL


@contextmanager
def opened(path: Path, form: Form) -> Generator[TextIO]:
    """A file from its header on."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for _ in range(form.before):
            file.readline()
        yield file


class Decimals:
    """Reads the numbers of one file, of which either none has a comma or none a point.

    Parameters
    ----------
    origin
        What errors call the file.
    """

    def __init__(self, origin: Path, form: Form) -> None:
        self._origin, self._has_commas = origin, form.separator != ","
        self._seen: set[str] = set()
        self._in_doubt: dict[str, None] = {}

    def code(self, reading: Reading, column: str) -> Callable[[str], float]:
        """Like `reading.code`, of the column of that name."""
        if reading.codes or not self._has_commas:
            return reading.code

        def read(cell: str) -> float:
            if "." in cell and any(letter.isdigit() for letter in cell):
                self._seen.add(".")
            if cell.count(",") != 1 or "." in cell or cell.strip() in reading.missing:
                return reading.code(cell)
            number = reading.code(cell.replace(",", "."))
            if _MAY_BE_THOUSANDS.fullmatch(cell.strip()):
                self._in_doubt[column] = None
            else:
                self._seen.add(",")
            return number

        return read

    def require_one(self) -> None:
        """Refuse a file whose numbers are written in two ways, or in one that can be read in two.

        Raises
        ------
        DataError
            Some have decimal commas, others points; or every comma has three digits after it, as those of thousands
            do.
        """
        if "." in self._seen and ("," in self._seen or self._in_doubt):
            raise DataError(
                f"{self._origin}: some numbers have a comma and others a point, so that it is open which marks "
                "decimals; write all of them in one way"
            )
        if self._in_doubt and "," not in self._seen:
            raise DataError(
                f"{self._origin}: every number with a comma has three digits after it (column(s) "
                f"{first_few(map(repr, self._in_doubt), most=5)}), so that it is open whether 1,234 is a little more "
                "than one or than a thousand; write decimals with a point, or thousands without a comma"
            )
