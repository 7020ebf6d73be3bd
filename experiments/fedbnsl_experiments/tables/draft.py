"""A first draft of dictionary.toml, from tables that anybody may see.

Kinds are guessed, levels are those that occur. Ranges are left open: they must come from public knowledge, since one
that follows the data would tell the smallest and the largest value.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from fedbnsl.errors import DataError, ResultError
from fedbnsl.messages import composed
from fedbnsl.plan.dictionary import Dictionary, Kind
from fedbnsl.shown import shown
from fedbnsl.wording import first_few
from fedbnsl_client.data.csv_table import read_header, said_in_words
from fedbnsl_client.data.reading import MISSING
from fedbnsl_experiments.tables.toml_entry import toml_entry

_MOST_LEVELS = 20
_FEW_WHOLE_NUMBERS = 10
_MOST_KEPT = 1000
_MOSTLY = 0.9  # share of numbers beyond which other cells are taken for codes of missing values

_HEAD = """\
# A draft, made from tables that anybody may see: {files}.
# Kinds are guesses, and levels are only those that occur there: read every entry, add what is lacking.
# Ranges are left open. Fill them in from public knowledge, never from the data: a private plan needs them.
"""
_OPEN_RANGE = "range = [lowest, highest]  # possible values, from public knowledge, never from the data"


@dataclass(frozen=True)
class Guess:
    """What one column seems to be.

    Attributes
    ----------
    kind
        None: it is no variable, and left out.
    levels
        Ascending; empty: the cells are numbers.
    comments
        What a person has to decide.
    """

    kind: Kind | None
    levels: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What is written of it."""
        if self.levels:
            return {"kind": self.kind, "levels": list(self.levels)}
        return {"kind": self.kind, **({"unit": ""} if self.kind == "continuous" else {})}


@dataclass
class _Cells:
    """What is kept of one column while tables are read: its size does not grow with the rows."""

    n_numbers: int = 0
    n_texts: int = 0
    whole: bool = True
    numbers: set[float] = field(default_factory=set[float])
    texts: set[str] = field(default_factory=set[str])

    def add(self, cell: str) -> None:
        cell = composed(cell.strip())
        if cell in MISSING:
            return
        try:
            number = math.nan if "_" in cell else float(cell)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            self.n_numbers += 1
            self.whole &= number >= 0 and number.is_integer()
            if len(self.numbers) <= _MOST_KEPT:
                self.numbers.add(number)
        else:
            self.n_texts += 1
            if len(self.texts) <= _MOST_KEPT:
                self.texts.add(cell)

    def guess(self) -> Guess:
        n = self.n_numbers + self.n_texts
        if len(self.numbers) + len(self.texts) < 2:
            return Guess(None, comments=("left out: it has no two values",))
        if self.n_texts and (self.n_numbers < _MOSTLY * n or len(self.numbers) <= _FEW_WHOLE_NUMBERS):
            return self._of_texts()
        if len(self.numbers) == 2 and not self.texts:
            return Guess("binary", tuple(f"{number:g}" for number in sorted(self.numbers)))
        comments: list[str] = []
        if self.texts:
            cells = first_few((shown(repr(text), 40) for text in sorted(self.texts)), most=5)
            comments.append(
                f"{self.n_texts} cell(s) are no numbers ({cells}): `missing` of columns.toml names such codes"
            )
        if not self.whole:
            return Guess("continuous", comments=(_OPEN_RANGE, *comments))
        comments.append("whole numbers: if they are measured, such as an age, it is continuous")
        if len(self.numbers) <= _FEW_WHOLE_NUMBERS:
            levels = ", ".join(f'"{number:g}"' for number in sorted(self.numbers))
            comments.append(f"if they are grades, it is ordinal, and if they are codes, nominal: levels = [{levels}]")
        elif len(self.numbers) == n:
            comments.append("no value occurs twice: an identifier is no variable, remove it")
        return Guess("count", comments=(_OPEN_RANGE, *comments))

    def _of_texts(self) -> Guess:
        levels = tuple(sorted(self.texts | {f"{number:g}" for number in self.numbers}))
        if len(levels) > _MOST_LEVELS:
            most = f"more than {_MOST_LEVELS} different texts"
            return Guess(None, comments=(f"left out: {most}; a name, a date or free text is no variable",))
        if len(levels) == 2:
            return Guess("binary", levels)
        return Guess(
            "nominal", levels, ("if the levels have an order, it is ordinal: put them in it, the lowest first",)
        )


@dataclass(frozen=True)
class Draft:
    """A dictionary that a person has to finish.

    Attributes
    ----------
    guesses
        By column, in the order in which the tables have them.
    lacking
        Columns that not every table has, and the tables without them.
    """

    tables: tuple[Path, ...]
    guesses: dict[str, Guess]
    lacking: dict[str, list[str]]

    @property
    def text(self) -> str:
        """Content of dictionary.toml."""
        files = first_few((shown(path.name, 60) for path in self.tables), most=5)
        return "\n".join([_HEAD.format(files=files), *self._entries()])

    def _entries(self) -> Iterator[str]:
        for name, guess in self.guesses.items():
            lacking = [f"not in {', '.join(map(shown, self.lacking[name]))}"] if name in self.lacking else []
            if guess.kind is None:
                yield f"# {shown(name)}: {'; '.join([*guess.comments, *lacking])}\n"
            else:
                yield toml_entry(name, guess.settings, [*guess.comments, *lacking])

    def said(self) -> Iterator[str]:
        """Lines for a person: kinds, what is left out, and where tables differ."""
        for kind in get_args(Kind):
            if names := [shown(name) for name, guess in self.guesses.items() if guess.kind == kind]:
                yield f"{kind}: {', '.join(names)}"
        for name, guess in self.guesses.items():
            if guess.kind is None:
                yield f"{shown(name)}: {'; '.join(guess.comments)}"
        for name, files in self.lacking.items():
            yield f"{shown(name)}: not in {', '.join(map(shown, files))}"

    def write(self, path: Path) -> None:
        """Write dictionary.toml.

        Raises
        ------
        PlanError
            If the tables do not make a dictionary of at least two variables.
        ResultError
            If the file is there already, or cannot be written.
        """
        text = self.text
        Dictionary.parse(text, origin="what these tables would make")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise ResultError(f"{path} is there already; move it away, or choose another name by --out") from None
        except OSError as error:
            raise ResultError(f"{path} cannot be written: {error.strerror}") from None


def draft(tables: Sequence[Path]) -> Draft:
    """What the columns of these CSV tables seem to be; levels are those of all tables.

    Raises
    ------
    DataError
        If a table cannot be read.
    """
    found: dict[str, _Cells] = {}
    headers: dict[Path, list[str]] = {}
    for path in tables:
        headers[path] = read_header(path)
        columns = [found.setdefault(name, _Cells()) for name in headers[path]]
        with said_in_words(path), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            next(reader)
            for row in filter(None, reader):
                if len(row) != len(columns):
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(row)} cells; expected {len(columns)}, as in the header"
                    )
                for column, cell in zip(columns, row, strict=True):
                    column.add(cell)
    lacking = {name: [path.name for path in tables if name not in headers[path]] for name in found}
    return Draft(
        tuple(tables),
        {name: cells.guess() for name, cells in found.items()},
        {name: files for name, files in lacking.items() if files},
    )
