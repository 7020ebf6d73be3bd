"""Tables that a data dictionary describes: each cell becomes what the dictionary and the site's own words say."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import DataError, FedbnslError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import FindingCode
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import fingerprint, recognised
from fedbnsl_client.data.plan_fit import remarks
from fedbnsl_client.data.reading import ColumnMap

pytestmark = pytest.mark.usefixtures("each_reader")

N = 40
WARD = Dictionary.model_validate(
    {
        "age": {"unit": "years", "range": [0, 110]},
        "crp": {"unit": "mg/l", "range": [0, 500], "transform": "log1p"},
        "visits": {"kind": "count"},
        "sex": {"kind": "binary", "levels": ["f", "m"]},
        "stage": {"kind": "ordinal", "levels": ["I", "II", "III"]},
        "blood": {"kind": "nominal", "levels": ["0", "A", "B", "AB"]},
    }
)
HERE = ColumnMap.model_validate(
    {
        "age": {"column": "Alter (Monate)", "factor": 1 / 12, "missing": ["-9", "unknown"]},
        "sex": {"column": "Geschlecht", "levels": {"f": ["w", "weiblich"], "m": "maennlich"}},
    }
)
HEADER = "note,Geschlecht,stage,Alter (Monate),crp,visits,blood"
COLUMNS = ("age", "crp", "visits", "sex", "stage", "blood=A", "blood=B", "blood=AB")
ROW = ["x", "weiblich", "II", "600", "99", "3", "B"]


def ward(n: int = N) -> list[list[str]]:
    drawn = np.random.default_rng(3)
    return [
        [
            f"patient {k}",
            drawn.choice(["w", "weiblich", "maennlich"]),
            drawn.choice(["I", "II", "III"]),
            str(drawn.integers(240, 1000)),
            str(round(drawn.uniform(0, 300), 3)),
            str(drawn.integers(0, 9)),
            drawn.choice(["0", "A", "B", "AB"]),
        ]
        for k in range(n)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(rows: Sequence[Sequence[str]], header: str = HEADER) -> Path:
        path = tmp_path / "ward.csv"
        path.write_text("\n".join([header, *map(",".join, rows), ""]), encoding="utf-8")
        return path

    return written


def read(path: Path, **options: Any) -> Dataset:
    return Dataset.read(path, **{"dictionary": WARD, "mapping": HERE, "warn": False, **options})


def refusal(path: Path, **options: Any) -> FedbnslError:
    with pytest.raises(DataError) as caught:
        read(path, **options)
    return caught.value


def with_cells(rows: list[list[str]], **cells: str) -> list[list[str]]:
    """The rows with the first one's cells replaced, by column of the header."""
    names = HEADER.split(",")
    return [[cells.get(name.partition(" ")[0], cell) for name, cell in zip(names, rows[0], strict=True)], *rows[1:]]


# ---- what a cell becomes -------------------------------------------------------------------------------------------


def test_one_record_becomes_by_hand_what_the_dictionary_says(write: Callable[..., Path]) -> None:
    data = read(write([ROW, *ward()]))
    assert data.variables == COLUMNS
    # 600 months are 50 years; ln(1 + 99); ln(1 + 3); the first level; the second of three; B among A, B, AB
    assert data.X[0] == pytest.approx([50.0, math.log(100.0), math.log(4.0), 0.0, 1.0, 0.0, 1.0, 0.0], rel=1e-15)
    assert data.dictionary.digest() == WARD.digest()


@pytest.mark.parametrize(
    ("cell", "column", "value"),
    [
        ({"Alter": "2400"}, 0, math.nan),  # 200 years: not in the range, and so not known
        ({"Alter": "1320"}, 0, 110.0),
        ({"Alter": "-12"}, 0, math.nan),
        ({"crp": "1e9"}, 1, math.nan),
        ({"crp": "-3"}, 1, math.nan),
        ({"visits": "0"}, 2, 0.0),
        ({"Geschlecht": " w "}, 3, 0.0),
        ({"Geschlecht": "maennlich"}, 3, 1.0),
        ({"stage": "III"}, 4, 2.0),
        ({"blood": "0"}, 5, 0.0),
        ({"blood": "0.0"}, 6, 0.0),
        ({"blood": "AB"}, 7, 1.0),
        *(({"Alter": missing}, 0, math.nan) for missing in ("-9", "-9.0", "unknown", " unknown ", "NA", "")),
        ({"blood": "NA"}, 7, math.nan),
    ],
)
def test_cells_become_values(write: Callable[..., Path], cell: dict[str, str], column: int, value: float) -> None:
    found = read(write(with_cells([ROW, *ward()], **cell))).X[0, column]
    assert found == pytest.approx(value, rel=1e-15, nan_ok=True)


def test_what_stands_for_a_missing_value_in_one_column_is_a_number_in_others(write: Callable[..., Path]) -> None:
    here = ColumnMap.model_validate({**HERE.root, "visits": {"missing": ["3"]}})
    data = read(write([ROW, *ward()]), mapping=here)
    assert np.isnan(data.X[0, 2])
    assert data.gaps.by_variable["visits"] == data.gaps.rows


def test_a_code_before_the_first_table_stands_for_a_missing_value_in_every_column(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    columns = 'missing = ["*", "-1"]\n[age]\ncolumn = "Alter (Monate)"\nfactor = 0.08\n[sex]\ncolumn = "Geschlecht"\n'
    columns += 'levels = { f = ["w", "weiblich"], m = "maennlich" }\n'
    (tmp_path / "columns.toml").write_text(columns, encoding="utf-8")
    here = ColumnMap.load(tmp_path / "columns.toml")
    rows = ward()
    rows[0][3] = rows[1][4] = rows[1][1] = rows[2][6] = "*"
    rows[3][5] = "-1.0"
    found = read(write(rows), mapping=here)
    assert found.gaps.by_variable == {"age": 1, "crp": 1, "visits": 1, "sex": 1, "blood": 1}


def test_a_column_map_that_cannot_be_used_says_where(tmp_path: Path) -> None:
    path = tmp_path / "columns.toml"
    for text, said in (
        ('missing = "*"', "missing: input should be a valid array"),
        ("[age]\nfactor = 0", "age.factor: "),
        ('[missing]\ncolumn = ""\nunit = "m"', "missing.unit: "),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=said):
            ColumnMap.load(path)


def test_missing_levels_are_counted_once_a_variable(write: Callable[..., Path]) -> None:
    data = read(write(with_cells(ward(), blood="", Alter="-9")))
    assert (data.gaps.rows, data.gaps.of, data.gaps.by_variable) == (1, N, {"age": 1, "blood": 1})
    assert np.isnan(data.X[0, [0, 5, 6, 7]]).all()
    complete = data.complete_cases()
    assert complete.n_samples == N - 1
    assert np.array_equal(complete.X, data.X[1:])
    turned = data.reordered(["blood=AB", "blood=A", "blood=B", "sex"])
    assert (turned.gaps.rows, turned.gaps.by_variable) == (1, {"blood": 1})
    assert turned.dictionary.variables == ("blood", "sex")


def test_columns_name_variables_of_the_dictionary(write: Callable[..., Path]) -> None:
    path = write(ward())
    data = read(path, columns=["blood", "age"])
    assert data.variables == ("blood=A", "blood=B", "blood=AB", "age")
    assert data.dictionary.variables == ("blood", "age")
    assert np.array_equal(data.X, read(path).X[:, [5, 6, 7, 0]])
    with pytest.raises(DataError, match="the data dictionary has no variable 'height'; it has age, crp"):
        read(path, columns=["age", "height"])


def test_a_parquet_file_with_types_of_its_own_gives_what_the_text_gives(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = with_cells(ward(), Alter="-9", blood="")
    cells = dict(zip(HEADER.split(","), zip(*rows, strict=True), strict=True))
    typed = {
        "blood": pyarrow.array([cell or None for cell in cells["blood"]]).dictionary_encode(),
        "Geschlecht": pyarrow.array([cell == "maennlich" for cell in cells["Geschlecht"]]),
        "stage": pyarrow.array([len(cell) for cell in cells["stage"]]),
        "Alter (Monate)": pyarrow.array(list(map(float, cells["Alter (Monate)"]))),
        "crp": pyarrow.array(list(map(float, cells["crp"]))),
        "visits": pyarrow.array(cells["visits"]),
    }
    parquet.write_table(pyarrow.table(typed), tmp_path / "ward.parquet")
    levels = {"I": "1", "II": "2", "III": "3"}
    here = ColumnMap.model_validate(
        {
            **HERE.root,
            "sex": {"column": "Geschlecht", "levels": {"f": "false", "m": "true"}},
            "stage": {"levels": levels},
        }
    )
    found = read(tmp_path / "ward.parquet", mapping=here)
    assert found.X.tobytes() == read(write(rows)).X.tobytes()


# ---- what is odd, and what is refused ------------------------------------------------------------------------------


def test_values_outside_the_range_are_counted_for_the_site(write: Callable[..., Path]) -> None:
    rows = ward()
    rows[0][3] = rows[1][3] = "9999"
    rows[2][4] = "-1"
    with pytest.warns(DataWarning) as told:
        data = read(write(rows), warn=True)
    said = [str(one.message) for one in told]
    assert said[0] == "3 row(s) lack a value: 'age' 2, 'crp' 1"
    assert said[1].endswith("count as missing: 'age' 2 (5.0%), 'crp' 1 (2.5%)")
    assert data.gaps.rows == 3
    assert [one.finding for one in data.odd if one.finding is None] == [None], "nothing of it leaves the site"


def test_what_ranges_leave_empty_is_told_and_a_table_without_any_value_is_refused(write: Callable[..., Path]) -> None:
    """A wrong unit does this."""
    rows = [[*row[:3], "9999", *row[4:]] for row in ward()]
    data = read(write(rows))
    assert [text for text in data.remarks() if "'age'" in text] == [
        f"{N} row(s) lack a value: 'age' {N}",
        "column 'age': no value in any row",
        f"value(s) outside the range of the data dictionary count as missing: 'age' {N} (100.0%); is 'age' in another "
        "unit here? Then say so in columns.toml (`factor`)",
    ]
    both = Dictionary.model_validate({"age": {"range": [0, 110]}, "dose": {"range": [0, 9]}})
    with pytest.raises(
        DataError, match=r"40 rows without any value; .* count as missing: 'age' 40 \(100\.0%\), 'dose'"
    ):
        Dataset.of_values(["age", "dose"], np.full((N, 2), 9999.0), origin="here", dictionary=both, warn=False)


def test_a_level_that_does_not_occur_here_is_said_and_not_refused(write: Callable[..., Path]) -> None:
    rows = [[*row[:-1], row[-1] if row[-1] in ("0", "A") else "0"] for row in ward()]
    data = read(write(rows))
    assert data.remarks() == [
        f"column 'blood=B': the same value in all {N} rows",
        f"column 'blood=AB': the same value in all {N} rows",
    ]
    assert not data.X[:, 6:].any()


def test_levels_are_no_finding_and_means_one_for_plans_without_preparation(write: Callable[..., Path]) -> None:
    data = read(write(ward()))
    assert [one.finding.code for one in data.odd if one.finding] == [FindingCode.MEANS_FAR_FROM_ZERO]
    assert data.remarks() == [], "who has a dictionary means to use a plan that takes means off"
    assert remarks(data, Plan.load("standard")) == []
    assert "means further from zero" in remarks(data, Plan.load("lean"))[0]


def test_unknown_levels_are_refused_by_column_count_line_and_spelling(write: Callable[..., Path]) -> None:
    rows = ward()
    for k, cell in ((1, "divers"), (4, "D"), (5, "divers"), (7, "x\x1b[2J"), (9, "other")):
        rows[k][1] = cell
    rows[2][4] = "high"
    text = str(refusal(write(rows)))
    assert "column 'Geschlecht': 5 row(s) are no level of the data dictionary, such as 'divers', 'D', 'x" in text
    assert "(lines 3, 6, 7, ...)" in text
    assert "\x1b" not in text
    assert "other" not in text, "three spellings are enough"
    assert "column 'crp': 1 row(s) are not numbers (line 4)" in text
    assert "high" not in text, "a value is not quoted"


def test_a_mapped_column_that_is_not_there_is_refused_with_its_variable_and_the_header(
    write: Callable[..., Path],
) -> None:
    error = refusal(write(ward(), HEADER.replace("Alter (Monate)", "Alter")))
    assert "no column 'Alter (Monate)' (variable 'age' in columns.toml) among the 7 of the header" in str(error)
    assert "'Geschlecht', 'stage', 'Alter'" in str(error)
    assert "columns.toml" in error.remedy


def test_two_variables_in_one_column_are_refused(write: Callable[..., Path]) -> None:
    here = ColumnMap.model_validate({**HERE.root, "visits": {"column": "crp"}})
    assert "'crp' chosen more than once" in str(refusal(write(ward()), mapping=here))


def test_a_mapping_of_a_variable_that_the_dictionary_lacks_is_refused(write: Callable[..., Path]) -> None:
    here = ColumnMap.model_validate({"agee": {"column": "age"}})
    assert "the dictionary has no variable 'agee'" in str(refusal(write(ward()), mapping=here))


@pytest.mark.parametrize(
    ("transform", "cell", "rule"),
    [("log", "0", "above 0"), ("log", "-2", "above 0"), ("log1p", "-1", "above -1"), ("sqrt", "-1e-9", "at least 0")],
)
def test_a_value_that_the_transform_does_not_take_is_refused_by_row(
    write: Callable[..., Path], transform: str, cell: str, rule: str
) -> None:
    open_ended = Dictionary.model_validate({"crp": {"transform": transform}, "visits": {}})
    rows = [[*row[:4], row[4] if k not in (2, 30) else cell, *row[5:]] for k, row in enumerate(ward())]
    error = refusal(write(rows), dictionary=open_ended, mapping=ColumnMap())
    said = f"column 'crp': 2 row(s) are infinite, or not {rule} as {transform} needs (data rows 3, 31)"
    assert said in str(error)
    assert "range" in error.remedy
    bounded = Dictionary.model_validate({"crp": {"transform": transform, "range": [0.1, 500]}, "visits": {}})
    read_at_all = read(write(rows), dictionary=bounded, mapping=ColumnMap()).X
    assert np.flatnonzero(np.isnan(read_at_all[:, 0])).tolist() == [2, 30]


def test_an_infinite_value_is_outside_of_every_range_and_refused_without_one(write: Callable[..., Path]) -> None:
    path = write(with_cells(ward(), crp="inf"))
    assert np.isnan(read(path).X[:, 1]).any()
    open_ended = Dictionary.model_validate({"crp": {}, "visits": {}})
    assert "'crp': 1 row(s) are infinite" in str(refusal(path, dictionary=open_ended, mapping=ColumnMap()))


def test_a_value_at_the_edge_stays_there_when_a_factor_rounds(write: Callable[..., Path]) -> None:
    narrow = Dictionary.model_validate({"crp": {"range": [0.0, 0.3]}, "visits": {}})
    tenth = ColumnMap.model_validate({"crp": {"factor": 0.1}})
    rows = [[*row[:4], "3" if k < 20 else "1", *row[5:]] for k, row in enumerate(ward())]
    data = read(write(rows), dictionary=narrow, mapping=tenth)
    assert 3 * 0.1 > 0.3
    assert data.gaps.rows == 0
    assert data.X[:, 0].max() == 0.3


# ---- what the ledger knows it by -----------------------------------------------------------------------------------

KEY = bytes(range(32))


def both(X: Matrix) -> tuple[str, list[str]]:
    _, whole, columns = recognised(KEY, COLUMNS, X)
    return whole, columns


def test_a_table_with_gaps_has_one_fingerprint_whatever_the_order_of_its_rows(write: Callable[..., Path]) -> None:
    rows = [[cell if (k * 7 + j) % 17 else "" for j, cell in enumerate(row)] for k, row in enumerate(ward())]
    table = read(write(rows), min_rows=1).X
    assert np.isnan(table).any()
    assert both(read(write(rows[::-1]), min_rows=1).X) == both(table)
    payload_of_nan = table.copy()
    payload_of_nan[np.isnan(table)] = np.uint64(0xFFF8000000000007).view(np.float64)
    assert both(payload_of_nan) == both(table), "a NaN has many forms"
    other = table.copy()
    other[tuple(np.argwhere(np.isnan(table))[0])] = 0.0
    assert fingerprint(KEY, COLUMNS, other) != fingerprint(KEY, COLUMNS, table)


def test_a_mark_is_offered_as_missing_only_where_it_is_no_result(write: Callable[..., Path]) -> None:
    described = Dictionary.model_validate({"arm": {"kind": "binary", "levels": ["drug", "nothing"]}, "crp": {}})
    rows = [[("drug", "none")[k % 2], ("not measured", str(k))[k % 3 > 0]] for k in range(N)]
    with pytest.raises(DataError) as refused:
        Dataset.read(write(rows, "arm,crp"), dictionary=described, warn=False)
    assert 'missing = ["not measured"]' in str(refused.value)
    assert 'missing = ["none"]' not in str(refused.value)


@pytest.mark.parametrize(("first", "told"), [("unknown", True), ("A", False)])
def test_a_first_level_that_no_row_has_is_told_at_the_site(first: str, *, told: bool) -> None:
    """A row that lacks another value may have it."""
    dictionary = Dictionary.from_plain(
        {"k": {"kind": "nominal", "levels": [first, "B", "C"]}, "y": {"range": [-9, 9]}}, origin="x"
    )
    codes = np.column_stack([np.arange(60.0) % 2 + 1, np.sin(np.arange(60.0))])
    if not told:
        codes[7] = 0.0, np.nan
    data = Dataset.of_values(("k", "y"), codes, origin="x", dictionary=dictionary, warn=False)
    said = [one for one in data.odd if f"its first level, {first!r}" in one.text]
    assert len(said) == told
    assert all(one.finding is None for one in said), "nothing of it leaves the site"
    assert all("is in no row here" in one.text for one in said)


def test_levels_with_a_comma_or_points_are_read_beside_numbers_with_decimal_commas(tmp_path: Path) -> None:
    """A version 1.2 is no number with a point, which would leave open what marks decimals; 0,5 is level 0.5."""
    levels = {"dose": ["0.5", "1"], "kind": ["1,5", "2"], "version": ["1.2", "1.10"]}
    binary = {name: {"kind": "binary", "levels": of} for name, of in levels.items()}
    dictionary = Dictionary.from_plain({"x": {}, **binary}, origin="x")
    lines = [f"{k},25;{('0,5', '1')[k % 2]};{('1,5', '2')[k % 2]};{('1.2', '1.10')[k % 2]}" for k in range(N)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x;dose;kind;version", *lines, ""]), encoding="utf-8")
    data = Dataset.read(path, dictionary=dictionary, warn=False)
    assert data.X[:, 0].tolist() == [k + 0.25 for k in range(N)]
    assert all(data.X[:, column].tolist() == [k % 2 for k in range(N)] for column in (1, 2, 3))
