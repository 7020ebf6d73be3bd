"""The search in tables: whether it is the best graph, of all; and whether orders and names change it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.search.counts.climb import Moves
from fedbnsl_server.search.counts.redrawn import Records
from fedbnsl_server.search.counts.score import Gains
from fedbnsl_server.search.counts.search import CountSearch, first_sets


def drawn(seed: int, n: int, levels: list[int]) -> np.ndarray:
    """(V, n) levels: each variable depends on up to two before it."""
    rng = np.random.default_rng(seed)
    codes = np.zeros((len(levels), n), dtype=np.int64)
    for x, k in enumerate(levels):
        parents = rng.permutation(x)[: rng.integers(0, 3)]
        row = np.zeros(n, dtype=np.int64)
        for p in parents:
            row = row * levels[p] + codes[p]
        table = np.cumsum(rng.dirichlet(np.full(k, 0.5), size=row.max() + 1), axis=1)
        codes[x] = np.minimum((rng.random(n)[:, None] > table[row]).sum(axis=1), k - 1)
    return codes


def search_of(
    codes: np.ndarray, levels: list[int], required: Mask | None = None, allowed: Mask | None = None
) -> CountSearch:
    V = len(levels)
    none, sizes = np.zeros((V, V), dtype=bool), np.array(levels)
    free = ~np.eye(V, dtype=bool) if allowed is None else allowed
    return CountSearch(Records(list(codes), sizes), sizes, none, free, none if required is None else required)


def best(search: CountSearch) -> Mask:
    return search.best(search.required, np.random.default_rng(0), passes=2)


def every_dag(V: int) -> list[Mask]:
    places = [(i, j) for i in range(V) for j in range(V) if i != j]
    found = []
    for chosen in itertools.product([False, True], repeat=len(places)):
        dag = np.zeros((V, V), dtype=bool)
        for place, there in zip(places, chosen, strict=True):
            dag[place] = there
        if is_acyclic(dag):
            found.append(dag)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_the_best_of_all_graphs(seed: int) -> None:
    levels = [2, 3, 2, 3]
    codes = drawn(seed, 300, levels)
    search = search_of(codes, levels)
    moves = Moves(Gains(search.source, search.levels), search.allowed, search.required)
    scores = [moves.score(dag) for dag in every_dag(4)]
    assert moves.score(best(search)) == pytest.approx(max(scores), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_orders_of_columns_and_levels_do_not_change_the_class(seed: int) -> None:
    levels = [2, 3, 4, 2, 3, 2]
    codes, rng = drawn(seed, 400, levels), np.random.default_rng(seed)
    order = rng.permutation(len(levels))
    other = np.array([rng.permutation(levels[v])[codes[v]] for v in order])
    one, two = best(search_of(codes, levels)), best(search_of(other, [levels[v] for v in order]))
    assert (cpdag(one)[np.ix_(order, order)] == cpdag(two)).all()


def test_knowledge_is_kept() -> None:
    levels = [2, 2, 3, 2]
    codes = drawn(3, 500, levels)
    required, allowed = np.zeros((4, 4), dtype=bool), ~np.eye(4, dtype=bool)
    required[3, 0], allowed[0, 3], allowed[0, 1] = True, False, False
    found = best(search_of(codes, levels, required, allowed))
    assert found[3, 0]
    assert not (found & ~allowed).any()


def test_all_pairs_are_asked_for_first_and_sets_of_three_of_few_variables() -> None:
    none = np.zeros((4, 4), dtype=bool)
    sets = first_sets(np.array([2, 2, 3, 2]), none, none)
    assert {one for one in sets if len(one) > 1} == {
        *itertools.combinations(range(4), 2),
        *itertools.combinations(range(4), 3),
    }


def test_no_set_beyond_the_limits_is_asked_for() -> None:
    levels, none = np.array([70, 70, 70, 2]), np.zeros((4, 4), dtype=bool)
    sets = first_sets(levels, none, none)
    assert {one for one in sets if len(one) == 3} == set()
    assert len([one for one in sets if len(one) == 2]) == 6
