"""Effects over a class, against products of path coefficients in every member."""

import itertools

import numpy as np
import pytest

from all_members import all_members, random_dag, random_knowledge
from fedbnsl.errors import ResultError
from fedbnsl.graphs.cpdag import class_of
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference import effects
from fedbnsl_server.inference.effects import (
    Precision,
    certainty,
    effects_on_all,
    implied_covariance,
    moved_by_turning,
    rests_on,
    total_effects,
)


def refitted(covariance, member):
    """(d, d) path coefficients of a member: every variable regressed on its parents."""
    W = np.zeros(member.shape)
    for j in range(len(member)):
        Z = np.flatnonzero(member[:, j])
        W[Z, j] = np.linalg.solve(covariance[np.ix_(Z, Z)], covariance[Z, j])
    return W


def paths(W, sources, target):
    """Sums over directed paths of products of coefficients, with all edges into the sources cut."""
    cut = W.copy()
    cut[:, sources] = 0.0
    return np.linalg.inv(np.eye(len(W)) - cut)[sources, target]


def drawn(d, seed):
    rng = np.random.default_rng([d, seed])
    dag = random_dag(d, 0.6, rng)
    allowed, required = random_knowledge(dag, rng)
    W = np.where(dag, rng.uniform(0.4, 1.5, (d, d)) * rng.choice([-1, 1], (d, d)), 0.0)
    covariance = implied_covariance(W, rng.uniform(0.2, 3.0, d))
    return covariance, class_of(dag, allowed, required), list(all_members(dag, allowed, required))


def distinct(values):
    kept = []
    for value in values:
        if not any(np.allclose(value, other, rtol=1e-7, atol=1e-9) for other in kept):
            kept.append(value)
    return by_size(kept)


def by_size(values):
    """In an order that does not depend on rounding."""
    return np.array(sorted((np.round(list(value), 9) + 0.0).tolist() for value in values))


@pytest.mark.parametrize(("d", "seed"), [(d, seed) for d in (3, 4, 5, 6) for seed in range(10)])
def test_the_effects_are_those_of_the_paths_in_all_members(d, seed):
    covariance, marks, members = drawn(d, seed)
    columns = Columns.of([f"v{k}" for k in range(d)])
    for sources, target in (([0], d - 1), ([d - 1], 1), ([0, 1], d - 1), ([1, 0], d - 1)):
        found = total_effects(covariance, marks, sources, target, columns, None)
        expected = distinct(paths(refitted(covariance, member), sources, target) for member in members)
        values = by_size(effect.value[:, 0] for effect in found)
        assert values.shape == expected.shape
        np.testing.assert_allclose(values, expected, rtol=1e-7, atol=1e-8)
        sets = {parents for effect in found for parents in effect.adjusted_for}
        assert sets == {tuple(tuple(np.flatnonzero(m[:, k]).tolist()) for k in sources) for m in members}


def turned(member, arrows):
    """The DAGs that a member becomes if any of these arrows point the other way."""
    for ways in itertools.product((False, True), repeat=len(arrows)):
        other = member.copy()
        for (i, j), turns in zip(arrows, ways, strict=True):
            if turns:
                other[i, j], other[j, i] = False, True
        if is_acyclic(other):
            yield other


def by_regression(covariance, member, source, target):
    """The coefficient of the source, given its parents, or 0 where it does not come before the target."""
    if not np.linalg.matrix_power(np.eye(len(member)) + member, len(member))[source, target]:
        return 0.0
    given = [source, *np.flatnonzero(member[:, source]).tolist()]
    return np.linalg.solve(covariance[np.ix_(given, given)], covariance[given, target])[0]


@pytest.mark.parametrize("seed", range(12))
def test_an_effect_that_rests_on_no_undecided_arrow_is_the_same_whichever_way_they_point(seed):
    covariance, marks, members = drawn(5, seed)
    arrows = np.argwhere(marks & ~marks.T).tolist()
    rng, columns, n_free = np.random.default_rng(seed), Columns.of("abcde"), 0
    undecided = np.zeros_like(marks)
    for i, j in rng.permutation(arrows)[:2].tolist() if arrows else []:
        undecided[i, j] = True
    chosen = np.argwhere(undecided).tolist()
    for source in range(5):
        moved = moved_by_turning(covariance, marks, undecided, source, columns)
        for target in set(range(5)) - {source}:
            if rests_on(marks, undecided, [source], target, moved).any():
                continue
            n_free += 1
            told = distinct([by_regression(covariance, one, source, target)] for one in members)
            others = (other for one in members for other in turned(one, chosen))
            np.testing.assert_allclose(
                distinct([by_regression(covariance, one, source, target)] for one in others), told, atol=1e-7
            )
    assert n_free


def test_an_undecided_arrow_counts_only_where_it_changes_the_effect():
    """s -> p <- b, p -> l, where b -> p is undecided: it opens nothing between s and p, and gives l no way back."""
    s, p, b, leaf = range(4)
    W = np.zeros((4, 4))
    W[s, p], W[b, p], W[p, leaf] = 0.5, 0.7, -0.4
    marks, undecided = W != 0.0, np.zeros((4, 4), dtype=bool)
    undecided[b, p] = True
    covariance, columns = implied_covariance(W, np.ones(4)), Columns.of("spbl")

    def rests(source, target):
        moved = moved_by_turning(covariance, marks, undecided, source, columns)
        return bool(rests_on(marks, undecided, [source], target, moved).any())

    assert not rests(s, p), "identified"
    assert not rests(p, s), "no path, as s -> p is firm"
    assert not rests(p, leaf), "b is independent of l given p"
    assert rests(b, p)
    assert rests(p, b)
    assert rests(b, leaf)
    assert not rests(leaf, b)


@pytest.mark.parametrize("seed", range(6))
def test_effects_on_all_targets_are_those_on_each(seed):
    covariance, marks, members = drawn(5, seed)
    columns, precision = Columns.of("abcde"), Precision(100.0, 0.01)
    for source in range(5):
        found = effects_on_all(covariance, marks, source, columns, precision, most=64)
        reached = {j for member in members for j in range(5) if j != source and paths(member * 1.0, [source], j).any()}
        assert set(found) == reached
        for target, of_target in found.items():
            wanted = total_effects(covariance, marks, [source], target, columns, precision)
            assert [one.value.item() for one in of_target] == [one.value.item() for one in wanted]
            assert [one.standard_error.item() for one in of_target] == [one.standard_error.item() for one in wanted]
            assert [one.adjusted_for for one in of_target] == [one.adjusted_for for one in wanted]


def test_a_source_with_more_sets_of_parents_than_asked_for_has_no_effects_on_all():
    triangle = ~np.eye(3, dtype=bool)  # each node has 4 sets of parents in its members
    for most in (3, 4):
        found = effects_on_all(np.eye(3) + 0.5, triangle, 0, Columns.of("abc"), None, most=most)
        assert (found is None) == (most == 3)


def test_effects_of_one_sign_are_a_range_and_others_are_not_identified():
    assert certainty([0.4]) == certainty([0.0]) == certainty([0.4, 0.4]) == "identified"
    assert certainty([0.1, 0.4]) == certainty([-0.1, -0.4]) == "range"
    assert certainty([0.0, 0.4]) == certainty([-0.1, 0.4]) == "not identified"


def test_the_implied_covariance_is_that_of_the_equations():
    W = np.array([[0.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(implied_covariance(W, np.array([3.0, 0.5])), [[3.0, 6.0], [6.0, 12.5]])


def test_the_standard_error_is_the_spread_over_tables_of_what_the_graph_estimates():
    rng = np.random.default_rng(1)
    W = np.zeros((4, 4))
    W[0, 1], W[0, 2], W[1, 2], W[2, 3] = 0.8, 0.5, -1.0, 0.7
    v, n = np.array([1.0, 0.5, 2.0, 1.0]), 60
    dag, free, nothing = W != 0, ~np.eye(4, dtype=bool), np.zeros((4, 4), dtype=bool)
    (told,) = total_effects(
        implied_covariance(W, v), class_of(dag, free, dag | nothing), [1], 3, Columns.of("abcd"), Precision(n, 0.0)
    )
    assert told.value.item() == pytest.approx(-0.7)
    found = []
    for _ in range(4000):
        X = (rng.standard_normal((n, 4)) * np.sqrt(v)) @ np.linalg.inv(np.eye(4) - W)
        to_2 = np.linalg.lstsq(X[:, [1, 0]], X[:, 2], rcond=None)[0][0]
        found.append(to_2 * np.linalg.lstsq(X[:, [2]], X[:, 3], rcond=None)[0][0])
    assert told.standard_error.item() == pytest.approx(np.std(found), rel=0.05)


def test_the_noise_of_a_covariance_of_residuals_is_part_of_the_standard_error():
    rng = np.random.default_rng(2)
    W = np.zeros((3, 3))
    W[0, 1], W[0, 2], W[1, 2] = 0.8, 0.5, -1.0
    v, noise_std = np.array([1.0, 0.3, 4.0]), 0.01
    dag = W != 0
    (told,) = total_effects(implied_covariance(W, v), dag, [1], 2, Columns.of("abc"), Precision(1e12, noise_std))
    back = np.linalg.inv((np.eye(3) - W) / np.sqrt(v))
    found = []
    for _ in range(4000):
        E = np.triu(rng.standard_normal((3, 3)) * noise_std, k=1)
        E = E + E.T + np.diag(rng.standard_normal(3) * np.sqrt(2) * noise_std)
        S = back.T @ (np.eye(3) + E) @ back
        found.append(np.linalg.solve(S[np.ix_([1, 0], [1, 0])], S[[1, 0], 2])[0])
    assert told.standard_error.item() == pytest.approx(np.std(found), rel=0.05)


@pytest.mark.parametrize(("source", "target", "place"), [("x", "w", (1, 4)), ("z", "y", (0, 3))])
def test_columns_of_one_variable_with_correlated_noise_have_the_standard_errors_of_a_simulation(source, target, place):
    """z -> x -> y -> w, where x has two columns, such as indicators, of which at most one is 1."""
    columns = Columns.of(["z", "x=a", "x=b", "y", "w"], {"x=a": "x", "x=b": "x"})
    W, v, n = np.zeros((5, 5)), np.array([1.0, 0.6, 0.8, 1.0, 2.0]), 80
    W[0, 1], W[0, 2], W[1, 3], W[2, 3], W[3, 4] = 0.5, -0.3, 2.0, 1.5, 0.7
    correlation = np.eye(5)
    correlation[1, 2] = correlation[2, 1] = -0.8
    names, dag = list(columns.variables), columns.joined(W != 0)
    (told,) = total_effects(
        implied_covariance(W, v, correlation), dag, [names.index(source)], names.index(target), columns, Precision(n, 0)
    )
    assert told.value[0, 0] == pytest.approx(np.linalg.inv(np.eye(5) - W)[place])
    rng, L, found = np.random.default_rng(3), np.linalg.cholesky(correlation), []
    for _ in range(4000):
        X = (rng.standard_normal((n, 5)) @ L.T * np.sqrt(v)) @ np.linalg.inv(np.eye(5) - W)
        estimate = np.zeros((5, 5))
        for given, child in (([0], [1, 2]), ([1, 2], [3]), ([3], [4])):
            estimate[np.ix_(given, child)] = np.linalg.lstsq(X[:, given], X[:, child], rcond=None)[0]
        found.append(np.linalg.inv(np.eye(5) - estimate)[place])
    assert told.standard_error[0, 0] == pytest.approx(np.std(found), rel=0.05)


def test_noise_on_moments_of_residuals_counts_for_columns_of_one_variable_as_a_simulation_says():
    columns = Columns.of(["x=a", "x=b", "y"], {"x=a": "x", "x=b": "x"})
    W, v, noise_std = np.zeros((3, 3)), np.array([0.6, 0.8, 1.5]), 0.01
    W[0, 2], W[1, 2] = 2.0, 1.5
    R = np.array([[1.0, -0.8, 0.0], [-0.8, 1.0, 0.0], [0.0, 0.0, 1.0]])
    (told,) = total_effects(
        implied_covariance(W, v, R), columns.joined(W != 0), [0], 1, columns, Precision(1e12, noise_std)
    )
    back, rng, found = np.linalg.inv((np.eye(3) - W) / np.sqrt(v)), np.random.default_rng(4), []
    for _ in range(4000):
        E = np.triu(rng.standard_normal((3, 3)) * noise_std, k=1)
        S = back.T @ (R + E + E.T + np.diag(rng.standard_normal(3) * np.sqrt(2) * noise_std)) @ back
        found.append(np.linalg.solve(S[:2, :2], S[:2, 2])[0])
    assert told.standard_error[0, 0] == pytest.approx(np.std(found), rel=0.05)


def test_a_nominal_variable_has_an_effect_of_each_of_its_columns():
    """x has two columns; y = 2 x1 - x2 + z, and z moves both columns of x."""
    names, owners = ["z", "x=a", "x=b", "y"], {"x=a": "x", "x=b": "x"}
    columns = Columns.of(names, owners)
    W = np.zeros((4, 4))
    W[0, 1], W[0, 2], W[0, 3], W[1, 3], W[2, 3] = 0.5, -0.7, 1.0, 2.0, -1.0
    dag = columns.joined(W != 0)
    (effect,) = total_effects(implied_covariance(W, np.ones(4)), dag, [1], 2, columns, None)
    np.testing.assert_allclose(effect.value[:, 0], [2.0, -1.0])
    assert effect.standard_error is None
    (joint,) = total_effects(implied_covariance(W, np.ones(4)), dag, [0, 1], 2, columns, None)
    np.testing.assert_allclose(joint.value[:, 0], [1.0, 2.0, -1.0])


def test_a_variable_with_too_many_sets_of_parents_is_refused(monkeypatch):
    monkeypatch.setattr(effects, "_MOST_PARENT_SETS", 7)
    clique = ~np.eye(4, dtype=bool)
    with pytest.raises(ResultError, match="more than 7 sets of parents"):
        total_effects(np.eye(4) + 0.5, clique, [0], 1, Columns.of("abcd"), None)


def test_a_variable_that_comes_later_has_no_effect_and_that_is_certain():
    dag = np.array([[False, True], [False, False]])
    (effect,) = total_effects(np.array([[1.0, 0.5], [0.5, 1.0]]), dag, [1], 0, Columns.of("ab"), Precision(10.0, 0.0))
    assert (effect.value.item(), effect.standard_error.item()) == (0.0, 0.0)


def test_the_effect_of_a_function_of_its_parents_has_no_error_and_others_keep_theirs():
    """p -> a -> y and p -> y with a = 2 p but for rounding: y may be a function of either."""
    dag = np.zeros((3, 3), dtype=bool)
    dag[0, 1] = dag[0, 2] = dag[1, 2] = True
    W = np.zeros((3, 3))
    W[0, 1], W[1, 2] = 2.0, 1.0
    covariance = implied_covariance(W, np.array([1.0, 1e-12, 1.0]))
    columns, precision = Columns.of(["p", "a", "y"]), Precision(400.0, 0.0)
    (of_a,) = total_effects(covariance, dag, [1], 2, columns, precision)
    (of_p,) = total_effects(covariance, dag, [0], 2, columns, precision)
    assert of_a.standard_error is not None
    assert np.isnan(of_a.standard_error).all()
    assert of_p.standard_error == pytest.approx(1.0 / 20.0, rel=0.01)


def test_where_rows_lack_the_target_the_standard_error_is_the_spread_of_what_rows_of_each_edge_give():
    """a -> b in all rows, b -> c in a quarter of them: least squares on the rows that an edge has."""
    rng, n, few = np.random.default_rng(6), 240, 60
    W, v = np.zeros((3, 3)), np.array([1.0, 0.5, 2.0])
    W[0, 1], W[1, 2] = 0.3, 1.5
    widening = np.ones((3, 3))
    widening[2, :2] = widening[:2, 2] = np.sqrt(n / few)
    (told,) = total_effects(implied_covariance(W, v), W != 0, [0], 2, Columns.of("abc"), Precision(n, 0.0, widening))
    found = []
    for _ in range(4000):
        X = (rng.standard_normal((n, 3)) * np.sqrt(v)) @ np.linalg.inv(np.eye(3) - W)
        to_b, to_c = X[:, 0] @ X[:, 1] / (X[:, 0] @ X[:, 0]), X[:few, 1] @ X[:few, 2] / (X[:few, 1] @ X[:few, 1])
        found.append(to_b * to_c)
    assert told.standard_error.item() == pytest.approx(np.std(found), rel=0.05)


def test_a_coefficient_has_the_error_that_the_run_found_wherever_it_is_told():
    """a -> b -> c and a -> c: a direct effect, a sum of paths, and the coefficient of a turned edge."""
    W, v, n = np.zeros((3, 3)), np.array([1.0, 0.5, 2.0]), 400.0
    W[0, 1], W[1, 2], W[0, 2] = 0.8, 1.5, 0.4
    covariance, columns, plain = implied_covariance(W, v), Columns.of("abc"), Precision(n, 0.01)
    errors = np.where(W != 0, np.array([[0.0, 0.2, 0.3], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]]), np.nan)
    found = plain.with_errors_of(errors, covariance, W != 0, columns)
    (told,) = total_effects(covariance, W != 0, [1], 2, columns, found)
    assert told.standard_error.item() == pytest.approx(0.5)
    (told,) = total_effects(covariance, W != 0, [0], 1, columns, found)
    assert told.standard_error.item() == pytest.approx(0.2)

    (before,) = total_effects(covariance, W != 0, [0], 2, columns, plain)
    (after,) = total_effects(covariance, W != 0, [0], 2, columns, found)
    ones = plain.with_errors_of(np.where(W != 0, 1.0, np.nan), covariance, W != 0, columns)
    twice = plain.with_errors_of(np.where(W != 0, 2.0 / ones.factors, np.nan), covariance, W != 0, columns)
    (double,) = total_effects(covariance, W != 0, [0], 2, columns, twice)
    assert double.standard_error == pytest.approx(2.0 * before.standard_error)
    assert after.standard_error > before.standard_error

    turned = np.zeros((3, 3), dtype=bool)
    turned[1, 0] = turned[1, 2] = turned[0, 2] = True
    (one,), (other,) = (total_effects(covariance, turned, [1], 0, columns, p) for p in (plain, found))
    assert other.standard_error == pytest.approx(0.2 * ones.factors[0, 1] * one.standard_error)


def test_where_a_run_tells_no_error_of_a_coefficient_its_precision_does():
    W = np.zeros((2, 2))
    W[0, 1] = 1.0
    covariance, columns, plain = implied_covariance(W, np.ones(2)), Columns.of("ab"), Precision(100.0, 0.0)
    found = plain.with_errors_of(np.full((2, 2), np.nan), covariance, W != 0, columns)
    (told,) = total_effects(covariance, W != 0, [0], 1, columns, found)
    assert told.standard_error.item() == pytest.approx(0.1)


def test_each_column_of_a_nominal_variable_has_the_error_of_its_own_coefficient():
    names, W = ("a", "g1", "g2", "c"), np.zeros((4, 4))
    columns = Columns.of(names, owners={"g1": "g", "g2": "g"})
    W[0, 1], W[0, 2], W[1, 3], W[2, 3] = 0.5, -0.8, 1.0, 2.0
    correlation = np.eye(4)
    correlation[1, 2] = correlation[2, 1] = -0.4
    covariance, dag = implied_covariance(W, np.array([1.0, 0.5, 0.7, 1.0]), correlation), columns.joined(W != 0)
    errors = np.full((4, 4), np.nan)
    errors[0, 1], errors[0, 2], errors[1, 3], errors[2, 3] = 0.1, 0.3, 0.2, 0.5
    gaps = np.ones((4, 4))
    gaps[0, 1:3] = gaps[1:3, 0] = 2.0
    for plain in (
        Precision(400.0, 0.01),
        Precision(400.0, 0.0, gaps),
        Precision(400.0, 0.0, others=5.0, residual_icc=np.array([0.3, 0.2, 0.25, 0.5])),
    ):
        found = plain.with_errors_of(errors, covariance, dag, columns)
        (onto,), (of,) = (total_effects(covariance, dag, [k], k + 1, columns, found) for k in (0, 1))
        np.testing.assert_allclose(onto.standard_error, [[0.1, 0.3]])
        np.testing.assert_allclose(of.standard_error, [[0.2], [0.5]])


def test_what_a_function_leaves_without_an_error_has_no_other_one():
    """b = 2 a; c = b + e, with a as a second parent or without."""
    columns, plain, dag = Columns.of("abc"), Precision(100.0, 0.0), np.zeros((3, 3), dtype=bool)
    covariance, errors = np.array([[1.0, 2.0, 2.0], [2.0, 4.0, 4.0], [2.0, 4.0, 5.0]]), np.full((3, 3), 0.1)
    dag[0, 1] = dag[1, 2] = True
    found = plain.with_errors_of(errors, covariance, dag, columns)
    assert found.factors is not None
    assert found.factors[0, 1] == 1.0
    assert found.factors[1, 2] == pytest.approx(0.1 / np.sqrt(1.0 / (4.0 * 100.0)))
    dag[0, 2] = True
    assert (plain.with_errors_of(errors, covariance, dag, columns).factors == 1.0).all()
