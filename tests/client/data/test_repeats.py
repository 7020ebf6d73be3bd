"""Copies of records are told at the site, a table of few categories is left alone, and row numbers are asked about."""

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.messages import FindingCode, TableFinding
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.repeats import copied_records, numbered_columns

DRAWN = np.random.default_rng(3).standard_normal((60, 4))


@pytest.mark.parametrize("n_rare", [0, 300])
def test_records_that_are_copies_are_told_with_their_numbers(n_rare: int) -> None:
    more = np.random.default_rng(4).standard_normal((n_rare, 4))
    (text,) = copied_records(np.vstack([np.repeat(DRAWN, 10, axis=0), more]))
    assert f"600 of {600 + n_rare} records occur more than once, up to 10 times each; {60 + n_rare} are" in text


def test_tables_without_copies_or_of_few_categories_do_not_alarm() -> None:
    rng = np.random.default_rng(5)
    levels = (rng.random((2000, 6)) < 0.1).astype(float)
    years = np.column_stack([rng.integers(20, 90, 2000), rng.integers(0, 2, (2000, 3))]).astype(float)
    chain = np.repeat(rng.integers(0, 3, (2000, 1)), 12, axis=1).astype(float)  # functions of each other
    for X in (DRAWN, levels, years, chain, np.round(rng.standard_normal((2000, 6)), 1)):
        assert list(copied_records(X)) == []


def test_repeats_that_chance_gives_measured_columns_are_not_told() -> None:
    """Of 2,000 records in 64 x 64 cells, 1 - exp(-.49) = 39% have an equal one."""
    X = np.random.default_rng(6).integers(0, 64, (2000, 2)).astype(float)
    _, times = np.unique(X, axis=0, return_counts=True)
    assert times[times > 1].sum() > 0.3 * len(X)
    assert list(copied_records(X)) == []


def test_a_row_number_is_asked_about_and_a_measurement_is_not() -> None:
    X = np.column_stack([np.arange(60.0), DRAWN[:, 0], np.round(10 * DRAWN[:, 1])])
    ((place, text),) = numbered_columns(("id", "dose", "score"), X, of=range(3))
    assert place == 0
    assert "column 'id': whole numbers, each in one row only. Is it a row number" in text
    assert not list(numbered_columns(("id", "dose", "score"), X[:19], of=range(3)))  # by chance, too


def test_copies_of_records_that_lack_a_value_are_not_told_as_no_run_uses_them() -> None:
    X = np.vstack([DRAWN, np.repeat(DRAWN[:1], 20, axis=0)])
    X[60:, 0] = np.nan
    data = Dataset.of_values(tuple("abcd"), X, origin="x", warn=False)
    assert not [one for one in data.odd if "occur more than once" in one.text]


def test_what_may_leave_the_site_is_a_code_without_a_count() -> None:
    data = Dataset.of_values(tuple("abcd"), np.repeat(DRAWN, 10, axis=0), origin="x", warn=False)
    (told,) = [one for one in data.odd if "occur more than once" in one.text]
    assert told.finding == TableFinding(FindingCode.COPIED_RECORDS, (0, 1, 2, 3))


@pytest.mark.parametrize(("value", "range_"), [(2.5, [0, 50]), (2.5, None), (-0.5, None), (-9.0, None)])
def test_a_count_that_is_no_whole_number_from_0_on_is_refused_with_rows(value: float, range_: list[int] | None) -> None:
    """Like a level that a binary variable has not."""
    entry = {"kind": "count", "transform": "none", **({"range": range_} if range_ else {})}
    dictionary = Dictionary.from_plain({"k": entry, "y": {}}, origin="x")
    X = np.column_stack([np.arange(60.0) % 7, DRAWN[:, 0]])
    X[[3, 40], 0] = value, 3.0 + 1e-9  # the second by rounding
    with pytest.raises(DataError) as refused:
        Dataset.of_values(("k", "y"), X, origin="x", dictionary=dictionary, warn=False)
    assert str(refused.value) == (
        "x: column 'k': 1 row(s) are no whole numbers from 0 on, as counts are (data row 4): correct the cells, or "
        "call the variable continuous in the data dictionary"
    )
    assert "say in columns.toml which cells stand for a missing value" in refused.value.remedy


def test_a_count_outside_its_range_is_missing_whatever_it_is() -> None:
    dictionary = Dictionary.from_plain({"k": {"kind": "count", "range": [0, 50]}, "y": {}}, origin="x")
    X = np.column_stack([np.arange(60.0) % 7, DRAWN[:, 0]])
    X[[3, 40], 0] = -9.0, 99.5
    data = Dataset.of_values(("k", "y"), X, origin="x", dictionary=dictionary, warn=False)
    assert data.gaps.by_variable == {"k": 2}
