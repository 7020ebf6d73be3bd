"""How often true knowledge is said not to fit, and a reversed collider is: over generated tables."""

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.moments import Task
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import cost_of_knowledge
from fedbnsl_server.search.class_search import ClassSearch
from fedbnsl_server.search.score import extended_penalty


def is_said(X: Matrix, tiers: list[list[int]]) -> bool:
    """By the limits that docs/explanation/confidence.md has."""
    n, d = X.shape
    knowledge = Knowledge(tiers=tuple(tuple(f"x{j}" for j in tier) for tier in tiers))
    mask = EdgeMask(knowledge, Columns.of([f"x{j}" for j in range(d)]))
    S: Matrix = np.asarray(np.corrcoef(X.T))
    search = ClassSearch(mask.allowed, mask, n, extended_penalty(n, d), 0.0, 0)
    everything = SparseMatrix.from_dense(1.0 - np.eye(d))
    found = cost_of_knowledge(search.found(S), search, S, Task(everything), Run(Plan.load("standard"), mask, {}))
    cost = found["cost_of_knowledge"]
    return bool(cost > 5.0 or (cost > 3.5 and found["cost_on_same_pairs"] > 20.0))


@pytest.mark.long
def test_true_tiers_are_hardly_ever_said_not_to_fit() -> None:
    rng, said = np.random.default_rng(7), 0
    for _ in range(50):
        d, n = int(rng.integers(4, 8)), int(rng.choice([300, 600, 1500]))
        order, X = rng.permutation(d), rng.standard_normal((n, d))
        for a in range(d):
            for b in np.flatnonzero(rng.random(a) < 1.5 / (d - 1)).tolist():
                X[:, order[a]] += rng.uniform(0.2, 0.9) * rng.choice([-1, 1]) * X[:, order[b]]
        cut = int(rng.integers(1, d))
        said += is_said(X, [order[:cut].tolist(), order[cut:].tolist()])
    assert said <= 2


def test_tiers_that_reverse_a_collider_are_mostly_said_at_600_rows() -> None:
    rng, said = np.random.default_rng(8), 0
    for _ in range(20):
        X = rng.standard_normal((600, 4))
        X[:, 2] += 0.7 * X[:, 0] + 0.7 * X[:, 1]
        said += is_said(X, [[2], [0, 1, 3]])
    assert said >= 12
