"""The private table of one site: read, checked, never sent.

Every refusal names the column and the number of rows, for the people at the site. None of it leaves the site.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.sparse import Matrix
from fedbnsl.wording import first_few
from fedbnsl_client.data import csv_table, parquet_table
from fedbnsl_client.data.checks import DataWarning, Oddity, TableChecks, quoted
from fedbnsl_client.data.columns import check_names, choose
from fedbnsl_client.data.csv_table import said_in_words
from fedbnsl_client.data.mapped_array import gathered, lies_in_file, row_blocks, rows_a_block

MIN_ROWS = 20

Reader = Callable[..., Iterator[Matrix]]
"""(rows, d) values of a file, given its header, the columns to read by position, and whether it may have `gaps`."""


@dataclass(frozen=True)
class Gaps:
    """Missing values of a table, for people at the site.

    Attributes
    ----------
    rows
        How many rows have one.
    by_column
        In how many rows each column lacks its value; only columns that do.
    """

    rows: int = 0
    by_column: Mapping[str, int] = field(default_factory=dict[str, int])

    def said(self) -> str:
        """How many rows are left out, and for which columns."""
        columns = first_few(f"{name!r} {count}" for name, count in self.by_column.items())
        return f"{self.rows} row(s) are left out, which lack a value: {columns}"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A checked table.

    Attributes
    ----------
    variables
        d column names, without repetition.
    X
        (n, d) finite values, raw scale; mapped from a file if large (see `mapped_array`).
    odd
        What a person should look at.
    gaps
        Rows that were left out because a value was missing.
    """

    variables: tuple[str, ...]
    X: Matrix
    odd: tuple[Oddity, ...] = ()
    gaps: Gaps = Gaps()

    @property
    def n_samples(self) -> int:
        """Rows (public)."""
        return int(self.X.shape[0])

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        columns: Sequence[str] = (),
        min_rows: int = MIN_ROWS,
        max_file_bytes: int | None = None,
        warn: bool = True,
        complete_cases: bool = False,
    ) -> Self:
        """Read a CSV file (UTF-8, commas, column names in the first line) or a Parquet file, in one pass.

        Parameters
        ----------
        columns
            The columns to use, in this order; empty: all of them.
        min_rows
            Fewer rows are refused.
        max_file_bytes
            A larger file is refused before it is read; None: any size is read.
        warn
            Issue a DataWarning for each entry of `odd`.
        complete_cases
            Leave out the rows with a missing value (an empty cell, NA or NaN); otherwise they are refused.

        Raises
        ------
        DataError
            If the file cannot be read or its table cannot be used; the text says why, by column and count.
        """
        with said_in_words(path):
            before = path.stat()
            if max_file_bytes is not None and before.st_size > max_file_bytes:
                raise DataError(
                    f"{path}: {before.st_size / 2**20:,.0f} MiB; at most {max_file_bytes / 2**20:,.0f} MiB are read "
                    "(--max-file-mib)"
                )
            header = (parquet_table if parquet_table.is_parquet(path) else csv_table).read_header(path)
            chosen = choose(path, header, columns)
            variables = tuple(header[k] for k in chosen)
            checks, gaps, X = _read_values(path, header, chosen, complete_cases=complete_cases)
            after = path.stat()
        if (before.st_mtime_ns, before.st_size, before.st_ino) != (after.st_mtime_ns, after.st_size, after.st_ino):
            raise DataError(f"{path}: the file changed while it was read; wait until it is complete")
        if warn and gaps.rows:
            warnings.warn(gaps.said(), DataWarning, stacklevel=2)
        return cls(variables, X, _said(checks.require(min_rows), warn=warn), gaps)

    @classmethod
    def of_values(cls, variables: Sequence[str], X: Matrix, *, origin: str, min_rows: int = MIN_ROWS) -> Self:
        """A table that is in memory already, checked as `read` checks a file.

        Parameters
        ----------
        variables
            d column names.
        X
            (n, d) values; NaN where one is missing.
        origin
            What errors call the table.

        Raises
        ------
        DataError
            As `read`.
        """
        check_names(origin, variables)
        if len(variables) < 2:
            raise DataError(f"{origin}: {len(variables)} column(s); a network needs at least two")
        checks = TableChecks(origin, variables)
        rows = rows_a_block(len(variables))
        for start in range(0, len(X), rows):
            checks.count(X[start : start + rows])
        odd = _said(checks.require(min_rows), warn=True)
        return cls(tuple(variables), np.ascontiguousarray(X), odd)

    def reordered(self, variables: Sequence[str]) -> Self:
        """The same table with its columns in the given order.

        Raises
        ------
        DataError
            If a name is missing.
        """
        missing = [name for name in variables if name not in self.variables]
        if missing:
            raise DataError(f"the table lacks {quoted(missing)}")
        position = {name: k for k, name in enumerate(self.variables)}
        order = [position[name] for name in variables]
        if not lies_in_file(self.X):
            X = np.ascontiguousarray(self.X[:, order])
        elif order == list(range(len(self.variables))):
            return self
        else:
            X = gathered((X[:, order] for X in row_blocks(self.X)), len(order))
        odd = [one if one.finding is None else replace(one, finding=one.finding.reordered(order)) for one in self.odd]
        return type(self)(
            tuple(variables),
            X,
            tuple(one for one in odd if one.finding is None or one.finding.variables),
            self.gaps,
        )


def _said(odd: tuple[Oddity, ...], *, warn: bool) -> tuple[Oddity, ...]:
    for one in odd if warn else ():
        warnings.warn(one.text, DataWarning, stacklevel=3)
    return odd


def _read_values(
    path: Path, header: Sequence[str], chosen: Sequence[int], *, complete_cases: bool
) -> tuple[TableChecks, Gaps, Matrix]:
    """The checks of the values, what was left out, and the (n, d) values."""
    if parquet_table.is_parquet(path):
        return _pass(path, header, chosen, parquet_table.blocks, complete_cases)
    if csv_table.has_fast_reader(path):
        with suppress(csv_table.NotPlainError):
            return _pass(path, header, chosen, csv_table.fast_blocks, complete_cases)
    return _pass(path, header, chosen, csv_table.blocks, complete_cases)


def _pass(
    path: Path, header: Sequence[str], chosen: Sequence[int], blocks: Reader, complete_cases: bool
) -> tuple[TableChecks, Gaps, Matrix]:
    variables = [header[k] for k in chosen]
    checks = TableChecks(path, variables)
    lacking, n, n_complete = np.zeros(len(variables), dtype=np.int64), 0, 0

    def counted() -> Iterator[Matrix]:
        nonlocal lacking, n, n_complete
        for block in blocks(path, header, chosen, gaps=complete_cases):
            missing = np.isnan(block) if complete_cases else np.zeros(block.shape, dtype=bool)
            whole = ~missing.any(axis=1)
            checks.count(complete := block if whole.all() else block[whole], rows=n + 1 + np.flatnonzero(whole))
            lacking += missing.sum(axis=0)
            n, n_complete = n + len(block), n_complete + len(complete)
            yield complete

    X = gathered(counted(), len(chosen))
    by_column = {name: k for name, k in zip(variables, lacking.tolist(), strict=True) if k}
    return checks, Gaps(n - n_complete, by_column), X
