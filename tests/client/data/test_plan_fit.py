"""What a site is told of its own table under a plan, against counts made row by row."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import fit_of, refuse_beyond_bounds, site_lines
from private_site import NAMES, private_plan, rows

X = rows(3) * np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize("at_a_time", [None, 7])
def test_shares_beyond_the_bounds_are_those_of_squares_by_column_and_in_any(at_a_time: int | None) -> None:
    plan = private_plan(variables=["mass", "age", "dose"], privacy={"feature_bounds": [9.0, 1.0, 4.0]})
    bounds = dict(zip(plan.variables, (9.0, 1.0, 4.0), strict=True))
    beyond = [{name for name, x in zip(NAMES, row, strict=True) if x * x > bounds[name]} for row in X.tolist()]
    blocks = (lambda X: iter([X])) if at_a_time is None else (lambda X: (X[k : k + 7] for k in range(0, len(X), 7)))
    with mock.patch("fedbnsl_client.data.mapped_array.row_blocks", blocks):
        fit = fit_of(Dataset(NAMES, X), plan)
    assert fit.beyond == {name: sum(name in row for row in beyond) / len(X) for name in plan.variables}
    assert fit.beyond_any == sum(map(bool, beyond)) / len(X)
    assert 0 < fit.beyond_any < 1
    assert f"{fit.beyond_any:.2%} of the records lie beyond feature_bounds" in fit.lines()[0]


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        private_plan(privacy={"smoothness": "public", "second_moments": [1.0]}),
        private_plan(local_solver="noisy-covariance"),
    ],
    ids=["no privacy", "declared", "covariance"],
)
def test_a_plan_that_uses_no_bounds_says_nothing_of_them(plan: Plan) -> None:
    fit = fit_of(Dataset(NAMES, X), plan)
    assert (fit.beyond, fit.lines()) == ({}, [])


def test_a_value_at_the_bound_is_not_beyond_it() -> None:
    fit = fit_of(Dataset(NAMES, np.clip(X, -3.0, 3.0)), private_plan(privacy={"feature_bounds": [9.0]}))
    assert fit.beyond_any == 0.0


def test_a_wide_table_is_not_refused_because_most_records_lie_beyond_one_bound_or_another() -> None:
    table = np.zeros((120, 6))
    table[np.arange(120), np.arange(120) % 6] = 5.0
    fit = fit_of(Dataset(tuple("abcdef"), table), private_plan())
    assert (fit.beyond_any, set(fit.beyond.values())) == (1.0, {1 / 6})
    refuse_beyond_bounds(fit, "ward-7")
    with pytest.raises(DataError, match="in column\\(s\\) 'a', 'c': a run"):
        refuse_beyond_bounds(replace(fit, beyond={"a": 1.0, "b": 0.95, "c": 0.96}), "ward-7")


def test_a_column_that_is_all_but_constant_is_named() -> None:
    table = X.copy()
    table[:-5, 1] = 2.5
    fit = fit_of(Dataset(NAMES, table), private_plan())
    assert fit.same_value == {"dose": 115 / 120}
    assert "column 'dose': the same value in 95.8% of the records" in fit.lines()


def test_a_table_without_a_variable_of_the_plan_is_refused() -> None:
    with pytest.raises(DataError, match="lacks 'pulse'"):
        fit_of(Dataset(NAMES, X), private_plan(variables=["age", "pulse"]))


@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
def test_the_site_is_told_what_is_odd_and_in_private_runs_that_nobody_else_is() -> None:
    table = Dataset.of_values(NAMES, X + np.array([0.0, 9.0, 0.0]), origin="here")
    for plan, alone in ((private_plan(), True), (Plan(), False)):
        lines = site_lines(table, plan, fit_of(table, plan))
        assert any("'dose': means further from zero" in line for line in lines)
        assert all(("told here alone" in line) == alone for line in lines)


def test_a_row_that_counts_as_zeros_lies_within_all_bounds() -> None:
    X = np.zeros((40, 2)) + np.arange(2)
    X[:10] = [np.nan, 1e6]
    fit = fit_of(Dataset(("x", "y"), X), private_plan())  # bounds of 9
    assert fit.beyond_any == 0.0
    assert set(fit.beyond.values()) == {0.0}
