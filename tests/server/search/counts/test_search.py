"""The search in tables: whether it is the best graph, of all; and whether orders and names change it."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.search.counts.climb import Moves
from fedbnsl_server.search.counts.redrawn import Records, Redrawn
from fedbnsl_server.search.counts.score import Gains
from fedbnsl_server.search.counts.search import CountSearch, Rivals, first_sets


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


def test_a_rival_is_the_best_graph_with_an_arrow_reversed() -> None:
    levels, dags, compared = [2, 3, 2, 3], every_dag(4), 0
    for seed in range(8):
        search = search_of(drawn(seed, 300, levels), levels)
        moves = Moves(Gains(search.source, search.levels), search.allowed, search.required)
        dag, rivals = search.rivals(best(search), np.random.default_rng(0))
        scores = np.array([moves.score(one) for one in dags])
        for source, target in np.argwhere(cpdag(dag) & ~cpdag(dag).T).tolist():
            reversed_too = scores[[one[target, source] for one in dags]].max()
            assert rivals.lower[search.back][source, target] == pytest.approx(moves.score(dag) - reversed_too, abs=1e-6)
            compared += 1
    assert compared >= 4


def test_where_a_graph_with_an_arrow_reversed_is_better_it_takes_its_place() -> None:
    rng = np.random.default_rng(3)
    first = rng.integers(0, 2, 300)
    second = first ^ (rng.random(300) < 0.1)
    third = second ^ (rng.random(300) < 0.1)
    chain, collider = np.zeros((2, 3, 3), dtype=bool)
    chain[0, 1] = chain[1, 2] = collider[0, 1] = collider[2, 1] = True
    found, _ = search_of(np.stack([first, second, third]), [2, 2, 2]).rivals(collider, rng)
    assert (cpdag(found) == cpdag(chain)).all()


def test_draws_have_an_arrow_as_its_rival_has_it_as_often_as_the_scores_tell() -> None:
    arrow, back = np.array([[False, True], [False, False]]), np.array([[False, False], [True, False]])
    rng = np.random.default_rng(1)

    def share(lower: float, *, leaves_open: bool, of: Mask) -> float:
        rivals = Rivals(np.where(arrow, lower, np.inf), arrow & leaves_open)
        return sum((rivals.instead(arrow, rng) == of).all() for _ in range(1000)) / 1000

    assert share(np.inf, leaves_open=False, of=arrow) == 1.0
    assert share(0.0, leaves_open=False, of=back) == pytest.approx(0.5, abs=0.08)
    assert share(np.log(3.0), leaves_open=True, of=arrow | back) == pytest.approx(0.25, abs=0.08)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_orders_of_columns_and_levels_do_not_change_the_class(seed: int) -> None:
    levels = [2, 3, 4, 2, 3, 2]
    codes, rng = drawn(seed, 400, levels), np.random.default_rng(seed)
    one_to_one = [
        len(set(zip(x, y, strict=True))) == len(set(x)) == len(set(y))
        for x, y in itertools.combinations(codes.tolist(), 2)
    ]
    assume(not any(one_to_one))  # nothing tells these variables apart
    order = rng.permutation(len(levels))
    other = np.array([rng.permutation(levels[v])[codes[v]] for v in order])
    one, two = best(search_of(codes, levels)), best(search_of(other, [levels[v] for v in order]))
    assert (cpdag(one)[np.ix_(order, order)] == cpdag(two)).all()


@pytest.mark.parametrize("tied", [False, True])
def test_draws_do_not_depend_on_the_order_of_levels(tied: bool) -> None:
    """Tied: to exchange the levels of both variables changes no count."""
    levels = [2, 2] if tied else [3, 4]
    codes = np.repeat([[0, 0, 1, 1], [0, 1, 0, 1]], [30, 10, 10, 30], axis=1) if tied else drawn(5, 400, levels)
    dag, free = np.array([[False, True], [False, False]]), ~np.eye(2, dtype=bool)

    def draw(codes: list[np.ndarray]) -> np.ndarray:
        redrawn = Redrawn(Records(codes, np.array(levels)), np.array(levels), dag, free, dag & ~free)
        return redrawn.records(np.random.default_rng(0)).table((0, 1))

    expected = draw(list(codes))
    assert expected.min() != expected.max()
    for orders in itertools.product(*(itertools.permutations(range(k)) for k in levels)):
        found = draw([np.array(order)[own] for order, own in zip(orders, codes, strict=True)])[np.ix_(*orders)]
        exchanged = tied and (found == expected[::-1, ::-1]).all()
        assert exchanged or (found == expected).all(), orders


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
