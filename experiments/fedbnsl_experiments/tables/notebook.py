"""Tables as a notebook holds them (data frames, arrays), checked as the files of a site are."""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.messages import SITE_NAME_RULE, is_site_name
from fedbnsl.sparse import Matrix
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
        names = [str(label).strip() for label in labels]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise DataError(f"{site}: {', '.join(map(repr, repeated))} stand(s) more than once among the columns")
        return names, [table[label] for label in labels]
    values = np.asarray(table)
    if values.ndim != 2:
        raise DataError(
            f"{site}: expected a data frame or an array of rows and columns; got {values.ndim} dimension(s)"
        )
    return [f"X{k + 1}" for k in range(values.shape[1])], list(values.T)


def _dataset(site: str, names: Sequence[str], columns: Sequence[Any]) -> Dataset:
    vectors = [_numbers(column) for column in columns]
    problems = [
        f"column {name!r}: {count} row(s) are {what}"
        for name, (_, missing, text) in zip(names, vectors, strict=True)
        for count, what in ((missing, "empty"), (text, "not numbers"))
        if count
    ]
    if problems:
        raise DataError(f"{site}: " + "; ".join(problems[:8] + ["..."] * (len(problems) > 8)))
    X = np.column_stack([vector for vector, _, _ in vectors]) if vectors else np.empty((0, 0))
    return Dataset.of_values(names, X, origin=site)


def _numbers(column: Any) -> tuple[Matrix, int, int]:
    """(n,) values, and how many cells are missing or no numbers."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64), 0, 0
    cells: list[Any] = values.tolist() if values.dtype.kind == "O" else [str(value) for value in values]
    missing = sum(type(cell).__name__ in _MISSING for cell in cells)
    usable = [cell for cell in cells if isinstance(cell, numbers.Real)]
    whole = len(usable) == len(cells)
    return np.array(usable if whole else [], dtype=np.float64), missing, len(cells) - missing - len(usable)
