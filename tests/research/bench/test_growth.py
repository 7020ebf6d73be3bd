"""The figure of growth, with few of everything: exponents that are known, and costs that are those of real runs."""

import json
import time

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.bench import growth as bench_growth
from fedbnsl_research.trials.harness import exponent, megabytes_sent, run_plan
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.mark.parametrize("power", [-1.0, 0.5, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power):
    assert exponent([10, 20, 50], [3 * size**power for size in (10, 20, 50)]) == power


def test_the_fastest_turn_counts_and_growth_is_fitted_over_all_sizes_and_at_the_end():
    turns = []

    def cost(size):
        turns.append(size)
        disturbed = 1000.0 if len(turns) % 3 else 1.0
        return {"s": disturbed * (size if size <= 4 else size**2 / 4), "MB": 0.5 * size}

    row = bench_growth.grown("work", (2, 4, 8), cost)
    assert turns == [2] + 3 * [2] + 3 * [4] + 3 * [8]
    assert row["at"] == "2 4 8"
    assert row["s"] == "2 4 16"
    assert row["exponent of the last two, s"] == 2.0
    assert row["exponent, s"] == 1.5
    assert row["MB"] == "1 2 4"
    assert row["exponent, MB"] == row["exponent of the last two, MB"] == 1.0
    assert next(iter(row)) == "figure"


def test_the_costs_of_a_run_are_those_of_its_result():
    plan = Plan(rounds=2)
    cost = bench_growth._run(plan, 6, 3, 80)
    result = run_plan(plan, synthesise(6, 6, 3, 80, bench_growth._SEED))
    assert cost["MB serialised"] == megabytes_sent(result, "serialised")
    assert 0 < cost["s of its last round"] < cost["s of the coordinator"]
    assert 0 < cost["s of the processor"] < 60


def test_the_costs_of_a_table_are_those_of_one_with_so_many_rows(tmp_path):
    pytest.importorskip("pyarrow")
    cost = bench_growth._table(tmp_path, 300)
    assert len((tmp_path / "300.csv").read_text(encoding="utf-8").splitlines()) == 301
    assert min(cost.values()) > 0


def test_seconds_of_a_table_do_not_count_what_the_machine_does_for_others(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    read = Dataset.read

    def waits(path):
        time.sleep(2)
        return read(path)

    monkeypatch.setattr(Dataset, "read", waits)
    assert bench_growth._table(tmp_path, 300)["s reading"] < 1.5


def test_the_sizes_are_those_that_the_project_states(monkeypatch):
    asked = []

    def run(plan, d, n_sites, n_samples):
        asked.append((plan.name, plan.rounds, d, n_sites, n_samples))
        return {"s": float(d * n_sites * plan.rounds)}

    def table(folder, n_rows):
        asked.append(("table", n_rows))
        return {"s": float(n_rows)}

    monkeypatch.setattr(bench_growth, "_run", run)
    monkeypatch.setattr(bench_growth, "_table", table)
    rows = list(bench_growth.growth())
    assert all(row["exponent, s"] == 1.0 for row in rows)
    assert all(json.dumps(row, allow_nan=False) for row in rows)
    assert list(dict.fromkeys(asked)) == [
        *[("lean", 10, d, 8, 5000) for d in (20, 50, 100, 200, 400)],
        *[("lean", 10, d, 4, 5000) for d in (200, 400, 1000)],
        *[("lean", rounds, 100, 8, 5000) for rounds in (5, 20, 40, 80)],  # and 10, as above
        *[("fed-sparse", rounds, 100, 8, 5000) for rounds in (5, 10, 20, 40, 80)],
        *[("lean", 10, 50, n_sites, 200) for n_sites in (8, 32, 125, 500, 1000)],
        *[("table", n_rows) for n_rows in (10**3, 10**4, 10**5, 10**6)],
    ]
