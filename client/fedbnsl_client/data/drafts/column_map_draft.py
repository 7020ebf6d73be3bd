"""A first draft of a site's columns.toml: how its own table differs from the consortium's data dictionary.

A cell is matched by itself, from fixed lists, whatever other cells there are: what becomes of one record does not
depend on another. The draft stays at the site.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.console.shown import shown
from fedbnsl.console.wording import first_few
from fedbnsl.plan.dictionary import Dictionary, Entry
from fedbnsl_client.data.cell_forms import BELOW_A_LIMIT, form_of, is_mark
from fedbnsl_client.data.columns import letters_of, like
from fedbnsl_client.data.drafts.column_cells import ColumnCells, scan, written
from fedbnsl_client.data.drafts.toml_entry import toml_entry, toml_settings
from fedbnsl_client.data.drafts.yes_and_no import truth
from fedbnsl_client.data.reading import TimeReading
from fedbnsl_client.data.sources.csv_table import read_header

_HEAD = """\
# A draft: how {table} differs from the data dictionary. It stays at this site.
# Read every entry. For a private run, finish it before the table is registered, and do not send it to anybody.
"""


@dataclass(frozen=True)
class MapDraft:
    """A column map that a person has to finish.

    Attributes
    ----------
    missing
        Cells that stand for a missing value in every column.
    settings
        By variable, what differs.
    found
        By variable, what was matched, in words.
    asks
        By variable, what a person has to decide.
    """

    table: Path
    missing: tuple[str, ...]
    settings: dict[str, dict[str, Any]]
    found: dict[str, list[str]]
    asks: dict[str, list[str]]

    @property
    def text(self) -> str:
        """Content of columns.toml."""
        parts = [_HEAD.format(table=shown(self.table.name, 60))]
        if self.missing:
            parts.append(toml_settings({"missing": list(self.missing)}) + "\n")
        for name in dict.fromkeys([*self.settings, *self.asks]):
            parts.append(toml_entry(name, self.settings.get(name, {}), [*self.asks.get(name, [])]))
        return "\n".join(parts)

    def said(self) -> Iterator[str]:
        """Lines for a person."""
        if not (self.missing or self.settings or self.asks):
            yield f"{self.table}: every column is as the data dictionary says"
        for title, lines in (("found", self.found), ("to decide", self.asks)):
            if lines:
                yield f"{title}:"
                yield from (f"  {shown(name)}: {line}" for name, ones in lines.items() for line in ones)


def draft_column_map(table: Path, dictionary: Dictionary, *, missing: Sequence[str] = ()) -> MapDraft:
    """How a CSV table differs from a dictionary.

    `missing`: as in `draft`; a column is called as in the table. Raises DataError if the table cannot be read.
    """
    header = read_header(table, named=True)
    cells = scan({table: header}, missing)
    levels = {level for _, entry in dictionary.items() for level in entry.levels}
    settings, found, asks, everywhere = (
        dict[str, dict[str, Any]](),
        dict[str, list[str]](),
        dict[str, list[str]](),
        list[str](),
    )
    for name, entry in dictionary.root.items():
        column = name if name in header else _alike(name, header)
        if column is None:
            others = [one for one in header if one not in dictionary.root]
            same_letters = [one for one in others if letters_of(one) == letters_of(name)]
            perhaps = first_few(map(repr, dict.fromkeys([*same_letters, *like(name, others)])))
            asks[name] = [
                f"no column is called so here{perhaps and f'; is it {perhaps}, which is called nearly so?'}: "
                f'column = "...", one of {first_few(map(repr, header), most=20)}; or, if this site does not have it: '
                "absent = true"
            ]
            continue
        here: dict[str, Any] = {} if column == name else {"column": column}
        said = [] if column == name else [f"called {column!r} here"]
        match = _match(entry, cells[column])
        if match.missing:
            codes = {code: code not in levels for code in match.missing if is_mark(code, among_words=True)}
            everywhere += [code for code, is_everywhere in codes.items() if is_everywhere]
            if own := [code for code in match.missing if not codes.get(code)]:
                here["missing"] = own
            said.append(f"{sum(match.missing.values()):,} cell(s) stand for a missing value: {_quoted(match.missing)}")
        if match.levels:
            here["levels"] = {level: list(texts) for level, texts in match.levels.items()}
            said += [
                f"the level {level!r} is written {first_few(map(repr, texts))}" for level, texts in match.levels.items()
            ]
        if here:
            settings[name], found[name] = here, said
        elif said:
            found[name] = said
        if match.asks:
            asks[name] = match.asks
    return MapDraft(table, tuple(dict.fromkeys(everywhere)), settings, found, asks)


@dataclass(frozen=True)
class _Match:
    missing: Mapping[str, int]
    levels: Mapping[str, tuple[str, ...]]
    asks: list[str]


def _match(entry: Entry, cells: ColumnCells) -> _Match:
    if entry.kind == "group":
        return _Match(cells.coded, {}, [])
    if entry.kind == "time":
        return _times_of(cells)
    return _levels_of(entry, cells) if entry.has_levels else _numbers_of(entry, cells)


def _times_of(cells: ColumnCells) -> _Match:
    reading, unread = TimeReading(), list[str]()
    missing = Counter(cells.coded)
    for text, n in cells.texts.items():
        if is_mark(text, among_words=False):
            missing[text] += n
            continue
        try:
            reading.code(text)
        except ValueError:
            unread.append(text)
    asks = [f"{_quoted(unread)}: say how times are written here, such as format = '%d.%m.%Y'"] if unread else []
    return _Match(missing, {}, asks)


def _numbers_of(entry: Entry, cells: ColumnCells) -> _Match:
    asks = [
        f"{counts.total():,} cell(s) are {form} ({_quoted(counts)}): they are named under `missing`, unless you write "
        "numbers in their place" + f". {BELOW_A_LIMIT}" * any(form_of(text) == "limit" for text in counts)
        for form, counts in cells.words_by_form().items()
    ]
    if cells.overflows and cells.n_texts:
        asks.append("there are more such cells than are named here: make numbers of them in the table")
    asks += [
        f"{said}: if it stands for a missing value, name it under `missing`"
        for number, said in cells.suspected().items()
        if not entry.outside(np.array([number])).any()
    ]
    return _Match({**cells.coded, **cells.texts}, {}, asks)


def _levels_of(entry: Entry, cells: ColumnCells) -> _Match:
    spelled = Counter({**cells.texts, **{written(number): n for number, n in cells.numbers.items()}})
    known, missing = {level: [level] for level in entry.levels}, Counter(cells.coded)
    unknown = Counter[str]()
    for text, n in spelled.items():
        if text in known:
            continue
        level = _level_of(text, entry.levels)
        if level is not None:
            known[level].append(text)
        elif is_mark(text, among_words=True):
            missing[text] += n
        else:
            unknown[text] = n
    # Which of two is coded as 1 differs between tables, and a swap turns every effect around.
    asks = [
        f"{_quoted(by_word)}: taken for the level {level!r}, as a word like it says; is it so here?"
        for level, texts in known.items()
        if (by_word := [text for text in texts if _key(text) != _key(level)])
    ]
    if unknown:
        asks.append(
            f"{unknown.total():,} cell(s) are no level of the dictionary: {_quoted(unknown)}. Say which level each is: "
            f'levels = {{ "{entry.levels[0]}" = ["{entry.levels[0]}", "..."] }}, or that it is missing (--missing)'
        )
    return _Match(missing, {level: tuple(ones) for level, ones in known.items() if len(ones) > 1}, asks)


def _level_of(text: str, levels: Sequence[str]) -> str | None:
    same = [level for level in levels if _key(level) == _key(text)]
    if len(same) == 1:
        return same[0]
    if len(levels) == 2 and not same:
        first, second = (truth(level) for level in levels)
        if first is not None and second is not None and first != second:
            said = truth(text)
            return None if said is None else levels[0] if said == first else levels[1]
    return None


def _alike(name: str, header: Sequence[str]) -> str | None:
    """The only column whose name differs in case, spaces and separators alone; other signs may tell two apart."""
    same = [column for column in header if _spelled(column) == _spelled(name)]
    return same[0] if len(same) == 1 else None


def _spelled(name: str) -> str:
    return re.sub(r"[\s_.-]+(?=.)", "", name.strip().casefold())


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _quoted(cells: Iterable[str]) -> str:
    return first_few((shown(repr(text), 40) for text in cells), most=8)
