"""An audit that cannot fail is worth nothing: each bug, planted, must be flagged by the check named for it."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audit import (
    accounts,
    moments_two_worlds,
    planted,
    planted_participants,
    residuals,
    samplers,
    sensitivity,
    two_worlds,
)
from fedbnsl.privacy import calibration as price
from fedbnsl_client.losses import clipped as clipped_gradient
from fedbnsl_client.privacy import noise, private_moments
from fedbnsl_client.solvers import dp_pgcd

Check = Callable[[], object]


# Large enough, and no overflow: a check must fail by its own judgement, not by a floating-point error.
LARGE = [np.full(3, 1e4)]


# Names are looked up when a check runs: what is planted then is what is checked.


def gradient_sums_of_the_solver() -> None:
    sensitivity.check_gradient_sums(dp_pgcd.ClippedGradient)


def scores() -> None:
    sensitivity.check_scores(dp_pgcd.DpPgcd)


def gradient_sums() -> None:
    sensitivity.check_gradient_sums(clipped_gradient.ClippedGradient)


def moments() -> None:
    sensitivity.check_moments(private_moments.release_second_moments, LARGE)


def covariance() -> None:
    sensitivity.check_covariance(private_moments.release_covariance, LARGE)


def residual_moments() -> None:
    sensitivity.check_residual_moments(private_moments.release_residual_moments, LARGE)


def gaussian_draws() -> None:
    samplers.check_gaussian(noise.discrete_gaussian, 40)


def selections() -> None:
    samplers.check_softmax(noise.ExponentialMechanism)


def selection_weights() -> None:
    samplers.check_weights(noise.ExponentialMechanism)


def noisy_max() -> None:
    samplers.check_noisy_max(noise.NoisyMax)


def noise_in_messages() -> None:
    residuals.check_released_noise(residuals.genuine)


def prices() -> None:
    accounts.check_prices(price.price_of)


FAST: list[tuple[planted.Plant, Check]] = [
    (planted.clip_of_the_mean, gradient_sums_of_the_solver),
    (planted.clip_of_the_mean, scores),
    (planted.unclipped_nan, gradient_sums),
    (planted.unclipped_moments, moments),
    (planted.unshortened_records, covariance),
    (planted.unshortened_records, residual_moments),
    (planted.shortened_before_they_are_scaled, residual_moments),
    (planted.half_the_matrix_sensitivity, prices),
    (planted.half_the_matrix_sensitivity, moments_two_worlds.check_law),
    (planted.moments_not_charged, prices),
    (planted.moments_not_charged, accounts.check_whole_runs),
    (planted.first_moments_round_not_charged, prices),
    (planted.first_moments_round_not_charged, accounts.check_whole_runs),
    (planted.scales_charged, prices),
    (planted.scales_charged, accounts.check_whole_runs),
    (planted.half_the_matrix_sensitivity, accounts.check_whole_runs),
    (planted_participants.moments_without_the_journal, accounts.check_whole_runs),
    (planted_participants.scales_without_the_journal, accounts.check_whole_runs),
    (planted_participants.scales_drawn_anew, accounts.check_whole_runs),
    (planted_participants.moments_drawn_twice, accounts.check_whole_runs),
    (planted_participants.moments_computed_before_they_are_paid, accounts.check_whole_runs),
    (planted.drawn_again_for_the_same_round, accounts.check_whole_runs),
    (planted_participants.any_kind_in_any_round, accounts.check_order_of_tasks),
    (planted_participants.moments_without_scales, accounts.check_order_of_tasks),
    (planted.half_the_sensitivity, prices),
    (planted.half_the_sensitivity, noise_in_messages),
    (planted.half_the_moments_sensitivity, prices),
    (planted.half_the_variance, noise_in_messages),
    (planted.half_the_variance_in_the_sampler, gaussian_draws),
    (planted.twice_the_sharpness, prices),
    (planted.doubled_logits, selections),
    (planted.doubled_logits, selection_weights),
    (planted.half_the_noise_of_noisy_max, noisy_max),
    (planted.admm_terms_inside_the_clip, noise_in_messages),
    (planted.setup_not_charged, prices),
    (planted.setup_not_charged, accounts.check_whole_runs),
    (planted.last_round_not_charged, prices),
    (planted.last_round_not_charged, accounts.check_whole_runs),
    (planted.total_without_a_round, prices),
    (planted.paid_after_drawing, accounts.check_order),
    (planted.paid_after_drawing, accounts.check_whole_runs),
    (planted.drawn_again_for_the_same_round, accounts.check_order),
    (planted.setup_released_anew_after_a_restart, accounts.check_whole_runs),
]


def str_of(part: planted.Plant | Check | float) -> str:
    return part.__name__ if callable(part) else str(part)


@pytest.mark.parametrize(("plant", "check"), FAST, ids=str_of)
def test_a_planted_bug_is_flagged(plant: planted.Plant, check: Check, tmp_path: Path) -> None:
    with plant(tmp_path), pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("make", planted_participants.STALE_NOISE)
def test_noise_that_is_not_fresh_is_flagged(make: residuals.Make) -> None:
    with pytest.raises(AssertionError, match="came twice"):
        residuals.check_released_noise(make, rounds=40)


def test_two_worlds_flag_the_clip_of_the_mean_at_once(tmp_path: Path) -> None:
    with planted.clip_of_the_mean(tmp_path), pytest.raises(AssertionError, match="claimed"):
        two_worlds.check_two_worlds(200)


def test_two_worlds_see_that_the_noise_is_not_the_one_that_was_paid_for(tmp_path: Path) -> None:
    with planted.half_the_sensitivity(tmp_path), pytest.raises(AssertionError, match="standard errors"):
        two_worlds.check_law(600, selection_share=0.05)


@pytest.mark.audit
@pytest.mark.parametrize(
    ("plant", "selection_share"),
    [
        (planted.clip_of_the_mean, 0.5),
        (planted.half_the_sensitivity, 0.05),
        (planted.twice_the_sharpness, 0.95),
        (planted.doubled_logits, 0.95),
    ],
    ids=str_of,
)
def test_two_worlds_flag_a_planted_bug(plant: planted.Plant, selection_share: float, tmp_path: Path) -> None:
    with plant(tmp_path), pytest.raises(AssertionError, match="claimed") as flagged:
        two_worlds.check_two_worlds(4000, selection_share=selection_share)
    logging.getLogger(__name__).info("%s: %s", plant.__name__, flagged.value)


@pytest.mark.audit
@pytest.mark.parametrize(
    ("plant", "selection_share"),
    [(planted.half_the_variance, 0.05), (planted.half_the_sensitivity, 0.5), (planted.twice_the_sharpness, 0.5)],
    ids=str_of,
)
def test_two_worlds_notice_noise_of_another_width(plant: planted.Plant, selection_share: float, tmp_path: Path) -> None:
    with plant(tmp_path), pytest.raises(AssertionError, match="standard errors"):
        two_worlds.check_law(4000, selection_share=selection_share)
