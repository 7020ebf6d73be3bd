"""Moments of all sites as one, and what they say of neighbours."""

import numpy as np
import pytest

from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.pooled_moments import (
    PooledMoments,
    SiteRelease,
    first_scales,
    mean_by_precision,
    mean_over_records,
    mean_square_noise,
    missed_neighbours,
    neighbours,
    next_scales,
)

# a -> b -> d, a -> c, c -> d
W = np.zeros((4, 4))
W[0, 1], W[1, 3], W[0, 2], W[2, 3] = 1.5, -0.8, 0.7, 1.2
BACK = np.linalg.inv(np.eye(4) - W)
MOMENTS = BACK.T @ BACK  # of unit noise


def pooled(moments: Matrix) -> PooledMoments:
    correlated = moments != 0.0
    np.fill_diagonal(correlated, val=False)
    return PooledMoments(moments, 0.0, correlated)


def test_an_edge_costs_what_the_threshold_saves_or_what_noise_may() -> None:
    def penalty(noise_std: float) -> float:
        return PooledMoments(np.eye(4), noise_std, np.zeros((4, 4), dtype=bool)).edge_penalty(0.3)

    assert penalty(0.0) == penalty(0.01) == pytest.approx(0.045)
    assert penalty(0.5) == pytest.approx(2 * np.log(4) * 0.25)


def test_the_neighbours_hold_every_true_edge_and_the_last_graph() -> None:
    found = pooled(MOMENTS)
    assert found.correlated.any()
    pairs = neighbours(found, np.zeros((4, 4), dtype=bool), np.ones(4), 0.3)
    assert not ((W != 0) & ~(pairs | pairs.T)).any()
    last = np.zeros((4, 4), dtype=bool)
    last[3, 0] = True
    assert (neighbours(found, last, np.ones(4), 0.3, most=0) == (last | found.correlated)).all()
    unrelated = pooled(np.eye(4))
    assert (neighbours(unrelated, last, np.ones(4), 0.3) == last).all()
    assert not neighbours(found, np.zeros((4, 4), dtype=bool), np.ones(4), 0.3, most=0).any()
    assert not pairs.diagonal().any()


def test_an_edge_that_a_graph_lacks_shows_in_its_residuals() -> None:
    found = pooled(MOMENTS)
    assert not missed_neighbours(found, W, np.ones(4)).any()
    lacking = W.copy()
    lacking[2, 3] = 0.0
    missed = missed_neighbours(found, lacking, np.array([1.0, 1.0, 1.0, 2.4]))
    assert missed[2, 3]
    assert missed[3, 2]


def test_scales_are_roots_of_moments_and_never_near_zero() -> None:
    bounds = np.array([100.0, 4.0])
    mean_squares = mean_over_records([np.array([9.0, -1.0]), np.array([49.0, -1.0])], [3, 1])
    scales = first_scales(mean_squares, 0.0, bounds)
    np.testing.assert_allclose(scales, np.sqrt([19.0, 0.02]))
    noisy = first_scales(np.array([9.0, -1.0]), mean_square_noise([LATTICE**2], [10]), bounds)
    np.testing.assert_allclose(noisy, np.sqrt([10.0, 0.4]), err_msg="one standard deviation at least")
    np.testing.assert_allclose(next_scales(np.array([1e-9, 1.0, 4.0])), np.sqrt([0.3, 1.0, 4.0]))


def with_constant(mean: Matrix, *, weight: float = 1.0, constant: float = 1.0) -> Matrix:
    """(5, 5) moments of records z and the constant, each counted with the weight."""
    about = np.append(mean, constant)
    S = np.outer(about, about)
    S[:-1, :-1] += MOMENTS
    return weight * S


def noise(rng: np.random.Generator, std: float, size: int) -> Matrix:
    E = rng.normal(0.0, std, (size, size))
    return (E + E.T) / np.sqrt(2.0)


def test_moments_about_a_noisy_mean_are_right_on_average() -> None:
    rng, mean, std = np.random.default_rng(0), np.array([0.3, 0.0, -0.2, 0.0]), 0.1
    S, draws = with_constant(mean), []
    for _ in range(20_000):
        E = noise(rng, std, 5)
        E[-1, -1] = 0.0  # the mean of a quotient is another matter
        draws.append(SiteRelease.about_mean(S + E, noise_std=std, constant=1.0, n_samples=9).moments)
    assert np.mean(draws, axis=0) == pytest.approx(MOMENTS, abs=0.4 * std**2)


def test_a_mean_that_is_far_off_brings_its_noise_along() -> None:
    """The noise that is told is about that of a typical entry; that of columns that are not off does not grow."""
    rng, mean, std = np.random.default_rng(0), np.array([3.0, 0.0, 2.9, 0.0]), 0.01
    S = with_constant(mean, constant=2.0)
    draws = [
        SiteRelease.about_mean(S + noise(rng, std, 5), noise_std=std, constant=2.0, n_samples=9) for _ in range(4000)
    ]
    errors = np.std([one.moments for one in draws], axis=0)
    typical = np.sqrt(np.mean(errors[np.triu_indices(4, 1)] ** 2))
    assert np.mean([one.noise_std for one in draws]) == pytest.approx(typical, rel=0.15)
    assert errors[1, 3] == pytest.approx(std, rel=0.1)


def test_a_site_whose_constant_is_within_the_noise_tells_nothing() -> None:
    S = with_constant(np.zeros(4), weight=0.02)
    silent = SiteRelease.about_mean(S, noise_std=0.01, constant=1.0, n_samples=500)
    assert silent.noise_std == np.inf
    clear = SiteRelease.about_mean(with_constant(np.zeros(4)), noise_std=0.01, constant=1.0, n_samples=500)
    assert clear.weight == 1.0
    both = mean_by_precision([silent, clear])
    assert both.moments == pytest.approx(clear.moments)
    assert both.noise_std == pytest.approx(clear.noise_std)
    assert both.n_samples == pytest.approx(500)


def test_where_no_site_tells_its_mean_noise_is_as_large_as_the_moments() -> None:
    silent = SiteRelease.about_mean(with_constant(np.ones(4), weight=0.02), noise_std=0.01, constant=1.0, n_samples=9)
    nothing = SiteRelease.about_mean(np.zeros((5, 5)), noise_std=0.01, constant=1.0, n_samples=9)
    assert mean_by_precision([nothing, nothing]).noise_std > 0.0
    pooled = mean_by_precision([silent, silent])
    assert pooled.noise_std >= np.median(pooled.moments.diagonal())
    assert np.isfinite(pooled.noise_std)


def test_sites_count_by_what_they_tell() -> None:
    """Sites of other sizes, weights and noise: no other shares give moments with less error, up to their factor."""
    sites = [
        SiteRelease(w * MOMENTS, std, w, n)
        for w, std, n in ((0.9, 0.1, 300), (0.5, 0.02, 3000), (0.9, 0.02, 2000), (0.3, 0.5, 5000))
    ]
    pooled = mean_by_precision(sites)
    size = float(np.median(MOMENTS.diagonal()))
    assert pooled.moments == pytest.approx(pooled.weight * MOMENTS)

    def error(shares: Matrix) -> float:
        """Of the noise, and of sampling as if records were left out."""
        signal = float(shares @ w)
        return float(np.square(shares) @ (std**2 + w * size**2 / n)) / signal**2

    w, std, n = (
        np.array(values) for values in zip(*((one.weight, one.noise_std, one.n_samples) for one in sites), strict=True)
    )
    rng = np.random.default_rng(0)
    best = w / (std**2 + w * size**2 / n)
    best /= best.sum()
    assert pooled.noise_std == pytest.approx(np.linalg.norm(best * std))
    for shares in [*np.eye(4), n / n.sum(), *rng.dirichlet(np.ones(4), 200)]:
        assert error(best) <= error(shares) * (1 + 1e-9)


def test_equal_sites_count_alike() -> None:
    rng = np.random.default_rng(3)
    sites = [SiteRelease.plain(MOMENTS + noise(rng, 0.1, 4), noise_std=0.1, n_samples=100) for _ in range(5)]
    pooled = mean_by_precision(sites)
    assert pooled.moments == pytest.approx(np.mean([one.moments for one in sites], axis=0))
    assert pooled.noise_std == pytest.approx(0.1 / np.sqrt(5))
    assert pooled.n_samples == pytest.approx(500)
    assert np.isnan(pooled.weight)
