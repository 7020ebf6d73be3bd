"""A folder of Parquet files is one table, in the order of their names; what does not belong together is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.reading import Reading
from fedbnsl_client.data.sources.parquet_table import ParquetTable

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, **columns: Any) -> Path:
        path = tmp_path / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
        return tmp_path / "table"

    return written


def codes(folder: Path, *readings: Reading, chosen: list[int] | None = None) -> Matrix:
    table = ParquetTable(folder)
    header = table.header()
    chosen = list(range(len(header))) if chosen is None else chosen
    return np.concatenate(list(table.codes(header, chosen, readings or [Reading()] * len(chosen))))


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        codes(folder)
    return str(caught.value).removeprefix(f"{folder}: ")


def test_rows_come_in_the_order_of_the_files_names_whatever_their_dates(write: Write) -> None:
    for name, values in (("b/1.parquet", [5.0]), ("a2.parquet", [3.0, 4.0]), ("a1.parquet", [1.0, 2.0, 2.5])):
        folder = write(name, x=values, y=[-value for value in values])
    assert codes(folder).tolist() == [[v, -v] for v in (1.0, 2.0, 2.5, 3.0, 4.0, 5.0)]


def test_columns_are_found_by_name_in_each_file_and_may_have_other_types(write: Write) -> None:
    write("1.parquet", x=[1, 2], s=["b", None])
    folder = write("2.parquet", s=pyarrow.array(["a", "b"]).dictionary_encode(), x=[0.5, 1.5])
    levels = Reading(codes={"a": 0.0, "b": 1.0})
    found = codes(folder, levels, Reading(factor=2.0), Reading(), chosen=[1, 0, 0])
    np.testing.assert_array_equal(found, [[1, 2, 1], [np.nan, 4, 2], [0, 1, 0.5], [1, 3, 1.5]])


def test_folders_that_are_named_for_a_value_give_a_column(write: Write) -> None:
    write("ward=7/year=2024/1.parquet", x=[1.0, 2.0])
    folder = write("ward=__HIVE_DEFAULT_PARTITION__/year=2023/1.parquet", x=[3.0])
    assert ParquetTable(folder).header() == ["x", "ward", "year"]
    np.testing.assert_array_equal(codes(folder), [[1, 7, 2024], [2, 7, 2024], [3, np.nan, 2023]])
    np.testing.assert_array_equal(codes(folder, Reading(), chosen=[2]), [[2024], [2024], [2023]])


def test_what_other_programs_leave_in_a_folder_is_left_out(write: Write) -> None:
    folder = write("1.parquet", x=[1.0], y=[2.0])
    for name in ("_SUCCESS", ".1.parquet.crc", "_temporary/2.parquet"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("something")
    assert codes(folder).tolist() == [[1.0, 2.0]]


def test_cells_that_are_no_numbers_are_counted_over_all_files(write: Write) -> None:
    write("1.parquet", x=["1", "two", "3"], y=[1, 2, 3])
    folder = write("2.parquet", x=["four", "5"], y=[1, 2])
    assert refusal(folder) == "column 'x': 2 row(s) are not numbers (data rows 2, 4)"


def test_files_with_different_columns_are_refused_by_name(write: Write) -> None:
    write("1.parquet", x=[1.0], y=[2.0])
    folder = write("2.parquet", x=[1.0], z=[2.0])
    assert refusal(folder) == "files with different columns: '2.parquet' lacks 'y' and has 'z', unlike '1.parquet'"


def test_an_empty_folder_and_other_files_are_refused(write: Write, tmp_path: Path) -> None:
    assert refusal(tmp_path) == "the folder holds no file; expected Parquet files"
    folder = write("1.parquet", x=[1.0], y=[2.0])
    (folder / "notes.csv").write_text("x,y\n1,2\n")
    assert "'notes.csv'" in refusal(folder)
    (folder / "notes.csv").unlink()
    whole = (folder / "1.parquet").read_bytes()
    (folder / "2.parquet").write_bytes(whole[:4] + b"\xff" * (len(whole) - 8) + whole[-4:])
    assert "2.parquet: cannot be read as Parquet" in refusal(folder)


def test_a_folder_that_changes_while_it_is_read_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("1.parquet", x=np.linspace(-1, 1, 30), y=np.linspace(-1, 1, 30) ** 3)
    read = ParquetTable.codes

    def disturbed(*given: Any) -> Iterator[Matrix]:
        yield from read(*given)
        write("2.parquet", x=[1.5], y=[2.5])

    with monkeypatch.context() as patch:
        patch.setattr(ParquetTable, "codes", disturbed)
        with pytest.raises(DataError, match="the file changed while it was read"):
            Dataset.read(folder)
    assert Dataset.read(folder).n_samples == 31


def test_a_folder_is_refused_by_the_size_of_all_its_files(write: Write) -> None:
    write("1.parquet", x=np.arange(20.0) ** 2, y=np.arange(20.0))
    folder = write("2.parquet", x=np.arange(20.0), y=np.arange(20.0) ** 3)
    largest = max(file.stat().st_size for file in folder.iterdir())
    with pytest.raises(DataError, match="--max-file-mib"):
        Dataset.read(folder, max_file_bytes=largest)
