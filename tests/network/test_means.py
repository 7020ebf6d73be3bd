"""Means of the columns: exact ones of all sites, those of EM where cells are missing, noisy ones in a private run."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.statistics import Answer, as_one, summands
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.simulate import simulate

NAMES = ("x", "y", "z")
STANDARD = Plan.load("standard", ["bootstrap=0", "look_at_noise=false", "look_for_curves=false"])


def tables(n_rows: dict[str, int], seed: int = 1) -> dict[str, Dataset]:
    """Sites with means of their own."""
    rng, found = np.random.default_rng(seed), dict[str, Dataset]()
    for k, (site, n) in enumerate(n_rows.items()):
        x = rng.normal(1e4 + 3 * k, 1.0, n)
        y = x - 1e4 + rng.normal(k, 1.0, n)
        found[site] = Dataset(NAMES, np.column_stack([x, y, rng.normal(-5.0, 2.0, n)]))
    return found


def means_of(plan: Plan, told: dict[str, Dataset], out: Path) -> np.ndarray:
    result = simulate(plan.with_settings(n_participants=len(told)), told, out, noise_seed=1)
    return np.array([result["preparation"]["means"][name] for name in NAMES])


def test_means_are_those_of_all_records_and_each_site_weighs_as_the_plan_says(tmp_path: Path) -> None:
    told = tables({"a": 300, "b": 900})
    rows = np.vstack([one.X for one in told.values()])
    np.testing.assert_allclose(means_of(STANDARD, told, tmp_path / "rows"), rows.mean(axis=0), rtol=1e-12)
    by_site = STANDARD.with_settings(preparation={**STANDARD.model_dump()["preparation"], "weighting": "sites"})
    expected = np.mean([one.X.mean(axis=0) for one in told.values()], axis=0)
    np.testing.assert_allclose(means_of(by_site, told, tmp_path / "sites"), expected, rtol=1e-12)


def test_rows_with_gaps_count_by_what_is_expected_of_them_and_a_site_without_a_column_has_no_vote_there(
    tmp_path: Path,
) -> None:
    told = tables({"a": 4000, "b": 4000})
    whole = np.vstack([one.X for one in told.values()]).mean(axis=0)
    for one in told.values():  # y is missing where x is large: the mean of what is there is too low
        one.X[one.X[:, 0] > one.X[:, 0].mean(), 1] = np.nan
    there = np.nanmean(np.vstack([one.X for one in told.values()])[:, 1])
    found = means_of(STANDARD, told, tmp_path / "em")
    assert there < whole[1] - 0.3
    assert found[1] == pytest.approx(whole[1], abs=0.1)
    told["b"].X[:, 2] = np.nan
    lacking = means_of(STANDARD, told, tmp_path / "lacking")
    assert lacking[2] == pytest.approx(told["a"].X[:, 2].mean(), rel=1e-9)


def test_values_far_from_all_others_do_not_count(tmp_path: Path) -> None:
    told = tables({"a": 800, "b": 800})
    whole = np.vstack([one.X for one in told.values()]).mean(axis=0)
    told["a"].X[:8, 2] *= 1000.0
    assert means_of(STANDARD, told, tmp_path / "run")[2] == pytest.approx(whole[2], abs=0.05)


def test_a_plan_that_does_not_ask_for_means_learns_the_same_without_them(tmp_path: Path) -> None:
    told = tables({"a": 300, "b": 300})
    asked = simulate(STANDARD.with_settings(n_participants=2), told, tmp_path / "asked")
    silent = simulate(STANDARD.with_settings(n_participants=2, tell_means=False), told, tmp_path / "silent")
    assert silent["preparation"]["means"] is None
    assert silent["edges"] == asked["edges"]
    assert len(silent["rounds"]) == len(asked["rounds"])


def test_a_private_run_tells_the_means_that_its_statistics_have_paid_for(tmp_path: Path) -> None:
    ranges = {"x": {"range": [9_990, 10_020]}, "y": {"range": [-20, 20]}, "z": {"range": [-15, 5]}}
    plan = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=20.0).with_settings(dictionary=ranges)
    told = tables({"a": 3000, "b": 3000, "c": 3000})
    whole = np.vstack([one.X for one in told.values()]).mean(axis=0)
    found = means_of(plan, told, tmp_path / "run")
    assert (found != whole).all()
    np.testing.assert_allclose(found, whole, atol=0.5)


def test_sums_of_sites_give_the_means_of_all_records() -> None:
    low, high = np.array([-2.0, 0.0]), np.array([6.0, 1.0])
    sites = [
        Answer(np.array([1.0, 0.2]), np.array([2.0, 0.1]), 0.0, np.array([100.0, 80.0])),
        Answer(np.array([3.0, 0.6]), np.array([1.0, 0.2]), 0.0, np.array([300.0, 320.0])),
    ]
    total = np.sum([summands(one, low, high) for one in sites], axis=0).tolist()
    told = as_one(total, low, high)
    np.testing.assert_allclose(told.n_values, [400.0, 400.0])
    np.testing.assert_allclose(told.means, [2.5, 0.52], atol=1e-5)
    np.testing.assert_allclose(told.variances, [1.25, 0.18], atol=1e-5)
    silent = [Answer(np.empty(0), one.variances, 0.0, one.n_values) for one in sites]
    assert as_one(np.sum([summands(one, low, high) for one in silent], axis=0).tolist(), low, high).means.size == 0
