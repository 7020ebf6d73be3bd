"""DP-PGCD: what it refuses so that its accounting holds, and that residuals follow B."""

from functools import partial

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import ExponentialMechanism, discrete_gaussian
from fedbnsl_client.solvers.dp_pgcd import DpPgcd, clips
from fedbnsl_client.solvers.settings import Settings

D = 4
X = np.random.default_rng(5).normal(size=(60, D))
ZERO = np.zeros((D, D))
ALLOWED = ~np.eye(D, dtype=bool)
HUGE = np.where(ALLOWED, 1e15, 0.0)


def solver(*, lam: float = 0.0, variance: int = 4, steps: int = 3) -> DpPgcd:
    return DpPgcd(
        X, np.ones(D), Settings(ALLOWED, lam, 1.0, steps), clip=1.0,
        selection=ExponentialMechanism(0.1, ALLOWED), noise=partial(discrete_gaussian, variance),
        randbelow=randomness.seeded("a test"),
    )  # fmt: skip


def test_ordinary_matrices_are_solved() -> None:
    assert np.abs(solver()(ZERO, ZERO, ZERO)).max() > 0


@pytest.mark.parametrize(("B", "W", "beta"), [(HUGE, ZERO, ZERO), (ZERO, HUGE, ZERO), (ZERO, ZERO, HUGE)])
def test_weights_that_noise_would_not_cover_the_rounding_of_are_refused(B, W, beta) -> None:
    with pytest.raises(DivergenceError, match="the noise covers rounding errors"):
        solver(steps=0)(B, W, beta)


def test_a_step_that_releases_such_a_weight_is_not_taken_and_what_was_paid_for_is_sent() -> None:
    assert not solver(variance=10**44)(ZERO, ZERO, ZERO).any()


def test_what_was_released_leads_to_the_same_weights_and_is_the_noisy_clipped_gradient() -> None:
    B, steps = solver(steps=5).released(ZERO, ZERO, ZERO)
    assert np.array_equal(B, solver(steps=5)(ZERO, ZERO, ZERO))
    b = np.zeros((D, D))
    for flat, gradient, bound, weight in zip(*steps, strict=True):
        i, j = divmod(flat, D)
        assert bound == clips(np.ones(D), 1.0)[i]
        exact = np.clip(-X[:, i] * (X[:, j] - X @ b[:, j]), -bound, bound).mean()
        assert 0.0 < abs(gradient - exact) < 20.0 * bound / 2**20  # noise of two fixed-point grid units, and rounding
        assert weight == pytest.approx(b[i, j] - gradient - b[i, j])  # M, rho_2 and gamma are 1, W and beta 0
        b[i, j] = weight
    assert np.array_equal(b, B)


def test_an_l1_weight_of_that_size_is_refused() -> None:
    with pytest.raises(DivergenceError, match="the noise covers rounding errors"):
        solver(lam=1e15)


def test_second_moments_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DivergenceError, match="share one score sensitivity"), np.errstate(all="ignore"):
        DpPgcd(
            X, np.array([1.0, np.inf, 1.0, 1.0]), Settings(ALLOWED, 0.0, 1.0, 1), clip=1.0,
            selection=ExponentialMechanism(0.1, ALLOWED), noise=partial(discrete_gaussian, 4),
            randbelow=randomness.system,
        )  # fmt: skip


def test_without_an_allowed_coordinate_nothing_moves() -> None:
    none = np.zeros((D, D), dtype=bool)
    idle = DpPgcd(
        X, np.ones(D), Settings(none, 0.0, 1.0, 3), clip=1.0, selection=ExponentialMechanism(0.1, none),
        noise=partial(discrete_gaussian, 4), randbelow=randomness.system,
    )  # fmt: skip
    assert not idle(ZERO, ZERO, ZERO).any()


@pytest.mark.parametrize("change", [0.5, 1e-4])
def test_sums_follow_b_back_to_where_it_was_after_steps_that_did_not_count(change: float) -> None:
    bounds = clips(np.ones(D), 1.0)
    moved, fresh = ClippedGradient(X, bounds), ClippedGradient(X, bounds)
    for gradient in (moved, fresh):
        gradient.move_to(ZERO)
    before = moved.sums.copy()
    moved.step(0, 1, change)
    assert (moved.sums[1] != before[1]).any()
    moved.move_to(ZERO)
    assert np.array_equal(moved.sums, fresh.sums)
