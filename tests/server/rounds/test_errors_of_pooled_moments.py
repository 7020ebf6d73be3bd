"""Numbers of confidence count the rows that the sites have, also where a robust rule gives some of them less weight."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.rounds import moments
from fedbnsl_server.search.confidence import Confidence, confidence_of
from plain_sites import PlainSites, states_of_run

ROWS = {"site-0": 50, "site-1": 60, "site-2": 70, "site-3": 4000}
NAMES = ("a", "b", "c")
PLAN = Plan(
    n_participants=4, rounds=2, refit_rounds=0, moments_rounds=1, graph_class="cpdag", threshold=0.0, l1_weight=0.02
).with_settings(preparation={}, bootstrap=2)


def table(n: int) -> np.ndarray:
    """Rows of a -> b -> c."""
    a, b, c = np.random.default_rng(n).standard_normal((3, n))
    return np.column_stack((a, a + b, a + b + c)) + n


TABLES = {site: Dataset(NAMES, table(n)) for site, n in ROWS.items()}


def confidence(plan: Plan) -> Confidence:
    sites = PlainSites(TABLES, lambda site, snapshot: Participant(site, TABLES[site], plan, snapshot))
    found = states_of_run(plan, sites, variables=NAMES, n_samples=ROWS)[-1].confidence
    assert found is not None
    return found


def t_value(X: np.ndarray, i: int, j: int) -> float:
    """Of the regression of column j on column i and a constant, by the textbook."""
    x, y = X[:, i] - X[:, i].mean(), X[:, j] - X[:, j].mean()
    slope = x @ y / (x @ x)
    left = y - slope * x
    return float(slope / np.sqrt(left @ left / (len(X) - 2) / (x @ x)))


def test_a_site_whose_own_mean_is_taken_off_has_one_row_less() -> None:
    found = confidence(PLAN)
    assert found.n_samples == pytest.approx(4180 - 4, rel=1e-4)
    (i, j), *_ = found.edges.tolist()
    expected = [t_value(table(n), i, j) for n in ROWS.values()]
    assert found.site_estimate[:, 0] / found.site_error[:, 0] == pytest.approx(expected, rel=1e-4)


def test_a_robust_rule_caps_the_weight_of_a_large_site_and_not_what_its_rows_tell() -> None:
    found = confidence(PLAN.with_settings(consensus="trimmed-mean"))
    large = found.sites.index("site-3")
    (i, j), *_ = found.edges.tolist()
    told = found.site_estimate[large, 0] / found.site_error[large, 0]
    assert told == pytest.approx(t_value(table(4000), i, j), rel=1e-4)
    # Each site weighs as 60 rows at most, and is as exact as all of its own.
    weights = np.array([min(ROWS[site], 60) for site in found.sites])
    errors = weights**2 / np.array([ROWS[site] - 1 for site in found.sites])
    assert found.n_samples == pytest.approx(weights.sum() ** 2 / errors.sum())


def test_the_bootstrap_searches_moments_as_exact_as_the_runs_with_the_runs_penalty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []

    def spy(*args: Any, **options: Any) -> Confidence:
        seen.append(options)
        return confidence_of(*args, **options)

    monkeypatch.setattr(moments, "confidence_of", spy)
    confidence(PLAN.with_settings(consensus="trimmed-mean"))
    (options,) = seen
    assert options["search"].n_samples == options["accuracy"].n_samples
