"""The figures of many variables, on few."""

import json
from itertools import pairwise

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import scale as bench_scale
from fedbnsl_research.trials.harness import run_plan
from fedbnsl_server.algorithm.global_step import global_step
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(bench_scale, "N_SAMPLES", 100)
    monkeypatch.setattr(bench_scale, "_EVERY", 2)


@pytest.mark.parametrize("schedule", ["continuation", "augmented"])
def test_the_problems_are_those_of_the_run(schedule):
    plan = Plan(rounds=4, n_participants=2, acyclicity_schedule=schedule)
    states = []
    run_plan(plan, synthesise(6, 9, 2, 100, 3), follow=states.append)
    for before, after in pairwise(states[:4]):
        problem = bench_scale._Problem.between(before, after, plan)
        W = global_step(
            problem.A, problem.W, n_participants=2, rho_2=plan.consensus_penalty, alpha=problem.alpha,
            rho_1=problem.rho_1, allowed=~np.eye(6, dtype=bool), max_iterations=plan.global_iterations,
        )  # fmt: skip
        assert problem.round == after.round
        assert after.global_weights.to_dense() == pytest.approx(W.to_dense(), abs=1e-9)
        weight = 2 * plan.consensus_penalty
        assert problem.value(W.to_dense(), weight) < problem.value(problem.W.to_dense(), weight)


def test_the_step_figure_compares_both_on_rounds_of_a_run(few_rows):
    (row,) = bench_scale._steps(Plan(rounds=6), n_variables=8, seed=1)
    assert "on 3 rounds" in row["figure"]
    assert [entry.split()[0] for entry in row["ratio by round"].split(": ")][:1] == ["2"]
    least, median = map(float, row["objective's decrease, ours / dense, least median"].split())
    assert 0.8 < least <= median < 1.3
    assert row["ratio"] > 0
    assert json.dumps(row, allow_nan=False)


def test_the_run_is_measured_in_a_process_of_its_own():
    (row,) = bench_scale._whole_run(Plan(rounds=2), n_variables=6, n_samples=50, seed=1)
    assert "n_p=50" in row["figure"]
    assert row["rounds"] == 2
    assert row["s"] >= 0
    assert row["MiB at most"] > 20
    assert row["true edges"] == np.count_nonzero(synthesise(6, 6, 4, 1, 1).W)
    assert json.dumps(row, allow_nan=False)


def test_both_plans_are_run_with_a_thousand_variables_and_the_lean_one_with_two_thousand(monkeypatch):
    asked = []
    monkeypatch.setattr(
        bench_scale,
        "_whole_run",
        lambda plan, *, n_variables, n_samples=5000, seed: (
            asked.append((plan.name, n_variables, n_samples, seed)) or iter(())
        ),
    )
    assert not [*bench_scale.thousand(), *bench_scale.two_thousand()]
    assert asked == [("fed-sparse", 1000, 5000, 100), ("lean", 1000, 5000, 100), ("lean", 2000, 2000, 100)]
