"""The search over orders against all graphs of up to five variables: there it misses the least score nowhere.

The oracle scores each family by determinants of moments, adds the families of every DAG there is, and takes the least.
"""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.space import Space

INSTANCES = range(40)


@cache
def all_dags(V: int) -> Matrix:
    """(m, V, V) every DAG over V variables: every way to leave out or direct each pair, without cycles."""
    pairs = [(i, j) for i in range(V) for j in range(i + 1, V)]
    marks = np.array(list(product(range(3), repeat=len(pairs))), dtype=np.int8)
    graphs = np.zeros((len(marks), V, V), dtype=bool)
    for k, (i, j) in enumerate(pairs):
        graphs[:, i, j], graphs[:, j, i] = marks[:, k] == 1, marks[:, k] == 2
    walks = power = graphs.astype(np.int64)
    for _ in range(V - 1):
        power = power @ graphs
        walks = walks + power
    return graphs[np.trace(walks, axis1=1, axis2=2) == 0]


@pytest.mark.parametrize(("V", "known"), [(1, 1), (2, 3), (3, 25), (4, 543), (5, 29281)])
def test_the_oracle_knows_all_dags(V: int, known: int) -> None:
    """Robinson 1973."""
    assert len(all_dags(V)) == known


def family_scores(R: Matrix, members: list[list[int]], *, n: float, penalty: float) -> Matrix:
    """(V, 2^V) n/2 log of the determinant of what the parents leave of the child, and what its edges cost.

    The bits of the second index are the parents. Infinite where a moment is unknown.
    """
    V = len(members)
    scores = np.full((V, 2**V), np.inf)
    for j, number in product(range(V), range(2**V)):
        parents = [c for i in range(V) if number >> i & 1 for c in members[i]]
        whole = [*parents, *members[j]]
        if number >> j & 1 or np.isnan(R[np.ix_(whole, whole)]).any():
            continue
        log_determinants = [np.linalg.slogdet(R[np.ix_(of, of)])[1] if of else 0.0 for of in (whole, parents)]
        edges = len(parents) * len(members[j])
        scores[j, number] = 0.5 * n * (log_determinants[0] - log_determinants[1]) + penalty * edges
    return scores


def scores_of(dags: Matrix, families: Matrix) -> Matrix:
    """(m,) sums of the scores of the families of each DAG."""
    V = dags.shape[1]
    numbers = (dags * (1 << np.arange(V))[:, None]).sum(axis=1)
    return families[np.arange(V), numbers].sum(axis=1)


def moments(rng: np.random.Generator, d: int, n: int) -> Matrix:
    """(d, d) correlations in n rows of random linear mixtures, some of them strongly related."""
    X = rng.normal(size=(n, d)) @ (np.eye(d) + rng.normal(size=(d, d)) * (rng.random((d, d)) < 0.5))
    S = X.T @ X / n
    return S / np.sqrt(np.outer(S.diagonal(), S.diagonal()))


def knowledge(rng: np.random.Generator, V: int, allowed_share: float, required_share: float) -> tuple[Mask, Mask]:
    """(V, V) candidates, and required edges among them without a cycle."""
    candidates = rng.random((V, V)) < allowed_share
    np.fill_diagonal(candidates, False)
    order = rng.permutation(V)
    forwards = np.zeros((V, V), dtype=bool)
    forwards[np.ix_(order, order)] = np.triu(rng.random((V, V)) < required_share, k=1)
    return candidates | forwards, forwards


def columns_of(members: list[list[int]]) -> Columns:
    owner = np.array([v for _, v in sorted((c, v) for v, columns in enumerate(members) for c in columns)])
    return Columns(tuple(f"x{c}" for c in range(len(owner))), tuple(f"v{v}" for v in range(len(members))), owner)


def check(seed: int, R: Matrix, members: list[list[int]], candidates: Mask, required: Mask, n: float) -> None:
    V, penalty = len(members), 0.5 * math.log(n)
    dag = best_dag(R, Space(candidates, required, columns=columns_of(members)), penalty=penalty / n, seed=seed)
    assert not (dag & ~candidates).any()
    assert not (required & ~dag).any()
    families = family_scores(R, members, n=n, penalty=penalty)
    dags = all_dags(V)
    usable = ~(dags & ~candidates).any(axis=(1, 2)) & ~(required & ~dags).any(axis=(1, 2))
    least = float(scores_of(dags[usable], families).min())
    (found,) = scores_of(dag[None], families)
    assert found == pytest.approx(least, rel=1e-9, abs=1e-9 * n)


@pytest.mark.parametrize("seed", INSTANCES)
def test_no_graph_of_five_variables_has_a_lower_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    V, n = int(rng.integers(2, 6)), int(rng.integers(30, 3000))
    everything = ~np.eye(V, dtype=bool)
    check(seed, moments(rng, V, n), [[j] for j in range(V)], everything, np.zeros_like(everything), n)


@pytest.mark.parametrize("seed", INSTANCES)
def test_no_graph_that_keeps_the_knowledge_has_a_lower_score(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    n = int(rng.integers(30, 3000))
    check(seed, moments(rng, 5, n), [[j] for j in range(5)], *knowledge(rng, 5, 0.7, 0.2), n)


@pytest.mark.parametrize("seed", INSTANCES)
def test_no_graph_between_blocks_of_columns_has_a_lower_score(seed: int) -> None:
    rng = np.random.default_rng(2000 + seed)
    V, n = 4, int(rng.integers(100, 3000))
    sizes = rng.integers(1, 4, V)
    columns = rng.permutation(int(sizes.sum()))
    members = [sorted(part.tolist()) for part in np.split(columns, np.cumsum(sizes)[:-1])]
    check(seed, moments(rng, len(columns), n), members, *knowledge(rng, V, 0.9, 0.1), n)


@pytest.mark.parametrize("seed", INSTANCES)
def test_where_moments_are_unknown_no_family_has_them_and_no_other_graph_has_a_lower_score(seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    n = int(rng.integers(100, 3000))
    R = moments(rng, 5, n)
    unknown = np.triu(rng.random((5, 5)) < 0.3, k=1)
    R[unknown | unknown.T] = np.nan
    candidates, _ = knowledge(rng, 5, 1.0, 0.0)
    check(seed, R, [[j] for j in range(5)], candidates, np.zeros((5, 5), dtype=bool), n)
