"""A first draft of dictionary.toml, from tables that anybody may see, and of the column maps that read them by it.

Kinds are guessed, levels are those that occur. Ranges are left open: they must come from public knowledge, since one
that follows the data would tell the smallest and the largest value.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from fedbnsl.console.shown import shown
from fedbnsl.console.wording import first_few
from fedbnsl.errors import ResultError
from fedbnsl.plan.dictionary import Dictionary, Kind
from fedbnsl.protocol.messages import composed
from fedbnsl.protocol.sparse import Index, Mask
from fedbnsl_client.data.cell_forms import BELOW_A_LIMIT, form_of, is_mark
from fedbnsl_client.data.columns import like
from fedbnsl_client.data.drafts.column_cells import as_number, codes_of_all, scan
from fedbnsl_client.data.drafts.column_functions import MOST_VALUES, ColumnFunctions
from fedbnsl_client.data.drafts.column_sums import ColumnSums
from fedbnsl_client.data.drafts.guess import TURNS, Guess, guess
from fedbnsl_client.data.drafts.levels_of_tables import LevelsOfTables
from fedbnsl_client.data.drafts.toml_entry import toml_entry, toml_settings
from fedbnsl_client.data.reading import MISSING
from fedbnsl_client.data.site_files import column_map_of
from fedbnsl_client.data.sources.csv_table import read_header, rows_of

_MOSTLY_EMPTY = 0.5  # a column that a larger share of the rows lacks is left out
_MOST_CODES = 20  # that are said on the terminal

_HEAD = """\
# A draft, made from tables that anybody may see: {files}.
# Kinds are guesses, and levels are only those that occur there: read every entry, add what is lacking.
# Ranges are left open. Fill them in from public knowledge, never from the data: a private plan needs them.
"""
_MAP_HEAD = """\
# A draft: how {file} differs from {dictionary}. It stays at this site.
"""


class Rows(NamedTuple):
    """Of one table: all, and those without a missing value in the columns that are used."""

    n: int
    n_complete: int


@dataclass(frozen=True)
class Draft:
    """A dictionary that a person has to finish, and what differs from it in the tables.

    Attributes
    ----------
    guesses
        By column, in the order in which the tables have them.
    lacking
        Columns that not every table has, and the tables without them.
    rows
        By table, how many it has, and how many of them lack no value of the columns that are used.
    codes
        Cells that a person has named: they stand for a missing value in every column.
    coded
        By table and column, cells that stand for a missing value and occur there.
    """

    tables: tuple[Path, ...]
    guesses: dict[str, Guess]
    lacking: dict[str, list[str]]
    rows: dict[Path, Rows]
    codes: tuple[str, ...]
    coded: dict[Path, dict[str, set[str]]]

    @property
    def text(self) -> str:
        """Content of dictionary.toml."""
        files = first_few((shown(path.name, 60) for path in self.tables), most=5)
        return "\n".join([_HEAD.format(files=files), *self._entries()])

    def _entries(self) -> Iterator[str]:
        for name, found in self.guesses.items():
            lacking = [f"not in {', '.join(map(shown, self.lacking[name]))}"] if name in self.lacking else []
            comments = [*found.asks, *found.comments, *lacking]
            if gaps := _gaps(found):
                comments.append(gaps)
            if found.is_used:
                yield toml_entry(name, found.settings, comments)
                continue
            yield f"# {shown(name)}: {'; '.join([f'left out: {found.left_out}', *lacking])}"
            if found.kind is not None and len(found.levels) < MOST_VALUES:
                entry = toml_entry(name, found.settings).rstrip("\n")
                yield "\n".join(f"# {line}" for line in entry.split("\n"))
            yield ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Cells that stand for a missing value wherever they occur: no column has them as a level."""
        levels = {text for found in self._used.values() for text in _spelled(found)}
        codes = dict.fromkeys(
            code for found in self._used.values() for code in found.missing if is_mark(code, among_words=True)
        )
        return tuple(code for code in dict.fromkeys([*self.codes, *codes]) if code not in levels)

    @property
    def _used(self) -> dict[str, Guess]:
        return {name: found for name, found in self.guesses.items() if found.is_used}

    def column_map(self, table: Path) -> str:
        """Content of the columns.toml of a table, without its head; empty: nothing differs."""
        here = self.coded[table]
        met = set[str]().union(*here.values(), self.codes)
        everywhere = [code for code in self.missing if code in met]
        entries = [toml_settings({"missing": everywhere}) + "\n"] if everywhere else []
        for name, found in self._used.items():
            if table.name in self.lacking.get(name, ()):
                comment = 'if it is called otherwise here: column = "..." in place of absent'
                entries.append(toml_entry(name, {"absent": True}, [comment]))
                continue
            codes = [code for code in found.missing if code in here.get(name, ()) and code not in everywhere]
            settings: dict[str, Any] = {"missing": codes} if codes else {}
            if found.spellings:
                settings["levels"] = {level: list(texts) for level, texts in found.spellings.items()}
            if settings:
                limits = [BELOW_A_LIMIT] * any(form_of(code) == "limit" for code in codes)
                entries.append(toml_entry(name, settings, limits))
        return "\n".join(entries)

    def said(self) -> Iterator[str]:
        """Lines for a person: kinds, missing values, what is left out, what to decide, and where tables differ."""
        for kind in get_args(Kind):
            names = [
                shown(name) + (f" ({g.transform})" * bool(g.transform)) + _as_1(g)
                for name, g in self._used.items()
                if g.kind == kind
            ]
            if names:
                yield f"{kind}: {', '.join(names)}"
        if any(found.kind == "count" for found in self._used.values()):
            said = 'used as log(1 + count), for zeros and a long tail; transform = "none" uses it as it is'
            yield f"  log1p: {said}; {TURNS}"
        if by_code := self._coded():
            yield "stand for a missing value, by the column map:"
            for code, cells in by_code.items():
                columns = first_few(f"{shown(name)} {n:,}" for name, n in cells.items())
                yield f"  {shown(repr(code), 40)}: {sum(cells.values()):,} cell(s) ({columns})"
        for code in self.codes:
            if not any(code in found.missing for found in self.guesses.values()):
                column = shown(repr(code.partition("=")[0]), 40)
                no_column = f", and no column is called {column}" if "=" in code else ""
                yield f"--missing: no cell is {shown(repr(code), 40)}{no_column}"
        if left_out := _by_reason({name: found.left_out for name, found in self.guesses.items() if not found.is_used}):
            yield "left out:"
            yield from left_out
        asked = [(name, ask) for name, found in self._used.items() for ask in (*found.asks, *self._absent(name))]
        if asked:
            yield "to decide:"
            yield from (f"  {shown(name)}: {ask}" for name, ask in asked)
        for name, tables in self.lacking.items():
            if name not in self._used:
                yield f"{shown(name)}: not in {', '.join(map(shown, tables))}"
        yield from self._rows_said()

    def _absent(self, name: str) -> Iterator[str]:
        if tables := self.lacking.get(name):
            there = first_few(map(shown, self._perhaps(name)))
            perhaps = f" (perhaps {there})" if there else ""
            yield (
                f"not in {', '.join(map(shown, tables))}, whose columns.toml says absent = true: if it is called "
                f'otherwise there{perhaps}, say column = "..." in its place'
            )

    def _perhaps(self, name: str) -> list[str]:
        """Columns of other tables with a name like this one, of which no table has both."""
        apart = {table.name for table in self.tables} - set(self.lacking[name])
        others = [other for other, tables in self.lacking.items() if other != name and apart <= set(tables)]
        first = _first_word(name)
        return [other for other in others if _first_word(other) == first] or like(name, others)

    def _rows_said(self) -> Iterator[str]:
        n, complete = (sum(counts) for counts in zip(*self.rows.values(), strict=True))
        if complete < n:
            yield f"rows without a missing value in these columns: {complete:,} of {n:,}"
            yield "  `standard` and `private` use the others for the values that they have"

    def _coded(self) -> dict[str, dict[str, int]]:
        """By code of a missing value, how many cells of which columns have it; the most frequent codes first."""
        found: dict[str, dict[str, int]] = {}
        for name, one in self._used.items():
            for code, n in one.missing.items():
                found.setdefault(code, {})[name] = n
        return dict(sorted(found.items(), key=lambda item: -sum(item[1].values()))[:_MOST_CODES])

    def write(self, path: Path, *, overwrite: bool = False) -> list[Path]:
        """Write dictionary.toml, and beside each table that needs it TABLE.columns.toml; returns the files.

        Raises PlanError if the tables do not make a dictionary of at least two variables. Raises ResultError as
        `write_drafts`.
        """
        text = self.text
        Dictionary.parse(text, origin="what these tables would make")
        files = {path: text}
        for table in self.tables:
            if columns := self.column_map(table):
                head = _MAP_HEAD.format(file=shown(table.name, 60), dictionary=shown(path.name, 60))
                files[column_map_of(table)] = f"{head}\n{columns}"
        write_drafts(files, overwrite=overwrite, by_out=path)
        return list(files)


def write_drafts(files: Mapping[Path, str], *, overwrite: bool, by_out: Path | None) -> None:
    """Write files: all of them, or none where one is there already, unless they may be overwritten.

    `by_out` is the file that --out can name elsewhere. Raises ResultError if one is there already, or cannot be
    written.
    """
    there = [path for path in files if path.exists()]
    if there and not overwrite:
        elsewhere = (
            "name another file with --out"
            if there == [by_out]
            else "move away what you want to keep: a column map lies beside its table, wherever --out points"
        )
        raise ResultError(
            f"{first_few(map(str, there))}: there already, perhaps with edits in it",
            remedy=f"Replace it with --overwrite, edits and all, or {elsewhere}.",
        )
    made: list[Path] = []
    for path, text in files.items():
        try:
            with path.open("w", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
        except OSError as error:
            for one in made:
                if one not in there:
                    one.unlink(missing_ok=True)
            raise ResultError(f"{path} cannot be written: {error.strerror}") from None


def draft(tables: Sequence[Path], *, missing: Sequence[str] = (), merge_below: int = 0) -> Draft:
    """What the columns of these CSV tables seem to be; levels are those of all tables.

    Raises DataError if a table cannot be read.

    Parameters
    ----------
    missing
        Cells that stand for a missing value, in every column, or in one: `column=cell`.
    merge_below
        Levels of a nominal variable in fewer rows become one.
    """
    headers = {path: read_header(path) for path in tables}
    cells = scan(headers, missing)
    guesses = {name: guess(name, found, merge_below=merge_below) for name, found in cells.items()}
    few = [
        name
        for name, found in guesses.items()
        if found.is_used and len(cells[name].numbers) + len(cells[name].texts) <= MOST_VALUES
    ]
    relations, gaps = ColumnFunctions(few), {path: Counter[bytes]() for path in headers}
    coded = {path: {name: set[str]() for name in header} for path, header in headers.items()}
    met = LevelsOfTables({name: found for name, found in guesses.items() if found.is_used and found.levels})
    for path, header in headers.items():
        place = {name: k for k, name in enumerate(header)}
        for row in rows_of(path, header, {name: guesses[name].missing for name in header}):
            values = {name: _value(row[k], guesses[name]) for name, k in place.items()}
            for name, k in place.items():
                if values[name] is None and (cell := composed(row[k].strip())) in guesses[name].missing:
                    coded[path][name].add(cell)
            relations.add([values.get(name) for name in few])
            met.add(path.name, values)
            gaps[path][np.packbits([values.get(name, "") is None for name in guesses]).tobytes()] += 1
    measured = {name for name, found in cells.items() if found.n_numbers and not found.whole}
    guesses = _without_twins(met.asked(guesses), relations, measured)
    guesses, rows = _without_empty(guesses, {path: _patterns(one, len(guesses)) for path, one in gaps.items()})
    guesses = _with_sums(guesses, headers)
    without = {name: [path.name for path, header in headers.items() if name not in header] for name in guesses}
    without = {name: files for name, files in without.items() if files}
    return Draft(tuple(tables), guesses, without, rows, codes_of_all(cells, missing), coded)


def _value(cell: str, found: Guess) -> str | None:
    cell = composed(cell.strip())
    return None if cell in MISSING or cell in found.missing else cell


def _without_twins(guesses: Mapping[str, Guess], relations: ColumnFunctions, measured: Set[str]) -> dict[str, Guess]:
    """Of columns that are one-to-one the one that a run makes the fewest columns of stays; functions are named.

    A measured quantity, with decimals, that is one-to-one with another column belongs to a few persons seen again.
    """
    tells = relations.functions()
    order = sorted(guesses, key=lambda name: (guesses[name].n_columns, list(guesses).index(name)))
    marked, of_persons = dict(guesses), dict[str, str]()
    for name in order:
        twin = next((a for a, b in tells if b == name and (b, a) in tells and order.index(a) < order.index(name)), "")
        if twin:
            reason = f"one-to-one with {shown(repr(twin), 60)}, which stays: the same variable twice"
            marked[name] = replace(marked[name], left_out=marked[name].left_out or reason)
            if {name, twin} & measured:
                of_persons.setdefault(twin, name)
    for twin, name in of_persons.items():
        marked[twin] = replace(marked[twin], asks=(*marked[twin].asks, _seen_again(name)))
    for name, found in marked.items():
        known_by = [shown(repr(a), 60) for a, b in tells if b == name and marked[a].is_used]
        if known_by and found.is_used:
            ask = f"an exact function of {first_few(known_by)} in these tables: were they made of each other?"
            marked[name] = replace(found, asks=(*found.asks, ask))
    return marked


def _first_word(name: str) -> str:
    return re.split(r"[\W_]+", name.strip().casefold())[0]


def _seen_again(other: str) -> str:
    return (
        f"each value goes with one of {shown(repr(other), 60)}: are there several rows of one person? A run counts each"
        " row as another person, so that edges seem much surer than they are"
    )


def _with_sums(guesses: Mapping[str, Guess], headers: Mapping[Path, Sequence[str]]) -> dict[str, Guess]:
    """Ask about numbers that are exact sums of others."""
    names = [name for name, found in guesses.items() if found.is_used and _holds_numbers(found)]
    sums, marked = ColumnSums(names), dict(guesses)
    for path, header in headers.items():
        place = {name: k for k, name in enumerate(header)}
        coded = {name: guesses[name].missing for name in header}
        for row in rows_of(path, header, coded) if place.keys() >= set(names) else ():
            sums.add([as_number(_value(row[place[name]], guesses[name]) or "") for name in names])
    for name, said in sums.sums():
        ask = (
            f"equals {said} in these tables, to a millionth of its standard deviation: if they were made of each "
            "other, take one of them out, for edges among them would tell nothing"
        )
        marked[name] = replace(marked[name], asks=(*marked[name].asks, ask))
    return marked


def _holds_numbers(found: Guess) -> bool:
    return found.kind != "nominal" and all(as_number(level) is not None for level in found.levels)


def _patterns(gaps: Mapping[bytes, int], n_columns: int) -> tuple[Mask, Index]:
    """Which columns are missing, one row for each pattern that occurs, and how many rows of the table have it."""
    packed = np.frombuffer(b"".join(gaps), dtype=np.uint8).reshape(len(gaps), -(-n_columns // 8))
    lacking = np.unpackbits(packed, axis=1, count=n_columns).astype(bool)
    return lacking, np.array(list(gaps.values()), dtype=np.int64)


def _without_empty(
    guesses: Mapping[str, Guess], gaps: Mapping[Path, tuple[Mask, Index]]
) -> tuple[dict[str, Guess], dict[Path, Rows]]:
    """Leave out columns that more than half of the rows of all tables lack: little is known of them."""
    names, used = list(guesses), np.array([found.is_used for found in guesses.values()], dtype=bool)
    lacks = sum((counts @ (lacking & used) for lacking, counts in gaps.values()), np.zeros(len(names)))
    share = lacks / max(sum(int(counts.sum()) for _, counts in gaps.values()), 1)
    kept = used & (share <= _MOSTLY_EMPTY)
    marked = dict(guesses)
    for k in np.flatnonzero(used & ~kept).tolist():
        marked[names[k]] = replace(marked[names[k]], left_out=f"{share[k]:.0%} of the rows lack it")
    return marked, _complete(gaps, kept)


def _complete(gaps: Mapping[Path, tuple[Mask, Index]], kept: Mask) -> dict[Path, Rows]:
    return {
        path: Rows(int(counts.sum()), int(counts[~lacking[:, kept].any(axis=1)].sum()))
        for path, (lacking, counts) in gaps.items()
    }


def _by_reason(left_out: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(shown(name))
    return [f"  {', '.join(ones)}: {reason}" for reason, ones in names.items()]


def _as_1(found: Guess) -> str:
    """Which of two levels counts as 1, where that does not go without saying."""
    is_open = found.kind == "binary" and found.levels != ("0", "1")
    return f" ({shown(repr(found.levels[1]), 40)} counts as 1)" if is_open else ""


def _gaps(found: Guess) -> str:
    """Which cells stand for a missing value."""
    if not found.missing:
        return ""
    codes = first_few((shown(repr(code), 40) for code in found.missing), most=5)
    return f"{sum(found.missing.values()):,} cell(s) are {codes}, which stand for a missing value in the column map"


def _spelled(found: Guess) -> Iterator[str]:
    for level in found.levels:
        yield from found.spellings.get(level, (level,))
