"""Ranking without a true graph: the likelihood of a left-out site, against that of its implied normal distribution."""

import json

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from command_line import run_command
from fedbnsl.plan.plan import Plan
from fedbnsl_research.trials.harness import site_datasets
from fedbnsl_research.tuning.held_out import held_out_row
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

PLAN = Plan(n_participants=3, rounds=8)


@pytest.fixture(scope="module")
def tables():
    return site_datasets(synthesise(4, 4, 3, 150, 5))


def test_the_score_is_the_log_likelihood_of_each_site_under_the_network_of_the_others(tables, tmp_path):
    expected = []
    for left_out, table in tables.items():
        run = tmp_path / left_out
        others = {site: other for site, other in tables.items() if site != left_out}
        simulate(PLAN.with_settings(n_participants=2), others, run)
        network = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))
        names = network["nodes"]
        W = np.array([[network["cpds"][t]["coefficients"].get(s, [0.0])[0] for t in names] for s in names])
        noise = np.diag([network["cpds"][name]["variance"][0] for name in names])
        back = np.linalg.inv(np.eye(len(names)) - W)
        normal = multivariate_normal(np.zeros(len(names)), back.T @ noise @ back)
        expected.append(normal.logpdf(table.X).mean())
    row = held_out_row(PLAN, tables, noise_seed=None)
    assert row["held_out"] == pytest.approx(np.mean(expected), rel=1e-6)
    assert row["error"] == ""


def test_a_plan_without_residual_variances_is_scored_with_those_of_the_tables_it_learned_from(tables):
    with_refit = held_out_row(PLAN, tables, noise_seed=None)["held_out"]
    without = held_out_row(PLAN.with_settings(refit_rounds=0), tables, noise_seed=None)["held_out"]
    assert without < with_refit < without + 1.0, "shrunk weights predict a little worse"


def test_tables_without_a_truth_are_ranked_by_left_out_sites(tables, tmp_path, capsys):
    """A threshold above every weight leaves the empty graph, which explains less."""
    data = tmp_path / "data"
    synth = ["--nodes", 4, "--edges", 4, "--sites", 3, "--rows", 150, "--seed", 5]
    assert run_command(capsys, "data", "synth", *synth, "--out", data).code == 0
    (data / "truth.csv").unlink()
    grid = tmp_path / "grid.toml"
    grid.write_text("threshold = [50.0, 0.3]\nrounds = [8]\n", encoding="utf-8")
    call = ["tune", "fed-sparse", "--grid", grid, "--data", data, "--out", tmp_path / "out"]
    outcome = run_command(capsys, *call, "--json")
    assert outcome.code == 0, outcome.err
    assert "held_out: without a true graph" in " ".join(outcome.err.split())
    found = json.loads(outcome.out)
    assert found["metric"] == "held_out"
    assert [row["threshold"] for row in found["ranking"]] == [0.3, 50.0]
    best = (tmp_path / "out" / "best.toml").read_text(encoding="utf-8")
    assert "by the mean of held_out" in best
    assert "# held_out: without a true graph" in best
    refused = run_command(capsys, *call, "--metric", "shd")
    assert refused.code == 2
    assert "rank by --metric held_out" in refused.err


def test_two_sites_are_too_few_to_leave_one_out(tmp_path, capsys):
    grid = tmp_path / "grid.toml"
    grid.write_text("rounds = [4]\n", encoding="utf-8")
    refused = run_command(
        capsys, "tune", "fed-sparse", "--grid", grid, "--sites", 2, "--metric", "held_out", "--out", tmp_path / "out"
    )
    assert refused.code == 2
    assert "held_out needs 3 sites or more" in refused.err
