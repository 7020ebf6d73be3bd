"""Rows to predict, from a file or a data frame, in the data dictionary's units and levels."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError, SetupError
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_workbench.networks.values import text_of


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by their columns, after a first line with #, if it has one.

    Raises DataError if it cannot be read, has a column twice, a row of another length, or no row.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            if not file.readline().startswith("#"):
                file.seek(0)
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV with a header: {error}") from None
    if not lines:
        raise DataError(f"{path} is empty", remedy="Its first line names the network's variables.")
    header, *rows = lines
    names = [name.strip() for name in header]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path} has the column {twice[0]!r} twice", remedy="Leave one of them out.")
    if not rows:
        raise DataError(f"{path} has a header and no row")
    for k, row in enumerate(rows, start=1):
        if row and len(row) != len(names):
            raise DataError(f"row {k} of {path} has {len(row)} cells; its header has {len(names)}")
    return [dict(zip(names, row, strict=True)) for row in rows if row]


def rows_of_table(fitted: FittedNetwork, table: Sequence[Mapping[Any, object]]) -> tuple[Matrix, dict[str, int]]:
    """(n, d) values of the columns of the network, NaN where a row has none; and by variable, cells that are no value.

    Raises SetupError if the table has no column of the network.
    """
    header = list(table[0]) if table else []
    known = [name for name in fitted.variables if name in header]
    if not known:
        raise SetupError(
            f"the table has no column of the network, which has {', '.join(fitted.variables)}; it has "
            f"{first_few(map(repr, header))}",
            remedy="The header names the network's variables, with commas between.",
        )
    X, unread = np.full((len(table), fitted.network.n_columns), np.nan), dict[str, int]()
    for name in known:
        own, seen = fitted.members(name), dict[tuple[type, str], list[float] | None]()
        for k, row in enumerate(table):
            cell = row[name]
            key = type(cell), str(cell)
            if key not in seen:
                seen[key] = _value(fitted, name, cell)
            values = seen[key]
            if values is None:
                unread[name] = unread.get(name, 0) + 1
            elif values:
                X[k, own] = values
    return X, unread


def _value(fitted: FittedNetwork, name: str, cell: object) -> list[float] | None:
    """Values of its columns; empty: the cell is missing; None: the dictionary has no such value."""
    try:
        text = text_of(fitted, name, cell)
        return fitted.coded(name, text) if text else []
    except SetupError:
        return None
