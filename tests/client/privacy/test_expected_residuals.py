"""What a record with gaps adds to private moments: what is expected of it, by the model that was told."""

import itertools
from unittest import mock

import numpy as np
import pytest

from fedbnsl.privacy.calibration import LATTICE, constant_residual
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.privacy.expected_residuals import Model
from fedbnsl_client.privacy.private_moments import Whole, release_residual_moments

D, FAR = 4, 1e3
W = np.triu(np.random.default_rng(1).normal(size=(D, D)), 1)
SCALES, SPREADS = np.array([0.5, 2.0, 1.0, 3.0]), np.array([0.7, 1.0, 0.2, 0.9])
A = (np.eye(D) - W) / SCALES
RECORD = np.array([1.0, -2.0, 0.5, 3.0])
PATTERNS = [np.array(one) for one in itertools.product((True, False), repeat=D)]


def with_gaps(seen: Mask) -> Matrix:
    return np.where(seen, RECORD, np.nan)


def expectation(seen: Mask) -> Matrix:
    """E[zz'] by the covariance of the columns, which the code under test never forms."""
    back = np.linalg.inv(A)
    S = back.T @ np.diag(SPREADS**2) @ back
    o, m = np.flatnonzero(seen), np.flatnonzero(~seen)
    regression = S[np.ix_(m, o)] @ np.linalg.pinv(S[np.ix_(o, o)])
    x, C = RECORD.copy(), np.zeros((D, D))
    x[m] = regression @ RECORD[o]
    C[np.ix_(m, m)] = S[np.ix_(m, m)] - regression @ S[np.ix_(o, m)]
    return A.T @ (np.outer(x, x) + C) @ A


def released(records: Matrix, norm_bound: float = FAR, spreads: Matrix = SPREADS) -> Matrix:
    """Sums over the records, without noise, as seen on a grid fine enough to be forgotten."""
    whole = Whole(np.zeros(D), np.ones(D), spreads)
    with mock.patch.object(private_moments, "rounded_gaussians", return_value=0):
        S = release_residual_moments(records, W, SCALES, norm_bound, 0, randomness.system, whole)
    return S * len(records)


@pytest.mark.parametrize("seen", PATTERNS, ids=str)
def test_a_record_adds_what_is_expected_of_it(seen: Mask) -> None:
    found = released(with_gaps(seen)[None], 30.0)
    np.testing.assert_allclose(found[:D, :D], expectation(seen), atol=2 * 30.0**2 / LATTICE)


def test_records_of_all_patterns_add_up() -> None:
    records = np.stack([with_gaps(seen) for seen in PATTERNS])
    expected = sum(map(expectation, PATTERNS))
    np.testing.assert_allclose(released(records, 30.0)[:D, :D], expected, atol=len(PATTERNS) * 2 * 30.0**2 / LATTICE)


def test_the_constant_goes_with_the_expected_residuals() -> None:
    seen = np.array([True, False, True, True])
    ((_, Z, _),) = Model(A, SPREADS).expected(with_gaps(seen)[None])
    found, c = released(with_gaps(seen)[None], 30.0), constant_residual(D)
    np.testing.assert_allclose(found[-1], c * np.append(Z[0], c), atol=2 * 30.0**2 / LATTICE)


@pytest.mark.parametrize("norm_bound", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("seen", PATTERNS, ids=str)
def test_no_record_adds_more_than_the_bound(seen: Mask, norm_bound: float) -> None:
    """In Frobenius norm, but for rounding; a record that is longer adds all of it."""
    found = np.linalg.norm(released(with_gaps(seen)[None], norm_bound)) / norm_bound**2
    grid = (D + 1) / LATTICE
    assert found <= 1.0 + grid
    c = constant_residual(D)
    whole = np.pad(expectation(seen), (0, 1)) + np.diag([0.0] * D + [c * c])
    if np.linalg.norm(whole) > 2.0 * norm_bound**2:
        assert found >= 1.0 - grid


def test_a_task_without_use_counts_records_as_zeros() -> None:
    """No matter which: an error would tell that one has a gap."""
    rows = np.stack([with_gaps(seen) for seen in PATTERNS])
    for spreads in (np.full(D, 1e-200), np.full(D, 1e200), np.array([1e-160, 1.0, 1.0, 1e160])):
        assert np.isfinite(released(rows, 1.0, spreads)).all()
    with mock.patch.object(np.linalg, "cholesky", side_effect=np.linalg.LinAlgError):
        np.testing.assert_array_equal(released(rows, 1.0), released(rows[:1], 1.0))


def test_what_a_record_adds_hangs_on_no_other_record() -> None:
    """Not even its rounding, to which a task may leave everything: else one record would move others in the sums."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        shared = rng.permuted(np.arange(D) < rng.integers(1, D))
        rows = np.where(shared, np.nan, rng.normal(size=(3, D)))
        hostile = (np.eye(D) - np.triu(rng.normal(size=(D, D)) * 10.0 ** rng.integers(0, 14, size=(D, D)), 1)) / SCALES
        model = Model(hostile, 10.0 ** rng.uniform(-8, 8, size=D))
        ((_, together, _),) = model.expected(rows)
        alone = [next(model.expected(row[None]))[1][0] for row in rows]
        np.testing.assert_array_equal(together, alone)
