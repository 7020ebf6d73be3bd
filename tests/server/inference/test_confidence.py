"""All numbers of confidence in one graph, from moments of tables whose truth is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference.confidence import Again, Confidence, Evidence, confidence_of
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments

COLUMNS = Columns.of(["a", "b", "c", "d"])
CHAIN = np.zeros((4, 4), dtype=bool)
CHAIN[[0, 1, 2], [1, 2, 3]] = True


class Same:
    """A search that always finds the graph again."""

    def __init__(self, dag: np.ndarray) -> None:
        self._dag = dag

    def on(self, moments: np.ndarray, accuracy: Accuracy, near: np.ndarray, /) -> Any:
        return self

    def found(self, **settings: Any) -> FoundGraph:
        return FoundGraph(self._dag, np.zeros((4, 4)), np.ones(4), 0.0)

    def scores(self, dags: Sequence[np.ndarray]) -> np.ndarray:
        return np.zeros(len(dags))


def tables(n_sites: int, n: int, *, odd: float = 0.0, hidden: float = 0.0) -> Mapping[str, SiteMoments]:
    """Moments of a -> b -> c -> d; the last site has another effect of b on c; a hidden cause acts on a and d."""
    found: dict[str, SiteMoments] = {}
    for k in range(n_sites):
        rng = np.random.default_rng(k)
        e = rng.standard_normal((n, 4)) + hidden * rng.standard_normal((n, 1)) * [1, 0, 0, -1]
        X = e.copy()
        X[:, 1] += X[:, 0]
        X[:, 2] += (1.0 + odd * (k == n_sites - 1)) * X[:, 1]
        X[:, 3] += X[:, 2]
        found[f"site-{k}"] = SiteMoments(X.T @ X / n, Accuracy(n))
    return found


def confidence(sites: Mapping[str, SiteMoments], draws: int = 0, dag: np.ndarray = CHAIN) -> Confidence:
    S = np.mean([one.moments for one in sites.values()], axis=0)
    n = sum(one.accuracy.n_samples for one in sites.values())
    return confidence_of(
        dag,
        Evidence(S, Accuracy(n), sites=sites, weights=[1.0] * len(sites)),
        COLUMNS,
        Again(Same(dag), cpdag, draws, np.random.default_rng(0)),
    )


def test_sites_with_one_network_do_not_differ_and_an_odd_one_shows_at_its_edge_alone() -> None:
    assert (confidence(tables(5, 2000)).q < 15).all()
    odd = confidence(tables(5, 2000, odd=0.2))
    assert odd.degrees.tolist() == [4, 4, 4]
    assert odd.q[1] > 40 > 15 > max(odd.q[[0, 2]])
    assert odd.site_estimate[:, 1] == pytest.approx([1, 1, 1, 1, 1.2], abs=0.05)
    assert odd.sites == ("site-0", "site-1", "site-2", "site-3", "site-4")


def test_a_hidden_cause_of_two_variables_shows_in_their_residuals() -> None:
    assert confidence(tables(4, 2000)).n_unexplained == 0
    found = confidence(tables(4, 2000, hidden=0.5))
    assert [0, 3] in found.unexplained.tolist()
    assert found.n_unexplained == len(found.unexplained) == len(found.unexplained_correlation)
    assert abs(found.unexplained_correlation[0]) == max(abs(found.unexplained_correlation))


def test_one_site_is_compared_with_nobody_and_never_left_out() -> None:
    found = confidence(tables(1, 500), draws=3)
    assert found.sites == ()
    assert found.site_estimate.shape == (0, 3)
    assert found.degrees.tolist() == [0, 0, 0]
    assert found.left_out == 0


def test_counts_are_those_of_the_pairs_that_any_search_has() -> None:
    found = confidence(tables(3, 500), draws=3)
    assert found.pairs.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert found.counts.tolist() == [[3, 0, 0, 3]] * 3  # every edge of a chain is undirected
    assert (found.draws, found.left_out) == (3, 3)
    collider = np.zeros((4, 4), dtype=bool)
    collider[[0, 2], 1] = True
    directed = confidence(tables(3, 500), draws=3, dag=collider)
    assert directed.pairs.tolist() == [[0, 1], [1, 2]]
    assert directed.counts.tolist() == [[3, 3, 0, 3], [3, 0, 3, 3]]


def test_without_a_search_nothing_is_searched_again_and_the_other_numbers_are_there() -> None:
    sites = tables(3, 500)
    found = confidence_of(
        CHAIN,
        Evidence(
            np.mean([one.moments for one in sites.values()], axis=0), Accuracy(1500), sites=sites, weights=[1.0] * 3
        ),
        COLUMNS,
        None,
    )
    assert (found.draws, found.left_out, len(found.pairs)) == (0, 0, 0)
    assert found.standard_error.tolist() == confidence(sites).standard_error.tolist()


def test_of_more_than_twenty_sites_none_is_left_out_and_of_more_than_a_hundred_q_alone_is_kept() -> None:
    assert confidence(tables(21, 50)).left_out == 0
    many = confidence(tables(101, 50))
    assert many.sites == ()
    assert len(many.site_estimate) == 0
    assert many.degrees.tolist() == [100, 100, 100]


def test_every_number_is_the_same_in_any_units_of_the_columns() -> None:
    plain, units = tables(3, 500, hidden=0.5), np.array([1e-6, 1.0, 1e5, 10.0])
    scaled = {site: SiteMoments(one.moments * units * units[:, None], one.accuracy) for site, one in plain.items()}
    one, other = confidence(plain, draws=2), confidence(scaled, draws=2)
    assert other.standard_error == pytest.approx(one.standard_error * units[[1, 2, 3]] / units[[0, 1, 2]])
    assert other.q == pytest.approx(one.q)
    assert other.unexplained.tolist() == one.unexplained.tolist()
    assert other.unexplained_correlation == pytest.approx(one.unexplained_correlation)
