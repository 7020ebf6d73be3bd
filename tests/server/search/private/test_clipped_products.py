"""Clipped products of Gaussian variables: the mean is that of many draws, and derivatives are those of the mean."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.clipped_products import clipped_mean

# Covariance, variances of x and y, bound.
CASES = [(0.0, 1.0, 1.0, 0.5), (0.6, 1.0, 1.0, 0.3), (-1.5, 4.0, 1.0, 1.2), (2.0, 9.0, 0.5, 6.0), (0.3, 0.1, 2.0, 0.05)]


def mean_of(case: Sequence[float]) -> float:
    return float(clipped_mean(*(np.array([number]) for number in case)).value[0])


@pytest.mark.parametrize("case", CASES)
def test_the_mean_is_that_of_many_draws(case: tuple[float, float, float, float]) -> None:
    covariance, x, y, bound = case
    draws = np.random.default_rng(1).multivariate_normal([0.0, 0.0], [[x, covariance], [covariance, y]], 400_000)
    clipped: Matrix = np.clip(draws[:, 0] * draws[:, 1], -bound, bound)
    assert mean_of(case) == pytest.approx(clipped.mean(), abs=4.0 * clipped.std() / 400_000**0.5)


@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_those_of_the_mean(case: tuple[float, float, float, float]) -> None:
    found = clipped_mean(*(np.array([number]) for number in case))
    for place, derivative in enumerate((found.by_covariance, found.by_x, found.by_y)):
        step = 1e-5 * max(abs(case[place]), 0.1)
        moved = [list(case), list(case)]
        moved[0][place] += step
        moved[1][place] -= step
        slope = (mean_of(moved[0]) - mean_of(moved[1])) / (2.0 * step)
        assert derivative[0] == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_a_bound_that_clips_nothing_leaves_the_covariance() -> None:
    assert mean_of((0.7, 1.0, 1.0, 1e9)) == pytest.approx(0.7, abs=1e-4)
