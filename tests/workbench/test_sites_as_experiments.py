"""A whole run in process: sites that differ direct what the class leaves open, in every place where it is read."""

from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_server.results.sentences import directions_in_words
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.result_file import learned_class, read_result
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate

SITES, ROWS = 5, 600


def tables(*, spread: float = 3.0) -> list[Matrix]:
    """X1 -> X2 -> X3, where the noise of X1 is larger at the second site."""
    rng = np.random.default_rng(5)
    found: list[Matrix] = []
    for p in range(SITES):
        e = rng.standard_normal((ROWS, 3))
        e[:, 0] *= spread if p == 1 else 1.0
        x2 = 0.8 * e[:, 0] + e[:, 1]
        found.append(np.column_stack((e[:, 0], x2, -0.7 * x2 + e[:, 2])))
    return found


def run(folder: Path, X: list[Matrix], **settings: Any) -> dict[str, Any]:
    plan = Plan.load("standard").with_settings(n_participants=SITES, bootstrap=20, look_at_noise=False, **settings)
    return simulate(plan, {site: rows_for(one, plan) for site, one in site_tables(X).items()}, folder)


def test_a_run_tells_directions_by_sites_their_evidence_and_what_differs(tmp_path: Path) -> None:
    result = run(tmp_path / "run", tables())
    edges = {(one["source"], one["target"]): one for one in result["edges"]}
    assert {ends: (one["directed"], one["directed_by"]) for ends, one in edges.items()} == {
        ("X1", "X2"): (True, "sites"),
        ("X2", "X3"): (True, "sites"),
    }
    evidence = edges["X1", "X2"]["evidence"]
    assert evidence["sites"] == ["site-2"]
    assert evidence["log_likelihood"] >= 5.0
    mechanism = result["experiments"]["mechanisms"][0]
    assert (mechanism["site"], mechanism["variable"]) == ("site-2", "X1")
    (change,) = mechanism["changes"]
    assert change["of"] == ""
    assert change["here"] / change["elsewhere"] == pytest.approx(9.0, rel=0.2)
    assert mechanism["says"].startswith("site-2: the mechanism of X1 differs (residual variance")
    verdict = result["verdict"]
    assert verdict["directed_by"]["sites"] == 2
    assert any("sites that differ tell the direction of 2 edges" in one for one in verdict["tested"])
    assert any("site-2: the mechanism of X1 differs" in one for one in verdict["contradicted"])
    assert "by sites that differ: 2" in directions_in_words(verdict)
    read = read_result(tmp_path / "run")
    assert (learned_class(read) == np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=bool)).all()
    lines = (tmp_path / "run" / "edges.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[3] for line in lines[1:]] == ["1", "1"]
    plan = Plan.from_toml((tmp_path / "run" / "plan.toml").read_text(encoding="utf-8"))
    state = checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=plan.digest())
    assert (state.directions[0].source, state.directions[0].target) == ("X1", "X2")
    assert state.experiments is not None
    assert state.experiments.differences[0].site == "site-2"


def test_sites_that_are_alike_leave_the_class_as_it_is(tmp_path: Path) -> None:
    result = run(tmp_path / "run", tables(spread=1.0))
    assert [one["directed_by"] for one in result["edges"]] == ["nobody", "nobody"]
    assert result["experiments"] == {"open_edges": 2, "compared": 2, "mechanisms": []}


def test_a_run_whose_sites_are_not_compared_says_that_and_why(tmp_path: Path) -> None:
    result = run(tmp_path / "run", tables(), consensus="median")
    assert result["experiments"] is None
    assert any("the plan has a robust consensus" in one for one in result["verdict"]["not_tested"])


def test_what_was_set_at_a_site_directs_by_interventions(tmp_path: Path) -> None:
    told = [{"site": "site-2", "variables": ["X1"]}]
    result = run(tmp_path / "run", tables(), interventions=told)
    assert [one["directed_by"] for one in result["edges"]] == ["interventions", "interventions"]
    assert "the plan is right about what was set by design: 'X1' at site-2" in result["verdict"]["assumed"]
    page = unescape(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    assert '[{"site": "site-2", "variables": ["X1"]}]' in page
    with pytest.raises(PlanError, match="no site of the run is called 'site-9'"):
        run(tmp_path / "other", tables(), interventions=[{"site": "site-9", "variables": ["X1"]}])
    with pytest.raises(PlanError, match="no variable 'dose'"):
        run(tmp_path / "third", tables(), interventions=[{"site": "site-2", "variables": ["dose"]}])


@pytest.mark.parametrize("known", [True, False])
def test_a_difference_where_a_variable_was_set_is_said_to_be_no_surprise(tmp_path: Path, known: bool) -> None:
    X = tables(spread=1.0)
    X[1][:, 1:] += (np.random.default_rng(6).standard_normal(ROWS) - 0.8 * X[1][:, 0])[:, None] * [1.0, -0.7]
    told = [{"site": "site-2", "variables": ["X2"]}] * known
    verdict = run(tmp_path / "run", X, interventions=told)["verdict"]
    assert any("as it must where the plan says" in one for one in verdict["contradicted"]) == known
    assert any(one.startswith("site-2 alone differs") for one in verdict["reasons"])
    assert any("as the plan says ('X2' at site-2)" in one for one in verdict["reasons"]) == known
    assert any("look at its table" in one for one in verdict["reasons"]) != known
