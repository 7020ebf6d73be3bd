"""The penalty that sites choose where rows are few, each by how well the graph of all the others predicts it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.search.class_search import ClassProblem, edge_penalty
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import bic_penalty, extended_penalty
from fedbnsl_server.search.space import Space
from fedbnsl_workbench.tables.synthetic import synthesise

D, SITES, ROWS = 8, 4, 30
EVERYTHING = ~np.eye(D, dtype=bool)


def tables(seed: int, n_rows: int = ROWS) -> list[np.ndarray]:
    return [X - X.mean(axis=0) for X in synthesise(D, 12, SITES, n_rows, seed, weight_size=0.3).tables]


class Enough(Progress):
    """Says that it is enough from a share on."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def at(self, share: float) -> None:
        super().at(share)
        if share >= self._share:
            self.enough()


def chosen(sites: list[np.ndarray], progress: Progress = UNWATCHED) -> float:
    mask = EdgeMask(Knowledge(), tuple(f"x{k}" for k in range(D)))
    return edge_penalty(
        [X.T @ X / len(X) for X in sites],
        [float(len(X)) for X in sites],
        candidates=EVERYTHING,
        mask=mask,
        seed=0,
        progress=progress,
    )


def nll(seen: np.ndarray, left_out: np.ndarray, penalty: float) -> float:
    """Minus the log-likelihood of rows, by regressions on the rows of the other sites."""
    S = seen.T @ seen / len(seen)
    dag = best_dag(S, Space(EVERYTHING), penalty=penalty, seed=0, patience=1)
    total = 0.0
    for j in range(D):
        given = np.flatnonzero(dag[:, j])
        w = np.linalg.lstsq(seen[:, given], seen[:, j], rcond=None)[0]
        v = float(np.mean((seen[:, j] - seen[:, given] @ w) ** 2))
        total += float(np.sum(math.log(v) + (left_out[:, j] - left_out[:, given] @ w) ** 2 / v)) / 2
    return total


@pytest.mark.parametrize("seed", range(6))
def test_with_few_rows_the_penalty_is_the_one_that_predicts_left_out_sites_best(seed: int) -> None:
    sites = tables(seed)
    n = SITES * ROWS
    bic, extended = bic_penalty(n), extended_penalty(n, D)
    least: dict[float, float] = {}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        penalty = bic + share * (extended - bic)
        least[penalty] = sum(
            nll(np.concatenate([*sites[:k], *sites[k + 1 :]]), sites[k], penalty * SITES / (SITES - 1))
            for k in range(SITES)
        )
    assert least[chosen(sites)] == pytest.approx(min(least.values()), rel=1e-9)


@pytest.mark.parametrize("left_out", [0, 1])
def test_a_choice_that_is_ended_early_is_that_of_the_extended_bic(left_out: int) -> None:
    """A site or two say little: the search that follows must not have more edges for it."""
    assert chosen(tables(0), Enough(left_out / SITES)) == extended_penalty(SITES * ROWS, D)


def test_with_many_rows_it_is_that_of_the_extended_bic() -> None:
    assert chosen(tables(0, 1000)) == extended_penalty(SITES * 1000, D)


def blocked() -> ClassProblem:
    """Of a, b and c with three levels, as two columns; moments of rows with a -> c -> b."""
    columns = Columns.of(["a", "b", "c=x", "c=y"], {"c=x": "c", "c=y": "c"})
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 4))
    X[:, 2] += 0.5 * X[:, 0]
    X[:, 3] += 0.4 * X[:, 0] - 0.6 * X[:, 2]
    X[:, 1] += 0.5 * X[:, 2] - 0.4 * X[:, 3]
    candidates = ~np.eye(3, dtype=bool)
    return ClassProblem(X.T @ X / len(X), candidates, EdgeMask(Knowledge(), columns), bic_penalty(500), 0.0, 0)


def test_scores_of_many_graphs_are_that_of_each_by_determinants() -> None:
    problem = blocked()
    members = [[0], [1], [2, 3]]
    dags = [np.zeros((3, 3), dtype=bool), np.triu(np.ones((3, 3), dtype=bool), 1), problem.found().dag]
    for dag, score in zip(dags, problem.scores(dags), strict=True):
        expected = 0.0
        for j, own in enumerate(members):
            given = [c for i in np.flatnonzero(dag[:, j]).tolist() for c in members[i]]
            whole = problem.S[np.ix_(given + own, given + own)]
            part = problem.S[np.ix_(given, given)]
            expected += 0.5 * math.log(np.linalg.det(whole) / (np.linalg.det(part) if given else 1.0))
            expected += problem.penalty * len(given) * len(own)
        assert score == pytest.approx(expected, abs=1e-6)
    assert problem.found().score == pytest.approx(problem.scores(dags)[2], abs=1e-9)


def test_graphs_are_judged_in_other_moments_where_there_are_some() -> None:
    """a and b: an edge in the moments of the search, none in those that judge."""
    mask, candidates = EdgeMask(Knowledge(), ["a", "b"]), ~np.eye(2, dtype=bool)
    S = np.array([[1.0, 0.9], [0.9, 1.0]])
    graphs = [np.zeros((2, 2), dtype=bool), np.array([[0, 1], [0, 0]], dtype=bool)]
    seen = ClassProblem(S, candidates, mask, 0.01, 0.0, 0)
    judged = replace(seen, judged=np.eye(2))
    assert np.argmin(seen.scores(graphs)) == 1
    assert np.argmin(judged.scores(graphs)) == 0
    assert judged.found().dag.any()


@pytest.mark.parametrize("width", [1, 2])
def test_few_rows_allow_few_parents_whatever_an_edge_costs(width: int) -> None:
    """30 rows of 24 columns without a relation: chance alone explains each column by the others."""
    V, n = 24 // width, 30
    X = np.random.default_rng(1).standard_normal((n, 24))
    columns = Columns.of([f"x{k}" for k in range(24)], {f"x{k}": f"v{k // width}" for k in range(24)})
    mask, candidates = EdgeMask(Knowledge(), columns), ~np.eye(V, dtype=bool)
    found = {
        rows: ClassProblem(X.T @ X / n, candidates, mask, 0.01, 0.0, 0, n_samples=rows).found(patience=1).dag
        for rows in (n, 1e9)
    }
    assert 1 <= width * found[n].sum(axis=0).max() <= n // 5
    assert width * found[1e9].sum(axis=0).max() > n // 5


def test_the_penalty_that_sites_choose_is_the_same_whichever_level_has_no_column() -> None:
    """One of three levels at a time; in every other table, the first site has one that the others do not have."""
    chosen: list[float] = []
    columns = Columns.of(["a", "b", "c=x", "c=y"], {"c=x": "c", "c=y": "c"})
    for seed in range(20):
        rng = np.random.default_rng(seed)
        levels = rng.integers([[0], [seed % 2], [seed % 2]], 3, (3, 30))
        numbers = rng.normal(0.0, 0.8, (3, 2))[levels] + rng.standard_normal((3, 30, 2))
        for without in range(3):
            shown = [level for level in range(3) if level != without]
            tables = np.concatenate([numbers, levels[:, :, None] == shown], axis=2)
            moments: list[np.ndarray] = [np.cov(X.T, bias=True) for X in tables]
            chosen.append(
                edge_penalty(
                    moments,
                    [29.0] * 3,
                    candidates=~np.eye(3, dtype=bool),
                    mask=EdgeMask(Knowledge(), columns),
                    seed=0,
                )
            )
    by_seed = np.array(chosen).reshape(20, 3)
    assert len(set(chosen)) > 1
    assert (by_seed == by_seed[:, :1]).all()
