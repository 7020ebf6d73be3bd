"""Tables of several blocks and many variables: what is released is the definition's sum and noise of the paid width."""

import pytest

from audit import released_moments


def test_residual_moments_are_those_of_every_record_once() -> None:
    released_moments.check_residual_moments()


def test_the_covariance_is_that_of_every_record_once() -> None:
    released_moments.check_covariance()


def test_second_moments_are_those_of_every_record_once() -> None:
    released_moments.check_second_moments()


def test_gradient_sums_are_those_of_every_record_once() -> None:
    released_moments.check_gradients()


@pytest.mark.audit
def test_the_noise_has_its_law_over_a_great_many_releases() -> None:
    released_moments.check_residual_moments(200)
    released_moments.check_covariance(200)
    released_moments.check_second_moments(200)
