"""Numbers of confidence count the rows that the sites have, also where a robust rule gives some of them less weight."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.inference.confidence import Confidence, confidence_of
from fedbnsl_server.rounds import moments
from plain_sites import PlainSites, states_of_run

ROWS = {"site-0": 50, "site-1": 60, "site-2": 70, "site-3": 4000}
NAMES = ("a", "b", "c")
PLAN = Plan(
    n_participants=4, rounds=2, refit_rounds=0, moments_rounds=2, graph_class="cpdag", threshold=0.0, l1_weight=0.02
).with_settings(preparation={}, bootstrap=2)


def table(n: int) -> np.ndarray:
    """Rows of a -> b -> c."""
    a, b, c = np.random.default_rng(n).standard_normal((3, n))
    return np.column_stack((a, a + b, a + b + c)) + n


TABLES = {site: Dataset(NAMES, table(n)) for site, n in ROWS.items()}


def last_state(plan: Plan) -> AdmmState:
    sites = PlainSites(TABLES, lambda site, snapshot: Participant(site, TABLES[site], plan, snapshot))
    return states_of_run(plan, sites, variables=NAMES, n_samples=ROWS)[-1]


def confidence(plan: Plan) -> Confidence:
    found = last_state(plan).confidence
    assert found is not None
    return found


def t_values(state: AdmmState) -> np.ndarray:
    """Of the first edge at each site, by White (1980), with residual variance and spread of all sites if larger."""
    found, units = state.confidence, state.units
    assert found is not None
    assert units is not None
    (i, j), *_ = found.edges.tolist()
    slopes, errors, spreads = [], [], []
    for n in ROWS.values():
        X = table(n) / units.scales
        x, y = X[:, i] - X[:, i].mean(), X[:, j] - X[:, j].mean()
        slopes.append(x @ y / (x @ x))
        left = y - slopes[-1] * x
        variance = max(left @ left / (n - 2), found.residual_variance[j])
        errors.append(np.sqrt(variance / (x @ x)))
        spreads.append(n * (x**2 @ left**2) / (x @ x) / (left @ left))
    mean = np.average(spreads, weights=list(ROWS.values()))
    return np.asarray(slopes) / errors / np.sqrt(np.maximum(spreads, max(mean, 1.0)))


def test_a_site_whose_own_mean_is_taken_off_has_one_row_less() -> None:
    state = last_state(PLAN)
    found = state.confidence
    assert found is not None
    assert found.n_samples == pytest.approx(4180 - 4, rel=1e-4)
    assert found.site_estimate[:, 0] / found.site_error[:, 0] == pytest.approx(t_values(state), rel=0.03)


def test_a_robust_rule_caps_the_weight_of_a_large_site_and_not_what_its_rows_tell() -> None:
    state = last_state(PLAN.with_settings(consensus="trimmed-mean"))
    found = state.confidence
    assert found is not None
    large = found.sites.index("site-3")
    told = found.site_estimate[large, 0] / found.site_error[large, 0]
    assert told == pytest.approx(t_values(state)[-1], rel=0.03)
    # Each site weighs as 60 rows at most, and is as exact as all of its own.
    weights = np.array([min(ROWS[site], 60) for site in found.sites])
    errors = weights**2 / np.array([ROWS[site] - 1 for site in found.sites])
    assert found.n_samples == pytest.approx(weights.sum() ** 2 / errors.sum())


def test_the_bootstrap_searches_moments_as_exact_as_the_runs_with_the_runs_penalty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Any, ...]] = []

    def spy(*args: Any, **options: Any) -> Confidence:
        seen.append(args)
        return confidence_of(*args, **options)

    monkeypatch.setattr(moments, "confidence_of", spy)
    confidence(PLAN.with_settings(consensus="trimmed-mean"))
    ((_, evidence, _, again),) = seen
    assert again.search.n_samples == evidence.accuracy.n_samples
