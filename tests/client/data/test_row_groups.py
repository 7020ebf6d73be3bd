"""Rows that belong together become records as the data dictionary says; what tells them apart is no variable."""

import csv
import math
import sqlite3
import unicodedata
from collections import defaultdict
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.row_groups import RowGroups
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_client.data.reading import ColumnMap
from fedbnsl_client.data.row_groups import prepared_rows

pytestmark = pytest.mark.usefixtures("each_reader")

Row = dict[str, Any]
VALUES = ("x", "y", "z", "sex")
PLAIN: dict[str, dict[str, Any]] = {
    "patient": {"kind": "group"},
    "visit": {"kind": "time"},
    "x": {},
    "y": {},
    "z": {},
    "sex": {"kind": "binary", "levels": ["f", "m"]},
}


def described(**changes: dict[str, Any] | None) -> Dictionary:
    entries = {name: {**PLAIN.get(name, {}), **(changes.get(name) or {})} for name in {**PLAIN, **changes}}
    return Dictionary.model_validate({name: one for name, one in entries.items() if changes.get(name, {}) is not None})


def visits(*, gaps: bool = True, most: int = 5, patients: int = 30) -> list[Row]:
    """Rows of patients with different numbers of visits, shuffled."""
    rng = np.random.default_rng(3)
    rows: list[Row] = []
    for p in range(patients):
        level = rng.standard_normal(3)
        for t in range(rng.integers(1, most + 1)):
            x, y, z = (level + 0.5 * rng.standard_normal(3)).tolist()
            rows.append({"patient": f"P{p}", "visit": f"2024-03-{t + 1:02d}", "x": x, "y": y, "z": z})
            rows[-1]["sex"] = "fm"[int(rng.random() < 0.4)]
    if gaps:
        for k in range(0, len(rows), 4):
            rows[k]["xyz"[k % 3]] = None
    rng.shuffle(rows)  # type: ignore[arg-type]
    return rows


def write(path: Path, rows: list[Row]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            [{k: "" if v is None else repr(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
        )
    return path


def read(tmp_path: Path, rows: list[Row], dictionary: Dictionary, **settings: Any) -> Dataset:
    return Dataset.read(write(tmp_path / "t.csv", rows), dictionary=dictionary, warn=False, **settings)


def groups(rows: list[Row]) -> dict[str, list[list[float]]]:
    """Values of the rows of each patient in the order of their visits, patients in that of their first rows."""
    found: dict[str, list[tuple[str, list[float]]]] = defaultdict(list)
    for row in rows:
        numbers = [np.nan if row[name] is None else float(row[name]) for name in "xyz"]
        found[row["patient"]].append((row["visit"], [*numbers, float(row["sex"] == "m")]))
    return {patient: [values for _, values in sorted(of)] for patient, of in found.items()}


def _mean(values: tuple[float, ...]) -> float:
    there = [value for value in values if value == value]
    return sum(there) / len(there) if there else math.nan


def moments(X: Matrix) -> Matrix:
    return np.asarray(X.T @ X)


# ---- between -------------------------------------------------------------------------------------------------------


def test_between_makes_one_record_a_group_of_the_means_of_the_values_that_are_there(tmp_path: Path) -> None:
    rows = visits()
    table = read(tmp_path, rows, described())
    assert table.variables == VALUES
    expected = [[_mean(column) for column in zip(*of, strict=True)] for of in groups(rows).values()]
    np.testing.assert_allclose(table.X, np.array(expected), rtol=1e-12)
    assert table.gaps.of == table.n_samples == len(groups(rows)) < len(rows)


def test_a_group_without_a_value_has_a_gap(tmp_path: Path) -> None:
    rows = visits(gaps=False)
    for row in rows:
        row["y"] = None if row["patient"] in ("P1", "P2") else row["y"]
    table = read(tmp_path, rows, described())
    assert (table.gaps.rows, dict(table.gaps.by_variable)) == (2, {"y": 2})


def test_means_stay_within_public_ranges_and_of_equal_values_are_the_value(tmp_path: Path) -> None:
    rows = [{"patient": str(k // 3), "x": 0.1, "y": float(k % 7), "z": float(k % 5)} for k in range(90)]
    table = read(tmp_path, rows, described(visit=None, sex=None, x={"range": [0.0, 0.1]}))
    assert (table.X[:, 0] == 0.1).all()


def test_one_row_a_group_gives_the_same_bits_as_no_group(tmp_path: Path) -> None:
    rows = visits(most=1, gaps=False)
    grouped = read(tmp_path, rows, described())
    alone = read(tmp_path, rows, described(patient=None, visit=None))
    assert grouped.X.tobytes() == alone.X.tobytes()
    assert grouped.gaps == alone.gaps


def test_ranges_hold_of_rows_before_means_are_taken(tmp_path: Path) -> None:
    rows = visits(gaps=False)
    rows[0]["x"] = 999.0
    table = read(tmp_path, rows, described(x={"range": [-50.0, 50.0]}))
    of = [row["x"] for row in rows[1:] if row["patient"] == rows[0]["patient"]]
    expected = np.mean(of) if of else np.nan
    np.testing.assert_allclose(table.X[0, 0], expected)
    assert any("outside the range" in one.text and f"'x' 1 ({1 / len(rows):.1%})" in one.text for one in table.odd)


# ---- within --------------------------------------------------------------------------------------------------------


def test_within_has_the_moments_of_deviations_and_a_record_for_each_of_their_degrees_of_freedom(tmp_path: Path) -> None:
    rows = visits()
    used = read(tmp_path, rows, described(patient={"within": "within"})).complete_cases()
    deviations, n_groups = [], 0
    for of in groups(rows).values():
        whole = np.array([values for values in of if not np.isnan(values).any()])
        if len(whole):
            deviations.append(whole - whole.mean(axis=0))
            n_groups += 1
    D = np.concatenate(deviations)
    np.testing.assert_allclose(moments(used.X), moments(D), atol=1e-10)
    assert used.n_samples == len(D) - n_groups
    degrees = len(rows) - len(groups(rows))
    assert (used.gaps.rows, used.gaps.of) == (degrees - used.n_samples, degrees)


def test_within_a_rarely_filled_column_takes_no_other_columns_with_it(tmp_path: Path) -> None:
    """z of half of the rows of some patients, and of none of others: x and y have all of their deviations."""
    rows = visits(gaps=False)
    for k, row in enumerate(rows):
        row["z"] = row["z"] if k % 2 and row["patient"] < "P2" else None
    X = read(tmp_path, rows, described(patient={"within": "within"})).X
    other = np.concatenate([of - of.mean(axis=0) for of in map(np.array, groups(rows).values())])
    np.testing.assert_allclose(moments(X[:, [0, 1, 3]]), moments(other[:, [0, 1, 3]]), atol=1e-10)
    of_z = [np.array([row for row in of if not np.isnan(row).any()]) for of in groups(rows).values()]
    whole = np.concatenate([one - one.mean(axis=0) for one in of_z if len(one)])
    told = X[~np.isnan(X[:, 2])]
    assert (len(X), len(told)) == (len(rows) - len(of_z), sum(max(len(one) - 1, 0) for one in of_z))
    np.testing.assert_allclose(moments(told), moments(whole), atol=1e-10)


def test_within_a_site_may_lack_a_column(tmp_path: Path) -> None:
    rows = visits()
    dictionary = described(patient={"within": "within"})
    for row in rows:
        row.pop("z")
    table = read(tmp_path, rows, dictionary, mapping=ColumnMap.model_validate({"z": {"absent": True}}))
    alone = read(tmp_path, rows, described(patient={"within": "within"}, z=None))
    np.testing.assert_array_equal(table.X[:, [0, 1, 3]], alone.X)
    assert np.isnan(table.X[:, 2]).all()
    assert np.isfinite(alone.X).all(axis=1).sum() > 20


def test_within_records_of_rows_with_gaps_vary_as_rows_do() -> None:
    """Each pair of columns over the records that have both: 2000 groups of four rows that lack three cells in ten."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(2000.0), 4)
    S = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, -0.4], [0.0, -0.4, 1.0]])
    X = rng.multivariate_normal(np.zeros(3), S, len(group)) + 3.0 * rng.standard_normal((2000, 3))[group.astype(int)]
    X[rng.random(X.shape) < 0.3] = np.nan
    keys = np.column_stack([group, np.zeros((len(group), 2))])
    records, _ = prepared_rows(np.hstack([keys, X]), RowGroups("patient", within="within"), (), "table")
    for i, j in np.ndindex(3, 3):
        both = records[np.isfinite(records[:, i] + records[:, j])]
        assert len(both) > 2000
        assert np.mean(both[:, i] * both[:, j]) == pytest.approx(S[i, j], abs=0.09), "four standard errors"


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_rows_stay_as_they_are(tmp_path: Path) -> None:
    rows = visits()
    table = read(tmp_path, rows, described(patient={"within": "rows"}))
    expected = np.concatenate([np.array(of) for of in groups(rows).values()])
    np.testing.assert_array_equal(table.X, expected)


# ---- lags ----------------------------------------------------------------------------------------------------------


def test_lags_put_the_row_before_beside_each_row_and_the_first_has_none(tmp_path: Path) -> None:
    rows = visits(gaps=False)
    table = read(tmp_path, rows, described(visit={"lags": 1}, sex={"fixed": True}))
    assert table.variables == ("x", "y", "z", "sex", "x@-1", "y@-1", "z@-1")
    expected = [
        [*now, *(before[:3] if before else [np.nan] * 3)]
        for of in groups(rows).values()
        for before, now in zip([None, *of[:-1]], of, strict=True)
    ]
    np.testing.assert_array_equal(table.X, np.array(expected))
    n = len(groups(rows))
    assert (table.gaps.rows, table.gaps.first, table.gaps.of) == (n, n, len(rows))
    assert table.gaps.said() == f"{n} row(s) are left out, which lack a value: {n} as the first of their group"


def test_a_table_with_a_time_and_no_group_is_one_series(tmp_path: Path) -> None:
    rows = [{"visit": str(t), "x": float(t * t % 17), "y": float(t * 7 % 11)} for t in range(40)]
    shuffled = [rows[k] for k in np.random.default_rng(0).permutation(40)]
    two = Dictionary.model_validate({"visit": {"kind": "time", "lags": 1}, "x": {}, "y": {}})
    table = read(tmp_path, shuffled, two)
    X = np.array([[row["x"], row["y"]] for row in rows])
    np.testing.assert_array_equal(table.complete_cases().X, np.hstack([X[1:], X[:-1]]))


@pytest.mark.parametrize(
    ("cells", "here"),
    [
        (["2024-01-02", "2023-12-31", "2024-01-02T10:00"], {}),
        (["20240102", "20231231", "20240103"], {}),
        (["9.5", "-1", "10"], {}),
        (["02.01.2024", "31.12.2023", "03.01.2024"], {"format": "%d.%m.%Y"}),
        (["2024-01-02T10:00+02:00", "2024-01-02T08:30+01:00", "2024-01-02T09:00+00:00"], {}),
    ],
)
def test_times_are_ordered_as_they_are_written(tmp_path: Path, cells: list[str], here: dict[str, Any]) -> None:
    order = [1, 0, 2]
    rows = [
        {"patient": f"{p}", "visit": cell, "x": 10.0 * p + k, "y": float(p * p % 7 + k * k), "z": float(p * k % 5)}
        for p in range(12)
        for k, cell in enumerate(cells)
    ]
    mapping = ColumnMap.model_validate({"visit": here}) if here else ColumnMap()
    table = read(tmp_path, rows, described(visit={"lags": 1}, sex=None), mapping=mapping)
    assert table.X[:3, 0].tolist() == order
    assert table.X[1:3, 3].tolist() == order[:2]


def test_first_rows_do_not_count_as_gaps_that_a_plan_refuses(tmp_path: Path) -> None:
    rows = visits(gaps=False, most=2, patients=60)
    dictionary = described(visit={"lags": 1}, sex={"fixed": True})
    plan = Plan.load("standard", ["preparation.missing='complete-cases'"]).with_dictionary(dictionary, origin="here")
    refusing = plan.with_settings(preparation={"missing": "refuse"})
    table = read(tmp_path, rows, dictionary, min_rows=5)
    assert table.gaps.rows > table.gaps.of / 2
    assert rows_for(table, refusing).n_samples == rows_for(table, plan).n_samples == table.gaps.of - table.gaps.first
    second = [row for row in rows if row["visit"].endswith("02")]
    for row in second[: len(second) * 2 // 3]:
        row["z"] = None
    table = read(tmp_path, rows, dictionary, min_rows=5)
    lacking = len(second) * 2 // 3
    assert table.gaps.said().endswith(f"{table.gaps.first} as the first of their group; 'z' {lacking}")
    with pytest.raises(DataError, match="The plan wants none to be left out"):
        rows_for(table, refusing)


# ---- what cannot be used -------------------------------------------------------------------------------------------


def refusal(tmp_path: Path, rows: list[Row], dictionary: Dictionary) -> str:
    with pytest.raises(DataError) as caught:
        read(tmp_path, rows, dictionary)
    return f"{caught.value} | {caught.value.remedy}"


LAGS = {"visit": {"lags": 1}, "sex": {"fixed": True}}


def test_a_time_that_does_not_parse_is_refused_with_the_way_on(tmp_path: Path) -> None:
    rows = visits()
    rows[4]["visit"] = "03/04/2024"
    text = refusal(tmp_path, rows, described())
    assert "column 'visit': 1 row(s) are no time" in text
    assert "(line 6)" in text
    assert "format = '%d.%m.%Y'" in text
    assert "03/04/2024" not in text


def test_times_of_two_kinds_have_no_order(tmp_path: Path) -> None:
    rows = visits()
    rows[4]["visit"] = "20240304"
    assert "'visit' holds numbers and times without a zone, whose order is not known" in refusal(
        tmp_path, rows, described()
    )


def test_a_group_column_with_one_group_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "patient": "P"} for row in visits()]
    text = refusal(tmp_path, rows, described())
    assert "all rows have the same 'patient'" in text
    assert "one series" in text


def test_rows_of_nobody_are_refused(tmp_path: Path) -> None:
    rows = visits()
    rows[0]["patient"] = rows[5]["patient"] = None
    assert "column 'patient': 2 row(s) lack a value" in refusal(tmp_path, rows, described())


def test_lags_need_an_order(tmp_path: Path) -> None:
    rows = visits()
    rows[0]["visit"] = None
    assert "column 'visit': 1 row(s) lack a value" in refusal(tmp_path, rows, described(**LAGS))
    rows = [{**row, "visit": "2024-01-01"} for row in visits()]
    twice = len(rows) - len({row["patient"] for row in rows})
    assert f"{twice} row(s) have the 'visit' of the row before" in refusal(tmp_path, rows, described(**LAGS))


def test_lags_and_deviations_need_groups_of_two_rows(tmp_path: Path) -> None:
    rows = visits(most=1)
    assert "no 'patient' has two rows, and lags need them" in refusal(tmp_path, rows, described(**LAGS))
    within = described(patient={"within": "within"})
    assert "no 'patient' has two rows, and deviations within need them" in refusal(tmp_path, rows, within)


def test_what_stays_the_same_has_no_lag(tmp_path: Path) -> None:
    rows = [{**row, "sex": "fm"[int(row["patient"][1:]) % 2]} for row in visits()]
    text = refusal(tmp_path, rows, described(visit={"lags": 1}))
    assert "'sex': the same in every row as in the one before" in text
    assert "fixed = true" in text


# ---- what people at the site are told ------------------------------------------------------------------------------


def test_the_site_is_told_how_many_groups_and_how_alike_their_rows_are(tmp_path: Path) -> None:
    rows = visits(gaps=False)
    table = read(tmp_path, rows, described())
    sizes = [len(of) for of in groups(rows).values()]
    said = [one.text for one in table.odd]
    counts = f"{len(sizes)} groups of {min(sizes)} to {max(sizes)} rows, median {np.median(sizes):g}"
    assert any(text.startswith(counts) for text in said)
    (shares,) = (text for text in said if "ICC" in text)
    told = dict(part.strip().rsplit(" ", 1) for part in shares.partition(": ")[2].split(", "))
    for k, name in enumerate(VALUES):
        assert float(told[repr(name)]) == pytest.approx(
            _icc([np.array(of)[:, k] for of in groups(rows).values()]), abs=0.006
        )
    assert not any(one.finding for one in table.odd if one.text in said and ("groups" in one.text or "ICC" in one.text))


def _icc(of_groups: list[Matrix]) -> float:
    """From the textbook's one-way table."""
    n, k = sum(map(len, of_groups)), len(of_groups)
    mean = np.concatenate(of_groups).mean()
    between = sum(len(g) * (g.mean() - mean) ** 2 for g in of_groups) / (k - 1)
    within = sum(((g - g.mean()) ** 2).sum() for g in of_groups) / (n - k)
    size = (n - sum(len(g) ** 2 for g in of_groups) / n) / (k - 1)
    return float(max((between - within) / (between + (size - 1) * within), 0.0))


# ---- readers -------------------------------------------------------------------------------------------------------


def numbered(rows: list[Row]) -> list[Row]:
    """The same rows with numbers for patients."""
    return [{**row, "patient": int(row["patient"][1:])} for row in rows]


def test_parquet_and_a_database_are_prepared_as_csv_is(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = numbered(visits())
    expected = read(tmp_path, rows, described(**LAGS))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    days = [datetime.fromisoformat(cell) for cell in columns["visit"]]
    parquet.write_table(
        arrow.table({**columns, "visit": arrow.array(days, arrow.timestamp("ms"))}), tmp_path / "t.parquet"
    )
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        database.execute("create table t (patient, visit, x, y, z, sex)")
        database.executemany("insert into t values (?, ?, ?, ?, ?, ?)", [tuple(row.values()) for row in rows])
        database.commit()
    query = '[database]\nurl = "sqlite:///t.db"\nquery = "select sex, x, y, z, visit, patient from t"\n'
    (tmp_path / "table.toml").write_text(query, encoding="utf-8")
    for name in ("t.parquet", "table.toml"):
        found = Dataset.read(tmp_path / name, dictionary=described(**LAGS), warn=False)
        assert found.variables == expected.variables
        np.testing.assert_array_equal(found.X, expected.X)
        assert found.gaps == expected.gaps


def test_names_of_patients_are_one_in_either_form_of_unicode(tmp_path: Path) -> None:
    rows = visits()
    named = [{**row, "patient": "\u00e9" + row["patient"]} for row in rows]
    spelled = [
        {**row, "patient": unicodedata.normalize("NFD" if k % 2 else "NFC", row["patient"])}
        for k, row in enumerate(named)
    ]
    np.testing.assert_array_equal(read(tmp_path, spelled, described()).X, read(tmp_path, named, described()).X)


def test_numbers_of_patients_are_one_in_every_spelling(tmp_path: Path) -> None:
    rows = visits(gaps=False)
    spelled = [{**row, "patient": row["patient"][1:] + ".0" * (k % 2)} for k, row in enumerate(rows)]
    np.testing.assert_array_equal(read(tmp_path, spelled, described()).X, read(tmp_path, numbered(rows), described()).X)


def test_a_site_says_what_its_columns_are_called(tmp_path: Path) -> None:
    rows = visits()
    own = [{{"patient": "Pat", "visit": "Tag"}.get(name, name): cell for name, cell in row.items()} for row in rows]
    mapping = ColumnMap.model_validate({"patient": {"column": "Pat"}, "visit": {"column": "Tag"}})
    np.testing.assert_array_equal(
        read(tmp_path, own, described(), mapping=mapping).X, read(tmp_path, rows, described()).X
    )


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"patient": {"factor": 2.0}}, "'patient' is of kind group, and so has no factor"),
        ({"x": {"format": "%d"}}, "'x' is not of kind time, and so has no format"),
    ],
)
def test_a_site_cannot_say_what_does_not_fit(tmp_path: Path, here: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(tmp_path, visits(), described(), mapping=ColumnMap.model_validate(here))


def test_dask_is_refused_with_the_reason(tmp_path: Path) -> None:
    dask_table = pytest.importorskip("fedbnsl_client.data.dask_table")
    with pytest.raises(DataError, match="hold parts of the table, over which a group may be spread") as caught:
        dask_table.read(None, tmp_path, dictionary=described())
    assert "Leave out --engine" in str(caught.value.remedy)
