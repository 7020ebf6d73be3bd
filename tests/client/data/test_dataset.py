"""Whatever can be wrong with a table at a site is refused, by column and count, and a good one is read as it stands."""

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.cli import join
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.checks import DataWarning, columns_without_mean
from fedbnsl_client.data.dataset import MIN_ROWS, Dataset
from fedbnsl_client.data.sources import csv_table

pytestmark = pytest.mark.usefixtures("each_reader")

N = 30


@pytest.fixture
def table() -> Matrix:
    return np.random.default_rng(5).standard_normal((N, 3))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a table, or rows of text, below a header."""

    def written(rows: Matrix | list[list[str]], header: str = "age,dose,mass") -> Path:
        path = tmp_path / "site.csv"
        lines = [",".join(repr(float(v)) if not isinstance(v, str) else v for v in row) for row in rows]
        path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
        return path

    return written


def as_text(table: Matrix) -> list[list[str]]:
    return [[repr(float(v)) for v in row] for row in table]


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        Dataset.read(path, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


# ---- good tables ---------------------------------------------------------------------------------------------------


def test_a_table_is_read_bit_for_bit(table: Matrix, write: Callable[..., Path]) -> None:
    data = Dataset.read(write(table))
    assert data.variables == ("age", "dose", "mass")
    assert data.n_samples == N
    assert data.X.tobytes() == table.tobytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=hnp.arrays(
        np.float64,
        st.tuples(st.integers(2, 6), st.integers(2, 4)),
        elements=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9).map(
            lambda v: round(v, 6) + 0.5
        ),
        unique=True,
    )
)
@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")  # few whole values look like categories
def test_any_finite_table_with_distinct_values_survives_a_file(table: Matrix, tmp_path: Path) -> None:
    path = tmp_path / "any.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"v{k}" for k in range(table.shape[1])])
        writer.writerows(table.tolist())
    assert np.array_equal(Dataset.read(path, min_rows=2).X, table)


def test_columns_in_another_order_are_taken_by_name(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table, "mass,age,dose")
    data = Dataset.read(path, columns=["age", "dose", "mass"])
    assert data.variables == ("age", "dose", "mass")
    assert np.array_equal(data.X, table[:, [1, 2, 0]])


def test_a_table_is_reordered_by_name(table: Matrix, write: Callable[..., Path]) -> None:
    data = Dataset.read(write(table)).reordered(["mass", "age", "dose"])
    assert data.variables == ("mass", "age", "dose")
    assert np.array_equal(data.X, table[:, [2, 0, 1]])
    assert data.X.flags.c_contiguous


def test_a_table_cannot_be_reordered_to_names_that_it_lacks(table: Matrix, write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="lacks 'height', 'sex'"):
        Dataset.read(write(table)).reordered(["age", "height", "sex", "mass"])


def test_some_rows_are_kept_with_the_sizes_of_their_groups_also_of_a_table_in_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 100)
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 64 * 16)
    X = np.random.default_rng(1).normal(size=(300, 2))
    X[::7, 1] = np.nan
    kept = np.arange(300) % 3 == 1
    whole = Dataset(("a", "b"), mapped_array.gathered(iter([X]), 2), group_sizes=np.array([1, 99, 200]))
    some = whole.of_rows(kept)
    assert np.array_equal(some.X, X[kept], equal_nan=True)
    assert some.group_sizes.tolist() == [0, 33, 67]
    assert some.complete_cases().n_samples == int((~np.isnan(X[kept]).any(axis=1)).sum())


def test_columns_that_are_not_chosen_may_hold_anything(table: Matrix, write: Callable[..., Path]) -> None:
    rows = [[*row, "", f"patient {k}"] for k, row in enumerate(as_text(table))]
    data = Dataset.read(write(rows, "age,dose,mass,note,who"), columns=["dose", "age"])
    assert np.array_equal(data.X, table[:, [1, 0]])


def test_a_byte_order_mark_is_no_part_of_a_name(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Dataset.read(path).variables[0] == "age"


def test_a_quoted_name_may_hold_a_comma_and_a_quote(table: Matrix, write: Callable[..., Path]) -> None:
    data = Dataset.read(write(table, '"mass, dry",age,"the ""dose"""'))
    assert data.variables == ("mass, dry", "age", 'the "dose"')
    assert np.array_equal(data.X, table)


def test_quoted_numbers_spaces_and_blank_lines_are_read(table: Matrix, write: Callable[..., Path]) -> None:
    rows = as_text(table)
    rows[0][0] = f'"{rows[0][0]}"'
    rows[1][1] = f"  {rows[1][1]} "
    path = write(rows, " age , dose,mass")
    path.write_text(path.read_text(encoding="utf-8").replace("\n", "\n\n"), encoding="utf-8")
    data = Dataset.read(path)
    assert data.variables == ("age", "dose", "mass")
    assert np.array_equal(data.X, table)


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems_are_read(table: Matrix, write: Callable[..., Path], end: str) -> None:
    path = write(table)
    path.write_bytes(path.read_bytes().replace(b"\n", end.encode()))
    assert np.array_equal(Dataset.read(path).X, table)


def test_a_last_line_without_its_end_is_read(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert np.array_equal(Dataset.read(path).X, table)


# ---- the file ------------------------------------------------------------------------------------------------------


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    assert "the file is empty" in refusal(path)


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.csv") == "cannot be read: No such file or directory"


def test_a_directory_without_tables_is_refused(tmp_path: Path) -> None:
    assert "the folder holds no file; expected Parquet files" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_refused(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    path.chmod(0)
    assert refusal(path) == "cannot be read: Permission denied"


def test_a_file_of_2_gb_is_refused_before_it_is_read(
    write: Callable[..., Path], table: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(table)
    os.truncate(path, 2 * 2**30)  # sparse: takes no room on the disk

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the file was opened")

    monkeypatch.setattr(Path, "open", opened)
    text = refusal(path, max_file_bytes=2**30)
    assert "2,048 MiB; at most 1,024 MiB are read" in text


def test_the_largest_file_that_is_read_can_be_chosen(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    size = path.stat().st_size
    assert Dataset.read(path, max_file_bytes=size).n_samples == N
    assert "MiB are read" in refusal(path, max_file_bytes=size - 1)


@pytest.mark.parametrize("reading", ["header", "codes"])
def test_a_file_that_grows_while_it_is_read_is_refused(
    table: Matrix, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    path = write(table)
    read = getattr(csv_table.CsvTable, reading)

    def read_while_somebody_writes(*arguments: object) -> object:
        result = list(read(*arguments))
        with path.open("a", encoding="utf-8") as file:
            file.write("1.5,2.5,3.5\n")
        return result

    monkeypatch.setattr(csv_table.CsvTable, reading, read_while_somebody_writes)
    assert "the file changed while it was read" in refusal(path)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(
    table: Matrix, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(table)
    twin = path.with_name("twin.csv")
    twin.write_bytes(path.read_bytes())
    before = path.stat()
    os.utime(twin, ns=(before.st_atime_ns, before.st_mtime_ns))
    read = csv_table.CsvTable.codes

    def read_while_somebody_renames(*arguments: Any) -> list[Matrix]:
        result = list(read(*arguments))
        twin.replace(path)
        return result

    monkeypatch.setattr(csv_table.CsvTable, "codes", read_while_somebody_renames)
    assert "the file changed while it was read" in refusal(path)


def test_a_file_that_is_not_utf_8_is_refused(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table, "age,dose,größe")
    path.write_bytes(path.read_text(encoding="utf-8").encode("latin-1"))
    assert "not UTF-8 text (byte 11)" in refusal(path)
    path = write(table)
    path.write_bytes(path.read_bytes() + b"\xff,1,2\n")
    assert "not UTF-8 text" in refusal(path)


def test_a_file_with_zero_bytes_is_refused(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    os.truncate(path, path.stat().st_size + 100)
    refusal(path)


def test_a_quote_that_is_never_closed_is_refused(write: Callable[..., Path]) -> None:
    table = np.random.default_rng(0).standard_normal((5000, 3))  # more text than csv takes as one field
    assert "a quote that is never closed" in refusal(write(table, '"age,dose,mass'))
    rows = as_text(table)
    rows[2][1] = '"' + rows[2][1]
    assert "a quote that is never closed" in refusal(write(rows))
    refusal(write(rows[:100]))


# ---- the header ----------------------------------------------------------------------------------------------------


def test_a_table_without_header_is_refused(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table, "1.5,2,-3e-7")
    with pytest.raises(DataError, match="no header: the first line holds 3 numbers") as refused:
        Dataset.read(path)
    assert "--columns, or a data dictionary" in refused.value.remedy


def test_numbers_are_names_where_columns_are_named(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table, "4512,7157,672")
    data = Dataset.read(path, columns=["672", "4512"])
    assert data.variables == ("672", "4512")
    assert np.array_equal(data.X, table[:, [2, 0]])
    genes = Dictionary.model_validate({"4512": {}, "7157": {}})
    assert Dataset.read(path, dictionary=genes).variables == ("4512", "7157")


def test_a_header_alone_is_refused(write: Callable[..., Path]) -> None:
    assert "0 rows; at least 20 are needed" in refusal(write([]))


def test_a_header_alone_is_refused_however_few_rows_are_asked_for(write: Callable[..., Path]) -> None:
    assert "0 rows" in refusal(write([]), min_rows=0)


def test_a_duplicate_column_is_refused_by_name(table: Matrix, write: Callable[..., Path]) -> None:
    text = refusal(write(table, "age,dose,age "))
    assert "'age'" in text
    assert "more than once" in text


def test_names_match_however_their_accents_are_stored(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table, header="a\u0302ge,dose,masse\u0301")  # decomposed, as macOS and some exports have it
    assert Dataset.read(path).variables == ("\xe2ge", "dose", "mass\xe9")
    assert Dataset.read(path, columns=["mass\xe9", "a\u0302ge"]).variables == ("mass\xe9", "\xe2ge")


def test_two_columns_whose_names_differ_only_in_how_accents_are_stored_are_refused(
    table: Matrix, write: Callable[..., Path]
) -> None:
    text = refusal(write(table, header="\xe2ge,a\u0302ge,mass"))
    assert "the header holds '\xe2ge' more than once, with accents stored in different ways" in text
    assert "rename one" in text


def test_a_column_without_name_is_refused_by_its_place(table: Matrix, write: Callable[..., Path]) -> None:
    assert refusal(write(table, "age,,mass")).endswith("column 2 of 3 has no name")
    said = "column 1 of 3 has no name; if it holds row numbers, save the table without them"
    assert said in refusal(write(table, ",age,mass"))


@pytest.mark.parametrize("name", ['"mass\n(dry)"', "mass\x07", "(Intercept)"])
def test_a_name_that_the_graph_files_cannot_carry_is_refused(
    table: Matrix, write: Callable[..., Path], name: str
) -> None:
    text = refusal(write(table, f"age,dose,{name}"))
    assert repr(name.strip('"')) in text
    assert "a name must not be" in text


def test_missing_columns_are_refused_by_name(table: Matrix, write: Callable[..., Path]) -> None:
    text = refusal(write(table), columns=["age", "height", "sex"])
    assert "no column 'height', 'sex' among the 3" in text


def test_a_column_chosen_twice_is_refused_by_name(table: Matrix, write: Callable[..., Path]) -> None:
    assert "'age' chosen more than once" in refusal(write(table), columns=["age", "dose", "age"])


def test_a_single_column_is_refused(table: Matrix, write: Callable[..., Path]) -> None:
    assert "one column" in refusal(write(table[:, :1], "age"))
    assert "one column" in refusal(write(table), columns=["age"])


@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("decimals", [".", ","])
@pytest.mark.parametrize("first", ["", "sep={}\n"])
def test_semicolons_tabs_and_decimal_commas_are_read_where_the_first_line_leaves_no_doubt(
    table: Matrix, write: Callable[..., Path], mark: str, decimals: str, first: str
) -> None:
    path = write(table)
    text = path.read_text(encoding="utf-8").replace(",", mark).replace(".", decimals)
    path.write_text(first.format(mark) + text, encoding="utf-8")
    assert Dataset.read(path).X.tobytes() == table.tobytes()
    path.write_text(first.format(mark) + text + mark.join(["1", "x", "2"]) + "\n", encoding="utf-8")
    line = N + 2 + bool(first)
    assert f"column 'dose': 1 row(s) are not numbers (line {line})" in refusal(path)


def test_a_first_line_that_names_the_comma_is_skipped(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    path.write_text("sep=,\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert Dataset.read(path).X.tobytes() == table.tobytes()


def test_commas_and_points_in_the_numbers_of_one_file_are_refused(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    text = path.read_text(encoding="utf-8").replace(",", ";")
    path.write_text(text + "1,234;5.6;7\n", encoding="utf-8")
    assert "some numbers have a comma and others a point" in refusal(path)


@pytest.mark.parametrize("other", ["7", "0,125", "12,5"])
def test_commas_that_may_mark_thousands_are_refused_unless_another_marks_decimals(tmp_path: Path, other: str) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(f"cost;age\n51,131;{other}\n9,870;41\n-120,400;39\n312;35\n", encoding="utf-8")
    if other == "7":
        assert "every number with a comma has three digits after it (column(s) 'cost')" in refusal(path)
    else:
        assert Dataset.read(path, warn=False, min_rows=2).X[:3, 0].tolist() == [51.131, 9.87, -120.4]


def test_a_comma_in_a_number_of_a_file_with_commas_is_no_decimal(table: Matrix, write: Callable[..., Path]) -> None:
    path = write(table)
    path.write_text(path.read_text(encoding="utf-8") + '"1,5",2,3\n', encoding="utf-8")
    assert "1 row(s) are not numbers" in refusal(path)


# ---- the values ----------------------------------------------------------------------------------------------------


def test_text_is_refused_by_column_and_count(table: Matrix, write: Callable[..., Path]) -> None:
    rows = as_text(table)
    rows[0][1] = rows[7][1] = "high"
    rows[9][2] = "1,5".replace(",", ".") + "kg"
    text = refusal(write(rows))
    assert "column 'dose': 2 row(s) are not numbers (lines 2, 9)" in text
    assert "column 'mass': 1 row(s) are not numbers (line 11)" in text
    assert "age" not in text


@pytest.mark.parametrize("number", ["1_000", "0x10", "1e", "½", "#3", "1.5#3", "1.5 # note"])
def test_numbers_in_an_odd_form_are_refused_by_column(table: Matrix, write: Callable[..., Path], number: str) -> None:
    rows = as_text(table)
    rows[3][2] = number
    assert "column 'mass': 1 row(s) are not numbers" in refusal(write(rows))


@pytest.mark.parametrize("missing", ["", "  ", "NA", "nan", "NaN", "NAN"])
def test_missing_values_are_kept_and_counted_by_variable(
    table: Matrix, write: Callable[..., Path], missing: str
) -> None:
    rows = as_text(table)
    rows[0][0] = rows[1][0] = rows[6][2] = rows[20][0] = rows[20][2] = missing
    with pytest.warns(DataWarning, match=r"4 row\(s\) lack a value: 'age' 3, 'mass' 2"):
        data = Dataset.read(write(rows))
    expected = table.copy()
    expected[[0, 1, 6, 20, 20], [0, 0, 2, 0, 2]] = np.nan
    assert np.array_equal(data.X, expected, equal_nan=True)
    assert data.n_samples == N
    assert (data.gaps.rows, data.gaps.of, data.gaps.by_variable) == (4, N, {"age": 3, "mass": 2})
    complete = data.complete_cases()
    assert np.array_equal(complete.X, np.delete(table, [0, 1, 6, 20], axis=0))
    assert complete.gaps == data.gaps
    assert complete.complete_cases() is complete


def test_gaps_of_columns_that_are_not_used_leave_no_row_out(table: Matrix, write: Callable[..., Path]) -> None:
    rows = as_text(table)
    rows[0][0] = rows[3][0] = rows[5][1] = ""
    data = Dataset.read(write(rows), warn=False).reordered(["mass", "dose"])
    assert (data.gaps.rows, data.gaps.of, data.gaps.by_variable) == (1, N, {"dose": 1})
    assert np.array_equal(data.complete_cases().X, np.delete(table[:, [2, 1]], 5, axis=0))


def test_checks_are_over_the_values_that_are_there(table: Matrix, write: Callable[..., Path]) -> None:
    table[:, 1] = 4.0
    rows = as_text(table)
    rows[7][1] = ""
    assert f"column 'dose': the same value in all {N - 1} rows that have one" in refusal(write(rows), warn=False)
    rows[7][:2] = "", "5"
    assert Dataset.read(write(rows), min_rows=N, warn=False).n_samples == N, "a row with a gap counts"
    rows[9][2], rows[7][2] = "inf", "1e200"
    text = refusal(write(rows))
    assert "column 'mass': 1 row(s) beyond 1e+15, the largest number that a run takes (data row 8)" in text
    assert "column 'mass': 1 row(s) are infinite (data row 10)" in text


@pytest.mark.parametrize("scale", [1e30, 1e20, 1e-90, 1e-15])
def test_units_in_which_no_run_could_calculate_are_refused_by_column_with_a_remedy(
    table: Matrix, write: Callable[..., Path], scale: float
) -> None:
    table[:, 1] *= scale
    with pytest.raises(DataError) as caught:
        Dataset.read(write(table), warn=False)
    what = (
        "row(s) beyond 1e+15, the largest number" if scale > 1 else "its standard deviation is below 1e-13, the least"
    )
    assert "column 'dose': " in str(caught.value)
    assert f"{what} that a run takes" in str(caught.value)
    assert "factor = ... in columns.toml" in caught.value.remedy


@pytest.mark.parametrize("infinity", ["inf", "-inf", "Infinity", "1e999"])
def test_infinity_is_refused_by_column_and_count(table: Matrix, write: Callable[..., Path], infinity: str) -> None:
    rows = as_text(table)
    rows[3][2] = infinity
    text = refusal(write(rows))
    assert "column 'mass': 1 row(s) are infinite (data row 4)" in text
    assert "dose" not in text


@pytest.mark.parametrize("value", [0.1, 0.0, -7.0])
def test_a_constant_column_is_refused_by_name_and_count(
    table: Matrix, write: Callable[..., Path], value: float
) -> None:
    table[:, 1] = value
    text = refusal(write(table))
    assert f"column 'dose': the same value in all {N} rows" in text
    assert "age" not in text


def test_a_column_that_differs_in_one_row_is_not_constant(table: Matrix, write: Callable[..., Path]) -> None:
    table[:, 1] = 0.0
    table[-1, 1] = 0.2
    assert np.array_equal(Dataset.read(write(table)).X, table)


def test_identical_columns_are_refused_by_both_names(table: Matrix, write: Callable[..., Path]) -> None:
    table[3, 0] = -0.0
    table[:, 2] = table[:, 0]
    rows = as_text(table)
    rows[3][2] = "0.0"
    text = refusal(write(rows))
    assert f"columns 'age' and 'mass': equal in all {N} rows" in text
    assert "dose" not in text


def test_columns_that_differ_in_one_row_are_not_identical(table: Matrix, write: Callable[..., Path]) -> None:
    table[:, 2] = table[:, 0]
    table[-1, 2] = np.nextafter(table[-1, 2], np.inf)
    assert np.array_equal(Dataset.read(write(table)).X, table)


def test_an_identical_column_that_is_not_chosen_does_not_matter(table: Matrix, write: Callable[..., Path]) -> None:
    table[:, 2] = table[:, 0]
    assert Dataset.read(write(table), columns=["age", "dose"]).n_samples == N


def test_integer_coded_categories_are_warned_of_by_column_and_count(table: Matrix, write: Callable[..., Path]) -> None:
    table[:, 1] = np.arange(N) % 4 - 2
    with pytest.warns(DataWarning, match=f"column 'dose': 4 whole values in {N} rows") as warned:
        data = Dataset.read(write(table))
    assert len(warned) == 1
    assert np.array_equal(data.X, table)


def test_means_that_regressions_without_intercept_cannot_follow_are_warned_of_by_column(
    table: Matrix, write: Callable[..., Path]
) -> None:
    table -= table.mean(axis=0)
    table[:, 1] += 1.01 * table[:, 1].std()
    table[:, 2] -= 0.99 * table[:, 2].std()
    with pytest.warns(
        DataWarning, match=r"column\(s\) 'dose': means further from zero.*Subtract numbers near the means"
    ) as warned:
        Dataset.read(write(table))
    assert len(warned) == 1


@pytest.mark.parametrize("make", [lambda k: k - N // 2, lambda k: k % 4 - 1.5], ids=["many whole", "few broken"])
def test_quantities_are_not_warned_of(
    table: Matrix, write: Callable[..., Path], make: Callable[[Matrix], Matrix]
) -> None:
    table[:, 1] = make(np.arange(N, dtype=np.float64))
    assert np.array_equal(Dataset.read(write(table)).X, table)  # a warning would be an error


@pytest.mark.long
def test_a_column_that_starts_with_few_whole_values_and_goes_on_with_many_is_not_warned_of(
    write: Callable[..., Path],
) -> None:
    table = np.random.default_rng(0).standard_normal((2000, 2))
    table[:, 1] = np.r_[np.zeros(1000), np.arange(1000)]
    assert Dataset.read(write(table, "a,b")).n_samples == 2000


def test_too_few_rows_are_refused_by_count(table: Matrix, write: Callable[..., Path]) -> None:
    assert f"{N} rows; at least {N + 1} are needed" in refusal(write(table), min_rows=N + 1)
    assert Dataset.read(write(table), min_rows=N).n_samples == N


@pytest.mark.parametrize("width", [2, 4])
def test_a_ragged_row_is_refused_by_its_line(table: Matrix, write: Callable[..., Path], width: int) -> None:
    rows = as_text(table)
    rows[4] = (rows[4] * 2)[:width]
    rows[6] = (rows[6] * 2)[:width]
    for columns in ([], ["age", "dose"]):
        text = refusal(write(rows), columns=columns)
        assert "2 row(s) without exactly 3 fields" in text
        assert "the first in line 6" in text


def test_many_problems_are_listed_up_to_eight(write: Callable[..., Path]) -> None:
    table = np.full((N, 11), np.inf)
    text = refusal(write(table, ",".join(f"v{k}" for k in range(11))))
    assert text.count("are infinite") == 8
    assert "... and 3 more" in text


def test_the_command_line_states_the_limit_of_the_dataset():
    options = {option.name: option.default for option in join.params}
    assert options["min_rows"] == MIN_ROWS


def test_columns_from_which_their_own_means_were_subtracted_are_found() -> None:
    rng = np.random.default_rng(11)
    plain = rng.normal(size=(200, 60))
    assert columns_without_mean([str(k) for k in range(60)], plain) == []
    raw = 50 + 10 * plain[:, 0]
    centred = raw - raw.mean()
    two = np.where(np.arange(200) < 100, 1.0, -1.0)
    table = np.column_stack([raw, centred, centred / centred.std(), centred.round(6), two, raw - 50])
    names = ["raw", "centred", "standardised", "written with six digits", "balanced levels", "without a public number"]
    assert columns_without_mean(names, table) == ["centred", "standardised", "written with six digits"]
    gaps = np.where(np.arange(200)[:, None] % 7 == 0, np.nan, 50 + 10 * plain[:, :2])
    gaps[:, 1] -= np.nanmean(gaps[:, 1])
    assert columns_without_mean(["raw", "centred"], gaps) == ["centred"]


@pytest.mark.parametrize("cell", ["null", "NULL", "None", ".", "N/A", "?", "*"])
def test_what_often_stands_for_a_missing_value_is_suggested_with_its_column(
    table: Matrix, write: Callable[..., Path], cell: str
) -> None:
    rows = as_text(table)
    rows[3][1] = rows[5][1] = cell
    rows[7][0] = "x"
    text = refusal(write(rows))
    assert "'dose': 2 row(s) are not numbers (lines 5, 7) (where these stand for a missing value" in text
    assert f'missing = ["{cell}"]' in text
    assert "'age': 1 row(s) are not numbers (line 9);" in text


def test_a_name_of_thousands_of_letters_is_refused_in_a_short_message(
    table: Matrix, write: Callable[..., Path]
) -> None:
    text = refusal(write(table, f"age,dose,{'m' * 5000}"))
    assert "more than 500 characters" in text
    assert len(text) < 500
