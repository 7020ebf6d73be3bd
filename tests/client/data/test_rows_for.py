"""Which rows a run uses: a private one all of them, and it refuses none."""

import numpy as np
import pytest

from fedbnsl.errors import DataError, SchemaMismatchError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import moments as moments_round
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import fit_of, refuse_other_columns, remarks, rows_for
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import fault
from private_site import private_plan

X = np.random.default_rng(1).normal(size=(50, 2))
X[:40, 0] = np.nan
TABLE = Dataset.of_values(["a", "b"], X, origin="here", min_rows=2, warn=False)
COMPLETE = "preparation.missing='complete-cases'"
STEPS = private_plan()
PRIVATE = Plan.load("private").with_settings(dictionary={"a": {"range": [-9, 9]}, "b": {"range": [-9, 9]}})


def test_a_private_run_uses_all_rows_however_many_are_incomplete() -> None:
    assert rows_for(TABLE, PRIVATE).n_samples == 50
    assert np.isnan(rows_for(TABLE, PRIVATE).X).sum() == 40, "its preparation makes zeros of them"
    raw = rows_for(TABLE, private_plan())
    assert raw.n_samples == 50
    assert (raw.X[:40] == 0.0).all()
    assert np.array_equal(raw.X[40:], X[40:])


def test_a_run_without_privacy_uses_complete_rows_if_the_plan_leaves_enough_out() -> None:
    values = np.vstack([X, X[40:], X[40:]])  # 30 of 70 are complete
    table = Dataset.of_values(["a", "b"], values, origin="here", min_rows=2, warn=False)
    allowing = Plan.load("standard", [COMPLETE, "preparation.missing_most=0.6"])
    assert np.array_equal(rows_for(table, allowing).X, values[40:])
    half = Plan.load("standard", [COMPLETE])
    for plan in (half, Plan.load("lean"), Plan.load("standard", ["preparation.missing='refuse'"])):
        with pytest.raises(DataError, match="of 70 rows, 40"):
            rows_for(table, plan)
    with pytest.raises(DataError, match=r"\(preparation.missing_most\), or fewer than 20 are left$"):
        rows_for(rows_for(table, allowing), half)  # rows that are gone tell of no variable


def test_fewer_than_20_complete_rows_are_refused_whatever_share_a_plan_allows() -> None:
    with pytest.raises(DataError, match=r"of 50 rows, 40 .* fewer than 20 are left; without 'a' \(missing in 40\), 50"):
        rows_for(TABLE, Plan.load("standard", [COMPLETE, "preparation.missing_most=0.9"]))


def test_with_em_a_run_uses_every_row_that_has_a_value() -> None:
    values = X.copy()
    values[:3] = np.nan
    table = Dataset.of_values(["a", "b"], values, origin="here", warn=False)
    assert np.array_equal(rows_for(table, Plan.load("standard")).X, values[3:], equal_nan=True)
    said = remarks(table, Plan.load("standard"))[0]
    assert said == "40 row(s) lack a value, and count for those that they have: 'a' 40, 'b' 3"


def test_a_site_is_told_that_private_steps_learn_nothing_of_a_table_with_hardly_a_complete_row() -> None:
    said = "only 10 of 50 rows lack nothing: a run of this plan learns next to nothing of them"
    assert said in remarks(TABLE, STEPS)
    assert said not in remarks(TABLE, PRIVATE)
    assert rows_for(TABLE, STEPS).n_samples == 50
    fit_of(TABLE, PRIVATE)  # of ten rows
    empty = Dataset.of_values(["a", "b"], np.where([True, False], np.nan, X), origin="here", warn=False)
    assert fit_of(empty, PRIVATE).lines() == []


def test_a_plan_that_allows_fewer_gaps_says_which_variables_to_leave_out() -> None:
    values = np.random.default_rng(1).normal(size=(50, 12))
    values[:10, :10] = values[:40, 11] = np.nan
    table = Dataset.of_values([f"v{k}" for k in range(12)], values, origin="here", warn=False, min_rows=2)
    lead = "a value: 'v11' 40, 'v0' 10, .*"
    with pytest.raises(DataError, match=rf"{lead}; without 'v11' \(missing in 40\), 40 rows are comp") as refused:
        rows_for(table, Plan.load("standard", [COMPLETE]))
    assert "gaps-and-rare-levels.md" in refused.value.remedy
    with pytest.raises(DataError, match=f"{lead}; .* 11 of the 12 variables would have to be left out for 45 rows"):
        rows_for(table, Plan.load("standard", [COMPLETE, "preparation.missing_most=0.1"]))


@pytest.mark.parametrize(("size", "fits"), [(0.0, True), (1e-14, False), (1e-12, True)])
def test_a_described_column_too_small_for_moments_is_refused_before_it_is_sent(size: float, *, fits: bool) -> None:
    described = Dictionary.from_plain({"a": {"range": [-9, 9]}, "b": {"range": [-9, 9]}}, origin="x")
    values = np.random.default_rng(2).uniform(-1.0, 1.0, (50, 2)) * (1.0, size)
    table = Dataset.of_values(["a", "b"], values, origin="here", dictionary=described, warn=False)
    moments = Plan.load("lean").with_settings(dictionary=described.model_dump(), moments_rounds=1)
    assert moments.preparation is None
    if fits:
        rows_for(table, moments)
    else:
        with pytest.raises(DataError, match=r"column\(s\) 'b': the root of the mean square is below 1e-13"):
            rows_for(table, moments)
    for plan in (Plan.load("standard"), PRIVATE, moments.with_settings(moments_rounds=0)):
        rows_for(table, plan)
    n = table.n_samples
    answer = moments_round.Answer(np.asarray(values.T @ values / n)[np.triu_indices(2)])
    everything = moments_round.Task(SparseMatrix.from_dense(np.ones((2, 2)) - np.eye(2)))
    run = Run(moments, moments.edge_mask(table.variables), {"s": n})
    assert (fault(answer, everything, run) == "") == fits, "as the coordinator would take it"


def test_what_happens_to_incomplete_rows_is_said_as_it_is() -> None:
    assert "40 row(s) count as zeros" in remarks(TABLE, STEPS)[0]
    assert "40 row(s) lack a value, and count for those that they have" in remarks(TABLE, PRIVATE)[0]
    assert "40 row(s) are left out" in remarks(TABLE, Plan.load("standard", [COMPLETE]))[0]


def test_a_plan_with_other_columns_than_the_run_is_refused_before_it_is_paid_for() -> None:
    refuse_other_columns(PRIVATE, ["b", "a"])
    for columns in (["a"], ["a", "c"], ["a", "b", "c"]):
        with pytest.raises(SchemaMismatchError, match="other columns than the run"):
            refuse_other_columns(PRIVATE, columns)
