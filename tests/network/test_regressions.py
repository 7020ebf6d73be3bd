"""Runs with odds ratios over gRPC: whoever is killed or begins anew, they end with the same bits."""

from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from network import test_prepared_runs, test_resume
from network.test_moments_runs import AFTER_ITS_CHECKPOINT, BEFORE_ITS_CHECKPOINT, LEAN, WHEN_ONE_ANSWERED, Crashes
from network.test_resume import Federation, assert_same_run, coordinate_until

address, sites, whole = test_resume.address, test_resume.sites, test_prepared_runs.tables
BINARY: dict[str, Any] = {"kind": "binary", "levels": ["no", "yes"]}
ENTRIES = {name: BINARY if k % 2 else {} for k, name in enumerate(test_resume.VARIABLES)}
PLAN = LEAN.with_settings(
    dictionary=ENTRIES,
    preparation={"missing": "em"},
    regressions_rounds=12,
    threshold=0.05,
    knowledge={"required": [[test_resume.VARIABLES[0], test_resume.VARIABLES[1]]]},
)


@pytest.fixture(scope="module")
def tables(whole: dict[str, Dataset]) -> dict[str, Dataset]:
    """Every other column tells whether it is above the site's mean."""
    found = {}
    for site, table in whole.items():
        X = table.X.copy()
        X[:, 1::2] = X[:, 1::2] > X[:, 1::2].mean(axis=0)
        found[site] = Dataset(table.variables, X, dictionary=Dictionary.model_validate(ENTRIES))
    return found


@pytest.fixture(scope="module")
def undisturbed(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ratios") / "run"
    simulate(PLAN, tables, out)
    return out


def kinds(run: Path) -> list[str]:
    return [entry["kind"] for entry in read_result(run)["rounds"]]


def test_a_run_whose_coordinator_is_killed_again_and_again_ends_with_the_same_ratios(
    sites: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    out, first = tmp_path / "run", kinds(undisturbed).index("regressions") + 1
    sites.start()
    for t, window in (
        (first - 1, AFTER_ITS_CHECKPOINT),
        (first, BEFORE_ITS_CHECKPOINT),
        (first + 1, WHEN_ONE_ANSWERED),
        (first + 2, AFTER_ITS_CHECKPOINT),
    ):
        assert coordinate_until(window.format(t=t), PLAN, out, sites.address) == 9, (t, window)
    result = sites.coordinate(PLAN, out)
    assert_same_run(out, undisturbed)
    assert result["regressions"] == read_result(undisturbed)["regressions"]
    assert any(one["estimates"] for one in result["regressions"])


def test_a_site_that_begins_anew_in_every_round_gives_the_same_ratios(
    sites: Federation, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_rounds = len(kinds(undisturbed))
    crashes = Crashes(monkeypatch, "c", lambda: DivergenceError("c ends here, and begins anew"), n_rounds=n_rounds)
    sites.start("a", "b")
    sites.start("c", lives=2 * n_rounds)
    sites.coordinate(PLAN, tmp_path / "run")
    assert len(crashes.deaths) == 2 * n_rounds - 1
    assert all(len(versions) == 1 for versions in crashes.sent.values())
    assert_same_run(tmp_path / "run", undisturbed)
    assert read_result(tmp_path / "run")["regressions"] == read_result(undisturbed)["regressions"]


def test_columns_without_a_dictionary_have_no_rounds_of_regressions(whole: dict[str, Dataset], tmp_path: Path) -> None:
    simulate(PLAN.with_settings(dictionary={}), whole, tmp_path / "run")
    assert "regressions" not in kinds(tmp_path / "run")
