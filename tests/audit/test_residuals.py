"""Noise in what is sent: the right law, fresh for every round, site and start."""

import pytest

from audit import residuals


def test_the_noise_in_the_messages_is_gaussian_of_the_paid_width_and_never_repeats() -> None:
    residuals.check_released_noise(residuals.genuine)


@pytest.mark.audit
def test_it_stays_so_over_many_sites() -> None:
    residuals.check_released_noise(residuals.genuine, sites=24)
