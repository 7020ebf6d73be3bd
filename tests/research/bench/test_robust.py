"""The figures about wrong sites, on few variables: who is wrong, what is counted, and that nobody is without poison."""

import json

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import robust as bench_robust
from fedbnsl_research.bench.poison import swapped
from fedbnsl_research.trials.harness import run_plan, run_row
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench_robust, "N_SAMPLES", 400)
    monkeypatch.setattr(bench_robust, "_SEEDS", range(3, 5))
    monkeypatch.setattr(bench_robust, "_VARIABLES", 8)
    monkeypatch.setattr(bench_robust, "PLANS", ("lean",))
    monkeypatch.setattr(bench_robust, "FEDERATIONS", ((3, 1),))


def test_a_row_for_each_poison_counts_who_is_named(small):
    rows = list(bench_robust.robust())
    assert [row["figure"] for row in rows] == [
        "lean, 0 of 3 sites wrong: nobody",
        "lean, 1 of 3 sites wrong: constant weights",
        "lean, 1 of 3 sites wrong: garbage",
        "lean, 1 of 3 sites wrong: two columns swapped",
    ]
    assert [row["wrong sites named (mean)"] for row in rows[:3]] == ["0 of 0", "2 of 2", "2 of 2"]
    assert rows[3]["wrong sites named (mean)"] in ("1 of 2", "2 of 2")  # with 400 rows, a swap may hide in the noise
    assert [row["honest sites named (mean)"] for row in rows] == ["0 of 6", "0 of 4", "0 of 4", "0 of 4"]
    assert rows[2]["SHD, mean"] > rows[0]["SHD, mean"] + 3
    assert rows[2]["SHD, median"] < 3 > rows[2]["SHD, trimmed-mean"]
    assert json.dumps(rows, allow_nan=False)


def test_honest_sites_are_counted_by_kind_and_above_the_limit(small, monkeypatch):
    monkeypatch.setattr(bench_robust, "_HONEST_SITES", (3,))
    monkeypatch.setattr(bench_robust, "_HONEST_SEEDS", range(1000, 1003))
    rows = list(bench_robust.honest())
    assert [row["figure"] for row in rows] == [f"lean, 3 honest sites: {kind}" for kind in bench_robust.HONEST]
    assert [row["runs"] for row in rows] == [3] * 4
    assert rows[0]["runs with a site named"] == 0 < rows[0]["largest influence"] < bench_robust.LIMIT
    monkeypatch.setattr(bench_robust, "LIMIT", 0.0)
    assert [row["runs with a site named"] for row in bench_robust.honest()] == [3] * 4


def test_without_poison_a_run_is_the_ordinary_one():
    federation, plan = synthesise(8, 8, 3, 300, 4), Plan(rounds=5, n_participants=3)
    shd, named = bench_robust.poisoned_run(plan, federation, 0, "nobody")
    assert named == set()
    assert shd == run_row(run_plan(plan, federation), federation)["shd"]


def test_the_ends_of_the_largest_effect_are_swapped_and_nothing_else():
    W = np.zeros((4, 4))
    W[0, 1], W[2, 3] = 0.5, -2.0
    X = np.arange(8.0).reshape(2, 4)
    assert swapped(X, W).tolist() == [[0.0, 1.0, 3.0, 2.0], [4.0, 5.0, 7.0, 6.0]]
