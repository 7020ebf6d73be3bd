"""Which numbers of a CSV file have decimal commas.

In files whose columns a semicolon or a tab separates, a comma in a number marks its decimals, as half of Europe writes
them, unless others have points, or each comma may as well mark thousands.
"""

import re
from collections.abc import Callable
from pathlib import Path

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError
from fedbnsl.files.csv_form import Form
from fedbnsl_client.data.reading import Reading, TimeReading

_WITH_MARK = re.compile(r"\s*[+-]?(?:\d+([.,])\d*|([.,])\d+)(?:[eE][+-]?\d+)?\s*")
_MAY_BE_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


class Decimals:
    """Reads the numbers of one file, of which either none has a comma or none a point.

    `origin`: what errors call the file.
    """

    def __init__(self, origin: Path, form: Form) -> None:
        self._origin, self._has_commas = origin, form.separator != ","
        self._seen: dict[str, str] = {}  # by mark, the first column that has it
        self._in_doubt: dict[str, None] = {}

    def code(self, reading: Reading, column: str) -> Callable[[str], float]:
        """Like `reading.code`, of the column of that name."""
        if not self._has_commas or isinstance(reading, TimeReading):  # 31.12.2024 is no number with a point
            return reading.code

        def number(cell: str) -> float:
            return reading.code(cell if cell.strip() in reading.missing else self.with_point(cell, column))

        def level(cell: str) -> float:
            try:
                return reading.code(cell)
            except ValueError:  # the dictionary leaves no doubt: it writes this level with a point
                return reading.code(cell.replace(",", ".") if _mark_of(cell) else cell)

        return level if reading.codes else number

    def with_point(self, cell: str, column: str) -> str:
        """A number that has a decimal comma, with a point in its place; other cells as they stand."""
        mark = _mark_of(cell) if self._has_commas else ""
        if mark == "," and _MAY_BE_THOUSANDS.fullmatch(cell.strip()):
            self._in_doubt[column] = None
        elif mark:
            self._seen.setdefault(mark, column)
        return cell.replace(",", ".") if mark else cell

    def require_one(self) -> None:
        """Refuse a file whose numbers are written in two ways, or in one that can be read in two.

        Raises
        ------
        DataError
            Some have decimal commas, others points; or every comma has three digits after it, as those of thousands
            do.
        """
        if "." in self._seen and ("," in self._seen or self._in_doubt):
            with_comma = self._seen.get(",") or next(iter(self._in_doubt))
            raise DataError(
                f"{self._origin}: some numbers have a comma and others a point (as in columns {with_comma!r} and "
                f"{self._seen['.']!r}), so that it is open which marks decimals; write all of them in one way"
            )
        if self._in_doubt and "," not in self._seen:
            raise DataError(
                f"{self._origin}: every number with a comma has three digits after it (column(s) "
                f"{first_few(map(repr, self._in_doubt), most=5)}), so that it is open whether 1,234 is a little more "
                "than one or than a thousand; write decimals with a point, or thousands without a comma"
            )


def _mark_of(cell: str) -> str:
    """What marks the decimals of a number, a comma or a point; empty: nothing, or it is no number."""
    found = _WITH_MARK.fullmatch(cell)
    return (found[1] or found[2]) if found else ""
