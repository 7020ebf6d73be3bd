"""One record, replaced in every way: the sums and scores move by no more than the noise was made for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit import sensitivity
from audit.sensitivity import EXTREMES
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.privacy.private_moments import release_covariance, release_residual_moments, release_second_moments
from fedbnsl_client.solvers.dp_pgcd import DpPgcd

values = st.one_of(st.sampled_from(EXTREMES), st.floats(), st.floats(-10, 10))
records = st.lists(values, min_size=3, max_size=3).map(np.array)


def test_one_record_moves_a_gradient_sum_by_at_most_twice_the_clip() -> None:
    sensitivity.check_gradient_sums(ClippedGradient)


@given(records, records)
@settings(max_examples=60, deadline=None)
def test_no_two_records_are_further_apart_than_twice_the_clip(one: Matrix, other: Matrix) -> None:
    X = sensitivity.table()
    for B in sensitivity.weights():
        a, b = (sensitivity.sums_along_a_path(sensitivity.replaced(X, record), B) for record in (one, other))
        assert all(np.abs(s - t).max() <= 2 * 2**20 for s, t in zip(a, b, strict=True))


def test_the_gradient_sums_are_those_of_the_definition() -> None:
    sensitivity.check_gradient_values(ClippedGradient)


def test_one_record_moves_a_score_by_at_most_one_sensitivity() -> None:
    sensitivity.check_scores(DpPgcd)


@given(records)
@settings(max_examples=40, deadline=None)
def test_no_record_at_all_moves_more(record: Matrix) -> None:
    with np.errstate(all="ignore"):
        sensitivity.check_scores(DpPgcd, [record])
        sensitivity.check_moments(release_second_moments, [record])
        sensitivity.check_covariance(release_covariance, [record])
        sensitivity.check_residual_moments(release_residual_moments, [record])
        sensitivity.check_completed_moments(release_residual_moments, [record])
        sensitivity.check_squares(release_residual_moments, [record])


def test_one_record_moves_each_second_moment_by_at_most_its_bound() -> None:
    sensitivity.check_moments(release_second_moments)


@pytest.mark.parametrize("bound", [3.0, 1e-100])
def test_one_record_moves_the_covariance_by_at_most_root_two_times_the_bound(bound: float) -> None:
    sensitivity.check_covariance(release_covariance, bound=bound)
    many = [np.full(3, x) for x in 10.0 ** np.arange(-120.0, 0.0, 5.0)]
    sensitivity.check_covariance(release_covariance, many, bound=bound)


def test_one_record_moves_the_moments_of_residuals_by_at_most_root_two_times_the_bound() -> None:
    sensitivity.check_residual_moments(release_residual_moments)
    orthogonal = [1e3 * unit for unit in np.eye(3)]
    sensitivity.check_residual_moments(release_residual_moments, orthogonal)


def test_one_record_moves_moments_with_squares_no_further() -> None:
    sensitivity.check_squares(release_residual_moments)


def test_a_record_with_any_gaps_moves_the_moments_no_further_than_a_whole_one() -> None:
    sensitivity.check_completed_moments(release_residual_moments)
