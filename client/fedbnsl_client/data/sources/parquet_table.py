"""Tables in Parquet: one file, or a folder of files as one table, in the order of their names.

Needs the extra `parquet`. Files may lie in folders below; those of a folder `year=2024` have a column `year` more, as
other programs write it. Files and folders whose names begin with '_' or '.' are left out. All files have the same
columns, in any order.
"""

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems, UnreadableCellsError
from fedbnsl_client.data.checks import in_one_line
from fedbnsl_client.data.columns import read_names, unlike
from fedbnsl_client.data.mapped_array import rows_a_block
from fedbnsl_client.data.reading import Reading
from fedbnsl_client.data.sources.arrow_cells import codes_of_batches

_MAGIC = b"PAR1"

# Buffer of each column; without it, pyarrow holds a whole row group, which may be the whole file.
_BUFFER_BYTES = 2**18

_NULL = "__HIVE_DEFAULT_PARTITION__"


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
            f"{path}: a Parquet file, which needs pyarrow: pip install 'fedbnsl-site[parquet]', or save the table "
            "as CSV"
        ) from None
    try:
        with parquet.ParquetFile(
            path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        ) as file:
            yield file
    except arrow.ArrowException as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from None


class File(NamedTuple):
    """A file of the table.

    Attributes
    ----------
    path
        Where it lies.
    of_folder
        Columns that its folders' names give, and their only value.
    """

    path: Path
    of_folder: tuple[tuple[str, str | None], ...]

    @property
    def state(self) -> Hashable:
        """What changes when somebody writes to it."""
        status = self.path.stat()
        return str(self.path), status.st_mtime_ns, status.st_size


def files_of(path: Path) -> list[File]:
    """The files of a Parquet table, which may be one, in the order in which they are read.

    Raises DataError if there is none, or one is no Parquet file.
    """
    if not path.is_dir():
        return [File(path, ())]
    found = sorted(one.relative_to(path) for one in path.rglob("*") if one.is_file())
    kept = [one for one in found if not any(part.startswith(("_", ".")) for part in one.parts)]
    if not kept:
        raise DataError(f"{path}: the folder holds no file; expected Parquet files")
    others = [str(one) for one in kept if not is_parquet(path / one)]
    if others:
        raise DataError(
            f"{path}: {first_few(map(repr, others))} no Parquet file(s); a table's folder holds nothing else"
        )
    return [File(path / one, tuple(_of_names(one.parts[:-1]))) for one in kept]


def _of_names(folders: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    for folder in folders:
        name, equals, value = folder.partition("=")
        if equals:
            yield unquote(name), None if value == _NULL else unquote(value)


def names_of(file: File) -> list[str]:
    """The column names of a file, checked, those of its folders' names last."""
    with opened(file.path) as parquet:
        return read_names(file.path, [*parquet.schema_arrow.names, *(name for name, _ in file.of_folder)])


def _rows_of(file: File) -> int:
    with opened(file.path) as parquet:
        return int(parquet.metadata.num_rows)


def batches_of(
    file: File, header: Sequence[str], chosen: Sequence[int], row_groups: Sequence[int] | None = None
) -> Iterator[Any]:
    """Arrow batches of a file, or of some of its row groups, that hold the chosen columns in their order."""
    arrow: Any = import_module("pyarrow")
    constant = dict(file.of_folder)
    with opened(file.path) as parquet:
        stored = parquet.schema_arrow.names
        place = {name: k for k, name in enumerate(read_names(file.path, [*stored, *constant]))}
        wanted = [[*stored, *constant][place[header[k]]] for k in chosen]
        columns = list(dict.fromkeys(name for name in wanted if name not in constant)) or stored[:1]
        for batch in parquet.iter_batches(rows_a_block(len(chosen)), row_groups=row_groups, columns=columns):
            yield arrow.RecordBatch.from_arrays(
                [
                    arrow.repeat(arrow.scalar(constant[name], "string"), batch.num_rows)
                    if name in constant
                    else batch.column(name)
                    for name in wanted
                ],
                names=[str(k) for k in range(len(wanted))],
            )


class ParquetTable:
    """A Parquet file or a folder of such, as a `fedbnsl_client.data.sources.source.Source`."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        self._path = path
        self._rows = self._read = 0

    @property
    def share(self) -> float | None:
        """Of the rows that were read."""
        return self._read / self._rows if self._rows else None

    def header(self) -> list[str]:
        """See `Source.header`; refuses files that have other columns than the first."""
        first, *others = files_of(self._path)
        names = names_of(first)
        for other in others:
            if difference := unlike(names_of(other), names):
                raise DataError(
                    f"{self.origin}: files with different columns: {self._name(other)} {difference}, unlike "
                    f"{self._name(first)}"
                )
        return names

    def codes(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        """See `Source.codes`; rows count over all files in their order."""
        found = CellProblems(header, "data row")
        files = files_of(self._path)
        self._rows = sum(_rows_of(file) for file in files)
        batches = self._counted(batch for file in files for batch in batches_of(file, header, chosen))
        yield from codes_of_batches(batches, found, chosen, readings)
        if problems := found.lines():
            raise UnreadableCellsError(f"{self.origin}: " + in_one_line(problems))

    def _counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        self._read = 0
        for batch in batches:
            self._read += batch.num_rows
            yield batch

    def _name(self, file: File) -> str:
        return repr(str(file.path.relative_to(self._path)))
