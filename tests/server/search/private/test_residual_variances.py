"""Residual variances from noisy moments: their common factor, their floor, and when they are unknown."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.pooled_moments import PooledMoments
from fedbnsl_server.search.private.residual_variances import residual_variances

MEAN_SQUARES, VARIANCES = np.array([2.0, 8.0, 5.0]), np.array([2.0, 1.0, 3.0])
BOUNDS = np.full(3, 100.0)


def found(*, moments_noise: float = 0.01, scales: Matrix | None = None, **options: Any) -> Matrix:
    """Moments and relative variances are 4 times too small."""
    pooled = PooledMoments(np.diag(MEAN_SQUARES / 4), moments_noise, np.zeros((3, 3), dtype=bool))
    usual: dict[str, Any] = {"mean_squares": MEAN_SQUARES, "bounds": BOUNDS, "noise_std": 1e-4}
    return residual_variances(VARIANCES / 4, pooled, np.ones(3) if scales is None else scales, **{**usual, **options})


def test_released_mean_squares_give_the_common_factor() -> None:
    np.testing.assert_allclose(found(), VARIANCES)
    noise_that_the_fit_leaves_out = np.array([0.08, -0.02, 0.0])
    np.testing.assert_allclose(found(mean_squares=MEAN_SQUARES + noise_that_the_fit_leaves_out), VARIANCES)


def test_variables_that_their_bound_cuts_off_do_not_count() -> None:
    cut = {"mean_squares": np.array([2.0, 4.5, 5.0]), "bounds": np.array([100.0, 10.0, 100.0])}
    np.testing.assert_allclose(found(**cut), VARIANCES)
    assert not found(bounds=np.full(3, 4.0)).size


def test_no_variance_is_below_a_standard_deviation_of_its_noise() -> None:
    raised = found(moments_noise=0.1, scales=np.array([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(raised, [2.0, 4 * 2**0.5 * 0.1 * 2.0**2, 3.0])


@pytest.mark.parametrize(
    "options",
    [
        {"moments_noise": 0.2},
        {"mean_squares": np.empty(0)},
        {"mean_squares": -MEAN_SQUARES},
        {"noise_std": 0.05},
        {"mean_squares": np.full(3, -1e30), "bounds": np.full(3, 1e-100)},
    ],
    ids=["noisy moments", "not kept", "negative", "below their noise", "beyond all numbers"],
)
def test_what_the_noise_hides_is_unknown(options: dict[str, Any]) -> None:
    assert not found(**options).size
