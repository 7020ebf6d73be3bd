"""The figure of private steps, on a small network: both ways give the same bits, and it would say if they did not."""

import pytest

from fedbnsl_research.bench import private_steps as bench_private_steps
from fedbnsl_research.private_plans import private_plan
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(bench_private_steps, "synthesise", lambda d, edges, p, n, seed: synthesise(5, 5, p, 60, seed))
    monkeypatch.setattr(bench_private_steps, "private_plan_200", lambda: private_plan(5.0))
    monkeypatch.setattr(bench_private_steps, "_TURNS", 3)


def test_both_ways_give_the_same_bits(tiny):
    rows = list(bench_private_steps.private_steps())
    assert len(rows) == 2
    assert all(row["the same bits"] is True and row["ratio"] > 0 for row in rows)


def test_it_says_so_if_they_do_not(tiny, monkeypatch):
    class Sharper(bench_private_steps.ExponentialMechanism):
        def __init__(self, sharpness, allowed):
            super().__init__(sharpness * 2, allowed)

    monkeypatch.setattr(bench_private_steps, "ExponentialMechanism", Sharper)
    rows = list(bench_private_steps.private_steps())
    assert not any(row["the same bits"] for row in rows)
