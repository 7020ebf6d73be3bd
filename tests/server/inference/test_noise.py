"""Directions by the shape of noise: how often they are told, how often wrongly, and where neither fits."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl.rounds.noise import MOST_PAIRS, MOST_SETS, NUMBERS_A_PAIR
from fedbnsl_client.losses.noise import noise_sums
from fedbnsl_server.inference.directions import Direction
from fedbnsl_server.inference.heterogeneity import chi_square_tails, statistic_of_sums
from fedbnsl_server.inference.noise import Noise, noise_of, pairs_of

Draw = Callable[[np.random.Generator, int], Matrix]
SHAPES: dict[str, Draw] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(-1.7, 1.7, n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "t with 5 degrees of freedom": lambda rng, n: rng.standard_t(5, n),
    "logistic": lambda rng, n: rng.logistic(size=n),
}
OPEN = np.array([[False, True], [True, False]])
AB = Columns.of(["a", "b"])


asked = partial(pairs_of, most=MOST_PAIRS, most_sets=MOST_SETS)


def looked_at(*sites: Matrix, marks: Mask = OPEN, columns: Columns = AB) -> Noise:
    pairs = asked(marks, columns, np.ones(len(columns.names), dtype=bool))
    return noise_of(sum(noise_sums(X, pairs) for X in sites), np.ones(len(pairs)), pairs, marks, columns)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_true_direction_is_rejected_as_often_as_the_level_says(shape: str) -> None:
    """Also at four sites that differ in means, scales and effects."""
    rng, p = np.random.default_rng(5), []
    pair = DirectedPair(1, 2, (0,))
    for _ in range(250):
        total = np.zeros(NUMBERS_A_PAIR)
        for site in range(4):
            z, e, f = (SHAPES[shape](rng, 150) for _ in range(3))
            x = 0.5 * z + e
            y = (0.2 + 0.1 * site) * x + z + (1 + site) * f + 10.0 * site
            total += noise_sums(np.column_stack([z, x, y]), [pair])[0]
        statistic, degrees = statistic_of_sums(total)
        p.append(chi_square_tails(np.array([statistic]), np.array([degrees]))[0])
    assert 0.015 < np.mean(np.array(p) < 0.05) < 0.1
    assert np.sum(np.array(p) < 0.001) <= 2


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_that_is_not_normal_tells_the_direction_and_normal_noise_does_not(shape: str) -> None:
    rng, found = np.random.default_rng(6), []
    for _ in range(50):
        a, e = SHAPES[shape](rng, 1000), SHAPES[shape](rng, 1000)
        found += [(one.source, one.target) for one in looked_at(np.column_stack([a, 0.7 * a + e])).directions]
    if shape == "normal":
        assert len(found) <= 1
    else:
        assert set(found) == {("a", "b")}
        assert len(found) >= 40


@pytest.mark.parametrize("hidden", [False, True])
def test_a_curve_and_a_hidden_cause_fit_neither_direction(*, hidden: bool) -> None:
    rng, neither = np.random.default_rng(7), 0
    for _ in range(30):
        a, e = rng.laplace(size=2000), rng.laplace(size=2000)
        cause = rng.exponential(size=2000)
        told = looked_at(np.column_stack([a + cause, e + cause] if hidden else [a, a + 0.3 * a**2 + e]))
        assert not told.directions
        neither += len(told.neither)
    assert neither >= 29


def test_what_sites_say_of_an_edge_counts_for_nothing_where_noise_fits_neither_direction() -> None:
    rng = np.random.default_rng(7)
    a, e, cause = rng.laplace(size=(3, 2000))
    sites = Direction("b", "a", "sites", {"log_likelihood": 9.0}), Direction("b", "c", "sites")
    told = looked_at(np.column_stack([a + cause, e + cause])).denying(sites)
    assert told.denied == sites[:1]
    assert looked_at(np.column_stack([a, a + e])).denying(sites).denied == ()


def chain_with_a_triangle() -> Mask:
    """0 -> 1 -> 2 -> 3 with 1 -> 3: no v-structure, so that nothing has a direction."""
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 1, 2, 1], [1, 2, 3, 3]] = True
    return cpdag(dag)


def test_a_direction_is_looked_at_beside_all_parents_that_the_target_may_have() -> None:
    marks = chain_with_a_triangle()
    pairs = asked(marks, Columns.of(list("abcd")), np.ones(4, dtype=bool))
    assert [one.others for one in pairs if (one.source, one.target) == (1, 3)] == [(), (2,)]
    assert [one.others for one in pairs if (one.source, one.target) == (0, 1)] == [()]
    assert {frozenset((one.source, one.target)) for one in pairs} == {
        frozenset(edge) for edge in ((0, 1), (1, 2), (1, 3), (2, 3))
    }


def test_edges_of_a_component_get_their_true_directions() -> None:
    rng, marks = np.random.default_rng(8), chain_with_a_triangle()
    a, b, c, d = rng.exponential(size=(4, 2000))
    b += a
    c += b
    d += c - 0.4 * b
    told = looked_at(np.column_stack([a, b, c, d]), marks=marks, columns=Columns.of(list("abcd")))
    assert {one.source + one.target for one in told.directions} == {"ab", "bc", "cd", "bd"}


def test_no_more_is_asked_than_a_round_may_have_and_nothing_of_levels() -> None:
    d, most = 100, 150
    dag = np.zeros((d, d), dtype=bool)
    dag[0, 1:] = True
    columns = Columns.of([f"v{k}" for k in range(d)])
    every = np.ones(d, dtype=bool)
    pairs = pairs_of(cpdag(dag), columns, every, most=most, most_sets=MOST_SETS)
    assert most - 2 < len(pairs) <= most < len(asked(cpdag(dag), columns, every))
    assert not asked(cpdag(dag), columns, np.arange(d) > 0)


def test_a_set_of_parents_that_no_site_tells_of_leaves_its_edge_out() -> None:
    marks, columns = chain_with_a_triangle(), Columns.of(list("abcd"))
    pairs = asked(marks, columns, np.ones(4, dtype=bool))
    X = np.random.default_rng(9).exponential(size=(500, 4))
    sums = noise_sums(X, pairs)
    sums[[one == DirectedPair(1, 3, (2,)) for one in pairs]] = 0.0
    told = noise_of(sums, np.ones(len(pairs)), pairs, marks, columns)
    assert told.n_open == 4
    assert {(one.source, one.target) for one in told.tests} == {("a", "b"), ("b", "c"), ("c", "d")}


@pytest.mark.parametrize(("share", "n_tests"), [(0.49, 2), (0.5, 3)])
def test_an_edge_that_sites_with_less_than_half_of_the_rows_tell_of_is_left_out(share: float, n_tests: int) -> None:
    marks, columns = chain_with_a_triangle(), Columns.of(list("abcd"))
    pairs = asked(marks, columns, np.ones(4, dtype=bool))
    sums = noise_sums(np.random.default_rng(9).exponential(size=(500, 4)), pairs)
    shares = np.where([{one.source, one.target} == {0, 1} for one in pairs], share, 0.75)
    shares[[one == DirectedPair(1, 3, (2,)) for one in pairs]] = 0.25
    told = noise_of(sums, shares, pairs, marks, columns)
    assert len(told.tests) == n_tests
    assert {one.share for one in told.tests} == ({0.75, 0.5} if share == 0.5 else {0.75})
