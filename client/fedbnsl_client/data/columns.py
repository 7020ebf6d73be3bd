"""The column names of a table: which are refused, and which columns are used."""

from collections.abc import Sequence
from pathlib import Path

from fedbnsl.errors import DataError
from fedbnsl.messages import is_variable_name
from fedbnsl_client.data.checks import quoted

_NAMES_SHOWN = 20


def check_names(origin: Path | str, header: Sequence[str]) -> None:
    """Refuse names that are empty, repeated or cannot stand in the graph files.

    Raises
    ------
    DataError
        By name.
    """
    if "" in header:
        k = header.index("") + 1
        numbers = "; if it holds row numbers, save the table without them" if k == 1 else ""
        raise DataError(f"{origin}: column {k} of {len(header)} has no name{numbers}")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{origin}: {quoted(repeated)} stand(s) more than once in the header")
    unusable = [name for name in header if not is_variable_name(name)]
    if unusable:
        raise DataError(
            f"{origin}: column {quoted(unusable)}: a name may not be '(Intercept)' nor hold control characters, "
            "which the graph files cannot carry"
        )


def choose(path: Path, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Places in the header of the columns to use; none named: all.

    Raises
    ------
    DataError
        If one is not there, or named twice, or there is only one.
    """
    missing = [name for name in columns if name not in header]
    if missing:
        there = quoted(header[:_NAMES_SHOWN]) + (", ..." if len(header) > _NAMES_SHOWN else "")
        raise DataError(f"{path}: no column {quoted(missing)} among the {len(header)} of the header: {there}")
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise DataError(f"{path}: {quoted(repeated)} chosen more than once")
    chosen = [header.index(name) for name in columns] or list(range(len(header)))
    if len(chosen) < 2:
        raise DataError(f"{path}: one column; a network needs at least two")
    return chosen
