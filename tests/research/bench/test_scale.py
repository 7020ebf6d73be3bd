"""The figure of many variables, on few."""

import json

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import scale as bench_scale
from fedbnsl_workbench.tables.synthetic import synthesise


def test_the_run_is_measured_in_a_process_of_its_own():
    (row,) = bench_scale._whole_run(Plan(rounds=2), n_variables=6, n_samples=50, seed=1)
    assert "n_p=50" in row["figure"]
    assert row["rounds"] == 2
    assert row["s"] >= 0
    assert row["MiB at most"] > 20
    assert row["true edges"] == np.count_nonzero(synthesise(6, 6, 4, 1, 1).W)
    assert json.dumps(row, allow_nan=False)


def test_both_plans_are_run_with_a_thousand_variables(monkeypatch):
    asked = []
    monkeypatch.setattr(
        bench_scale,
        "_whole_run",
        lambda plan, *, n_variables, seed: asked.append((plan.name, n_variables, seed)) or iter(()),
    )
    assert not [*bench_scale.thousand()]
    assert asked == [("fed-sparse", 1000, 100), ("lean", 1000, 100)]
