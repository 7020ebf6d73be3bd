"""What a search must not hang on: the order of columns and of levels, units, and where rivals hide."""

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import among_rivals
from fedbnsl_server.search.class_search import ClassProblem, ClassSearch
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.linear_network import Accuracy
from fedbnsl_server.search.score import bic_penalty

V, N = 7, 400


def mixed(seed: int) -> list[Matrix]:
    """Columns of each variable in the rows of a random network: numbers, yes and no, three levels, counts."""
    rng = np.random.default_rng(seed)
    W = np.triu(rng.choice([0.0, 0.4, -0.8], (V, V)), k=1)
    Z = rng.standard_normal((N, V)) @ np.linalg.inv(np.eye(V) - W)
    return [columns_of(Z[:, v], int(rng.integers(4)), rng) for v in rng.permutation(V)]


def columns_of(z: Matrix, kind: int, rng: np.random.Generator) -> Matrix:
    if kind == 0:
        return z[:, None]
    if kind == 1:
        return np.asarray((z > 0.3)[:, None] * 1.0, dtype=np.float64)
    if kind == 2:
        return np.asarray(np.digitize(z, [-0.5, 0.5])[:, None] == np.array([1, 2]), dtype=np.float64)
    return np.asarray(np.log1p(rng.poisson(np.exp(0.5 * z / float(np.std(z)))))[:, None])


def found(variables: list[Matrix], order: list[int]) -> Mask:
    """Marks of the class, by variable, of a search in which they come in this order.

    Without shuffles: they would find the best graph of most tables from any start, and hide what a start changes.
    """
    names = [f"{v}={k}" for v in order for k in range(variables[v].shape[1])]
    columns = Columns.of(names, {name: name.partition("=")[0] for name in names})
    X = np.concatenate([variables[v] for v in order], axis=1)
    X = (X - X.mean(axis=0)).astype(np.float64)
    everything = ~np.eye(V, dtype=bool)
    problem = ClassProblem(X.T @ X / N, everything, EdgeMask(Knowledge(), columns), bic_penalty(N), 0.0, 0)
    back = np.argsort(order)
    return cpdag(problem.found(patience=0).dag)[np.ix_(back, back)]


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_columns_no_unit_and_no_reference_level_changes_the_class(seed: int) -> None:
    variables, rng = mixed(seed), np.random.default_rng(seed)
    marks = found(variables, list(range(V)))
    others = [
        np.concatenate([variable[:, :-1], 1.0 - variable.sum(axis=1, keepdims=True)], axis=1)
        if variable.shape[1] > 1
        else variable * 10.0 ** rng.integers(-3, 4)
        for variable in variables
    ]
    for table in (variables, others):
        again = found(table, rng.permutation(V).tolist())
        assert np.array_equal(again, marks)


def test_a_rival_that_fits_better_takes_the_place_of_the_graph() -> None:
    """The empty graph stands for one where a search got stuck."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((500, 5)) @ np.linalg.inv(np.eye(5) - np.triu(rng.choice([0.0, 0.5, -0.7], (5, 5)), k=1))
    S, mask, everything = X.T @ X / 500, EdgeMask(Knowledge(), list("abcde")), ~np.eye(5, dtype=bool)
    search = ClassSearch(everything, mask, 500, bic_penalty(500), 0.0, 0)
    empty = np.zeros((5, 5), dtype=bool)
    stuck = FoundGraph(empty, empty * 1.0, S.diagonal(), float(search.on(S, Accuracy(500)).scores([empty])[0]))
    run = Run(Plan.load("standard").with_settings(bootstrap=20), mask, {})
    best, rivals = among_rivals(stuck, search, S, Accuracy(500), run)
    assert best.score == pytest.approx(search.found(S).score, abs=1e-9)
    assert rivals[0] is best.dag
    same, others = among_rivals(best, search, S, Accuracy(500), run)
    assert same is best
    assert others[0] is best.dag
