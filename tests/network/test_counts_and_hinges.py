"""Runs over gRPC that count, look for curves or at noise, or score: a killed coordinator ends with the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from network import test_resume
from network.test_moments_runs import AFTER_ITS_CHECKPOINT, BEFORE_ITS_CHECKPOINT, LEAN, WHEN_ONE_ANSWERED
from network.test_resume import SITES, VARIABLES, Federation, assert_same_run, coordinate_until

address, sites = test_resume.address, test_resume.sites
LEVELS: dict[str, Any] = {"kind": "nominal", "levels": ["low", "normal", "high"]}
ORDINAL = {**LEVELS, "kind": "ordinal"}
STANDARD: dict[str, Any] = {
    "preparation": {"missing": "em"},
    "moments_rounds": 2,
    "graph_class": "cpdag",
    "threshold": 0.0,
}
PLANS = {
    "counts": LEAN.with_settings(**STANDARD, dictionary=dict.fromkeys(VARIABLES, LEVELS), counts_rounds=5),
    "grades": LEAN.with_settings(**STANDARD, dictionary=dict.fromkeys(VARIABLES, ORDINAL), counts_rounds=5),
    "hinges": LEAN.with_settings(**STANDARD, look_for_curves=True),
    "noise": LEAN.with_settings(**STANDARD, look_at_noise=True),
    "validation": LEAN.with_settings(**STANDARD, tell_means=True, validation="sums"),
}


@pytest.fixture(params=list(PLANS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plan(kind: str) -> Plan:
    return PLANS[kind]


@pytest.fixture
def tables(kind: str) -> dict[str, Dataset]:
    """Each variable a curve of the one before, or a line with skewed noise; as levels where these are counted."""
    rng, found = np.random.default_rng(3), dict[str, Dataset]()
    for site in SITES:
        X = rng.normal(size=(150, len(VARIABLES)))
        if kind == "noise":
            X = rng.exponential(size=X.shape)
        for v in range(1, len(VARIABLES)):
            X[:, v] += np.square(X[:, v - 1]) - 1.0 if v % 2 and kind != "noise" else X[:, v - 1]
        if kind in ("counts", "grades"):
            X = np.digitize(X, [-0.5, 0.8]).astype(np.float64)
            entry = LEVELS if kind == "counts" else ORDINAL
            dictionary = Dictionary.model_validate(dict.fromkeys(VARIABLES, entry))
            found[site] = Dataset.of_values(VARIABLES, X, origin="here", dictionary=dictionary, warn=False)
        else:
            found[site] = Dataset(VARIABLES, X)
    return found


def test_a_run_whose_coordinator_is_killed_again_and_again_finds_the_same(
    sites: Federation, tables: dict[str, Dataset], plan: Plan, kind: str, tmp_path: Path
) -> None:
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    simulate(plan, tables, undisturbed)
    told = read_result(undisturbed)
    kinds = [entry["kind"] for entry in told["rounds"]]
    rounds = "counts" if kind == "grades" else kind
    first, last = kinds.index(rounds) + 1, len(kinds) - kinds[::-1].index(rounds)
    sites.start()
    for t, window in (
        (first - 1, AFTER_ITS_CHECKPOINT),
        (first, BEFORE_ITS_CHECKPOINT),
        (last, WHEN_ONE_ANSWERED),
    ):
        assert coordinate_until(window.format(t=t), plan, out, sites.address) == 9, (t, window)
    sites.coordinate(plan, out)
    result = read_result(out)
    assert_same_run(out, undisturbed)
    for key in ("edges", "categories", "curves", "validation", "verdict"):
        assert result[key] == told[key], key
    found = {
        "counts": result["categories"],
        "grades": result["categories"],
        "hinges": result["curves"] and result["curves"]["variables"],
        "noise": result["verdict"]["directed_by"].get("noise"),
        "validation": result["validation"],
    }
    assert found[kind]
