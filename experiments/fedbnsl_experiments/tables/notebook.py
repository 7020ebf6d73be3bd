"""Tables as a notebook holds them (data frames, arrays), checked as the files of a site are."""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.messages import SITE_NAME_RULE, is_site_name
from fedbnsl.sparse import Matrix
from fedbnsl_client.data.checks import Places, in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.csv_table import no_numbers
from fedbnsl_client.data.dataset import Dataset

# By name: pandas, whose types these are, is no dependency.
_MISSING = ("NoneType", "NAType", "NaTType")


def site_tables(tables: object, *, columns: Sequence[str] = ()) -> dict[str, Dataset]:
    """Tables by site, all with the same variables in the same order.

    Parameters
    ----------
    tables
        A list (sites are site-1, site-2, ...) or a mapping from site to table. A table is a data frame, of pandas or
        like it, or an (n, d) array, whose variables are X1, X2, ...
    columns
        Those to use, in this order; empty: all of the first table.

    Raises
    ------
    DataError
        If a table cannot be used, or has other columns than the first.
    """
    named = _named(tables)
    found: dict[str, Dataset] = {}
    for site, table in named.items():
        names, cells = _columns(site, table)
        wanted = list(columns or (next(iter(found.values())).variables if found else names))
        missing = [name for name in wanted if name not in names]
        surplus = [] if columns else [name for name in names if name not in wanted]
        if missing or surplus:
            said = [
                f"{word} {', '.join(map(repr, which))}"
                for word, which in (("lacks", missing), ("has", surplus))
                if which
            ]
            raise DataError(f"{site}: {' and '.join(said)}, unlike {'the plan' if columns else next(iter(found))}")
        found[site] = _dataset(site, names, cells).reordered(wanted)
    return found


def table_over(table: object, variables: Sequence[str]) -> Dataset:
    """One table over these variables, in whatever order it has them.

    Raises
    ------
    DataError
        If it cannot be used, or lacks one of them.
    """
    return site_tables([table], columns=variables)["site-1"]


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
        return read_names(site, [str(label) for label in labels]), [table[label] for label in labels]
    values = np.asarray(table)
    if values.ndim != 2:
        raise DataError(
            f"{site}: expected a data frame or an array of rows and columns; got {values.ndim} dimension(s)"
        )
    return [f"X{k + 1}" for k in range(values.shape[1])], list(values.T)


def _dataset(site: str, names: Sequence[str], columns: Sequence[Any]) -> Dataset:
    vectors = [_numbers(column) for column in columns]
    found = {
        "empty": {k: missing for k, (_, missing, _) in enumerate(vectors)},
        "not numbers": {k: text for k, (_, _, text) in enumerate(vectors)},
    }
    if problems := no_numbers(names, found, "data row"):
        raise DataError(f"{site}: " + in_one_line(problems))
    X = np.column_stack([vector for vector, _, _ in vectors]) if vectors else np.empty((0, 0))
    return Dataset.of_values(names, X, origin=site)


def _numbers(column: Any) -> tuple[Matrix, Places, Places]:
    """(n,) values, and which cells are missing or no numbers, counted from 1."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64), Places(), Places()
    cells: list[Any] = values.tolist() if values.dtype.kind == "O" else [str(value) for value in values]
    missing, text = Places(), Places()
    for row, cell in enumerate(cells, start=1):
        if type(cell).__name__ in _MISSING:
            missing.add([row])
        elif not isinstance(cell, numbers.Real):
            text.add([row])
    whole = not missing.count and not text.count
    return np.array(cells if whole else [], dtype=np.float64), missing, text
