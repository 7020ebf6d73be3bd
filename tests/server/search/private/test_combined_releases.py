"""Releases as moments of one set of residuals: mapped exactly, combined by their noise, cleared of it."""

import math

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.combined_releases import Released, combined, released, worth_it
from fedbnsl_server.search.private.released_likelihood import Release

D, ROWS = 8, 40_000.0
WEIGHTS = np.triu(np.random.default_rng(3).normal(0.0, 0.6, (D, D)), 1)
BACK = np.linalg.inv(np.eye(D) - WEIGHTS)
MOMENTS = BACK.T @ BACK


def noise(rng: np.random.Generator, std: float) -> Matrix:
    """Symmetric; sqrt(2) times as large on the diagonal."""
    E = rng.standard_normal((D, D))
    return np.asarray(std * (E + E.T) / math.sqrt(2.0))


def asked_with(W: Matrix, scales: Matrix, std: float, seed: int = 0) -> Release:
    A = (np.eye(D) - W) / scales
    S_z = A.T @ MOMENTS @ A + noise(np.random.default_rng(seed), std)
    return released(S_z, noise_std=std, W=W, scales=scales)


def one_release(S_z: Matrix, std: float) -> Released:
    return Released(S_z, np.full((D, D), std**2) * (1.0 + np.eye(D)), np.eye(D), 1e12)


@pytest.mark.parametrize("W", [np.zeros((D, D)), WEIGHTS, np.triu(np.full((D, D), 0.3), 1)])
def test_without_noise_the_moments_come_back_whatever_they_were_asked_with(W: Matrix) -> None:
    scales = np.linspace(0.5, 3.0, D)
    given = released(
        ((np.eye(D) - W) / scales).T @ MOMENTS @ ((np.eye(D) - W) / scales), noise_std=1e-9, W=W, scales=scales
    )
    found = combined([given], 1e18, given.A).cleared
    np.testing.assert_allclose(found * MOMENTS[0, 0] / found[0, 0], MOMENTS, rtol=1e-6, atol=1e-6)


def test_what_may_be_noise_counts_as_zero_and_what_is_not_stays() -> None:
    S_z = np.eye(D)
    S_z[0, 1] = S_z[1, 0] = 0.029
    S_z[0, 2] = S_z[2, 0] = -0.031
    found = one_release(S_z, 0.01)
    assert found.noise_std == pytest.approx(0.01)
    assert found.correlated.nonzero()[0].tolist() == [0, 2]
    assert (found.cleared[0, 1], found.cleared[0, 2]) == (pytest.approx(0.0, abs=1e-12), pytest.approx(-0.031))


def test_as_one_release_some_residuals_have_the_same_noise_and_say_what_they_said() -> None:
    """Of two rounds, one of them in residuals of another size; without the last two columns."""
    W, scales, kept = np.triu(np.full((D, D), 0.3), 1), np.linspace(0.5, 3.0, D), np.arange(D - 2)
    W[:, -2:] = W[-2:] = 0.0
    A = np.eye(D) - W
    given = [asked_with(W, scales, 0.01, 1), asked_with(np.zeros((D, D)), np.ones(D), 0.02, 2)]
    part = combined(given, ROWS, A).over(kept)
    assert part.noise.diagonal().max() > 2.0 * part.noise.diagonal().min()
    assert np.median(part.moments.diagonal()) == pytest.approx(1.0)
    one = part.release
    again = combined([one], ROWS, A[np.ix_(kept, kept)])
    unit = part.moments[0, 0] / again.moments[0, 0]
    np.testing.assert_allclose(unit * again.moments, part.moments)
    np.testing.assert_allclose(unit**2 * again.noise.diagonal(), part.noise.diagonal())
    assert np.median(one.moments.diagonal()) == pytest.approx(1.0)


def test_moments_that_noise_made_indefinite_become_positive() -> None:
    S_z = np.eye(D) + 0.9 * (1 - np.eye(D)) * np.array([1, -1] * (D // 2))[:, None]
    S_z = (S_z + S_z.T) / 2
    S_z[0, 0] = -0.2
    assert np.linalg.eigvalsh(S_z)[0] < 0.0
    found = one_release(S_z, 0.01)
    assert np.linalg.eigvalsh(found.cleared)[0] > 0.0
    columns = Columns.of([str(k) for k in range(D)])
    np.testing.assert_array_equal(found.positive(columns), found.cleared)
    near = one_release(0.1 * S_z + 0.9 * np.eye(D), 0.01)
    np.testing.assert_array_equal(near.positive(columns), near.of_columns)


def test_noise_is_told_relative_to_the_residuals_mean_square() -> None:
    whole = released(np.eye(D), noise_std=0.1, W=np.zeros((D, D)), scales=np.ones(D))
    halved = released(np.eye(D) / 2, noise_std=0.1, W=np.zeros((D, D)), scales=np.ones(D))
    assert halved.noise_std == pytest.approx(2 * whole.noise_std)


def test_the_noise_of_moments_of_other_residuals_is_that_of_many_draws() -> None:
    rng, A = np.random.default_rng(0), np.eye(D) - 0.3 * WEIGHTS
    given = released(np.eye(D), noise_std=0.05, W=np.zeros((D, D)), scales=np.ones(D))
    draws = np.stack([A.T @ noise(rng, 0.05) @ A for _ in range(4000)])
    mapped = combined([given], ROWS, A)
    size = float(np.median((A.T @ A).diagonal()))
    off = ~np.eye(D, dtype=bool)
    assert mapped.noise[off] * size**2 == pytest.approx(draws.var(axis=0)[off], rel=0.35)
    assert mapped.moments * size == pytest.approx(A.T @ A)


def test_releases_are_combined_by_the_inverse_variances_of_their_noise() -> None:
    A, scales = np.eye(D) - WEIGHTS, np.sqrt(MOMENTS.diagonal())
    one, other = (asked_with(share * WEIGHTS, scales, std, 7) for share, std in ((0.9, 0.1), (0.5, 0.05)))
    both = combined([one, other], ROWS, A)
    first, second = combined([one], ROWS, A), combined([other], ROWS, A)
    assert both.noise == pytest.approx(1.0 / (1.0 / first.noise + 1.0 / second.noise))
    expected = (first.moments / first.noise + second.moments / second.noise) * both.noise
    assert both.moments == pytest.approx(expected)
    again = combined([one, one], ROWS, A)
    assert again.moments == pytest.approx(first.moments)
    assert again.noise == pytest.approx(first.noise / 2.0)


@pytest.mark.parametrize(
    ("rows", "used"),
    [(1e9, 3), (1.0 / 0.02**2, 3), (1.0 / 0.05**2, 2), (1.0 / 0.2**2, 1)],
    ids=["no sampling error", "less than noise", "more than noise", "far more than noise"],
)
def test_where_sampling_is_most_of_the_error_early_releases_do_not_count(rows: float, used: int) -> None:
    releases = [asked_with(np.zeros((D, D)), np.ones(D), 0.05, seed) for seed in range(3)]
    assert [one.moments.tobytes() for one in worth_it(releases, rows)] == [
        one.moments.tobytes() for one in releases[3 - used :]
    ]
