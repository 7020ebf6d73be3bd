"""What is kept of one column while tables are read: counts of its cells, and moments of its numbers."""

import math
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedbnsl.protocol.messages import composed
from fedbnsl_client.data.cell_forms import FORMS_IN_WORDS, form_of, is_mark
from fedbnsl_client.data.reading import MISSING, number_in
from fedbnsl_client.data.sources.csv_table import rows_of
from fedbnsl_client.data.suspected_codes import suspected_codes

MOST_TEXTS = 1000
MOST_NUMBERS = 2**17
"""Of whole numbers: only identifiers, amounts and weights have so many."""

_LARGEST = 1e90  # its third power is a number, too


def as_number(cell: str) -> float | None:
    """The finite number that a cell without the spaces around it holds; None: it holds none."""
    number = number_in(cell)
    return number if number is not None and math.isfinite(number) else None


def written(number: float) -> str:
    """A number as a table has it."""
    return str(int(number)) if number.is_integer() else repr(number)


@dataclass
class ColumnCells:
    """Its size is bounded, whatever the number of rows.

    Attributes
    ----------
    codes
        Cells that are known to stand for a missing value.
    gaps
        How many cells do, the empty ones included.
    coded
        Those of `codes`, and how many cells hold each.
    numbers, texts
        How often each occurs: at most `MOST_NUMBERS` whole numbers, and `MOST_TEXTS` others; `overflows`: not all are
        kept.
    rising
        Whether each number is above the one before it.
    once
        Whether none of its first `MOST_NUMBERS` numbers and words occurs twice in one table.
    """

    codes: Collection[str] = ()
    gaps: int = 0
    coded: Counter[str] = field(default_factory=Counter[str])
    numbers: Counter[float] = field(default_factory=Counter[float])
    texts: Counter[str] = field(default_factory=Counter[str])
    n_numbers: int = 0
    n_texts: int = 0
    whole: bool = True
    rising: bool = True
    once: bool = True
    overflows: bool = False
    _last: float = math.nan
    _here: set[float | str] = field(default_factory=set[float | str])
    _sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def start_table(self) -> None:
        """The cells from here on are those of another table."""
        self._here.clear()

    def add(self, cell: str) -> None:
        """Count one cell."""
        cell = cell.strip()
        if cell in MISSING:
            self.gaps += 1
            return
        cell = composed(cell)
        if cell in self.codes or cell.removesuffix(".0") in self.codes:
            self.gaps += 1
            self.coded[cell] += 1
            return
        number = as_number(cell)
        if self.once and len(self._here) < MOST_NUMBERS and not is_mark(cell, among_words=False):
            value = cell if number is None else number
            self.once = value not in self._here
            self._here.add(value)
        if number is None:
            self.n_texts += 1
            if cell in self.texts or len(self.texts) < MOST_TEXTS:
                self.texts[cell] += 1
            else:
                self.overflows = True
            return
        self.n_numbers += 1
        self.whole &= number.is_integer()
        self.rising &= not number <= self._last
        self._last = number
        bounded = max(min(number, _LARGEST), -_LARGEST)
        self._sums = [total + bounded**k for k, total in enumerate(self._sums, start=1)]
        if number in self.numbers or len(self.numbers) < (MOST_NUMBERS if self.whole else MOST_TEXTS):
            self.numbers[number] += 1
        else:
            self.overflows = True

    @property
    def n(self) -> int:
        """Cells with a value."""
        return self.n_numbers + self.n_texts

    @property
    def words(self) -> Counter[str]:
        """Texts that stand for no missing value among numbers."""
        return Counter({text: n for text, n in self.texts.items() if not is_mark(text, among_words=False)})

    def words_by_form(self) -> dict[str, Counter[str]]:
        """The words by what they look like."""
        found: dict[str, Counter[str]] = {}
        for text, n in self.words.items():
            found.setdefault(FORMS_IN_WORDS[form_of(text)], Counter())[text] = n
        return found

    def suspected(self) -> dict[float, str]:
        """Numbers that look like codes of a missing value, and how."""
        if self.overflows and not self.whole:
            return {}
        values = sorted(self.numbers)
        return dict(suspected_codes(np.array(values), np.array([self.numbers[value] for value in values])))

    def skewness(self, *, without: Collection[float] = ()) -> float:
        """Of the numbers but for these; 0 where they do not vary."""
        left_out = {number: self.numbers[number] for number in without}
        n = max(self.n_numbers - sum(left_out.values()), 1)
        a, b, c = (
            total - sum(times * number**k for number, times in left_out.items())
            for k, total in enumerate(self._sums, start=1)
        )
        mean = a / n
        variance = b / n - mean**2
        if not variance > 1e-12 * (b / n):
            return 0.0
        third: float = c / n - 3 * mean * b / n + 2 * mean**3
        return third / math.sqrt(variance) ** 3


def scan(headers: Mapping[Path, Sequence[str]], missing: Sequence[str] = ()) -> dict[str, ColumnCells]:
    """The columns of CSV tables by name, in the order in which the tables have them.

    Raises DataError if a table cannot be read.

    Parameters
    ----------
    headers
        By table.
    missing
        Cells that stand for a missing value, in every column, or in one: `column=cell`.
    """
    names = list(dict.fromkeys(name for header in headers.values() for name in header))
    everywhere = codes_of_all(names, missing)
    found = {name: ColumnCells({*everywhere, *_codes_of(name, missing)}) for name in names}
    for path, header in headers.items():
        columns = [found[name] for name in header]
        for column in columns:
            column.start_table()
        for row in rows_of(path, header, {name: found[name].codes for name in header}):
            for column, cell in zip(columns, row, strict=True):
                column.add(cell)
    return found


def _codes_of(name: str, missing: Iterable[str]) -> set[str]:
    return {code.partition("=")[2].strip() for code in missing if code.partition("=")[0] == name}


def codes_of_all(names: Container[str], missing: Iterable[str]) -> tuple[str, ...]:
    """Those of the named cells that stand for a missing value in every column, and not in one alone."""
    return tuple(code.strip() for code in missing if not _is_of_one(code, names))


def _is_of_one(code: str, names: Container[str]) -> bool:
    return "=" in code and code.partition("=")[0] in names
