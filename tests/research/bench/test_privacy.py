"""The private figures, on settings small enough for a test: that they run and compare what they say."""

import json
import statistics

import numpy as np
import pytest

from fedbnsl_research.bench import generated
from fedbnsl_research.bench import privacy as bench_privacy
from fedbnsl_research.bench.generated import Generated
from fedbnsl_research.private_plans import private_plan
from fedbnsl_research.trials.harness import oracles
from fedbnsl_workbench.tables.synthetic import synthesise


def tiny_plan(epsilon, **privacy):
    return private_plan(epsilon).with_settings(
        rounds=2, local_steps=3, privacy={"epsilon": epsilon, "feature_bounds": (20.0,), **privacy}
    )


@pytest.fixture
def tiny(monkeypatch):
    """Networks of five variables and few rows, whatever is asked for, and short plans; notes what was simulated."""
    simulated = []

    def small(d, edges, n_sites, n, seed, **options):
        return synthesise(5, 5, n_sites, 60, seed, **options)

    real = generated.run_plan

    def noting(plan, federation, *, noise_seed):
        simulated.append((plan, noise_seed))
        return real(plan, federation, noise_seed=noise_seed)

    for module in (bench_privacy, generated):
        monkeypatch.setattr(module, "synthesise", small)
    monkeypatch.setattr(generated, "run_plan", noting)
    monkeypatch.setattr(bench_privacy, "private_plan", tiny_plan)
    monkeypatch.setattr(bench_privacy, "private_plan_200", lambda: tiny_plan(10.0, smoothness="exact"))
    monkeypatch.setattr(bench_privacy, "N_SAMPLES", 60)
    return simulated


def test_a_row_compares_the_same_plan_with_estimated_and_with_exact_second_moments(tiny, tmp_path):
    row = bench_privacy._compared(tiny_plan(5.0), Generated(20, range(2, 4)))
    assert [(plan.privacy.smoothness, seed) for plan, seed in tiny] == [
        ("estimated", 2), ("estimated", 3), ("exact", 2), ("exact", 3),
    ]  # fmt: skip
    rest = {json.dumps(plan.model_dump(exclude={"privacy": {"smoothness"}})) for plan, _ in tiny}
    assert len(rest) == 1
    estimated, exact = ([int(n) for n in row[f"{mode} by seed"].split()] for mode in ("estimated", "exact"))
    assert row["SHD exact"].split()[0] == str(round(statistics.mean(map(float, exact)), 2))
    assert float(row["apart"]) == pytest.approx(np.mean(estimated) - np.mean(exact), abs=0.01)
    assert json.dumps(row, allow_nan=False)


def test_the_figures_are_those_that_the_project_states(tiny, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(bench_privacy, "_compared", lambda *asked_for: asked.append(asked_for) or {})
    monkeypatch.setattr(bench_privacy, "_accuracy", lambda *asked_for: asked.append(asked_for) or {})
    monkeypatch.setattr(bench_privacy, "_time_of_a_step", dict)
    list(bench_privacy.privacy())
    assert [plan.privacy.epsilon for plan, _ in asked] == [0.5, 1, 2, 5, 10, 10]
    assert [data for _, data in asked] == [Generated(20, range(2, 12))] * 5 + [Generated(200, range(2, 4))]


def test_the_time_of_a_step_is_set_against_reading_and_against_the_literal_algorithm(tiny, monkeypatch):
    """With a clock that says 3 s a step, 1.5 s to read the table and 12 s a literal step."""
    said = []

    def clock(work):
        seconds = [3.0 * 200, 1.5 * 2**25 / (60 * 5), 12.0 * 2][len(said) % 3]
        said.append(seconds)
        return seconds, work()

    monkeypatch.setattr(bench_privacy, "timed", clock)
    row = bench_privacy._time_of_a_step()
    assert row["ours / reading n x d doubles once"] == pytest.approx(2.0)
    assert row["literal NumPy / ours"] == 4
    assert [row[key] for key in ("us ours", "us reading", "us literal")] == pytest.approx([3e6, 1.5e6, 12e6])
    assert json.dumps(row, allow_nan=False)


def test_the_literal_private_solver_without_noise_takes_the_greedy_steps_of_the_plain_one():
    X = synthesise(6, 8, 1, 50, 4).tables[0]
    zero, allowed = np.zeros((6, 6)), ~np.eye(6, dtype=bool)
    settings = {"lam": 0.1, "rho_2": 3.0, "gamma": 1.0}
    plain, _ = oracles().literal_pgcd(X, zero, zero, zero, **settings, max_steps=10, tol=0.0, allowed=allowed)
    private = oracles().literal_dp_pgcd(
        X, zero, zero, zero, M=(X * X).mean(axis=0) + 3.0, **settings, steps=10, clip=1e9, sharpness=1e12,
        noise_multiplier=0.0, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert np.abs(plain).max() > 0.1
    assert private == pytest.approx(plain, abs=1e-9)
