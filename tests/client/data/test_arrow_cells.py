"""A column of Arrow gives the codes that a CSV file with the same cells gives."""

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fedbnsl_client.data.cell_problems import CellProblems
from fedbnsl_client.data.reading import MISSING, Reading
from fedbnsl_client.data.sources.arrow_cells import codes_of, codes_of_batches

pyarrow = pytest.importorskip("pyarrow")

STAGES = Reading(codes={"I": 0.0, "II": 1.0, "zwei": 1.0, "III": 2.0})
YES = Reading(codes={"0": 0.0, "1": 1.0})


def by_hand(cells: list[str], reading: Reading) -> tuple[list[float], list[int]]:
    """Cell by cell, as a text file is read."""
    codes, unreadable = [], []
    for k, cell in enumerate(cells):
        try:
            codes.append(reading.code(cell))
        except ValueError:
            codes.append(math.nan)
            unreadable.append(k)
    return codes, unreadable


@pytest.mark.parametrize(
    ("kind", "encode"),
    [(kind, encode) for kind in ("string", "large_string", "string_view") for encode in (False, True)][:-1],
)
@pytest.mark.parametrize(
    ("cells", "reading"),
    [
        (["I", "III", " II", "zwei", "", "NA", "IV", "i", "I"], STAGES),
        (["1", " 2.5 ", "-3e-2", "NaN", "", "-9", "1_000", "inf", "x", "x"], Reading(missing=MISSING | {"-9"})),
        (["1", "2.5", "", "0.1"], Reading(factor=0.1)),
        (["1", "1.0", "0", "2"], YES),
    ],
)
def test_texts_are_read_as_the_cells_of_a_text_file(
    cells: list[str], reading: Reading, kind: str, encode: bool
) -> None:
    array = pyarrow.array(cells, type=getattr(pyarrow, kind)())
    found = codes_of(array.dictionary_encode() if encode else array, reading)
    codes, unreadable = by_hand(cells, reading)
    np.testing.assert_array_equal(found[0], codes)
    assert np.flatnonzero(found[1]).tolist() == unreadable


@pytest.mark.parametrize(
    ("values", "kind", "codes"),
    [
        ([1, 0, None], "int8", [1.0, 0.0, math.nan]),
        ([1.0, 0.0, math.nan], "float64", [1.0, 0.0, math.nan]),
        ([True, False, None], "bool_", [1.0, 0.0, math.nan]),
        ([Decimal("1.00"), Decimal("0.00"), None], "decimal", [1.0, 0.0, math.nan]),
    ],
)
def test_numbers_and_booleans_may_be_levels(values: list[Any], kind: str, codes: list[float]) -> None:
    type_ = pyarrow.decimal128(5, 2) if kind == "decimal" else getattr(pyarrow, kind)()
    found = codes_of(pyarrow.array(values, type=type_), YES)
    np.testing.assert_array_equal(found[0], codes)
    assert not found[1].any()


@pytest.mark.parametrize("levels", [("false", "true"), ("False", "True"), ("0", "1")])
def test_a_boolean_is_found_under_each_of_its_usual_spellings(levels: tuple[str, str]) -> None:
    found = codes_of(pyarrow.array([True, False]), Reading(codes={level: float(k) for k, level in enumerate(levels)}))
    assert found[0].tolist() == [1.0, 0.0]


def test_numbers_that_are_no_level_are_unreadable() -> None:
    found = codes_of(pyarrow.array([0, 7, None, 1, 7]), YES)
    assert np.flatnonzero(found[1]).tolist() == [1, 4]


def test_numbers_take_the_factor_and_lose_those_that_stand_for_missing() -> None:
    array = pyarrow.chunked_array([[2.0, -9.0], [None, 4.0]])
    found = codes_of(array, Reading(missing=MISSING | {"-9", "unknown"}, factor=12.0))
    np.testing.assert_array_equal(found[0], [24.0, math.nan, math.nan, 48.0])


def test_a_null_beside_a_dictionary_is_missing_and_not_the_first_level() -> None:
    array = pyarrow.DictionaryArray.from_arrays(pyarrow.array([1, None, 0]), ["?", "II"])
    found = codes_of(array, STAGES)
    np.testing.assert_array_equal(found[0], [1.0, math.nan, math.nan])
    assert np.flatnonzero(found[1]).tolist() == [2]


@pytest.mark.parametrize("array", [[None, None], pyarrow.array([None, None], "string").dictionary_encode()])
def test_a_column_of_nulls_is_missing(array: Any) -> None:
    found = codes_of(pyarrow.array(array) if isinstance(array, list) else array, STAGES)
    assert np.isnan(found[0]).all()
    assert not found[1].any()


def test_what_is_neither_number_nor_text_is_unreadable_where_it_is_not_null() -> None:
    found = codes_of(pyarrow.array([[1.0], None]), Reading())
    assert np.flatnonzero(found[1]).tolist() == [0]


@pytest.mark.parametrize("quoting", [False, True])
def test_unreadable_cells_are_noted_by_row_over_all_batches_and_quoted_only_where_they_may_be(quoting: bool) -> None:
    batches = [
        pyarrow.record_batch({"stage": ["I", "other"], "age": ["1", "hidden"]}),
        pyarrow.record_batch({"stage": ["other", None], "age": ["3", "4"]}),
    ]
    problems = CellProblems(["x", "stage", "age"], "data row")
    blocks = list(codes_of_batches(batches, problems, [1, 2], [STAGES, Reading()], quoting=quoting))
    np.testing.assert_array_equal(np.concatenate(blocks)[:, 1], [1.0, math.nan, 3.0, 4.0])
    assert problems.lines() == [
        "column 'stage': 2 row(s) are no level of the data dictionary"
        + (", such as 'other'" if quoting else "")
        + " (data rows 2, 3)",
        "column 'age': 1 row(s) are not numbers (data row 2)",
    ]


def test_whole_numbers_that_floating_point_takes_for_one_keep_their_levels() -> None:
    """2^53 and 2^53 + 1."""
    large = [9007199254740992, 9007199254740993]
    found = codes_of(pyarrow.array(large), Reading(codes={str(cell): float(k) for k, cell in enumerate(large)}))
    assert found[0].tolist() == [0.0, 1.0]
