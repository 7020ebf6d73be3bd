"""The figures of ever more sites, with few: exponents and lines of costs that are known."""

import json
from dataclasses import replace

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import formula_bytes
from fedbnsl_research.bench import sites as bench_sites
from fedbnsl_research.bench.sites import Cost
from fedbnsl_research.trials.harness import run_plan
from fedbnsl_workbench.tables.synthetic import synthesise

ONE = Cost(
    n_sites=100,
    joining_s=0.5,
    round_s=0.4,
    processor_s=0.2,
    global_s=0.1,
    nonzeros=50_000.0,
    megabytes=1.5,
    highest_bytes=200 * 2**20,
)


def grown(by: int, power: float) -> Cost:
    """With so many times the sites, in a coordinator whose work grows by this power of them."""
    more = by**power
    return replace(
        ONE,
        n_sites=by * ONE.n_sites,
        joining_s=ONE.joining_s * by**2,
        processor_s=ONE.processor_s * more,
        global_s=ONE.global_s * by,
        nonzeros=ONE.nonzeros * by,
    )


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_a_coordinator_that_is_not_linear_in_the_sites_is_told_by_exponent_and_ratio(power: float) -> None:
    *rows, growth = bench_sites.by_sites([grown(by, power) for by in (1, 2, 4, 8)])
    assert [row["non-zeros a round"] for row in rows] == [50_000, 100_000, 200_000, 400_000]
    assert rows[0]["us of the processor a non-zero"] == 4.0
    assert growth["exponent of a round in the sites"] == power
    assert (growth["of joining"], growth["of the global step"]) == (2.0, 1.0)
    assert growth["ratio"] == 8 ** (power - 1)


def test_the_line_through_the_non_zeros_is_found_and_what_leaves_it_is_told() -> None:
    def spending(count: float, processor_s: float) -> Cost:
        return replace(ONE, nonzeros=count, processor_s=processor_s)

    on_a_line = [spending(count, 0.02 + 3e-6 * count) for count in (1e3, 2e4, 5e4)]
    row = bench_sites.by_nonzeros(on_a_line)
    assert (row["us a non-zero"], row["us a site beside"], row["largest deviation"]) == (3.0, 200, "0%")
    bent = [*on_a_line, spending(1e5, 0.02 + 6e-6 * 1e5)]
    assert int(bench_sites.by_nonzeros(bent)["largest deviation"].rstrip("%")) > 5


def test_the_costs_are_those_of_a_real_run() -> None:
    plan = Plan(rounds=2, refit_rounds=0)
    cost = bench_sites._cost(plan, 4)
    assert cost.n_sites == 4
    assert min(cost.round_s, cost.global_s, cost.nonzeros, cost.megabytes) > 0
    assert 0 <= cost.processor_s < 60
    assert 0 <= cost.joining_s < 60
    assert cost.highest_bytes > 20 * 2**20
    alone = run_plan(plan, synthesise(50, 50, 4, 200, 2))  # as many bytes as over the network
    assert cost.nonzeros == alone["bytes"]["up"]["formula"] / formula_bytes(1, 50) / 2


def test_the_settings_are_those_that_the_project_states(monkeypatch) -> None:
    asked = []

    def cost(plan: Plan, n_sites: int) -> Cost:
        asked.append((plan.rounds, plan.refit_rounds, plan.send_tolerance, n_sites))
        return replace(ONE, n_sites=n_sites, nonzeros=ONE.nonzeros / (1 + plan.send_tolerance))

    monkeypatch.setattr(bench_sites, "_cost", cost)
    rows = list(bench_sites.sites())
    assert len(rows) == 5
    assert all(json.dumps(row, allow_nan=False) for row in rows)
    assert asked == [(5, 0, 0.0, n) for n in (500, 1000, 2000)] + [(5, 0, tol, 250) for tol in (0.0, 0.01, 0.03, 0.1)]
