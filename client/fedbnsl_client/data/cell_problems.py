"""Cells that a column cannot have, by column: how many rows, which of them, and of unknown levels the first spellings.

For the people at the site: spellings are quoted, so none of it may leave the site.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from fedbnsl.console.shown import shown
from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.cell_forms import is_mark
from fedbnsl_client.data.checks import Places
from fedbnsl_client.data.reading import Reading

_SPELLINGS = 3
_LONGEST = 40
_WORDS = (
    "If a column holds words, such as yes and no, a data dictionary says what they stand for: --dictionary FILE "
    "(`simulate`, `demo` and `tune` find dictionary.toml in the folder of tables by themselves); `fedbnsl data "
    "dictionary` drafts one, from a PUBLIC sample only. "
    "Otherwise correct the cells, or leave the column out with --columns; nothing of it was sent."
)
_DESCRIBED = (
    "Say in columns.toml what is different here (docs/how-to/tables.md): `fedbnsl data dictionary TABLE --dictionary "
    "dictionary.toml` drafts it from this table, at this site; nothing of it was sent."
)


class UnreadableCellsError(DataError):
    """Cells are no numbers, or no levels of the data dictionary."""


@contextmanager
def words_have_a_remedy(dictionary: Dictionary) -> Generator[None]:
    """Say with an UnreadableCellsError what makes the table one that is read."""
    try:
        yield
    except UnreadableCellsError as error:
        raise UnreadableCellsError(str(error), remedy=_DESCRIBED if dictionary else _WORDS) from None


class CellProblems:
    """What cannot be read of a table.

    Parameters
    ----------
    header
        Names of all columns.
    unit
        What the numbers of rows count, such as "line".
    missing
        How a site says that cells, put in place of {}, stand for a missing value.
    """

    def __init__(
        self, header: Sequence[str], unit: str, *, missing: str = "columns.toml says so: missing = [{}]"
    ) -> None:
        self._header, self._unit, self._missing = header, unit, missing
        self._places: dict[int, Places] = {}
        self._what: dict[int, str] = {}
        self._levels: dict[int, list[str]] = {}
        self._often_missing: dict[int, dict[str, None]] = {}

    def add(self, column: int, reading: Reading, rows: Sequence[int], cells: Sequence[object]) -> None:
        """Take note of the rows of a column that cannot be read, and of cells that may be quoted."""
        if not rows:
            return
        self._places.setdefault(column, Places()).add(rows)
        self._what[column] = reading.unreadable
        spelled = [str(cell).strip() for cell in cells]
        often = (cell for cell in spelled if is_mark(cell, among_words=bool(reading.codes)))
        self._often_missing.setdefault(column, {}).update(dict.fromkeys(often))
        if reading.codes:
            spellings = self._levels.setdefault(column, [])
            for cell in spelled:
                quoted = shown(repr(cell), _LONGEST)
                if len(spellings) < _SPELLINGS and quoted not in spellings:
                    spellings.append(quoted)

    def join(self, later: "CellProblems", offset: int) -> None:
        """Take note of what was found in the rows after so many others."""
        self._what |= later._what
        for column, places in later._places.items():
            self._places.setdefault(column, Places()).join(places, offset)
        for column, often in later._often_missing.items():
            self._often_missing.setdefault(column, {}).update(often)
        for column, spellings in later._levels.items():
            known = self._levels.setdefault(column, [])
            known += [one for one in spellings if one not in known][: _SPELLINGS - len(known)]

    def lines(self) -> list[str]:
        """One a column, in the order of the header."""
        return [
            f"column {self._header[k]!r}: {places.count} row(s) are {self._what[k]}{self._spelled(k)} "
            f"{places.said(self._unit)}{self._perhaps_missing(k)}"
            for k, places in sorted(self._places.items())
        ]

    def _perhaps_missing(self, column: int) -> str:
        often = ", ".join(f'"{cell}"' for cell in self._often_missing.get(column, ()))
        return f" (where these stand for a missing value, {self._missing.format(often)})" if often else ""

    def _spelled(self, column: int) -> str:
        spellings = self._levels.get(column)
        return f", such as {', '.join(spellings)}" if spellings else ""
