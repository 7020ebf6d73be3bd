"""The search over orders, against every graph there is, and against descents that end early."""

import itertools
import math

import numpy as np
import pytest

from fedbnsl.graphs.graph import is_acyclic
from fedbnsl_server.search.families import Families
from fedbnsl_server.search.order_search import best_orders

N = 2000.0
PENALTY = 0.5 * math.log(N) / N


def half_log(variance: np.ndarray) -> np.ndarray:
    return 0.5 * np.log(variance.T).mean(axis=-1).T


def network(d: int, seed: int) -> np.ndarray:
    """(d, d) moments of a random network with noise variances that differ by a factor of up to 10,000."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(d)
    W = np.zeros((d, d))
    for a, b in itertools.combinations(order.tolist(), 2):
        if rng.random() < 0.5:
            W[a, b] = rng.uniform(0.5, 2.0) * rng.choice([-1, 1])
    back = np.linalg.inv(np.eye(d) - W)
    units = 10 ** rng.uniform(-1, 1, d)
    return (back.T @ np.diag(rng.uniform(0.5, 2.0, d)) @ back) * units * units[:, None]


def score(S: np.ndarray, dag: np.ndarray) -> float:
    """By determinants."""
    total = PENALTY * float(dag.sum())
    for j in range(len(S)):
        given = np.flatnonzero(dag[:, j]).tolist()
        whole = [j, *given]
        below = np.linalg.det(S[np.ix_(given, given)]) if given else 1.0
        total += 0.5 * math.log(np.linalg.det(S[np.ix_(whole, whole)]) / below)
    return total


def found(S: np.ndarray, order: list[int], required: np.ndarray) -> np.ndarray:
    d = len(S)
    families = Families(S[None], ~np.eye(d, dtype=bool), ridge=1e-12)
    return best_orders(families, half_log, [order], required=required, penalty=PENALTY)[0]


def least_of_all(S: np.ndarray, required: np.ndarray) -> float:
    pairs = [pair for pair in itertools.permutations(range(4), 2) if not required[pair]]
    best = math.inf
    for edges in itertools.product([False, True], repeat=len(pairs)):
        dag = required.copy()
        for (i, j), there in zip(pairs, edges, strict=True):
            dag[i, j] = there
        if not (dag & dag.T).any() and is_acyclic(dag):
            best = min(best, score(S, dag))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_all_graphs_is_found_or_one_with_an_edge_too_many(seed: int):
    S, nothing = network(4, seed), np.zeros((4, 4), dtype=bool)
    least, scores = least_of_all(S, nothing), list[float]()
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        dag = found(S, order, nothing)
        assert is_acyclic(dag)
        scores.append(score(S, dag))
    assert min(scores) == pytest.approx(least, abs=1e-6)
    assert max(scores) < least + 1.01 * PENALTY


@pytest.mark.parametrize("seed", range(4))
def test_required_edges_are_there_and_the_rest_is_the_best(seed: int):
    S, required = network(4, seed), np.zeros((4, 4), dtype=bool)
    required[2, 0] = required[3, 1] = True
    dag = found(S, [2, 3, 0, 1], required)
    assert dag[2, 0]
    assert dag[3, 1]
    assert is_acyclic(dag)
    assert score(S, dag) == pytest.approx(least_of_all(S, required), abs=1e-6)


def test_only_candidates_become_edges_and_units_change_nothing():
    S = network(6, 3)
    candidates = np.zeros((6, 6), dtype=bool)
    candidates[0, 1] = candidates[1, 0] = candidates[2, 3] = candidates[3, 2] = True
    nothing = np.zeros((6, 6), dtype=bool)
    graphs = []
    for unit in (1.0, 10.0 ** np.arange(6)):
        families = Families((S * unit * np.reshape(unit, (-1, 1)))[None], candidates, ridge=1e-12)
        graphs += best_orders(families, half_log, [range(6)], required=nothing, penalty=PENALTY)
    assert not (graphs[0] & ~candidates).any()
    assert np.array_equal(*graphs)
