"""The private table of one site: read, checked, never sent.

Every refusal names the column and how many rows are concerned, for the people at the site; none of it leaves the site.
"""

import csv
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.messages import is_variable_name
from fedbnsl.sparse import Matrix

MAX_FILE_BYTES = 2**30
MIN_ROWS = 20
LARGEST_VALUE = 1e100

_CATEGORICAL_LEVELS = 10


class DataWarning(UserWarning):
    """Something about a table that a person should look at, but that does not stop a run."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A checked table.

    Attributes
    ----------
    variables
        d column names, without repetition.
    X
        (n, d) finite values, raw scale.
    """

    variables: tuple[str, ...]
    X: Matrix

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
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> Self:
        """Read a comma-separated UTF-8 file whose first line names the columns.

        Parameters
        ----------
        columns
            The columns to use, in this order; empty: all of them.
        min_rows
            Fewer rows are refused.
        max_file_bytes
            A larger file is refused before it is read.

        Raises
        ------
        DataError
            If the file cannot be read or its table cannot be used; the text says why, by column and count.
        """
        with _said_in_words(path):
            before = path.stat()
            if before.st_size > max_file_bytes:
                raise DataError(
                    f"{path}: {before.st_size / 2**20:,.0f} MiB; at most {max_file_bytes / 2**20:,.0f} MiB are read "
                    "(--max-file-mib raises the limit: about 3 times the file's size is needed in memory)"
                )
            header = read_header(path)
            chosen = _choose(path, header, columns)
            X = _read_values(path, header, chosen)
            after = path.stat()
        if (before.st_mtime_ns, before.st_size, before.st_ino) != (after.st_mtime_ns, after.st_size, after.st_ino):
            raise DataError(f"{path}: the file changed while it was read; wait until it is complete")
        variables = tuple(header[k] for k in chosen)
        _check_values(path, variables, X, min_rows)
        return cls(variables, X)

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
        _check_names(origin, variables)
        if len(variables) < 2:
            raise DataError(f"{origin}: {len(variables)} column(s); a network needs at least two")
        _check_values(origin, variables, X, min_rows)
        return cls(tuple(variables), np.ascontiguousarray(X))

    def reordered(self, variables: Sequence[str]) -> Self:
        """The same table with its columns in the given order.

        Raises
        ------
        DataError
            If a name is missing.
        """
        missing = [name for name in variables if name not in self.variables]
        if missing:
            raise DataError(f"the table lacks {_names(missing)}")
        position = {name: k for k, name in enumerate(self.variables)}
        return type(self)(tuple(variables), np.ascontiguousarray(self.X[:, [position[name] for name in variables]]))


@contextmanager
def _said_in_words(path: Path) -> Generator[None]:
    """Turn what the system says about a file into a DataError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); save the table as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a table in CSV form ({error}); is there a quote that is never closed?") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_header(path: Path) -> list[str]:
    """The column names of a table.

    Raises
    ------
    DataError
        If the file cannot be read or its first line is no usable header.
    """
    with _said_in_words(path), path.open(encoding="utf-8-sig", newline="") as file:
        header = [name.strip() for name in next(csv.reader(file), list[str]())]
    if not header:
        raise DataError(f"{path}: the file is empty; expected a line of column names and at least one row")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise DataError(f"{path}: the first line has no comma but {';' if ';' in header[0] else 'a tab'}; use commas")
    if all(_is_number(name) for name in header):
        raise DataError(f"{path}: no header: the first line holds {len(header)} numbers instead of column names")
    _check_names(path, header)
    return header


def _check_names(origin: Path | str, header: Sequence[str]) -> None:
    if "" in header:
        raise DataError(f"{origin}: column {header.index('') + 1} of {len(header)} has no name")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{origin}: {_names(repeated)} stand(s) more than once in the header")
    unusable = [name for name in header if not is_variable_name(name)]
    if unusable:
        raise DataError(
            f"{origin}: column {_names(unusable)}: a name may not be '(Intercept)' nor hold control characters, "
            "which the graph files cannot carry"
        )


def _choose(path: Path, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(f"{path}: no column {_names(missing)} among the {len(header)} of the header")
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise DataError(f"{path}: {_names(repeated)} chosen more than once")
    chosen = [header.index(name) for name in columns] or list(range(len(header)))
    if len(chosen) < 2:
        raise DataError(f"{path}: one column; a network needs at least two")
    return chosen


def _read_values(path: Path, header: Sequence[str], chosen: Sequence[int]) -> Matrix:
    """(n, d) values; numpy's fast reader first, and where it stumbles a slow one that can say why."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            next(csv.reader(file))
            warnings.simplefilter("ignore", UserWarning)  # "input contained no data": counted by the caller
            X = np.loadtxt(file, delimiter=",", usecols=chosen, ndmin=2, comments=None, quotechar='"', dtype=np.float64)
    except ValueError:
        _explain_values(path, header, chosen)
        raise
    if X.size == 0:
        return np.empty((0, len(chosen)))
    _check_widths(path, len(header))
    return X


def _check_widths(path: Path, width: int) -> None:
    """Refuse lines with more or fewer fields than the header: the fast reader passes over surplus ones."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        wrong = [reader.line_num for reader in [csv.reader(file)] for row in reader if row and len(row) != width]
    if wrong:
        raise DataError(f"{path}: {len(wrong)} row(s) without exactly {width} fields, the first in line {wrong[0]}")


def _explain_values(path: Path, header: Sequence[str], chosen: Sequence[int]) -> None:
    """Raise the DataError that says which columns hold text or nothing, and in how many rows."""
    text = dict.fromkeys(chosen, 0)
    empty = dict.fromkeys(chosen, 0)
    _check_widths(path, len(header))
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        for row in rows:
            if not row:
                continue
            for k in chosen:
                if not row[k].strip():
                    empty[k] += 1
                elif not _is_number(row[k]):
                    text[k] += 1
    problems = [f"column {header[k]!r}: {count} row(s) are empty" for k, count in empty.items() if count]
    problems += [f"column {header[k]!r}: {count} row(s) are not numbers" for k, count in text.items() if count]
    raise DataError(f"{path}: " + _listed(problems or ["the table cannot be parsed as numbers"]))


def _check_values(origin: Path | str, variables: Sequence[str], X: Matrix, min_rows: int) -> None:
    n = X.shape[0]
    if n < (needed := max(min_rows, 1)):
        raise DataError(f"{origin}: {n} rows; at least {needed} are needed (--min-rows)")
    problems: list[str] = []
    for k, name in enumerate(variables):
        nan, infinite = int(np.isnan(X[:, k]).sum()), int(np.isinf(X[:, k]).sum())
        if nan:
            problems.append(f"column {name!r}: {nan} row(s) are NaN")
        huge = int((np.abs(X[:, k]) > LARGEST_VALUE).sum()) - infinite
        if huge:
            problems.append(f"column {name!r}: {huge} row(s) beyond {LARGEST_VALUE:g}, whose squares overflow")
        if infinite:
            problems.append(f"column {name!r}: {infinite} row(s) are infinite")
        if not nan and not infinite and (X[:, k] == X[0, k]).all():
            problems.append(f"column {name!r}: the same value in all {n} rows")
    if not problems:
        problems = _identical_columns(variables, X)
    if problems:
        raise DataError(f"{origin}: " + _listed(problems))
    far = [name for name, column in zip(variables, X.T, strict=True) if abs(column.mean()) > column.std()]
    if far:
        message = (
            f"column(s) {_names(far)}: means further from zero than the standard deviation, and regressions have no "
            "intercept: subtract the means first, or directions and weights come out wrong"
        )
        warnings.warn(message, DataWarning, stacklevel=4)
    for k, name in enumerate(variables):
        levels = np.unique(X[: 50 * _CATEGORICAL_LEVELS, k])
        if levels.size <= _CATEGORICAL_LEVELS and (X[:, k] == np.round(X[:, k])).all():
            n_levels = np.unique(X[:, k]).size
            if n_levels <= _CATEGORICAL_LEVELS:
                message = (
                    f"column {name!r}: {n_levels} whole values in {n} rows look like categories; "
                    "weights take them as quantities"
                )
                warnings.warn(message, DataWarning, stacklevel=4)


def _identical_columns(variables: Sequence[str], X: Matrix) -> list[str]:
    first: dict[bytes, str] = {}
    problems: list[str] = []
    for k, name in enumerate(variables):
        twin = first.setdefault(np.ascontiguousarray(X[:, k] + 0.0).tobytes(), name)  # + 0.0: -0.0 equals 0.0
        if twin != name:
            problems.append(f"columns {twin!r} and {name!r}: equal in all {X.shape[0]} rows; drop one (--columns)")
    return problems


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # 1_000: a number in Python only


def _names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _listed(problems: Sequence[str], shown: int = 8) -> str:
    more = [f"... and {len(problems) - shown} more"] if len(problems) > shown else []
    return "; ".join([*problems[:shown], *more])
