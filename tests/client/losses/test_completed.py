"""The E step on groups of rows is that of each row by itself; the likelihood is that of the values that are there."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import mapped_array
from fedbnsl_client.losses import completed, pattern_groups
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
        S_oo, about = S[np.ix_(o, o)], np.asarray(x[o] - mean[o], dtype=np.float64)
        distance = float(about @ np.linalg.solve(S_oo, about))
        likelihood -= 0.5 * (float(np.linalg.slogdet(S_oo).logabsdet) + distance)
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


def test_a_group_keeps_at_most_one_row_more_than_it_has_columns() -> None:
    X, _ = _table(5000, 3, 0.2)
    (part,) = Patterns.of(X).parts
    assert len(part.keys) == 2**3 - 1
    assert (part.sizes <= 1 + part.seen().sum(axis=1)).all()


@pytest.mark.parametrize("d", [7, 9, 70])
def test_rows_are_in_one_group_if_they_have_the_same_columns(d: int) -> None:
    rng = np.random.default_rng(d)
    distinct = np.unique(rng.random((30, d)) < 0.8, axis=0)
    seen = distinct[rng.integers(0, len(distinct), 200)]
    (part,) = Patterns.of(np.where(seen, 1.0, np.nan)).parts
    found = dict(zip(map(bytes, part.seen()), part.n.tolist(), strict=True))
    assert found == Counter(map(bytes, seen))


def test_a_table_in_a_file_is_grouped_and_completed_without_a_copy_of_it_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, d = 40_000, 30  # nearly every row has gaps of its own
    X, S = _table(n, d, 0.3)
    by = Covariances(S, _NO_MEANS)
    in_memory = Patterns.of(X).completed(by, own_means=True)
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", X.nbytes // 2)
    for module, name in ((mapped_array, "BLOCK_BYTES"), (pattern_groups, "BLOCK_BYTES"), (completed, "_PART_BYTES")):
        monkeypatch.setattr(module, name, X.nbytes // 40)
    monkeypatch.setattr(completed, "_KEPT_BYTES", 0)
    mapped = mapped_array.gathered([X], d)
    tracemalloc.start()
    try:
        patterns = mapped_array.sum_over_rows(mapped, lambda block: np.array([Patterns.of(block)]))[0]
        found = patterns.completed(by, own_means=True)
        assert tracemalloc.get_traced_memory()[1] < X.nbytes / 2
    finally:
        tracemalloc.stop()
    assert len(patterns.parts) > 10
    np.testing.assert_allclose(found.moments, in_memory.moments, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "left", [1e-3, 1e-6, 0.0]
)  # 0: only the ridge is left of the variance that others do not explain
def test_a_column_that_others_nearly_determine_is_completed_as_row_by_row(left: float) -> None:
    X, S = _table(200, 5, 0.0)
    relation = np.array([1.0, -1.0, 0.5, 2.0])
    X[:, 4] = X[:, :4] @ relation
    X[np.random.default_rng(1).random(X.shape) < 0.3] = np.nan
    S[4, :4] = S[:4, 4] = S[:4, :4] @ relation
    S[4, 4] = relation @ S[:4, :4] @ relation * (1.0 + left)
    X = X[~np.isnan(X).all(axis=1)]
    found = Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=False)
    moments, _ = _row_by_row(X, S + 1e-9 * np.diag(S.diagonal()), np.zeros(5))
    np.testing.assert_allclose(found.moments, moments, rtol=1e-5)


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


@pytest.mark.parametrize("left", [1e-3, 0.0])
@pytest.mark.parametrize("n_values", [0, 1, 30])
def test_own_means_are_those_of_each_row_by_itself_where_others_determine_a_column(left: float, n_values: int) -> None:
    X, S = _table(200, 6, 0.0)
    relation, rng = np.array([1.0, -2.0, 0.5]), np.random.default_rng(1)
    X[:, 5] = X[:, :3] @ relation + np.sqrt(left) * rng.standard_normal(len(X)) + 3.0
    X[rng.random(X.shape) < 0.1] = np.nan
    X[n_values:, 5] = np.nan
    X[:n_values, 2] = np.nan
    S[5, :5] = S[:5, 5] = S[:5, :3] @ relation
    S[5, 5] = relation @ S[:3, :3] @ relation * (1.0 + left)
    ridged, there = S + 1e-9 * np.diag(S.diagonal()), ~np.isnan(X).all(axis=0)
    information, sums = np.zeros((6, 6)), np.zeros(6)
    for x in X:
        o = np.flatnonzero(~np.isnan(x))
        P = np.linalg.inv(ridged[np.ix_(o, o)])
        information[np.ix_(o, o)] += P
        sums[o] += P @ x[o]
    mean = np.zeros(6)
    mean[there] = np.linalg.solve(information[np.ix_(there, there)], sums[there])
    moments, _ = _row_by_row(X, ridged, mean)
    found = Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=True).moments
    of_here = np.ix_(there, there)
    np.testing.assert_allclose(found[of_here], moments[of_here], rtol=1e-5, atol=1e-5)


def test_levels_that_only_other_sites_have_are_exactly_zero_in_the_moments() -> None:
    # Another site has but these two levels, so that their columns sum to one: their covariances are singular.
    X, S_xy = _table(300, 2, 0.2)
    S = np.zeros((4, 4))
    S[:2, :2] = 0.123 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    S[2:, 2:] = S_xy
    S[2:, :2] = np.outer([0.3, -0.2], [0.123, -0.123])
    S[:2, 2:] = S[2:, :2].T
    both = Patterns.of(np.hstack([np.full((len(X), 1), 0.0), np.full((len(X), 1), 1.0), X]))
    found = both.completed(Covariances(S, _NO_MEANS), own_means=True)
    assert not found.moments[:2].any()
    assert not found.moments[:, :2].any()
    given = S[2:, 2:] - np.outer(S[2:, 0], S[0, 2:]) / S[0, 0]
    alone = Patterns.of(X).completed(Covariances(given, _NO_MEANS), own_means=True)
    np.testing.assert_allclose(found.moments[2:, 2:], alone.moments, rtol=1e-5, atol=1e-6)


def test_columns_without_a_value_change_nothing_of_the_others() -> None:
    for seed in range(100):  # a mean of such a column, from rounding alone, spoils the others for few of them
        X, S = _table(60, 5, 0.0, seed)
        others, gone = np.split(np.random.default_rng(seed).permutation(5), [3])
        X[:, gone] = np.nan
        of_others = Covariances(S[np.ix_(others, others)], _NO_MEANS)
        found = Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=True)
        expected = Patterns.of(X[:, others]).completed(of_others, own_means=True)
        np.testing.assert_allclose(found.moments[np.ix_(others, others)], expected.moments, rtol=1e-9, atol=1e-9)
        assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-9)


def test_inverses_that_do_not_fit_in_memory_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    X, S = _table(60, 4, 0.3)

    def e_step() -> Completed:
        return Patterns.of(X).completed(Covariances(S, _NO_MEANS), own_means=True)

    kept = e_step()
    monkeypatch.setattr("fedbnsl_client.losses.completed._KEPT_BYTES", 0)
    np.testing.assert_array_equal(kept.moments, e_step().moments)


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
