"""Tables as programs hold them (data frames, arrays), checked as the files of a site are."""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.row_groups import RowGroups
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems
from fedbnsl_client.data.checks import LEAVE_OUT, in_one_line
from fedbnsl_client.data.columns import letters_of, read_names, unlike
from fedbnsl_client.data.dataset import Dataset, times_of
from fedbnsl_client.data.forgotten_groups import asked, unused_identifiers
from fedbnsl_client.data.reading import MISSING, NO_DICTIONARY, SAME_NAMES, GroupReading, Reading, readings

# By name: pandas, whose types these are, is no dependency.
_MISSING = ("NoneType", "NAType", "NaTType")

_DESCRIBE = (
    "Say what text and categories stand for: dictionary=..., with kind and levels of each variable "
    "(docs/how-to/tables.md), or leave the column out."
)
_DROP = "Leave such a column out: frame.drop(columns=[...]) of each table, or correct the table."
_CORRECT = (
    "Correct the table, or say what its columns are: dictionary=..., where a range makes what lies "
    "outside missing (docs/how-to/tables.md)."
)


@contextmanager
def _remedies_for_notebooks() -> Generator[None]:
    """Say what helps here in place of the options and files of a site, also under the traceback."""
    try:
        yield
    except DataError as error:
        error.remedy = {_DESCRIBE: _DESCRIBE, LEAVE_OUT: _DROP}.get(error.remedy, _CORRECT)
        error.add_note(error.remedy)
        raise


@_remedies_for_notebooks()
def site_tables(
    tables: object,
    *,
    columns: Sequence[str] = (),
    dictionary: Dictionary = NO_DICTIONARY,
    may_lack: bool = False,
    lacking: Sequence[str] = (),
) -> dict[str, Dataset]:
    """Tables by site, all with the same variables in the same order.

    Raises DataError if a table cannot be used, or has other columns than the first; with `may_lack`, if a data frame
    lacks all of them but one, or a column that it seems to have under another spelling. A data frame without the
    dictionary's group column, where others have it, has one row a group.

    Parameters
    ----------
    tables
        A list (sites are site-1, site-2, ...) or a mapping from site to table. A table is a data frame, of pandas or
        like it, or an (n, d) array, whose variables are X1, X2, ...
    columns
        Those to use, in this order; empty: all of the dictionary or, without one, of the first table.
    dictionary
        What the variables are; empty: every column is a number.
    may_lack
        Whether a data frame may lack variables: they are absent at its site. Without `columns` and a dictionary, the
        variables are then those of all frames.
    lacking
        Columns that no table has, as its owner says; it is a data frame. Without `columns` and a dictionary, they are
        the last variables.
    """
    given = set(columns) | set(dictionary.root)
    read = {site: (*_columns(site, table), hasattr(table, "columns")) for site, table in _named(tables).items()}
    if dictionary:
        columns = dictionary.of_run(columns)
    elif may_lack and all(has_names for _, _, has_names in read.values()):
        columns = columns or tuple(dict.fromkeys(name for names, _, _ in read.values() for name in names))
    elif lacking and not columns:
        columns = (*next(iter(read.values()))[0], *lacking)
    grouped = {dictionary.rows.group}.intersection(name for names, _, _ in read.values() for name in names)
    found: dict[str, Dataset] = {}
    for site, (names, cells, has_names) in read.items():
        wanted = list(columns or (next(iter(found.values())).variables if found else names))
        used = dictionary.present(wanted) if dictionary else tuple(wanted)
        _refuse_as_lacking(site, lacking, names, {*used, dictionary.rows.group}, has_names=has_names)
        lacks = {*grouped, *(used if may_lack else lacking)} if has_names else set[str]()
        # The time orders the rows, even if it is a variable.
        absent = frozenset(lacks).difference(names, [dictionary.rows.time])
        told_apart = [given, *(set(others) for others, _, _ in read.values())]
        _refuse_other_spellings(site, names, absent, told_apart)
        _refuse_missing_keys(site, dictionary.rows, absent.union(names))
        present = [name for name in used if name not in absent]
        here = [name for name in (dictionary.read(wanted) if dictionary else used) if name not in absent]
        if difference := unlike([name for name in names if name in here] if columns else names, here):
            raise DataError(f"{site}: {difference}, unlike {'the plan' if columns else next(iter(found))}")
        if absent and len(present) < 2:
            raise DataError(f"{site}: {len(present)} of the variables; a network needs at least two")
        found[site] = _dataset(site, dict(zip(names, cells, strict=True)), wanted, dictionary, absent)
    return found


def _refuse_as_lacking(
    site: str, lacking: Sequence[str], names: Sequence[str], known: Set[str], *, has_names: bool
) -> None:
    """Refuse columns that a table is said to lack, and has, or that nobody has."""
    if lacking and not has_names:
        raise DataError(f"{site}: an array has no names, of which some could be absent; bring a data frame")
    if there := [name for name in lacking if name in names]:
        raise DataError(f"{site}: {first_few(map(repr, there))}: called absent, and the table has such a column")
    if unknown := [name for name in lacking if name not in known]:
        raise DataError(f"{site}: {first_few(map(repr, unknown))}: called absent, and no variable is called so")


def _refuse_missing_keys(site: str, rows: RowGroups, known: Set[str]) -> None:
    """Refuse a table without a column that says which rows belong together; `known`: what it has, or may lack."""
    if rows.group and rows.group not in known:
        raise DataError(
            f"{site}: lacks {rows.group!r}, of kind group: number the rows, if each is a group, or, if no table has "
            "such a column, leave it out of the dictionary"
        )
    if rows.time and rows.time not in known:
        raise DataError(
            f"{site}: lacks {rows.time!r}, which orders the rows, and cannot be absent; unless lags = 1 needs the "
            "order, leave it out of the dictionary"
        )


def _refuse_other_spellings(
    site: str, names: Sequence[str], absent: Iterable[str], told_apart: Sequence[Set[str]]
) -> None:
    """Refuse a frame that lacks a column but for its spelling: one variable would become two that never meet.

    `told_apart`: names that are of different variables where they stand together, such as CD4+ and CD4-.
    """
    for name in sorted(absent):
        alike = [one for one in names if letters_of(one) == letters_of(name)]
        if same := [one for one in alike if not any({one, name} <= known for known in told_apart)]:
            raise DataError(
                f"{site}: lacks {name!r}, and has {same[0]!r}: if they are one variable, give them one name"
            )


def table_over(
    table: object, variables: Sequence[str], dictionary: Dictionary = NO_DICTIONARY, *, may_lack: bool = False
) -> Dataset:
    """One table over these variables, in whatever order it has them.

    Raises DataError if it cannot be used, or lacks one of them; see `site_tables`.
    """
    return site_tables([table], columns=variables, dictionary=dictionary, may_lack=may_lack)["site-1"]


def dictionary_from(given: Dictionary | Mapping[str, Any] | Path | str | None, *, origin: str) -> Dictionary:
    """A dictionary as programs give one: itself, its content as a mapping, or the path of its file; None: an empty one.

    Raises PlanError if it cannot be used.
    """
    if given is None:
        return NO_DICTIONARY
    if isinstance(given, Path | str):
        return Dictionary.load(Path(given).expanduser())
    return given if isinstance(given, Dictionary) else Dictionary.from_plain(given, origin=f"{origin}: dictionary")


def _named(tables: object) -> dict[str, object]:
    if isinstance(tables, Mapping):
        named = {str(site): table for site, table in cast(Mapping[object, object], tables).items()}
        for site in named:
            if not is_site_name(site):
                raise DataError(f"{site!r} is no name of a site: {SITE_NAME_RULE}")
    elif hasattr(tables, "columns") or (isinstance(tables, np.ndarray) and tables.ndim == 2):
        raise DataError("expected a list of tables, or a dict from site to table; got one table: put it in a list")
    elif isinstance(tables, Iterable) and not isinstance(tables, str):
        named = {f"site-{k}": table for k, table in enumerate(cast(Iterable[object], tables), start=1)}
    else:
        raise DataError(f"expected a list of tables, or a dict from site to table; got {type(tables).__name__}")
    if not named:
        raise DataError("expected a list of tables, or a dict from site to table; got an empty one")
    return named


def _columns(site: str, table: Any) -> tuple[list[str], list[Any]]:
    """Names, and the cells of each column."""
    if isinstance(table, str | Path):
        raise DataError(
            f"{site}: expected a data frame or an array, got a path; read the file first: "
            f"pandas.read_csv({str(table)!r}), after `pip install pandas`, which no extra of fedbnsl brings along"
        )
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        labels = list(table.columns)
        return read_names(site, [_name(label) for label in labels]), [table[label] for label in labels]
    values = np.asarray(table)
    if values.ndim != 2:
        raise DataError(
            f"{site}: expected a data frame or an array of rows and columns; got {values.ndim} dimension(s)"
        )
    return [f"X{k + 1}" for k in range(values.shape[1])], list(values.T)


def _name(label: Any) -> str:
    """Of a column; empty, which is refused, where there is none: pandas makes NaN of a label None."""
    nameless = type(label).__name__ in _MISSING or (isinstance(label, float) and math.isnan(label))
    return "" if nameless else str(label)


def categories_of(tables: object) -> Dictionary:
    """What the columns of pandas' type category say of themselves; empty if there is none.

    Levels are those of all tables, in the order of the first that has them; ordered ones are ordinal. Other columns
    are continuous.
    """
    entries = dict[str, dict[str, Any]]()
    for site, table in _named(tables).items():
        for name, cells in zip(*_columns(site, table), strict=True):
            entry = entries.setdefault(name, {})
            categories = getattr(getattr(cells, "dtype", None), "categories", None)
            if categories is not None:
                levels = [_level(level) for level in categories.tolist()]
                entry["levels"] = list(dict.fromkeys([*entry.get("levels", []), *levels]))
                entry["kind"] = "ordinal" if cells.dtype.ordered else "nominal"
    for entry in entries.values():
        n_levels = len(entry.get("levels", ()))
        if n_levels == 2:
            entry["kind"] = "binary"
        elif n_levels < 2:
            entry.clear()
    if not any(entries.values()):
        return NO_DICTIONARY
    return Dictionary.from_plain(entries, origin="the tables' categories")


def _level(category: object) -> str:
    """As `Reading.value` spells a cell."""
    if isinstance(category, float):
        return str(int(category)) if category.is_integer() else repr(category)
    return str(category)


def _dataset(
    site: str, columns: Mapping[str, Any], variables: Sequence[str], dictionary: Dictionary, absent: Set[str]
) -> Dataset:
    names, codes = list(columns), list[Matrix]()
    found = CellProblems(names, "data row", missing="make them None or NaN: {}")
    here = [name for name in (dictionary.read(variables) if dictionary else variables) if name not in absent]
    reading = readings(dictionary, SAME_NAMES, here) if dictionary else [Reading()] * len(here)
    for name, how in zip(here, reading, strict=True):
        values, wrong = _codes(columns[name], how, text_is_read=bool(dictionary))
        found.add(names.index(name), how, [row for row, _ in wrong], [cell for _, cell in wrong])
        codes.append(values)
    if problems := found.lines():
        raise DataError(f"{site}: " + in_one_line(problems), remedy=_CORRECT if dictionary else _DESCRIBE)
    X = np.column_stack(codes) if codes else np.empty((0, 0))
    times = times_of(reading)
    data = Dataset.of_values(variables, X, origin=site, dictionary=dictionary, warn=False, times=times, absent=absent)
    groups = {
        name: _codes(columns[name], GroupReading(MISSING), text_is_read=True)[0]
        for name in unused_identifiers(names, here, dictionary)
    }
    return replace(data, odd=(*data.odd, *asked(groups, None if dictionary.rows else data.X)))


def _codes(column: Any, reading: Reading, *, text_is_read: bool) -> tuple[Matrix, list[tuple[int, object]]]:
    """(n,) codes, and the cells that cannot be read, with their rows, counted from 1."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf" and reading.takes_numbers:
        return reading.of_numbers(values.astype(np.float64)), []
    cells: list[Any] = values.tolist() if values.dtype.kind in "Obiuf" else [str(value) for value in values]
    codes, wrong, known = np.full(len(cells), np.nan), list[tuple[int, object]](), dict[object, float]()
    for k, cell in enumerate(cells):
        if type(cell).__name__ in _MISSING:
            continue
        try:
            if isinstance(cell, str) and not text_is_read:
                raise ValueError("text")
            key = type(cell).__name__, cell  # True equals 1, and may be another level
            codes[k] = known[key] if key in known else known.setdefault(key, reading.value(cell))
        except (ValueError, TypeError):  # what cannot be hashed is no number either
            wrong.append((k + 1, cell))
    return codes, wrong
