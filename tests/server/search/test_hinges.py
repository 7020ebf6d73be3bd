"""Which numbers bend, from moments of hinges."""

from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.row_groups import BEFORE, PRESENT
from fedbnsl.rounds.hinges import KNOTS, with_hinges
from fedbnsl_client.losses.hinges import fewest_beyond, hinge_moments
from fedbnsl_server.inference import curves
from fedbnsl_server.inference.curves import Points, effects_of, moved_along, totals_of
from fedbnsl_server.search.hinges import HingeMoments

NAMES = ("a", "b", "c")
CHAIN = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=bool)
NONE, ANY = np.zeros(3, dtype=bool), np.ones((3, 3), dtype=bool)


def of_rows(X):
    Z, asked = (X - X.mean(axis=0)) / X.std(axis=0), np.arange(3)
    n, S = hinge_moments(Z, np.zeros(3), np.ones(3), asked, np.array(KNOTS))
    assert n == len(X)
    base = np.append(asked, np.repeat(asked, len(KNOTS)))
    return Z, HingeMoments.of(S, with_hinges(Columns.of(NAMES), asked), base)


def table(f, noise, n=8000):
    rng = np.random.default_rng(7)
    draw = {"normal": rng.standard_normal, "exponential": rng.standard_exponential}[noise]
    a = draw(n)
    b = f(a) + draw(n)
    return np.column_stack([a, b, 0.8 * b + draw(n)])


def test_the_moments_are_those_of_the_complete_rows():
    X = table(np.square, "normal", n=300)
    X[::7, 1] = np.nan
    n, S = hinge_moments(X, np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0]), np.array([2]), np.array([0.0, 1.0]))
    z = (X[~np.isnan(X).any(axis=1)] - [0.1, 0.2, 0.3]) / [1.0, 2.0, 3.0]
    rows = np.column_stack([z, np.maximum(z[:, 2], 0.0), np.maximum(z[:, 2] - 1.0, 0.0)])
    assert n == len(z)
    np.testing.assert_allclose(S, np.cov(rows.T, bias=True), atol=1e-12)


def test_the_fewest_rows_on_a_side_of_a_knot_are_counted_among_complete_rows():
    X = np.column_stack([[0.0, 0.0, 1.0, 1.0, 9.0, 9.0, 9.0, 20.0], np.zeros(8)])

    def fewest(X, knots):
        return fewest_beyond(X, np.zeros(2), np.ones(2), np.array([0]), np.array(knots))

    assert fewest(X, [0.5]) == 2
    assert fewest(X, [0.5, 5.0]) == 2
    assert fewest(X, [15.0]) == 1
    assert fewest(X, [50.0]) == 8, "where nobody is beyond, nothing is told"
    X[-1, 1] = np.nan
    assert fewest(X, [15.0]) == 7


def test_a_column_of_one_value_has_no_moments_but_zeros():
    X = np.column_stack([np.full(50, 0.1), np.arange(50.0)])
    _, S = hinge_moments(X, np.array([0.1 - 1e-17, 3.0]), np.array([0.3, 7.0]), np.array([0]), np.array([-0.1, 1.0]))
    assert not S[[0, 2, 3]].any()
    assert not S[:, [0, 2, 3]].any()
    assert S[1, 1] > 0.0


def test_parts_are_uncorrelated_with_their_column_and_each_other_and_span_the_same():
    _, moments = of_rows(table(np.square, "normal"))
    for c in range(3):
        own = np.flatnonzero(moments.base == c)
        np.testing.assert_allclose(moments.S[np.ix_(own, own)], np.diag(moments.S.diagonal()[own]), atol=1e-7)
        assert len(own) == 1 + len(KNOTS)
    assert np.linalg.matrix_rank(moments.parts) == len(moments.parts)


def test_of_a_column_of_few_values_no_part_is_rounding():
    X = table(np.square, "normal")
    X[:, 0] = np.clip(np.round(X[:, 0]), -1, 1)
    _, moments = of_rows(X)
    assert (moments.base == 0).sum() == 2, "three values have a line and one bend"


@pytest.mark.parametrize("noise", ["normal", "exponential"])
def test_straight_lines_do_not_bend_whatever_the_noise(noise):
    _, moments = of_rows(table(lambda a: 0.8 * a, noise))
    assert not moments.bent(CHAIN, NONE, ANY, 8000.0).any()


@pytest.mark.parametrize("noise", ["normal", "exponential"])
def test_against_the_graph_a_u_bends_and_a_line_through_skewed_noise_does_not(noise):
    _, lines = of_rows(table(lambda a: 0.8 * a, noise))
    _, curves = of_rows(table(np.square, "normal"))
    backwards = CHAIN.T
    assert not lines.bent(backwards, NONE, ANY, 8000.0).any()
    assert curves.bent(backwards, NONE, ANY, 8000.0)[0]


@pytest.mark.parametrize("f", [np.square, lambda a: np.where(a > 0.5, 1.0, 0.0), lambda a: np.sin(2.0 * a)])
def test_a_curve_bends(f):
    _, moments = of_rows(table(f, "normal"))
    assert moments.bent(CHAIN, NONE, ANY, 8000.0).tolist() == [True, False, False]
    assert moments.bent(np.zeros_like(CHAIN), NONE, ANY, 8000.0)[0], "also where no line shows the edge"
    assert not moments.bent(CHAIN, NONE, np.zeros_like(ANY), 8000.0).any(), "for no edge that is forbidden"
    kept = moments.with_hinges_of(np.array([True, False, False]))
    assert moments.base[kept].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_effects_and_their_errors_are_those_of_least_squares():
    X = table(np.square, "normal")
    Z, moments = of_rows(X)
    chosen = moments.over(moments.with_hinges_of(np.array([True, False, False])))
    dag = CHAIN.copy()
    dag[0, 2] = True
    (_, found) = effects_of(
        chosen, dag, dag, float(len(X)), np.array([2.0, 1.0, 5.0]), Points.of_hinges(np.array(KNOTS))
    )
    assert (found.source, found.target) == ("a", "c")
    z = np.array(found.at) / 2.0

    def basis(values):
        return np.column_stack([values, np.maximum(values[:, None] - KNOTS, 0.0)])

    design = np.column_stack([basis(Z[:, 0]), Z[:, 1]])
    design -= design.mean(axis=0)
    weights = np.linalg.lstsq(design, Z[:, 2], rcond=None)[0]
    variance = np.mean((Z[:, 2] - design @ weights) ** 2) / len(X)
    step = np.column_stack([basis(z) - basis(np.zeros(1)), np.zeros(len(z))])
    np.testing.assert_allclose(found.change, 5.0 * step @ weights, atol=1e-6)
    error = 5.0 * np.sqrt(np.einsum("ij,jk,ik->i", step, np.linalg.inv(design.T @ design / len(X)) * variance, step))
    np.testing.assert_allclose(found.error, error, atol=1e-6)


def test_a_total_effect_is_that_of_least_squares_on_a_number_and_its_parents_with_hinges():
    X = table(np.square, "normal")
    Z, moments = of_rows(X)
    confounded = np.array([[0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=bool)  # c <- a <- b -> c
    bends = np.array([True, True, False])
    _, found = totals_of(
        moments, confounded, bends, float(len(X)), np.array([2.0, 1.0, 5.0]), Points.of_hinges(np.array(KNOTS))
    )
    assert (found.source, found.adjusted_for, [one.target for one in found.below]) == ("b", (), ["a", "c"])
    found, _ = totals_of(
        moments, confounded, bends, float(len(X)), np.array([2.0, 1.0, 5.0]), Points.of_hinges(np.array(KNOTS))
    )
    assert (found.source, found.adjusted_for, [one.target for one in found.below]) == ("a", ("b",), ["c"])

    def basis(values):
        return np.column_stack([values, np.maximum(values[:, None] - KNOTS, 0.0)])

    design = np.column_stack([basis(Z[:, 0]), basis(Z[:, 1])])
    design -= design.mean(axis=0)
    weights = np.linalg.lstsq(design, Z[:, 2], rcond=None)[0]
    variance = np.sum((Z[:, 2] - design @ weights) ** 2) / (len(X) - 12)
    step = np.append(basis(np.array([0.9])) - basis(np.array([-1.7])), np.zeros(6))
    (below,) = found.below
    covariance = np.array(found.covariance) * below.residual_variance
    change, error = moved_along(np.array(found.at), np.array(below.change), covariance, (-3.4, 1.8))
    assert change == pytest.approx(5.0 * step @ weights, abs=1e-5)
    assert error == pytest.approx(5.0 * np.sqrt(step @ np.linalg.inv(design.T @ design) @ step * variance), abs=1e-6)


def test_a_total_effect_ends_where_there_are_no_rows():
    _, moments = of_rows(table(np.square, "exponential"))
    found = next(
        totals_of(moments, CHAIN, np.array([True, False, False]), 8000.0, np.ones(3), Points.of_hinges(np.array(KNOTS)))
    )
    assert found.at == (-1.5, *KNOTS[1:], 2.5), "no row is more than one standard deviation below the mean"
    assert len(found.covariance) == len(found.below[0].change) == len(found.at)


def test_a_line_into_a_curve_has_a_curved_total_effect_by_each_set_of_parents():
    _, moments = of_rows(table(np.square, "normal"))
    open_ = CHAIN | np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)  # a - b -> c
    bends = np.array([False, True, False])
    found = totals_of(moments, open_, bends, 8000.0, np.ones(3), Points.of_hinges(np.array(KNOTS)))
    told = [(one.source, one.adjusted_for, [each.target for each in one.below]) for one in found]
    assert sorted(told) == [("a", (), ["c"]), ("b", (), ["a", "c"]), ("b", ("a",), ["c"])]


def test_of_the_row_before_and_of_too_many_sets_of_parents_no_total_effect_is_told(monkeypatch):
    _, moments = of_rows(table(np.square, "normal"))
    open_ = CHAIN | np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)  # a - b -> c

    def sources(of, marks):
        return {
            one.source for one in totals_of(of, marks, ~NONE, 8000.0, np.ones(3), Points.of_hinges(np.array(KNOTS)))
        }

    lagged = replace(moments, columns=replace(moments.columns, slices=(BEFORE, PRESENT, PRESENT)))
    assert (sources(moments, CHAIN), sources(lagged, CHAIN)) == ({"a", "b"}, {"b"})
    for most, told in ((2, {"a", "b"}), (1, set())):
        monkeypatch.setattr(curves, "_MOST_PARENT_SETS", most)
        assert sources(moments, open_) == told


def test_an_open_edge_is_told_from_the_end_that_bends():
    _, moments = of_rows(table(np.square, "normal"))
    chosen = moments.over(moments.with_hinges_of(np.array([True, False, False])))
    reversed_ = np.array([[0, 0, 0], [1, 0, 1], [0, 0, 0]], dtype=bool)  # a <- b -> c
    (found,) = effects_of(
        chosen, reversed_, reversed_ | reversed_.T, 8000.0, np.ones(3), Points.of_hinges(np.array(KNOTS))
    )
    assert (found.source, found.target) == ("a", "b")
    (same,) = effects_of(chosen, CHAIN, CHAIN, 8000.0, np.ones(3), Points.of_hinges(np.array(KNOTS)))
    np.testing.assert_allclose(found.change, same.change)
