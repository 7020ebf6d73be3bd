"""The penalty that sites choose where rows are few, each by how well the graph of all the others predicts it."""

import math

import numpy as np
import pytest

from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_experiments.tables.synthetic import synthesise
from fedbnsl_server.search.class_search import edge_penalty
from fedbnsl_server.search.order_search import best_dag, bic_penalty, extended_penalty

D, SITES, ROWS = 8, 4, 30
EVERYTHING = ~np.eye(D, dtype=bool)


def tables(seed: int, n_rows: int = ROWS) -> list[np.ndarray]:
    return [X - X.mean(axis=0) for X in synthesise(D, 12, SITES, n_rows, seed, weight_size=0.3).tables]


def chosen(sites: list[np.ndarray]) -> float:
    mask = EdgeMask(Knowledge(), tuple(f"x{k}" for k in range(D)))
    return edge_penalty(
        "auto",
        [X.T @ X / len(X) for X in sites],
        [float(len(X)) for X in sites],
        candidates=EVERYTHING,
        mask=mask,
        seed=0,
    )


def misfit(seen: np.ndarray, left_out: np.ndarray, penalty: float) -> float:
    """Minus the log-likelihood of rows, by regressions on the rows of the other sites."""
    S, nothing = seen.T @ seen / len(seen), EVERYTHING & False
    dag = best_dag(S, penalty=penalty, candidates=EVERYTHING, required=nothing, seed=0, patience=1)
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
            misfit(np.concatenate([*sites[:k], *sites[k + 1 :]]), sites[k], penalty * SITES / (SITES - 1))
            for k in range(SITES)
        )
    assert least[chosen(sites)] == pytest.approx(min(least.values()), rel=1e-9)


def test_with_many_rows_it_is_that_of_the_extended_bic() -> None:
    assert chosen(tables(0, 1000)) == extended_penalty(SITES * 1000, D)
