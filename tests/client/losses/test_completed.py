"""The E step on groups of rows is that of each row by itself; the likelihood is that of the values that are there."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.completed import Completed, Patterns, maximum_likelihood

_NO_MEANS = np.empty(0)


def _table(n: int, d: int, share: float, seed: int = 0) -> tuple[Matrix, Matrix]:
    """(n, d) rows with gaps, no row without a value, and a covariance matrix near theirs."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((d, d)) + 2.0 * np.eye(d)
    X = rng.standard_normal((n, d)) @ mixing
    X[rng.random(X.shape) < share] = np.nan
    X = X[~np.isnan(X).all(axis=1)]
    return X, np.asarray(mixing.T @ mixing) / 1.3


def _row_by_row(X: Matrix, S: Matrix, mean: Matrix) -> tuple[Matrix, float]:
    """Expected second moments about the mean, and the likelihood, from the textbook's formulas for one row."""
    total, likelihood = np.zeros_like(S), 0.0
    for x in X:
        o, m = np.flatnonzero(~np.isnan(x)), np.flatnonzero(np.isnan(x))
        filled = np.where(np.isnan(x), 0.0, x - mean)
        K = np.linalg.solve(S[np.ix_(o, o)], S[np.ix_(o, m)])
        filled[m] = filled[o] @ K
        total += np.outer(filled, filled)
        total[np.ix_(m, m)] += S[np.ix_(m, m)] - S[np.ix_(m, o)] @ K
        likelihood += multivariate_normal(mean[o], S[np.ix_(o, o)]).logpdf(x[o]) + 0.5 * len(o) * np.log(2.0 * np.pi)
    return total / len(X), likelihood


@pytest.mark.parametrize(("n", "d", "share"), [(60, 4, 0.3), (400, 3, 0.2), (25, 9, 0.5)])
def test_an_e_step_is_that_of_each_row_by_itself(n: int, d: int, share: float) -> None:
    X, S = _table(n, d, share)
    found = Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=False)
    moments, likelihood = _row_by_row(X, S, np.zeros(d))
    np.testing.assert_allclose(found.moments, moments, rtol=1e-6)
    assert found.log_likelihood == pytest.approx(likelihood, rel=1e-6)


def test_own_means_are_those_of_the_greatest_likelihood() -> None:
    X, S = _table(80, 4, 0.3)
    patterns = Patterns.of(X + 5.0)

    def likelihood(mean: Matrix) -> float:
        return patterns.completed(Covariances(S, mean), own_means=False).log_likelihood

    best = patterns.completed(Covariances(S, _NO_MEANS), own_means=True)
    # A shared mean whose expected residual is zero is the same one.
    mean = np.full(4, 5.0)
    for _ in range(200):
        mean = mean + patterns.completed(Covariances(S, mean), own_means=False).mean_residual
    assert best.log_likelihood == pytest.approx(likelihood(mean), rel=1e-9)
    for k in range(4):
        assert likelihood(mean + 0.01 * np.eye(4)[k]) < best.log_likelihood
        assert likelihood(mean - 0.01 * np.eye(4)[k]) < best.log_likelihood


def test_blocks_of_rows_add_up_to_the_table() -> None:
    X, S = _table(300, 3, 0.3)
    whole = Patterns.of(X)
    parts = Patterns.of(X[:7]) + Patterns.of(X[7:200]) + Patterns.of(X[200:])
    assert parts.n_samples == pytest.approx(whole.n_samples) == pytest.approx(len(X))
    np.testing.assert_array_equal(parts.pair_counts, whole.pair_counts)
    np.testing.assert_allclose(parts.pair_products(own_means=True), whole.pair_products(own_means=True), rtol=1e-9)
    one, other = (p.completed(Covariances(S, _NO_MEANS), own_means=True) for p in (parts, whole))
    np.testing.assert_allclose(one.moments, other.moments, rtol=1e-9)


def test_a_group_keeps_no_more_rows_than_twice_its_columns() -> None:
    X, _ = _table(5000, 3, 0.2)
    assert all(len(rows) <= 2 * (1 + 3) for rows in Patterns.of(X).groups.values())


def test_pairs_are_counted_and_multiplied_over_the_rows_that_have_both() -> None:
    X = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan], [5.0, 6.0, np.nan], [np.nan, np.nan, np.nan]])
    patterns = Patterns.of(X)
    np.testing.assert_array_equal(patterns.pair_counts, [[3, 2, 0], [2, 2, 0], [0, 0, 0]])
    assert patterns.n_samples == pytest.approx(3.0)  # a row without a value is none
    # About the means of all values, 3 and 4.
    assert patterns.pair_products(own_means=True)[0, 1] == pytest.approx(((1 - 3) * (2 - 4) + (5 - 3) * (6 - 4)) / 2)


def test_without_gaps_moments_do_not_depend_on_the_covariances() -> None:
    X, S = _table(50, 3, 0.0)
    found = Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=True)
    np.testing.assert_allclose(found.moments, np.cov(X.T, bias=True), rtol=1e-6)


def test_columns_without_variance_are_zero_in_the_moments() -> None:
    X, S = _table(60, 3, 0.3)
    X = X[~np.isnan(X[:, [0, 2]]).all(axis=1)]
    X[:, 1] = 0.0
    S[1] = S[:, 1] = 0.0
    found = Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=True)
    assert not found.moments[1].any()
    other = Patterns.of(X[:, [0, 2]]).completed(Covariances(S[np.ix_([0, 2], [0, 2])], _NO_MEANS), own_means=True)
    np.testing.assert_allclose(found.moments[np.ix_([0, 2], [0, 2])], other.moments, rtol=1e-6)


def test_inverses_that_do_not_fit_in_memory_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    X, S = _table(60, 4, 0.3)

    def completed() -> Completed:
        return Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=True)

    kept = completed()
    monkeypatch.setattr("fedbnsl_client.losses.completed._KEPT_BYTES", 0)
    np.testing.assert_array_equal(kept.moments, completed().moments)


def test_covariances_of_one_table_have_the_greatest_likelihood() -> None:
    X, _ = _table(200, 3, 0.3)
    patterns = Patterns.of(X)
    S = maximum_likelihood(patterns, own_means=True)
    best = patterns.completed(Covariances(S, _NO_MEANS), own_means=True).log_likelihood
    rng = np.random.default_rng(1)
    for _ in range(10):
        E = rng.standard_normal((3, 3))
        near = S + 0.02 * (E + E.T)
        assert patterns.completed(Covariances(near, _NO_MEANS), own_means=True).log_likelihood < best


def test_first_products_are_about_zero_where_a_site_has_no_means_of_its_own() -> None:
    X = np.full((30, 2), 5.0)  # constant here: about means of its own nothing would be left
    X[:10, 1] = np.nan
    np.testing.assert_allclose(Patterns.of(X).pair_products(own_means=False), np.full((2, 2), 25.0))


def test_differences_of_means_are_those_of_rows_with_and_without_a_column_in_the_larger_standard_error() -> None:
    X, _ = _table(400, 3, 0.2)
    X = X + 5.0
    X[~np.isnan(X[:, 0]), 2] *= 3.0  # the variances differ between the two groups
    found = Patterns.of(X).mean_differences(10)
    for j in range(3):
        for k in range(3):
            values, has = X[~np.isnan(X[:, k]), k], ~np.isnan(X[~np.isnan(X[:, k]), j])
            one, other = values[has], values[~has]
            if j == k:
                assert found[j, k] == 0.0
                continue
            welch = one.var() / (len(one) - 1) + other.var() / (len(other) - 1)
            pooled = values.var() * (1.0 / len(one) + 1.0 / len(other))
            assert found[j, k] == pytest.approx((one.mean() - other.mean()) / np.sqrt(max(welch, pooled)))
    n_without = int(np.isnan(X[~np.isnan(X[:, 1]), 0]).sum())
    assert Patterns.of(X).mean_differences(n_without)[0, 1] != 0.0
    assert Patterns.of(X).mean_differences(n_without + 1)[0, 1] == 0.0
    assert Patterns.of(X).complete_rows == (~np.isnan(X).any(axis=1)).sum()


def test_a_column_of_one_value_has_no_differences_of_means() -> None:
    X, _ = _table(200, 3, 0.2)
    X[~np.isnan(X[:, 1]), 1] = 0.1
    assert not Patterns.of(X).mean_differences(1)[:, 1].any()
