"""An audit that cannot fail is worth nothing: each bug, planted, must be flagged by the check named for it."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audit import (
    accounts,
    freshness,
    moments_two_worlds,
    planted,
    planted_moments,
    planted_participants,
    released_moments,
    samplers,
    sensitivity,
    two_worlds,
    updates,
)
from fedbnsl.privacy import calibration as price
from fedbnsl_client.losses import clipped as clipped_gradient
from fedbnsl_client.privacy import noise, private_moments
from fedbnsl_client.solvers import dp_pgcd

Check = Callable[[], object]


# Large enough, and no overflow: a check must fail by its own judgement, not by a floating-point error.
LARGE = [np.full(3, 1e4)]


# Names are looked up when a check runs: what is planted then is what is checked.


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


def completed_moments() -> None:
    sensitivity.check_completed_moments(private_moments.release_residual_moments, LARGE)


def squares() -> None:
    sensitivity.check_squares(private_moments.release_residual_moments, LARGE)


def gaussian_draws() -> None:
    samplers.check_gaussian(noise.discrete_gaussian, 40)


def rounded_gaussian_draws() -> None:
    samplers.check_rounded_gaussian(noise.rounded_gaussian, 5)


def wide_gaussian_draws() -> None:
    samplers.check_wide_gaussian(noise.rounded_gaussian, 2**40)


def selections() -> None:
    samplers.check_softmax(noise.ExponentialMechanism)


def selection_weights() -> None:
    samplers.check_weights(noise.ExponentialMechanism)


def noisy_max() -> None:
    samplers.check_noisy_max(noise.NoisyMax)


def prices() -> None:
    accounts.check_prices(price.price_of)


CHECKS: list[tuple[Check, list[planted.Plant]]] = [
    # How far one record can move what the noise is added to.
    (gradient_sums, [planted.unclipped_nan]),
    (scores, [planted.clip_of_the_mean]),
    (moments, [planted.unclipped_moments]),
    (covariance, [planted.unclipped_records]),
    (residual_moments, [planted.unclipped_records, planted.clipped_before_they_are_scaled]),
    (completed_moments, planted.WRONG_COMPLETIONS),
    (squares, planted.WRONG_SQUARES),
    # Samplers.
    (gaussian_draws, [planted.half_the_variance_in_the_sampler]),
    (rounded_gaussian_draws, planted.WRONG_SAMPLERS),
    (wide_gaussian_draws, [*planted.WRONG_SAMPLERS[2:], planted.a_quarter_of_all_x_missing]),
    (selections, [planted.doubled_logits]),
    (selection_weights, [planted.doubled_logits]),
    (noisy_max, [planted.half_the_noise_of_noisy_max]),
    # Prices.
    (
        prices,
        [
            planted.half_the_sensitivity,
            planted.half_the_moments_sensitivity,
            planted.half_the_statistics_sensitivity,
            planted.half_the_matrix_sensitivity,
            planted.rounding_of_squares_not_counted,
            planted.twice_the_sharpness,
            planted.moments_not_charged,
            planted.first_moments_round_not_charged,
            planted.scales_charged,
            planted.setup_not_charged,
            planted.last_round_not_charged,
            planted.total_without_a_round,
            planted.steps_taken_for_gaussian,
            planted.surcharge_of_one_round,
            planted.surcharge_not_in_the_whole,
            planted.surcharge_as_if_one_more_step_followed,
            planted.mu_added_linearly,
            planted.mu_squared_without_its_half,
        ],
    ),
    (accounts.check_caps, [*planted.WRONG_SUMS, planted.old_entries_taken_for_gaussian]),
    # Who pays when.
    (
        accounts.check_whole_runs,
        [
            planted.moments_not_charged,
            planted.every_release_reserved_as_gaussian,
            planted.discrete_noise_counted_as_gaussian,
            *planted.WRONG_SURCHARGES,
            planted.paid_after_drawing,
            planted.drawn_again_for_the_same_round,
            planted.setup_released_anew_after_a_restart,
            planted_participants.moments_without_the_journal,
            planted_participants.scales_without_the_journal,
            planted_participants.scales_drawn_anew,
            planted_participants.moments_drawn_twice,
            planted_participants.moments_computed_before_they_are_paid,
        ],
    ),
    (
        accounts.check_order_of_tasks,
        [
            planted_participants.any_kind_in_any_round,
            planted_participants.moments_without_scales,
            planted_participants.weights_of_any_size,
        ],
    ),
    # Sums of every record once, with noise of the paid width on every number.
    (
        released_moments.check_residual_moments,
        [
            *planted_moments.WRONG_BLOCKS,
            *planted_moments.WRONG_BOUNDS,
            *planted_moments.WRONG_WIDTHS,
            planted_moments.entries_and_their_transposes_drawn_apart,
        ],
    ),
    (released_moments.check_covariance, [planted_moments.WRONG_BLOCKS[0], *planted_moments.WRONG_BOUNDS]),
    (released_moments.check_second_moments, [*planted_moments.WRONG_FILE_BLOCKS, *planted_moments.WRONG_SQUARES]),
    (
        released_moments.check_gradients,
        [planted_moments.only_the_last_block_of_a_step, planted_moments.the_last_block_left_out_of_a_step],
    ),
    # Noise that no two releases share.
    (
        updates.check_noise,
        [
            planted.half_the_variance,
            planted.admm_terms_inside_the_clip,
            *planted_participants.REPEATED_UPDATES,
            planted_participants.a_source_seeded_by_the_site_at_every_start,
            planted_participants.updates_seeded_by_their_coordinate,
        ],
    ),
    (
        freshness.check_moments,
        [
            *planted_participants.REPEATED_MOMENTS,
            *planted_participants.REPEATED_SETUPS,
            planted_participants.a_source_seeded_by_the_site_at_every_start,
            planted_participants.bound_from_the_table_of_the_site,
            *planted_moments.SHARED_NOISE,
            planted_moments.one_draw_for_all_squares,
        ],
    ),
    (freshness.check_covariance, planted_participants.REPEATED_SETUPS),
    (
        freshness.check_selections,
        [planted_participants.selections_seeded_alike, planted_participants.steps_seeded_at_every_start],
    ),
    (
        freshness.check_source,
        [
            planted_participants.one_seeded_source_for_the_whole_process,
            planted_participants.moments_seeded_by_the_clock,
            planted_participants.updates_from_one_seeded_source,
        ],
    ),
]
FAST = [(plant, check) for check, plants in CHECKS for plant in plants]


def str_of(part: planted.Plant | Check | float) -> str:
    return part.__name__ if callable(part) else str(part)


@pytest.mark.parametrize(("plant", "check"), FAST, ids=str_of)
def test_a_planted_bug_is_flagged(plant: planted.Plant, check: Check, tmp_path: Path) -> None:
    with plant(tmp_path), pytest.raises(AssertionError):
        check()


def test_two_worlds_flag_the_clip_of_the_mean_at_once(tmp_path: Path) -> None:
    with planted.clip_of_the_mean(tmp_path), pytest.raises(AssertionError, match="claimed"):
        two_worlds.check_bound(*two_worlds.statistics(200))


def test_half_the_sensitivity_is_seen_from_residual_moments_alone(tmp_path: Path) -> None:
    with planted.half_the_matrix_sensitivity(tmp_path):
        released = moments_two_worlds.statistics()
    with pytest.raises(AssertionError, match="claimed"):
        two_worlds.check_bound(*released)
    with pytest.raises(AssertionError, match="standard errors"):
        two_worlds.check_law(*released)


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
        two_worlds.check_bound(*two_worlds.statistics(4000, selection_share=selection_share))
    logging.getLogger(__name__).info("%s: %s", plant.__name__, flagged.value)


@pytest.mark.audit
@pytest.mark.parametrize(
    ("plant", "selection_share"),
    [
        (planted.half_the_variance, 0.05),
        (planted.half_the_sensitivity, 0.05),
        (planted.half_the_sensitivity, 0.5),
        (planted.twice_the_sharpness, 0.5),
    ],
    ids=str_of,
)
def test_two_worlds_notice_noise_of_another_width(plant: planted.Plant, selection_share: float, tmp_path: Path) -> None:
    with plant(tmp_path), pytest.raises(AssertionError, match="standard errors"):
        two_worlds.check_law(*two_worlds.statistics(4000, selection_share=selection_share))
