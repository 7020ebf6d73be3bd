"""Runs on tables with gaps over gRPC: whoever is killed or begins anew, EM ends with the same bits."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from network import test_prepared_runs, test_resume
from network.test_moments_runs import AFTER_ITS_CHECKPOINT, BEFORE_ITS_CHECKPOINT, LEAN, Crashes
from network.test_resume import Federation, assert_same_run, coordinate_until

address, sites, whole = test_resume.address, test_resume.sites, test_prepared_runs.tables
PLANS = {
    intercept: LEAN.with_settings(preparation={"intercept": intercept, "missing": "em"}, threshold=0.05)
    for intercept in ("site", "common")
}
each_plan = pytest.mark.parametrize("intercept", list(PLANS))


@pytest.fixture(scope="module")
def tables(whole: dict[str, Dataset]) -> dict[str, Dataset]:
    """A fifth of the cells is missing, and one site lacks a column."""
    drawn = np.random.default_rng(5)
    found = {}
    for site, table in whole.items():
        X = np.where(drawn.random(table.X.shape) < 0.2, np.nan, table.X)
        if site == "c":
            X[:, 1] = np.nan
        found[site] = Dataset(table.variables, X)
    return found


@pytest.fixture(scope="module")
def undisturbed(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return test_prepared_runs.simulated(PLANS, tables, tmp_path_factory.mktemp("gaps"))


@each_plan
def test_a_run_whose_coordinator_is_killed_again_and_again_ends_with_the_same_bits(
    sites: Federation, undisturbed: dict[str, Path], tmp_path: Path, intercept: str
) -> None:
    plan, out, expected = PLANS[intercept], tmp_path / "run", read_result(undisturbed[intercept])
    n = expected["gaps"]["iterations"]
    assert [entry["kind"] for entry in expected["rounds"]] == ["statistics"] + ["completion"] * n + ["admm"] * 4 + [
        "moments"
    ]
    sites.start()
    for t, window in (
        (2, AFTER_ITS_CHECKPOINT),
        (3, BEFORE_ITS_CHECKPOINT),
        (n + 1, AFTER_ITS_CHECKPOINT),
        (n + 3, AFTER_ITS_CHECKPOINT),
    ):
        assert coordinate_until(window.format(t=t), plan, out, sites.address) == 9, (t, window)
    result = sites.coordinate(plan, out)
    assert_same_run(out, undisturbed[intercept])
    assert result["gaps"] == expected["gaps"]


@each_plan
def test_a_site_that_begins_anew_in_every_round_is_told_what_completes_its_rows(
    sites: Federation, undisturbed: dict[str, Path], tmp_path: Path, intercept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, n_rounds = PLANS[intercept], len(read_result(undisturbed[intercept])["rounds"])
    crashes = Crashes(monkeypatch, "c", lambda: DivergenceError("c ends here, and begins anew"), n_rounds=n_rounds)
    sites.start("a", "b")
    sites.start("c", lives=2 * n_rounds)
    sites.coordinate(plan, tmp_path / "run")
    assert len(crashes.deaths) == 2 * n_rounds - 1
    assert all(len(versions) == 1 for versions in crashes.sent.values())
    assert_same_run(tmp_path / "run", undisturbed[intercept])


def test_the_result_counts_values_by_site_and_assumes_that_they_are_missing_at_random(
    undisturbed: dict[str, Path], tables: dict[str, Dataset]
) -> None:
    result = read_result(undisturbed["site"])
    for site, table in tables.items():
        there = (~np.isnan(table.X)).sum(axis=0).tolist()
        assert result["gaps"]["values"][site] == dict(zip(table.variables, there, strict=True))
    assert result["gaps"]["converged"]
    assert result["gaps"]["never_together"] == []
    assert any("missing at random" in text for text in result["verdict"]["assumed"])
    assert not any("left out" in text for text in result["verdict"]["not_tested"])


def test_rows_that_are_left_out_are_counted_among_what_was_not_tested_with_values_far_from_all_others(
    tables: dict[str, Dataset], tmp_path: Path
) -> None:
    ab = {site: tables[site] for site in "ab"}
    n = sum(int(np.isnan(table.X).any(axis=1).sum()) for table in ab.values())
    simulate(LEAN.with_settings(preparation={"missing_most": 1.0}), ab, tmp_path / "run")
    not_tested = read_result(tmp_path / "run")["verdict"]["not_tested"]
    assert any(text.startswith(f"whether the {n:,} rows that were left out") for text in not_tested)
    assert any('(only `preparation.missing = "em"` looks for them)' in text for text in not_tested)


@each_plan
def test_where_no_value_is_missing_the_run_is_that_of_complete_cases(
    whole: dict[str, Dataset], tmp_path: Path, intercept: str
) -> None:
    plan = PLANS[intercept]
    simulate(plan, whole, tmp_path / "em")
    simulate(plan.with_settings(preparation={"intercept": intercept}), whole, tmp_path / "complete")
    em, complete = read_result(tmp_path / "em"), read_result(tmp_path / "complete")
    assert em["gaps"] is None
    assert len(em["rounds"]) == len(complete["rounds"])
    for key in ("edges", "fit", "acyclicity", "bytes"):
        assert em[key] == complete[key], key
    assert not any("missing at random" in text for text in em["verdict"]["assumed"])
