"""Noise in what is sent: of the paid width, from the system's source, and never used twice."""

import pytest

from audit import freshness, updates


@pytest.mark.long
def test_no_two_updates_share_noise() -> None:
    updates.check_noise()


def test_no_two_releases_of_residual_moments_or_scales_share_noise() -> None:
    freshness.check_moments()


def test_no_two_releases_of_a_covariance_share_noise() -> None:
    freshness.check_covariance()


def test_no_two_selections_share_noise() -> None:
    freshness.check_selections()


def test_all_noise_comes_from_the_system() -> None:
    freshness.check_source()


@pytest.mark.audit
def test_it_stays_so_over_many_sites() -> None:
    updates.check_noise(sites=12)
    freshness.check_moments(sites=8)
    freshness.check_covariance(sites=8)
