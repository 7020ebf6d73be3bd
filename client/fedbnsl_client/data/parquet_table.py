"""Tables in Parquet, a block of rows at a time. Needs the extra `parquet`."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.sparse import Matrix
from fedbnsl_client.data.arrow_cells import codes_of
from fedbnsl_client.data.cell_problems import CellProblems
from fedbnsl_client.data.checks import in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.mapped_array import rows_a_block
from fedbnsl_client.data.reading import Reading

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
def _opened(path: Path) -> Generator[Any]:
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
    with _opened(path) as file:
        return read_names(path, file.schema_arrow.names)


class ParquetTable:
    """A Parquet file, as a `fedbnsl_client.data.source.Source`."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        self._path = path

    def header(self) -> list[str]:
        """See `read_header`."""
        return read_header(self._path)

    def codes(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        """(rows, V) codes of the chosen columns, from the first row to the last.

        Raises
        ------
        DataError
            If cells cannot be read; by column and count.
        """
        found, n = CellProblems(header, "data row"), 0
        with _opened(self._path) as file:
            names: list[str] = [file.schema_arrow.names[k] for k in chosen]
            for batch in file.iter_batches(rows_a_block(len(chosen)), columns=list(dict.fromkeys(names))):
                X = np.empty((batch.num_rows, len(chosen)))
                for place, (k, reading) in enumerate(zip(chosen, readings, strict=True)):
                    column = batch.column(names[place])
                    X[:, place], bad = codes_of(column, reading)
                    where = np.flatnonzero(bad)
                    found.add(k, reading, (n + 1 + where).tolist(), column.take(where).to_pylist())
                n += len(X)
                yield X
        if problems := found.lines():
            raise DataError(f"{self.origin}: " + in_one_line(problems))
