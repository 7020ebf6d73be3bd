"""Parquet tables are read and refused as CSV tables are; without pyarrow the extra is named."""

import datetime
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.mapped_array import lies_in_file
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, make_site, write_table

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N = 30
NAMES = ("age", "dose", "mass")


@pytest.fixture
def table() -> Matrix:
    return np.random.default_rng(5).standard_normal((N, 3))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(columns: Mapping[str, Any] | Matrix, **options: Any) -> Path:
        path = tmp_path / "site.data"  # the content counts, not the name
        named = dict(zip(NAMES, columns.T, strict=True)) if isinstance(columns, np.ndarray) else columns
        parquet.write_table(pyarrow.table(dict(named)), path, **options)
        return path

    return written


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        Dataset.read(path, **options)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("row_group_size", [7, None])
def test_a_table_is_read_bit_for_bit(table: Matrix, write: Callable[..., Path], row_group_size: int | None) -> None:
    data = Dataset.read(write(table, row_group_size=row_group_size))
    assert data.variables == NAMES
    assert data.X.tobytes() == table.tobytes()
    assert data.X.flags.c_contiguous


def test_a_large_table_is_mapped(table: Matrix, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 0)
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 1)
    monkeypatch.setattr(mapped_array, "_ROWS_ALIKE", 4)
    data = Dataset.read(write(table))
    assert lies_in_file(data.X)
    assert data.X.tobytes() == table.tobytes()


def test_columns_are_chosen_by_name_although_one_begins_like_another(table: Matrix, write: Callable[..., Path]) -> None:
    path = write({"x.a": table[:, 0], "x": table[:, 1], " note ": ["text"] * N, "y": table[:, 2]})
    data = Dataset.read(path, columns=["y", "x"])
    assert data.variables == ("y", "x")
    assert np.array_equal(data.X, table[:, [2, 1]])
    assert "column 'note': 30 row(s) are not numbers" in refusal(path)


@pytest.mark.parametrize("kind", ["float32", "int8", "int64", "uint16", "bool_", "decimal128"])
def test_numbers_of_every_kind_are_read(write: Callable[..., Path], kind: str) -> None:
    whole = np.arange(N) % 2 if kind == "bool_" else np.arange(N) - (0 if kind == "uint16" else 10)
    to = pyarrow.decimal128(25, 2) if kind == "decimal128" else getattr(pyarrow, kind)()
    path = write({"a": np.linspace(-1.0, 1.0, N), "b": pyarrow.array(whole).cast(to)})
    with pytest.warns(DataWarning) if kind in ("bool_", "uint16") else pytest.MonkeyPatch.context():
        data = Dataset.read(path)
    assert np.array_equal(data.X[:, 1], whole)


@pytest.mark.parametrize(
    "values", [["high"] * N, [datetime.date(2020, 1, 1)] * N, pyarrow.array(["x"] * N).dictionary_encode(), [[1.0]] * N]
)
def test_what_is_no_number_is_refused_by_column_and_count(write: Callable[..., Path], values: Any) -> None:
    text = refusal(write({"age": np.linspace(-1, 1, N), "b": values}))
    assert text == "column 'b': 30 row(s) are not numbers (data rows 1, 2, 3, ...)"


def test_missing_values_are_kept_and_counted_by_variable(table: Matrix, write: Callable[..., Path]) -> None:
    columns = {name: table[:, k].tolist() for k, name in enumerate(NAMES)}
    columns["age"][3] = columns["age"][29] = columns["mass"][0] = None
    table[[3, 29, 0], [0, 0, 2]] = np.nan
    data = Dataset.read(write(columns, row_group_size=7), warn=False)
    assert np.array_equal(data.X, table, equal_nan=True)
    assert (data.gaps.rows, data.gaps.by_variable) == (3, {"age": 2, "mass": 1})


def test_values_are_checked_as_those_of_other_files(table: Matrix, write: Callable[..., Path]) -> None:
    table[3, 1] = np.inf
    table[:, 2] = 7.0
    text = refusal(write(table))
    assert "column 'dose': 1 row(s) are infinite" in text
    assert f"column 'mass': the same value in all {N} rows" in text
    assert f"{N} rows; at least {N + 1}" in refusal(write(table), min_rows=N + 1)
    assert "0 rows" in refusal(write(table[:0]))


@pytest.mark.parametrize(
    ("names", "said"),
    [(("a", "(Intercept)"), "a name must not be"), (("a", " a"), "more than once"), (("a",), "one c")],
)
def test_names_are_checked_as_those_of_other_files(
    table: Matrix, write: Callable[..., Path], names: tuple[str, ...], said: str
) -> None:
    assert said in refusal(write(dict(zip(names, table.T, strict=False))))


def test_a_damaged_file_is_refused(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    whole = path.read_bytes()
    for damaged in (whole[:4] + bytes(60) + whole[-4:], whole[:4] + b"\xff" * 40 + whole[44:]):
        path.write_bytes(damaged)
        assert "cannot be read" in refusal(path)


@pytest.mark.long
def test_a_changed_byte_of_pages_with_checksums_is_never_read_as_another_number(
    table: Matrix, write: Callable[..., Path]
) -> None:
    path = write(table, write_page_checksum=True)
    whole = path.read_bytes()
    footer_bytes = int.from_bytes(whole[-8:-4], "little")  # without a checksum; after it, its length and a mark
    for k in range(4, len(whole) - 8 - footer_bytes, 3):
        path.write_bytes(whole[:k] + bytes([whole[k] ^ 0b100]) + whole[k + 1 :])
        try:
            found = Dataset.read(path)
        except DataError:
            continue
        assert found.X.tobytes() == table.tobytes(), f"byte {k} of {len(whole)}"


def test_without_pyarrow_the_extra_is_named(
    table: Matrix, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(table)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "needs pyarrow: pip install 'fedbnsl-site[parquet]', or save the table as CSV" in refusal(path)


def test_a_site_may_change_from_one_form_to_the_other(write: Callable[..., Path], tmp_path: Path) -> None:
    """It is the content that the ledger knows."""
    X = np.random.default_rng(1).standard_normal((120, 3))
    folder = tmp_path / "own"
    policy: Policy = make_site(folder, table=write_table(tmp_path / "site.data", X))
    write(X)
    with site_folder.opened(folder) as (_, ledger):
        table = site_folder.read_table(folder, policy, DATASET)
        ledger.registrations.check_table(DATASET, table.variables, table.X)
