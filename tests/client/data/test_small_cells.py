"""Which combinations of levels few rows have, by plain counting; and what is refused for them."""

import itertools
from collections import Counter

import numpy as np
import pytest

from fedbnsl.errors import PolicyRefusal
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.small_cells import has_small_cell, refuse_small_cells, small_pairs

DICTIONARY = Dictionary.model_validate(
    {
        "sex": {"kind": "binary", "levels": ["f", "m"]},
        "ward": {"kind": "nominal", "levels": ["a", "b", "c"]},
        "stage": {"kind": "ordinal", "levels": ["I", "II", "III"]},
        "age": {"range": [0.0, 100.0]},
    }
)
PLAN = Plan.load("standard").with_dictionary(DICTIONARY, origin="here")


def table(n: int = 300, seed: int = 1) -> Dataset:
    """Rare: ward c, a missing stage, one missing age."""
    rng = np.random.default_rng(seed)
    ward = np.where(rng.random(n) < 0.03, 2, rng.integers(0, 2, n)).astype(float)
    stage = rng.integers(0, 3, n).astype(float)
    stage[rng.random(n) < 0.05] = np.nan
    age = rng.normal(50, 10, n)
    age[7] = np.nan
    X = np.column_stack([rng.integers(0, 2, n), ward, stage, age])
    return Dataset.of_values(DICTIONARY.variables, X, origin="here", dictionary=DICTIONARY, warn=False)


def codes(table: Dataset) -> np.ndarray:
    """(n, 4) a level, -1 where it is missing, and 0 of a number."""
    sex, ward_b, ward_c, stage, age = table.X.T
    told = np.column_stack([sex, ward_b + 2 * ward_c, stage, age * 0.0])
    return np.where(np.isnan(told), -1, told).astype(int)


def fewest(told: np.ndarray) -> int:
    return min(Counter(map(tuple, told.tolist())).values())


@pytest.mark.parametrize("least_cell", [2, 5, 30, 60, 200])
def test_small_pairs_are_those_of_plain_counting(least_cell: int) -> None:
    read, names = table(), DICTIONARY.variables
    told, expected = codes(read), []
    for size in (1, 2):
        for one in itertools.combinations(range(4), size):
            if fewest(told[:, one]) < least_cell:
                expected.append(tuple(names[v] for v in one))
    assert sorted(small_pairs(read.X, read.columns, DICTIONARY, least_cell)) == sorted(expected)


def test_a_cell_of_several_variables_is_one_of_plain_counting() -> None:
    read = table()
    told = codes(read)
    for one in itertools.combinations(range(4), 3):
        n = fewest(told[:, one])
        assert not has_small_cell(read.X, read.columns, DICTIONARY, one, n)
        assert has_small_cell(read.X, read.columns, DICTIONARY, one, n + 1)


def refused(read: Dataset, plan: Plan, least_cell: int) -> None:
    refuse_small_cells(read.X, read.columns, plan, least_cell)


def test_a_plan_whose_sums_tell_small_counts_is_refused_by_name_and_a_private_one_is_not() -> None:
    with pytest.raises(PolicyRefusal, match=r"`least_cell` = 5.*fewer than 5 rows have some of .*'age'") as caught:
        refused(table(), PLAN, 5)
    assert "No value of the table was sent" in caught.value.remedy
    refused(table(), PLAN, 1)
    private = Plan.load("private", epsilon=1.0).with_dictionary(DICTIONARY, origin="here")
    refused(table(), private, 5)


def test_a_table_without_small_cells_is_not_refused() -> None:
    X = np.array(list(itertools.product([0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [40.0, 50.0])) * 5)
    even = Dataset.of_values(DICTIONARY.variables, X, origin="here", dictionary=DICTIONARY, warn=False)
    refused(even, PLAN, 20)
    with pytest.raises(PolicyRefusal, match="'ward' and 'stage'"):
        refused(even, PLAN, 21)
