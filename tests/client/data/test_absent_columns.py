"""A table without some columns of the dictionary: what `absent = true` makes of it is what empty columns would give."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.drafts.column_map_draft import draft_column_map
from fedbnsl_client.data.plan_fit import remarks, rows_for
from fedbnsl_client.data.reading import SAME_NAMES, ColumnMap

pytestmark = pytest.mark.usefixtures("each_reader")

ENTRIES: dict[str, dict[str, Any]] = {
    "age": {"range": [0, 110]},
    "crp": {"range": [0, 500], "transform": "log1p"},
    "blood": {"kind": "nominal", "levels": ["0", "A", "B"]},
    "sex": {"kind": "binary", "levels": ["f", "m"]},
}
WARD = Dictionary.from_plain(ENTRIES, origin="ward")
LACKING = ColumnMap.model_validate({"crp": {"absent": True}, "blood": {"absent": True}})
N = 60


def columns(dictionary: Dictionary = WARD) -> dict[str, list[object]]:
    drawn = np.random.default_rng(3)
    found: dict[str, list[object]] = {
        "sex": drawn.choice(["f", "m"], N).tolist(),
        "note": ["x"] * N,
        "age": drawn.integers(20, 90, N).tolist(),
    }
    if dictionary.rows:
        found |= {"patient": [k // 3 for k in range(N)], "visit": [k % 3 for k in range(N)]}
    return found


def _csv(folder: Path, cells: dict[str, list[object]]) -> Path:
    rows = [",".join("" if cell is None else str(cell) for cell in row) for row in zip(*cells.values(), strict=True)]
    path = folder / "ward.csv"
    path.write_text("\n".join([",".join(cells), *rows, ""]), encoding="utf-8")
    return path


def _parquet(folder: Path, cells: dict[str, list[object]]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(cells), folder / "ward.parquet")
    return folder / "ward.parquet"


def _database(folder: Path, cells: dict[str, list[object]]) -> Path:
    pytest.importorskip("pyarrow")
    (folder / "ward.db").unlink(missing_ok=True)
    with sqlite3.connect(folder / "ward.db") as database:
        database.execute(f"create table ward ({', '.join(cells)})")
        database.executemany(
            f"insert into ward values ({', '.join('?' * len(cells))})",
            list(zip(*cells.values(), strict=True)),
        )
    path = folder / "table.toml"
    path.write_text('[database]\nurl = "sqlite:///ward.db"\nquery = "select * from ward"\n', encoding="utf-8")
    return path


Write = Callable[[Path, dict[str, list[object]]], Path]
each_source = pytest.mark.parametrize("write", [_csv, _parquet, _database])


def read(path: Path, dictionary: Dictionary = WARD, mapping: ColumnMap = LACKING, **options: Any) -> Dataset:
    return Dataset.read(path, dictionary=dictionary, mapping=mapping, warn=False, **options)


@each_source
def test_an_absent_column_is_read_as_an_empty_one(tmp_path: Path, write: Write) -> None:
    table = read(write(tmp_path, columns()))
    empty = read(write(tmp_path, {"crp": [None] * N, "blood": [None] * N, **columns()}), mapping=SAME_NAMES)
    assert table.variables == empty.variables == ("age", "crp", "blood=A", "blood=B", "sex")
    assert np.array_equal(table.X, empty.X, equal_nan=True)
    assert table.gaps == empty.gaps
    assert table.absent == ("crp", "blood")
    assert table.reordered(["sex", "crp", "age"]).absent == ("crp",)
    assert read(write(tmp_path, columns()), columns=["age", "sex"]).absent == ()


def test_rows_of_a_group_become_records_without_the_absent_column(tmp_path: Path) -> None:
    told = {
        "patient": {"kind": "group"},
        "visit": {"kind": "time", "lags": 1},
    }
    for keys in (told, {"patient": {"kind": "group"}}):
        dictionary = Dictionary.from_plain({**ENTRIES, **keys}, origin="ward")
        cells = columns(dictionary)
        table = read(_csv(tmp_path, cells), dictionary)
        lacking: dict[str, list[object]] = {"crp": [None] * N, "blood": [None] * N}
        empty = read(_csv(tmp_path, {**lacking, **cells}), dictionary, SAME_NAMES)
        assert np.array_equal(table.X, empty.X, equal_nan=True)
        assert table.absent == tuple(name for name in dictionary.variables if name.startswith(("crp", "blood")))


def test_without_a_group_column_each_row_is_a_group(tmp_path: Path) -> None:
    grouped = Dictionary.from_plain({**ENTRIES, "patient": {"kind": "group"}}, origin="ward")
    mapping = ColumnMap.model_validate({**LACKING.root, "patient": {"absent": True}})
    alone = read(_csv(tmp_path, columns()), grouped, mapping)
    numbered = read(_csv(tmp_path, {**columns(), "patient": list(range(N))}), grouped)
    assert np.array_equal(alone.X, numbered.X, equal_nan=True)
    assert alone.absent == numbered.absent
    assert "this table does not have 'patient': no two rows belong together" in alone.remarks()
    with pytest.raises(DataError, match="no column 'patient'"):
        read(_csv(tmp_path, columns()), grouped)


def test_nothing_odd_is_told_of_an_absent_column(tmp_path: Path) -> None:
    told = remarks(read(_csv(tmp_path, columns())), Plan.load("standard"))
    assert told == [
        "this table does not have 'crp', 'blood'",
        f"{N} row(s) lack a value, and count for those that they have: 'crp' {N}, 'blood' {N}",
    ]


@each_source
def test_a_column_that_is_neither_there_nor_said_to_be_absent_is_refused_with_both_ways_on(
    tmp_path: Path, write: Write
) -> None:
    half = ColumnMap.model_validate({"crp": {"absent": True}})
    with pytest.raises(DataError, match="no column 'blood' among the 3 of the header") as caught:
        read(write(tmp_path, columns()), mapping=half)
    assert 'column = "name"' in caught.value.remedy
    assert "absent = true" in caught.value.remedy


@each_source
def test_a_column_that_is_there_is_not_absent(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, {"crp": [1.5] * N, **columns()})
    with pytest.raises(DataError, match=r"calls 'crp' absent, and the table has such a column") as caught:
        read(path)
    assert "Take out absent = true" in caught.value.remedy


def test_what_cannot_be_absent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "columns.toml"
    path.write_text('[crp]\nabsent = true\ncolumn = "CRP"\n', encoding="utf-8")
    with pytest.raises(DataError, match="crp: absent = true stands alone"):
        ColumnMap.load(path)
    ordered = Dictionary.from_plain({**ENTRIES, "visit": {"kind": "time"}}, origin="ward")
    table = _csv(tmp_path, columns())
    no_time = ColumnMap.model_validate({**LACKING.root, "visit": {"absent": True}})
    with pytest.raises(
        DataError, match=r"'visit' orders the rows, and cannot be absent; unless lags = 1 .* leave it out"
    ):
        read(table, ordered, no_time)
    with pytest.raises(DataError, match="calls every variable absent"):
        read(table, columns=["crp", "blood"])


def test_a_plan_that_does_not_complete_gaps_is_refused_whatever_the_cells(tmp_path: Path) -> None:
    table = read(_csv(tmp_path, columns()))
    private = Plan.load("private").with_settings(dictionary=WARD.model_dump())
    robust = private.with_settings(consensus="median", privacy={"epsilon": 3.0, "secure_aggregation": False})
    for plan in (Plan.load("lean"), Plan.load("standard", ["preparation.missing='refuse'"]), robust):
        with pytest.raises(DataError, match=r"does not have 'crp', 'blood' \(absent in its columns.toml\)") as caught:
            rows_for(table, plan)
        assert "such as standard or private" in caught.value.remedy
    for plan in (Plan.load("standard"), private):
        assert rows_for(table, plan).n_samples == N


def test_the_draft_of_a_column_map_asks_whether_a_column_is_absent(tmp_path: Path) -> None:
    draft = draft_column_map(_csv(tmp_path, columns()), WARD)
    assert all("absent = true" in draft.asks[name][0] for name in ("crp", "blood"))
