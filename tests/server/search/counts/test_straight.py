"""The choice between tables and straight effects: likelihoods against closed forms, and both kinds of tables."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.search.counts import straight
from fedbnsl_server.search.counts.redrawn import Records
from fedbnsl_server.search.counts.score import likelihood
from fedbnsl_server.search.counts.search import CountSearch
from fedbnsl_server.search.counts.straight import Descriptions, log_likelihood

GRADES = np.arange(5.0)[:, None]


def proportional(start: np.ndarray, table: np.ndarray, margins: list[tuple[int, ...]]) -> np.ndarray:
    """Probabilities of cells with these margins of a table, by iterative proportional fitting."""
    p = start.copy()
    for _ in range(300):
        for kept in margins:
            others = tuple(k for k in range(table.ndim) if k not in kept)
            p *= table.sum(axis=others, keepdims=True) / table.sum() / p.sum(axis=others, keepdims=True)
    return p


def test_a_straight_effect_has_the_likelihood_of_the_best_slope() -> None:
    table = np.random.default_rng(1).integers(3, 60, (4, 5)).astype(np.float64)
    table += 40.0 * np.eye(4, 5)

    def misfit(b: float) -> float:
        start = np.exp(b * np.arange(4.0)[:, None] * np.arange(5.0))
        return -float((table * np.log(proportional(start, table, [(0,), (1,)]))).sum())

    expected = -minimize_scalar(misfit, bounds=(-3.0, 3.0), method="bounded").fun
    assert log_likelihood(table, [GRADES[:4], GRADES]) == pytest.approx(expected, abs=1e-2)
    assert expected < likelihood(table, table.sum()) - 5.0


def test_three_binary_variables_have_the_likelihood_of_their_pairs() -> None:
    table = np.random.default_rng(2).integers(5, 90, (2, 2, 2)).astype(np.float64)
    p = proportional(np.ones((2, 2, 2)), table, [(0, 1), (0, 2), (1, 2)])
    expected = float((table * np.log(p)).sum())
    assert log_likelihood(table, [GRADES[:2]] * 3) == pytest.approx(expected, abs=1e-2)


def test_an_effect_for_each_level_of_a_nominal_variable_has_the_likelihood_of_the_table() -> None:
    table = np.random.default_rng(3).integers(5, 90, (3, 2)).astype(np.float64)
    found = log_likelihood(table, [np.eye(3)[:, 1:], GRADES[:2]])
    assert found == pytest.approx(likelihood(table, table.sum()), abs=1e-2)


def test_a_copy_of_a_grade_is_nearly_described() -> None:
    table = np.diag([300.0, 500.0, 400.0])
    found = log_likelihood(table, [GRADES[:3]] * 2)
    assert found == pytest.approx(likelihood(table, table.sum()), abs=2.0)


def grades_of(kind: str, seed: int, n: int = 1500) -> np.ndarray:
    """(4, n) grades: the first two act on the third, and this one on the last."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, n))
    if kind == "straight":
        c = np.digitize(0.5 * a + 0.5 * b + rng.normal(size=n), [0.5, 1.4, 2.6, 3.5])
        d = np.digitize(0.4 * c + rng.normal(size=n), [0.0, 0.8, 1.6])
    else:
        c = np.where(rng.random(n) < 0.8, np.array([4, 1, 0, 2, 4])[a] * (b % 2), rng.integers(0, 5, n))
        d = np.where(rng.random(n) < 0.8, np.array([2, 0, 3, 1, 2])[c], rng.integers(0, 4, n))
    return np.array([a, b, c, d])


LEVELS = np.array([5, 5, 5, 4])
TRUE = np.zeros((4, 4), dtype=bool)
TRUE[0, 2] = TRUE[1, 2] = TRUE[2, 3] = True
NONE = np.zeros((4, 4), dtype=bool)


def descriptions(codes: np.ndarray) -> Descriptions:
    return Descriptions(Records(list(codes), LEVELS), LEVELS, np.zeros(4, dtype=bool))


def by_counts(codes: np.ndarray) -> Mask:
    search = CountSearch(Records(list(codes), LEVELS), LEVELS, NONE, ~np.eye(4, dtype=bool), NONE)
    return search.best(NONE, np.random.default_rng(0), passes=2)


@pytest.mark.parametrize("seed", range(5))
def test_straight_effects_of_grades_win_where_lines_describe_them(seed: int) -> None:
    codes = grades_of("straight", seed, n=600)
    counted = by_counts(codes)
    choice = descriptions(codes).choice(counted, TRUE)
    assert not choice.counts


@pytest.mark.parametrize("seed", range(5))
def test_tables_win_where_no_line_describes_grades(seed: int) -> None:
    codes = grades_of("crooked", seed)
    counted = by_counts(codes)
    assert (cpdag(counted) == cpdag(TRUE)).all()
    lines = NONE.copy()
    lines[0, 2] = True
    assert descriptions(codes).choice(counted, lines).counts


@pytest.mark.parametrize("kind", ["straight", "crooked"])
def test_one_graph_is_taken_as_what_describes_it(kind: str) -> None:
    assert descriptions(grades_of(kind, 1)).choice(TRUE, TRUE).counts == (kind == "crooked")


def test_all_graphs_of_a_class_have_one_length() -> None:
    of = descriptions(grades_of("straight", 3))
    lengths = []
    for a, b, c in itertools.permutations(range(3)):
        complete = NONE.copy()
        complete[a, b] = complete[a, c] = complete[b, c] = True
        lengths.append(of.choice(complete, NONE).by_tables)
    assert lengths == pytest.approx([lengths[0]] * 6, rel=1e-12)
    assert lengths[0] < of.choice(NONE, TRUE).by_tables


def test_a_family_without_a_table_counts_without_its_weakest_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = grades_of("crooked", 2)
    of, families = descriptions(codes), TRUE.copy()
    families[0, 3] = families[1, 3] = True
    weaker = TRUE.copy()
    weaker[0, 3] = True
    gains = [straight.Gains(of.source, LEVELS)(3, (k,)) for k in (1, 0, 2)]
    assert gains[0] < gains[1] < gains[2]
    assert (of.known(families) == families).all()
    monkeypatch.setattr(straight, "is_too_large", lambda variables, levels: len(variables) > 3)
    assert (of.known(families) == weaker).all()


def test_sets_with_too_many_numbers_for_lines_have_their_cells_in_both_lengths() -> None:
    """Three nominal variables of 9 levels: of one class, lines and cells are still compared by finite numbers."""
    levels, rng = np.array([9, 9, 9, 4]), np.random.default_rng(4)
    codes = rng.integers(0, levels[:, None], (4, 3000))
    of = Descriptions(Records(list(codes), levels), levels, np.array([True, True, True, False]))
    complete = np.triu(np.ones((4, 4), dtype=bool), k=1)
    for dag in (complete, TRUE):
        choice = of.choice(dag, dag)
        assert np.isfinite([choice.by_tables, choice.by_lines]).all()
