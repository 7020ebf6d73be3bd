"""Runs on prepared columns over gRPC: whoever is killed or begins anew, the units and the bits stay the same."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import Preparation
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from network import test_resume
from network.test_moments_runs import AFTER_ITS_CHECKPOINT, BEFORE_ITS_CHECKPOINT, LEAN, Crashes
from network.test_resume import Federation, assert_same_run, coordinate_until

address, sites = test_resume.address, test_resume.sites
PLANS = {
    intercept: LEAN.with_settings(preparation={"intercept": intercept}, threshold=0.05)
    for intercept in ("site", "common")
}
each_plan = pytest.mark.parametrize("intercept", list(PLANS))


@pytest.fixture(scope="module")
def tables() -> dict[str, Dataset]:
    """Tables as sites have them: other units, means and numbers of rows."""
    d = len(test_resume.VARIABLES)
    drawn = np.random.default_rng(4)
    units, weights = 10.0 ** drawn.uniform(-1, 1, d), np.triu(drawn.uniform(0.5, 1.5, (d, d)), 1)
    weights *= drawn.random((d, d)) < 0.5

    def table(n: int) -> Dataset:
        noise = drawn.standard_normal((n, d))
        X = noise @ np.linalg.inv(np.eye(d) - weights) + drawn.normal(5.0, 2.0, d)
        return Dataset(test_resume.VARIABLES, X * units)

    return {site: table(n) for site, n in zip(test_resume.SITES, (40, 160, 320), strict=True)}


def simulated(plans: Mapping[str, Plan], tables: dict[str, Dataset], folder: Path) -> dict[str, Path]:
    """The runs of some plans in this process."""
    for name, plan in plans.items():
        simulate(plan, tables, folder / name)
    return {name: folder / name for name in plans}


@pytest.fixture(scope="module")
def undisturbed(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return simulated(PLANS, tables, tmp_path_factory.mktemp("prepared"))


@each_plan
def test_a_run_whose_coordinator_is_killed_again_and_again_keeps_its_units(
    sites: Federation, undisturbed: dict[str, Path], tmp_path: Path, intercept: str
) -> None:
    plan, out = PLANS[intercept], tmp_path / "run"
    sites.start()
    for t, window in ((1, BEFORE_ITS_CHECKPOINT), (1, AFTER_ITS_CHECKPOINT), (3, AFTER_ITS_CHECKPOINT)):
        assert coordinate_until(window.format(t=t), plan, out, sites.address) == 9, (t, window)
    result = sites.coordinate(plan, out)
    assert [entry["kind"] for entry in result["rounds"]] == ["statistics"] + ["admm"] * 4 + ["moments"]
    assert len(result["edges"]) > 0
    assert_same_run(out, undisturbed[intercept])
    assert result["preparation"] == read_result(undisturbed[intercept])["preparation"]


@each_plan
def test_a_site_that_begins_anew_in_every_round_is_told_the_units(
    sites: Federation,
    undisturbed: dict[str, Path],
    tmp_path: Path,
    intercept: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = PLANS[intercept]
    crashes = Crashes(
        monkeypatch, "c", lambda: DivergenceError("c ends here, and begins anew"), n_rounds=n_rounds(plan)
    )
    sites.start("a", "b")
    sites.start("c", lives=2 * n_rounds(plan))
    sites.coordinate(plan, tmp_path / "run")
    assert len(crashes.deaths) == 2 * n_rounds(plan) - 1
    assert all(len(versions) == 1 for versions in crashes.sent.values())
    assert_same_run(tmp_path / "run", undisturbed[intercept])


def test_the_result_says_how_columns_were_prepared(undisturbed: dict[str, Path]) -> None:
    settings = Preparation().model_dump()
    for intercept, run in undisturbed.items():
        result = read_result(run)
        told = result["preparation"]
        assert {key: told[key] for key in settings} == {**settings, "intercept": intercept}
        assert set(told["scales"]) == set(result["variables"])
        assert (told["centres"] is None) == (intercept == "site"), "a site's own means stay there"
        for edge in result["edges"]:
            share = told["scales"][edge["source"]] / told["scales"][edge["target"]]
            assert edge["standardised"] == pytest.approx(edge["weight"] * share, rel=1e-6)
