"""The search over variables of several columns, against determinants and against every graph there is."""

import itertools
import math

import numpy as np
import pytest

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.columns import Columns
from fedbnsl_server.search.gaussian_families import GaussianFamilies
from fedbnsl_server.search.graph_search import search
from fedbnsl_server.search.kernels.change import renew, room_to_work
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.score import Score
from fedbnsl_server.search.space import Space

COLUMNS = Columns.of(["x", "b=1", "y", "b=2", "z"], {"b=1": "b", "b=2": "b"})
EVERYTHING = ~np.eye(4, dtype=bool)
NOTHING = np.zeros((4, 4), dtype=bool)
N = 400.0
LOSS = Score.near(np.ones(1), logarithmic=False, n_samples=N, penalty=0.0)


def moments(seed: int) -> np.ndarray:
    """Of x -> b (two columns) -> y <- z."""
    rng = np.random.default_rng(seed)
    x, z = rng.standard_normal((2, 4000))
    b1, b2 = 0.9 * x + rng.standard_normal(4000), -0.7 * x + rng.standard_normal(4000)
    y = b1 - 0.8 * b2 + 0.9 * z + rng.standard_normal(4000)
    X = np.column_stack([x, b1, y, b2, z])
    return X.T @ X / len(X)


def log_det(S: np.ndarray, columns: list[int]) -> float:
    return math.log(np.linalg.det(S[np.ix_(columns, columns)])) if columns else 0.0


def columns_of(variables: list[int]) -> list[int]:
    return [c for c in range(5) if COLUMNS.variable_of[c] in variables]


@pytest.mark.parametrize("seed", range(3))
def test_a_residual_variance_is_a_ratio_of_determinants(seed: int):
    S = moments(seed)
    families = GaussianFamilies(S[None], Space(EVERYTHING, columns=COLUMNS), ridge=0.0)
    for j in range(4):
        others = [v for v in range(4) if v != j]
        for r in range(4):
            for parents in itertools.combinations(others, r):
                given = columns_of(list(parents))
                size = COLUMNS.sizes[j]
                expected = math.exp((log_det(S, columns_of([j]) + given) - log_det(S, given)) / size)
                dag = NOTHING.copy()
                dag[list(parents), j] = True
                found = families.residual_variances(dag)[0, j]
                np.testing.assert_allclose(found, expected, rtol=1e-9)
                graph = families.graph(dag)
                renew(families.problem, LOSS, families.room(), graph, j, -1, room_to_work(families.problem))
                for e in np.flatnonzero(families.problem.child == j):
                    other = dag.copy()
                    other[families.problem.source[e], j] ^= True
                    after = families.residual_variances(other)[0, j]
                    np.testing.assert_allclose(graph.change[e], 0.5 * size * (after - found), rtol=1e-7, atol=1e-9)


ONLY_LINES = np.array([True, False, True, True, True])  # b=1, the first column of its variable, only explains


@pytest.mark.parametrize("seed", range(3))
def test_a_column_that_only_explains_is_no_part_of_what_parents_leave(seed: int):
    S = moments(seed)
    families = GaussianFamilies(S[None], Space(EVERYTHING, columns=COLUMNS), ridge=0.0, explained=ONLY_LINES)
    for j, parents in ((1, [0]), (1, [0, 2, 3]), (2, [1]), (2, [1, 3])):
        dag = NOTHING.copy()
        dag[parents, j] = True
        graph, given = families.graph(dag), columns_of(parents)
        own = [c for c in columns_of([j]) if ONLY_LINES[c]]
        found = families.residual_variances(dag)[0, j]
        np.testing.assert_allclose(found, math.exp(log_det(S, own + given) - log_det(S, given)), rtol=1e-9)
        loss = LOSS._replace(penalty=0.01)
        renew(families.problem, loss, families.room(), graph, j, -1, room_to_work(families.problem))
        for e in np.flatnonzero(families.problem.child == j):
            other, source = dag.copy(), families.problem.source[e]
            other[source, j] ^= True
            edge = 0.01 * COLUMNS.sizes[source] * COLUMNS.sizes[j] * (1 if other[source, j] else -1)
            after = families.residual_variances(other)[0, j]
            np.testing.assert_allclose(graph.change[e], 0.5 * (after - found) + edge, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_over_orders_finds_the_best_of_all_graphs_by_the_columns_that_parents_explain(seed: int):
    S, penalty = moments(seed), 0.002
    space = Space(EVERYTHING, columns=COLUMNS)
    families = GaussianFamilies(S[None], space, ridge=0.0, explained=ONLY_LINES)
    found = best_dag(S, space, penalty=penalty, seed=seed, explained=ONLY_LINES)

    def score(dag: np.ndarray) -> float:
        variances = families.residual_variances(dag)
        return Score.bic(penalty).of_dag(dag, variances, families.sizes, families.explained)

    dags = [np.zeros((4, 4), dtype=bool)]
    for i, j in np.argwhere(EVERYTHING).tolist():
        more = [dag.copy() for dag in dags]
        for dag in more:
            dag[i, j] = True
        dags += [dag for dag in more if is_acyclic(dag)]
    assert score(found) == pytest.approx(min(map(score, dags)), abs=1e-9)


def score(S: np.ndarray, dag: np.ndarray, common: float) -> float:
    """As in the module's text, by determinants."""
    total = 0.0
    for j in range(4):
        given = columns_of(np.flatnonzero(dag[:, j]).tolist())
        size = int(COLUMNS.sizes[j])
        log_v = (log_det(S, columns_of([j]) + given) - log_det(S, given)) / size
        total += size * (0.5 * log_v + 0.5 * (log_v - math.log(common)) ** 2 / N)
    edges = sum(COLUMNS.sizes[i] * COLUMNS.sizes[j] for i, j in np.argwhere(dag))
    return total + 0.5 * math.log(N) / N * float(edges)


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_best_of_all_graphs_over_the_variables(seed: int):
    S = moments(seed)
    found = search([S], Space(EVERYTHING, columns=COLUMNS), start=NOTHING, n_samples=N, threshold=0.0)
    pairs = np.argwhere(EVERYTHING).tolist()
    best = math.inf
    for edges in itertools.product([False, True], repeat=len(pairs)):
        dag = np.zeros((4, 4), dtype=bool)
        for (i, j), there in zip(pairs, edges, strict=True):
            dag[i, j] = there
        if dag.sum() <= 6 and is_acyclic(dag):
            best = min(best, score(S, dag, 1.0))
    # sigma^2 is estimated by the search; its term is of order 1 / n and the same in size for both.
    assert score(S, found.dag, 1.0) <= best + 2.0 / N
    assert np.array_equal(found.dag | found.dag.T, np.array(
        [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]], dtype=bool
    )), "the skeleton"  # fmt: skip
    assert found.weights.shape == (5, 5)
    assert (found.weights[~COLUMNS.spread(found.dag)] == 0).all()


def test_moments_are_needed_between_all_columns_of_a_family_and_within_a_variable():
    candidates = NOTHING.copy()
    candidates[0, 1] = candidates[1, 0] = True  # x and b
    needed = needed_moments(candidates, COLUMNS)
    pairs = {tuple(pair) for pair in np.argwhere(needed).tolist()}
    assert pairs == {(k, k) for k in range(5)} | {(0, 1), (0, 3), (1, 3)}
