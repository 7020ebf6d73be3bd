"""Orders and regressions from second moments, against the same by least squares on the rows."""

import networkx as nx
import numpy as np
import pytest

from fedbnsl_research.comparators.orderings import (
    conditional_variance_order,
    equal_variance,
    regress_along,
    sortnregress,
)
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.scoring.varsortability import varsortability
from fedbnsl_workbench.tables.synthetic import synthesise


def centred(d, edges, n, seed):
    federation = synthesise(d, edges, 1, n, seed)
    X = federation.tables[0]
    return X - X.mean(axis=0), federation.W


def moments(X):
    return X.T @ X / len(X)


def left_over(X, j, given):
    """Mean square of column j after least squares on other columns."""
    if not given:
        return np.mean(X[:, j] ** 2)
    return np.mean((X[:, j] - X[:, given] @ np.linalg.lstsq(X[:, given], X[:, j], rcond=None)[0]) ** 2)


@pytest.mark.parametrize("seed", range(6))
def test_the_next_variable_is_the_one_that_the_taken_ones_leave_least_of(seed):
    X, _ = centred(6, 8, 200, seed)
    order = []
    for _ in range(6):
        order.append(min(set(range(6)) - set(order), key=lambda j: left_over(X, j, order)))
    assert conditional_variance_order(moments(X)) == order


@pytest.mark.parametrize("seed", range(4))
def test_equal_variances_give_the_graph_away(seed):
    X, W = centred(20, 20, 40_000, seed)
    found = equal_variance(moments(X), len(X))
    assert score(np.abs(found) > 0.3, W != 0).shd == 0
    assert np.abs(found - W).max() < 0.1
    assert score(found != 0, W != 0).shd <= 3


@pytest.mark.parametrize("seed", range(4))
def test_growing_variances_give_the_graph_away(seed):
    X, W = centred(15, 20, 20_000, seed)
    S = moments(X)
    share = varsortability(S, W)
    found = sortnregress(S, len(X))
    tails = np.argwhere(found)
    assert all(S[i, i] <= S[j, j] for i, j in tails)
    if share == 1.0:
        assert score(np.abs(found) > 0.3, W != 0).shd == 0
    assert score(np.abs(found) > 0.3, W != 0).tpr >= share - 0.3


def test_standardised_data_have_no_order_of_variances():
    X, W = centred(10, 15, 20_000, 1)
    scaled = X / X.std(axis=0)
    assert varsortability(moments(scaled), W) == 0.5
    assert score(np.abs(sortnregress(moments(scaled), len(X))) > 0.1, W != 0).shd > 3


def test_a_regression_keeps_the_points_of_least_bic():
    # Every subset of the predecessors by least squares: the choice is as good as the best of them, or nearly.
    X, _ = centred(6, 10, 500, 2)
    S, n, order = moments(X), 500, [3, 1, 0, 5, 2, 4]
    W = regress_along(order, S, n)
    for position, j in enumerate(order):
        before = order[:position]
        assert not W[[k for k in range(6) if k not in before], j].any()

        def bic(subset, j=j):
            return n * np.log(left_over(X, j, list(subset))) + np.log(n) * len(subset)

        subsets = [[k for bit, k in enumerate(before) if mask >> bit & 1] for mask in range(2**position)]
        chosen = n * np.log(np.mean((X[:, j] - X @ W[:, j]) ** 2)) + np.log(n) * np.count_nonzero(W[:, j])
        assert chosen <= min(map(bic, subsets)) + 2 * np.log(n)


def test_a_constant_variable_and_a_copy_of_another_end_in_finite_weights():
    X, _ = centred(5, 6, 300, 3)
    X[:, 2] = 0.0
    X[:, 4] = X[:, 0]
    for learn in (sortnregress, equal_variance):
        W = learn(moments(X), 300)
        assert np.isfinite(W).all()
        assert not W[2].any()
        assert not W[:, 2].any()


def dumb_varsortability(X, W):
    graph = nx.from_numpy_array((W != 0).astype(int), create_using=nx.DiGraph)
    variance = X.var(axis=0)
    counted, growing = 0, 0.0
    for length in range(1, len(W)):
        for i in graph:
            for j in graph:
                paths = [path for path in nx.all_simple_paths(graph, i, j) if len(path) == length + 1] if i != j else []
                if paths:
                    counted += 1
                    growing += 0.5 if np.isclose(variance[i], variance[j]) else float(variance[i] < variance[j])
    return growing / counted


@pytest.mark.parametrize("seed", range(6))
def test_varsortability_is_that_of_all_paths(seed):
    X, W = centred(7, 10, 100, seed)
    X *= np.random.default_rng(seed).choice([0.2, 1.0, 5.0], 7)
    assert varsortability(moments(X - X.mean(axis=0)), W) == pytest.approx(dumb_varsortability(X, W), abs=1e-12)


def test_varsortability_counts_ties_half_and_needs_an_edge_and_no_cycle():
    W = np.zeros((3, 3))
    assert varsortability(np.eye(3), W) is None
    W[0, 1] = W[1, 2] = 1.0
    assert varsortability(np.eye(3), W) == 0.5
    assert varsortability(np.diag([1.0, 2.0, 3.0]), W) == 1.0
    assert varsortability(np.diag([1.0, 3.0, 2.0]), W) == pytest.approx(2 / 3)
    W[2, 0] = 1.0
    assert varsortability(np.diag([1.0, 2.0, 3.0]), W) is None
