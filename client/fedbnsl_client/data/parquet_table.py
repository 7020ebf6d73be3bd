"""Tables in Parquet, a block of rows at a time. Needs the extra `parquet`."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.sparse import Matrix
from fedbnsl_client.data.checks import Places, in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.csv_table import no_numbers
from fedbnsl_client.data.mapped_array import rows_a_block

_MAGIC = b"PAR1"

# Buffer of each column; without it, pyarrow holds a whole row group, which may be the whole file.
_BUFFER_BYTES = 2**18


def is_parquet(path: Path) -> bool:
    """Whether a file is in Parquet form, by its first and last bytes."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
        file.seek(-len(_MAGIC), 2)
        return file.read() == _MAGIC


@contextmanager
def opened(path: Path) -> Generator[Any]:
    """A Parquet file, open; errors of reading it become a DataError."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            f"{path}: a Parquet file, which needs pyarrow: pip install 'fedbnsl[parquet]', or save the table as CSV"
        ) from None
    try:
        with parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except arrow.ArrowException as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from None


def read_header(path: Path) -> list[str]:
    """The column names of a table.

    Raises
    ------
    DataError
        If the file cannot be read or a name cannot be used.
    """
    with opened(path) as file:
        return read_names(path, file.schema_arrow.names)


def blocks(path: Path, header: Sequence[str], chosen: Sequence[int], *, gaps: bool = False) -> Iterator[Matrix]:
    """(rows, d) values of the chosen columns, from the first row to the last.

    Parameters
    ----------
    gaps
        Whether a value may be missing, which is NaN then.

    Raises
    ------
    DataError
        If a column has rows that are empty or not numbers; by column and count.
    """
    empty, text = ({k: Places() for k in chosen} for _ in range(2))
    n = 0
    with opened(path) as file:
        names: list[str] = [file.schema_arrow.names[k] for k in chosen]
        for batch in file.iter_batches(rows_a_block(len(chosen)), columns=names):
            X = np.empty((batch.num_rows, len(chosen)))
            for place, (k, name) in enumerate(zip(chosen, names, strict=True)):
                column = batch.column(name)
                missing = column.is_null().to_numpy(zero_copy_only=False)
                empty[k].add((n + 1 + np.flatnonzero(missing)).tolist())
                if _holds_numbers(column.type):
                    X[:, place] = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
                else:
                    X[:, place] = np.nan
                    text[k].add((n + 1 + np.flatnonzero(~missing)).tolist())
            n += len(X)
            yield X
    if problems := no_numbers(header, {"empty": {} if gaps else empty, "not numbers": text}, "data row"):
        raise DataError(f"{path}: " + in_one_line(problems))


def _holds_numbers(kind: Any) -> bool:
    types: Any = import_module("pyarrow.types")
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind))
