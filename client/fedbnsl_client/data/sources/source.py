"""Where a site's table lies: the seam between kinds of files and what is done with their cells."""

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.reading import Reading
from fedbnsl_client.data.sources import parquet_table
from fedbnsl_client.data.sources.csv_table import CsvTable
from fedbnsl_client.data.sources.database import DatabaseTable


class Source(Protocol):
    """A table that can be read from its first row to its last, more than once."""

    @property
    def origin(self) -> str:
        """What errors call it; no secret in it."""
        ...

    @property
    def share(self) -> float | None:
        """Of the table, what `codes` has read so far, about; None: not known, as of a database."""
        ...

    def header(self) -> list[str]:
        """Its column names, checked (`fedbnsl_client.data.columns.read_names`).

        Raises DataError if it cannot be read.
        """
        ...

    def codes(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        """(rows, V) codes in blocks; NaN where a value is missing.

        Raises DataError if cells cannot be read; by column and count, after the last block at the latest.

        Parameters
        ----------
        header
            All names.
        chosen
            V positions in the header; one may be there more than once.
        readings
            V, how the cells of each become codes.
        """
        ...


def source_of(path: Path, *, named: bool = False) -> Source:
    """The table at a path: a CSV or Parquet file, a folder of Parquet files, or a `table.toml` that names a query.

    `named`: whether the columns to use are named: then a header may be of numbers alone.
    """
    if path.suffix == ".toml":
        return DatabaseTable(path)
    if path.is_dir() or parquet_table.is_parquet(path):
        return parquet_table.ParquetTable(path)
    return CsvTable(path, named=named)


def state_of(path: Path) -> Hashable:
    """What changes when somebody writes to a file, or to one of a folder."""
    if path.is_dir():
        return tuple(file.state for file in parquet_table.files_of(path))
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def bytes_of(path: Path) -> int:
    """How large the files of a table are."""
    return sum(file.path.stat().st_size for file in parquet_table.files_of(path))
