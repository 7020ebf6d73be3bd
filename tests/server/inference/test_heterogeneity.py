"""Tests that sites agree, against formulas by hand, and searches that leave one site out."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.inference.heterogeneity import chi_square_tails, cochran, holm, kept_without_a_site, tails
from fedbnsl_server.search.class_search import ClassSearch
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments
from fedbnsl_server.search.score import bic_penalty


def test_cochrans_q_is_the_sum_of_squares_around_the_weighted_mean() -> None:
    q, degrees = cochran(np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [0.5], [1.0]]))
    mean = (1 * 1 + 4 * 2 + 1 * 4) / 6
    assert q[0] == pytest.approx((1 - mean) ** 2 + 4 * (2 - mean) ** 2 + (4 - mean) ** 2)
    assert degrees.tolist() == [2]


def test_sites_without_an_estimate_count_for_nothing_and_one_site_alone_tells_nothing() -> None:
    nan = math.nan
    estimates, errors = np.array([[1.0, nan], [3.0, 2.0], [nan, nan]]), np.array([[1.0, nan], [1.0, 1.0], [1.0, nan]])
    q, degrees = cochran(estimates, errors)
    assert degrees.tolist() == [1, 0]
    assert q.tolist() == [2.0, 0.0]


def test_q_of_equal_sites_exceeds_each_quantile_as_often_as_chi_square() -> None:
    rng, errors = np.random.default_rng(0), np.array([[0.5], [1.0], [2.0], [0.1]])
    q, degrees = cochran(3.0 + errors * rng.standard_normal((4, 20_000)), np.broadcast_to(errors, (4, 20_000)))
    p = chi_square_tails(q, degrees)
    for level in (0.05, 0.5):
        assert (p < level).mean() == pytest.approx(level, abs=0.01)


def test_holm_adjusts_as_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    assert holm(np.empty(0)).size == 0


def test_tails_of_a_normal_number() -> None:
    assert tails(np.array([0.0, 1.959964, -1.959964])) == pytest.approx([1.0, 0.05, 0.05], abs=1e-6)


def test_each_search_has_the_moments_and_the_rows_of_the_other_sites() -> None:
    sites = [SiteMoments(np.eye(2) * k, Accuracy(10 * k, 0.3)) for k in (1, 2, 4)]
    dag = np.array([[0, 1], [0, 0]], dtype=bool)
    seen: list[tuple[float, float, float]] = []

    class Search:
        def on(self, moments: np.ndarray, accuracy: Accuracy, near: np.ndarray, /) -> Any:
            seen.append((moments[0, 0], accuracy.n_samples, accuracy.noise_std))
            return self

        def found(self, **settings: Any) -> FoundGraph:
            found = dag.T if len(seen) == 1 else dag & (len(seen) == 2)
            return FoundGraph(found, np.zeros((2, 2)), np.ones(2), 0.0)

        def scores(self, dags: Sequence[np.ndarray]) -> np.ndarray:
            return np.zeros(len(dags))

    kept = kept_without_a_site(sites, [10, 20, 40], [dag], Search())
    assert {p: int(found.sum()) for p, found in kept.items()} == {0: 2, 1: 2, 2: 0}
    assert all((found == found.T).all() for found in kept.values())
    weighted = [((2, 20), (4, 40)), ((1, 10), (4, 40)), ((1, 10), (2, 20))]
    assert [one[0] for one in seen] == pytest.approx([(a * m + b * n) / (m + n) for (a, m), (b, n) in weighted])
    assert [one[1] for one in seen] == pytest.approx([60, 50, 30])
    assert [one[2] for one in seen] == pytest.approx([0.3 * math.hypot(m, n) / (m + n) for (_, m), (_, n) in weighted])


@pytest.mark.long
def test_without_a_site_the_best_graph_is_found_though_it_is_far_from_that_of_all_sites() -> None:
    """Searches that start at the graph and stay near it keep pairs that full searches do not."""
    d, n = 6, 500
    rng = np.random.default_rng(144)
    back = np.linalg.inv(np.eye(d) - np.triu((rng.random((d, d)) < 0.5) * rng.normal(0, 0.5, (d, d)), 1))
    tables = [rng.standard_normal((n, d)) @ np.linalg.cholesky(back.T @ back).T for _ in range(8)]
    sites, everyone = [SiteMoments(X.T @ X / n, Accuracy(n)) for X in tables], float(8 * n)
    mask = EdgeMask(Knowledge(), [f"x{k}" for k in range(d)])
    search = ClassSearch(~np.eye(d, dtype=bool), mask, everyone, bic_penalty(everyone), 0.0, 0)
    dag = search.found(np.mean([one.moments for one in sites], axis=0)).dag
    full, near = np.zeros((d, d), dtype=int), np.zeros((d, d), dtype=int)
    for p in range(8):
        others = np.mean([one.moments for k, one in enumerate(sites) if k != p], axis=0)
        problem = search.on(others, Accuracy(7 * n))
        for total, found in (
            (full, problem.found().dag),
            (near, problem.found(patience=0, start=topological_order(dag)).dag),
        ):
            total += found | found.T
    assert np.abs(near - full).max() >= 2
    kept = kept_without_a_site(sites, [float(n)] * 8, [dag], search)
    assert (np.sum(list(kept.values()), axis=0) == full).all()
