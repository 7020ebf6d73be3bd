"""Releases over records with gaps, as if they had none."""

import numpy as np

from fedbnsl_server.search.private.gaps import as_if_whole, pair_shares, typical
from fedbnsl_server.search.private.pooled_moments import SiteRelease

ROWS = np.array([1000.0, 3000.0])
ALL = np.ones((2, 4), dtype=bool)
OF_OWN = np.arange(4)
SHARES = np.array([1.0, 0.8, 0.5, 1.0])

NO_COLUMNS = np.empty(0, dtype=np.int64)


def test_cells_are_missing_independently() -> None:
    found = pair_shares(SHARES, ALL, ROWS, OF_OWN)
    np.testing.assert_allclose(found, np.where(np.eye(4), SHARES, np.outer(SHARES, SHARES)))


def test_columns_of_one_variable_are_missing_together() -> None:
    shares = np.array([0.5, 0.5, 0.8, 1.0])
    assert pair_shares(shares, ALL, ROWS, np.array([0, 0, 1, 2]))[0, 1] == 0.5


def test_columns_that_sites_lack_are_missing_as_the_plan_says() -> None:
    there = np.array([[1, 0, 1, 1], [1, 1, 0, 1]], dtype=bool)
    found = pair_shares(np.array([1.0, 0.75, 0.25, 1.0]), there, ROWS, OF_OWN)
    np.testing.assert_allclose(found[0], [1.0, 0.75, 0.25, 1.0])
    assert found[1, 2] == 0.1, "no site has both: the least share"


def test_products_of_records_that_have_both_stand_for_all() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((200_000, 4)) @ (np.eye(4) + 0.4)
    shares = pair_shares(SHARES, ALL, ROWS, OF_OWN)
    there = rng.random(x.shape) < SHARES
    S = np.where(np.eye(4), x.T @ x, np.where(there, x, 0.0).T @ np.where(there, x, 0.0)) / len(x)
    found = as_if_whole(SiteRelease.plain(S, noise_std=1e-4, n_samples=4000.0), shares, OF_OWN, NO_COLUMNS)
    np.testing.assert_allclose(found.moments, x.T @ x / len(x), atol=0.03)
    mean = shares[~np.eye(4, dtype=bool)].mean()
    assert typical(shares, OF_OWN) == mean
    np.testing.assert_allclose([found.noise_std, found.n_samples], [1e-4 / mean, 4000.0 * mean])


def test_where_noise_is_large_a_rare_pair_is_not_made_loud() -> None:
    shares = pair_shares(SHARES, ALL, ROWS, OF_OWN)
    found = as_if_whole(SiteRelease.plain(np.ones((4, 4)), noise_std=1.0, n_samples=4000.0), shares, OF_OWN, NO_COLUMNS)
    assert found.moments.max() <= 1.0 / typical(shares, OF_OWN)


def test_one_variable_has_no_pair() -> None:
    one = SiteRelease.plain(np.ones((1, 1)), noise_std=0.1, n_samples=10.0)
    assert as_if_whole(one, np.full((1, 1), 0.5), OF_OWN[:1], NO_COLUMNS) == one
    assert as_if_whole(one, np.full((1, 1), 0.5), OF_OWN[:1], np.array([0])).moments == 2.0 * one.moments


def test_columns_of_one_variable_say_nothing_of_how_many_records_have_a_pair() -> None:
    shares = np.array([[1.0, 0.3, 1.0], [0.3, 0.3, 0.3], [1.0, 0.3, 1.0]])
    assert typical(shares, np.array([0, 1, 0])) == 0.3
