"""Releases where a person has several rows: what a person adds, and how far one can move the sums."""

import itertools
import math
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest

from fedbnsl.privacy.calibration import LATTICE, constant_residual, own_means_sensitivity, statistics_sensitivity
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import person_rows
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.losses.blocked import BlockedGradient
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.privacy.expected_residuals import Model
from fedbnsl_client.privacy.grid_products import add_person_products
from fedbnsl_client.privacy.private_moments import (
    Shared,
    Squared,
    Whole,
    release_covariance,
    release_residual_moments,
    release_second_moments,
    release_statistics,
    residual_sums,
)

D, BOUND = 3, 1.5
W = np.triu(np.random.default_rng(4).normal(size=(D, D)), 1)
WHOLE = Whole(np.array([0.3, -1.0, 0.2]), np.array([2.0, 1.0, 0.5]), np.full(D, 0.7))
SQUARED = Whole(
    np.array([0.3, -1.0, 0.2, 0.1]), np.array([2.0, 1.0, 0.5, 1.0]), np.full(4, 0.7),
    Squared(np.array([1]), np.array([0.5]), np.array([2.0])),
)  # fmt: skip
ALL_GAPS = [np.array(x) for x in itertools.product((np.nan, 1e4, -2.0), repeat=D)]
FAR = [np.array(x) for x in itertools.product((1e308, -1e308, np.nan, np.inf, 5e-324, -2.0), repeat=D)]


@pytest.fixture(autouse=True)
def _without_noise() -> Iterator[None]:
    nothing = mock.patch.object(
        private_moments, "rounded_gaussians", lambda variances, which, source: np.zeros(len(which), dtype=np.int64)
    )
    with mock.patch.object(private_moments, "rounded_gaussian", return_value=0), nothing:
        yield


def of(*persons: Matrix) -> PersonRows:
    return PersonRows(np.vstack(persons), np.array([len(rows) for rows in persons]))


def some(n: int, *, gaps: bool = False) -> list[Matrix]:
    """Persons of one to six rows."""
    rng = np.random.default_rng(n)
    found = [2.0 * rng.normal(size=(rng.integers(1, 7), D)) for _ in range(n)]
    return [np.where(rng.random(rows.shape) < 0.3, np.nan, rows) for rows in found] if gaps else found


def sums(X: Table, by: Whole | None = None, asked: Matrix = W, scales: Matrix | None = None) -> tuple[Matrix, Matrix]:
    d = D if by is None else len(by.scale)
    wide = np.zeros((d, d))
    wide[:D, :D] = asked
    used = np.ones(d) if scales is None else np.resize(scales, d)
    return residual_sums(X, wide, used, BOUND, 2, randomness.system, by, Shared(1))


@pytest.mark.parametrize(("by", "gaps"), [(None, False), (WHOLE, False), (WHOLE, True)])
def test_a_person_adds_the_mean_of_what_the_rows_tell_shortened_as_a_whole(by: Whole | None, gaps: bool) -> None:
    persons = some(40, gaps=gaps)
    total = 0.0
    for rows in persons:
        told = np.zeros((D + (by is not None),) * 2)
        for x in rows:
            V, c = np.zeros_like(told), ()
            if by is not None:
                x, c = (x - by.centre) / by.scale, (constant_residual(D),)
                if np.isnan(x).any():
                    ((_, (z,), B),) = Model(np.eye(D) - W, by.spreads).expected(x[None])
                    V[:D, :D] = B.T @ B
            z = np.append(x - W.T @ x if not np.isnan(x).any() else z, c)
            told += (np.outer(z, z) + V) / len(rows)
        total = total + np.rint(told * LATTICE / max(float(np.linalg.norm(told)), BOUND**2))
    found, own_means = sums(of(*persons), by)
    assert np.abs(found - total).max() <= 1
    if by is not None:
        assert np.abs(own_means - total[-1]).max() <= 1


@pytest.mark.parametrize("by", [None, WHOLE, SQUARED])
def test_persons_of_one_row_each_are_records(by: Whole | None) -> None:
    X = np.vstack([rows[:1] for rows in some(40, gaps=by is not None)])
    one_each = PersonRows(X, np.ones(len(X), dtype=np.int64))
    for one, other in zip(sums(X, by), sums(one_each, by), strict=True):
        assert np.abs(one - other).max() <= 1  # a number on the edge may be rounded in another way
    low, high, of_variable = np.full(D, -9.0), np.full(D, 9.0), np.arange(D)
    told = [release_statistics(table, low, high, of_variable, 0, randomness.system) for table in (X, one_each)]
    np.testing.assert_array_equal(*told)


def test_a_row_that_cannot_be_used_counts_as_zeros_and_the_others_of_the_person_as_they_are() -> None:
    rows = 0.1 * np.random.default_rng(2).normal(size=(3, D))
    for beyond in (np.nan, np.inf, 1e308):
        found = sums(of(np.vstack([rows, np.full((1, D), beyond)])), asked=1e3 * W)
        np.testing.assert_array_equal(found[0], sums(of(np.vstack([rows, np.zeros((1, D))])), asked=1e3 * W)[0])
    assert np.abs(found[0]).max() > 0.0


def test_what_a_person_adds_is_rounded_once_however_many_rows_there_are() -> None:
    z, unit = np.random.default_rng(3).normal(size=(200_000, 2)), 2.0**50  # so fine that any rounding shows
    found, none = np.zeros((2, 2), dtype=np.int64), np.full(len(z), -1)
    add_person_products(z, none, np.zeros((1, 2, 2)), np.array([len(z)]), 10.0, unit, found)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        exact = math.fsum((z[:, i] * z[:, j]).tolist()) / len(z) / 10.0 * unit
        assert abs(found[i, j] - exact) <= 1.0


def hostile() -> Iterator[Matrix]:
    """All rows of a person: far apart, all alike, of opposite directions, many, with gaps, beyond use."""
    for row in (*FAR[::7], *ALL_GAPS):
        yield row[None]
        yield np.vstack([row, np.ones(D), -1e3 * np.ones(D)])
    for k, j in itertools.product(range(D), repeat=2):
        yield 1e3 * np.eye(D)[[k] * 4 + [j]]
    yield 1e4 * np.random.default_rng(1).normal(size=(3000, D))
    yield np.tile(1e4 * np.ones(D), (3000, 1))
    yield np.array(ALL_GAPS)


def furthest(told: Callable[[PersonRows], Matrix], rest: list[Matrix]) -> float:
    """How far replacing all rows of one person moves what is told of that person and the rest."""
    found = [told(of(person, *rest)) for person in hostile()]
    assert all(np.isfinite(one).all() for one in found)
    return max(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize("n_others", [0, 30])
@pytest.mark.parametrize("by", [None, WHOLE, SQUARED])
def test_all_rows_of_a_person_move_the_moments_no_further_than_a_record(by: Whole | None, n_others: int) -> None:
    """With no others, one person holds all rows."""
    rest = some(n_others, gaps=by is not None)
    k = D if by is None else len(by.scale) + 1
    reached = 0.0
    for asked, scales in (
        (np.zeros((D, D)), np.ones(D)), (W, np.array([1e-3, 1.0, 50.0])), (1e30 * W, np.array([0.0, np.inf, -2.0]))
    ):  # fmt: skip
        moved = furthest(lambda X: sums(X, by, asked, scales)[0], rest)  # noqa: B023
        assert moved <= np.sqrt(2.0) * LATTICE + k
        reached = max(reached, moved)
        if by is not None:
            of_means = furthest(lambda X: sums(X, by, asked, scales)[1], rest)  # noqa: B023
            assert of_means <= own_means_sensitivity(BOUND, k - 1)
    assert reached >= 1.4 * LATTICE, "the attack is none"


def test_all_rows_of_a_person_move_statistics_squares_and_a_covariance_no_further_than_a_record() -> None:
    low, high, rest = np.array([-2.0, 0.0, 0.0]), np.array([6.0, 1.0, 1.0]), some(20)
    of_one_each = furthest(
        lambda X: LATTICE * release_statistics(X, low, high, np.arange(D), 0, randomness.system), rest
    )
    assert 0.99 * statistics_sensitivity([1] * D) <= of_one_each <= statistics_sensitivity([1] * D)
    bounds = np.array([0.01, 4.0, 1e6])
    squares = furthest(lambda X: len(X) * release_second_moments(X, bounds, 0, randomness.system) / bounds, rest)
    assert np.sqrt(D) * (1.0 - 1e-6) <= squares <= np.sqrt(D) * (1.0 + 1e-9)
    covariance = furthest(lambda X: len(X) * release_covariance(X, BOUND, 2, randomness.system), some(200))
    assert LATTICE < covariance / BOUND**2 * LATTICE <= np.sqrt(2.0) * LATTICE + D + 0.1


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_with_different_levels_move_the_statistics_no_further_than_a_record(size: int) -> None:
    """Each row has one level, or none known; a person any mixture of them."""
    rng, k = np.random.default_rng(size), size + 2
    rows = np.vstack([np.zeros(size), np.eye(size), np.full(size, np.nan)])
    persons = [rows[[i]] for i in range(k)] + [rows[rng.choice(k, rng.integers(2, 9))] for _ in range(60)]
    low, high, of_variable = np.zeros(size), np.ones(size), np.zeros(size, dtype=np.int64)
    told = [LATTICE * release_statistics(of(one), low, high, of_variable, 0, randomness.system) for one in persons]
    moved = max(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(told, 2))
    assert 0.99 * statistics_sensitivity([size]) <= moved <= statistics_sensitivity([size])


def test_sums_do_not_hang_on_the_blocks_that_rows_are_read_in(monkeypatch: pytest.MonkeyPatch) -> None:
    X = of(*some(300, gaps=True), np.ones((2000, D)))
    whole = sums(X, WHOLE)
    genuine = PersonRows.blocks
    for n_rows in (1, 7, 10**6):
        monkeypatch.setattr(PersonRows, "blocks", lambda self, n=n_rows: genuine(self, n))
        assert sum(len(sizes) for _, sizes in X.blocks()) == len(X)
        for one, other in zip(whole, sums(X, WHOLE), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_person_changes_nothing_of_what_others_add_even_where_rounding_is_all_that_is_left() -> None:
    rng, k = np.random.default_rng(5), 20
    A, rest = rng.normal(size=(k, k)), [rng.normal(size=(rng.integers(1, 7), k)) for _ in range(200)]
    W = np.block([[np.zeros((k, k)), A], [np.zeros((k, 2 * k))]])
    rest = [np.hstack([rows, rows @ A]) for rows in rest]

    def told(person: Matrix) -> Matrix:
        return residual_sums(of(person, *rest), W, np.repeat([1e6, 1e-16], k), BOUND, 2, randomness.system)[0]

    def statistics(person: Matrix) -> Matrix:
        ends = np.full(2 * k, 3.0)
        return release_statistics(of(person, *rest), -ends, ends, np.arange(2 * k), 0, randomness.system)

    nothing = told(np.zeros((1, 2 * k)))
    assert np.abs(nothing[k:, k:]).max() > 0.0
    for n_rows in (2, 3, 5, 1021, 1023):
        zeros = np.zeros((n_rows, 2 * k))
        np.testing.assert_array_equal(told(zeros), nothing)
        np.testing.assert_array_equal(statistics(zeros), statistics(zeros[:1]))


def test_the_place_of_a_record_changes_nothing_even_where_rounding_is_all_that_is_left() -> None:
    """Where a person's record stands hangs on which rows of the table are his."""
    rng, k = np.random.default_rng(5), 20
    A = rng.normal(size=(k, k))
    W = np.block([[np.zeros((k, k)), A], [np.zeros((k, 2 * k))]])
    for n in (65, 1023):
        X = rng.normal(size=(n, k))
        X = np.hstack([X, X @ A])
        moved = np.vstack([X[1:], X[:1]])
        asked = W, np.repeat([1e6, 1e-16], k), BOUND, 2, randomness.system
        one, other = (residual_sums(table, *asked)[0] for table in (X, moved))
        assert np.abs(one[k:, k:]).max() > 0.0
        np.testing.assert_array_equal(one, other)
        gradients = [ClippedGradient(1e20 * table, np.ones(2 * k)) for table in (X, moved)]
        for gradient in gradients:
            gradient.move_to(W)
        np.testing.assert_array_equal(*(gradient.sums for gradient in gradients))


def test_how_many_records_have_the_same_gaps_changes_nothing_of_what_each_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_moments, "LATTICE", 2**50)  # so fine that any rounding shows
    rng, k, n = np.random.default_rng(6), 12, 7
    of_model = rng.normal(size=k)
    for _ in range(20):  # whatever the model that is told makes of the records
        Z, B = of_model + 0.3 * rng.normal(size=(n, k)), of_model[None] + 0.1 * rng.normal(size=(2, k))
        monkeypatch.setattr(Model, "expected", lambda _, x, Z=Z, B=B: [(np.arange(len(x)), Z[x[:, 0].astype(int)], B)])
        asked = np.zeros((k, k)), np.ones(k), BOUND, 2, randomness.system, Whole(np.zeros(k), np.ones(k), np.ones(k))
        X = np.column_stack([np.arange(n), np.full((n, k - 1), np.nan)])
        one_by_one = sum(residual_sums(x[None], *asked)[0] for x in X)
        np.testing.assert_array_equal(residual_sums(X, *asked)[0], one_by_one)


def test_rows_that_differ_are_shortened_less_so_that_less_of_them_is_lost_in_the_noise() -> None:
    z = np.array([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]])
    alike = of(np.repeat(z[:1], 3, axis=0))
    apart, together = (
        release_residual_moments(X, 0 * W, np.ones(D), BOUND, 0, randomness.system) for X in (of(z), alike)
    )
    np.testing.assert_allclose(np.trace(together), BOUND**2, rtol=1e-5)
    np.testing.assert_allclose(np.trace(apart), np.sqrt(3.0) * BOUND**2, rtol=1e-5)


@pytest.mark.parametrize("n_rows", [4, 10**6])
def test_persons_are_kept_with_all_their_rows(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person_rows, "rows_a_block", lambda d: n_rows)
    persons = some(9)
    X, kept = of(*persons), np.arange(9) % 2 == 0
    chosen = X.of_persons(kept)
    assert chosen.sizes.tolist() == [len(rows) for rows in persons[::2]]
    np.testing.assert_array_equal(chosen.X, np.vstack(persons[::2]))
    np.testing.assert_array_equal(X.columns([2, 0]).X, X.X[:, [2, 0]])


# ---- private steps -------------------------------------------------------------------------------------------------

CLIPS, B = np.array([0.5, 2.0, 7.0]), np.random.default_rng(6).normal(size=(D, D)) * (1.0 - np.eye(D))


def gradient_sums(X: Table, B: Matrix, make: type[ClippedGradient | BlockedGradient] = ClippedGradient) -> Matrix:
    """After a step from B, and one back."""
    gradient = make(X, CLIPS)
    gradient.move_to(B)
    gradient.step(0, 1, 0.75)
    gradient.step(0, 1, float(B[0, 1]))
    return gradient.sums.T.copy()


def test_a_person_adds_the_clipped_mean_of_the_gradients_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    persons, total = some(40), np.zeros((D, D))
    for rows in persons:
        mean = -rows.T @ (rows - rows @ B) / len(rows)
        total += np.rint(np.clip(mean / CLIPS[:, None], -1.0, 1.0) * LATTICE)
    found = gradient_sums(of(*persons), B)
    assert np.abs(found - total).max() <= 1
    monkeypatch.setattr(person_rows, "rows_a_block", lambda d: 8)
    np.testing.assert_array_equal(gradient_sums(of(*persons), B, BlockedGradient), found)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e30])
def test_all_rows_of_a_person_move_a_gradient_sum_by_at_most_twice_the_clip(size: float) -> None:
    rest, furthest = some(12), 0
    found = [gradient_sums(of(person, *rest), size * B) for person in hostile()]
    for one, other in itertools.combinations(found, 2):
        furthest = max(furthest, int(np.abs(one - other).max()))
    assert LATTICE < furthest <= 2 * LATTICE


def test_how_many_rows_a_person_has_changes_nothing_of_the_gradients_of_others() -> None:
    rest = some(300)
    nothing = gradient_sums(of(np.zeros((1, D)), *rest), 1e30 * B)
    for n_rows in (2, 3, 1021):
        np.testing.assert_array_equal(gradient_sums(of(np.zeros((n_rows, D)), *rest), 1e30 * B), nothing)
