"""Pooled moments of residuals: mapped back exactly, cleared of noise, and what they say of neighbours."""

import numpy as np
import pytest

from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.sparse import Matrix
from fedbnsl_server.search.pooled_moments import (
    PooledMoments,
    SiteRelease,
    first_scales,
    mean_by_precision,
    mean_over_records,
    mean_square_noise,
    missed_neighbours,
    neighbours,
    next_scales,
    pool,
)

# a -> b -> d, a -> c, c -> d
W = np.zeros((4, 4))
W[0, 1], W[1, 3], W[0, 2], W[2, 3] = 1.5, -0.8, 0.7, 1.2
BACK = np.linalg.inv(np.eye(4) - W)
MOMENTS = BACK.T @ BACK  # of unit noise


def residuals_of(S: Matrix, weights: Matrix, scales: Matrix) -> Matrix:
    A = (np.eye(len(S)) - weights) / scales
    return A.T @ S @ A


def pooled(weights: Matrix, scales: Matrix, released: Matrix | None = None, *, variance: int = 0) -> PooledMoments:
    S_z = residuals_of(MOMENTS, weights, scales) if released is None else released
    return pool([S_z], [1000], [variance], W=weights, scales=scales, norm_bound=2.0)


@pytest.mark.parametrize("weights", [np.zeros((4, 4)), W, np.triu(np.full((4, 4), 0.3), 1)])
def test_without_noise_the_moments_come_back_whatever_they_were_asked_with(weights: Matrix) -> None:
    scales = np.array([1.0, 2.0, 0.5, 3.0])
    S_z = residuals_of(MOMENTS, weights, scales)
    assert np.linalg.eigvalsh(S_z)[0] > 0.05 * np.median(S_z.diagonal()), "no eigenvalue is lifted"
    found = pooled(weights, scales).moments
    np.testing.assert_allclose(found * MOMENTS[0, 0] / found[0, 0], MOMENTS, rtol=1e-9)


def test_a_site_counts_by_its_rows() -> None:
    one, other = np.eye(4), np.diag([1.0, 1.0, 1.0, 5.0])
    found = pool([one, other], [3000, 1000], [0, 0], W=np.zeros((4, 4)), scales=np.ones(4), norm_bound=1.0)
    np.testing.assert_allclose(found.moments.diagonal(), [1.0, 1.0, 1.0, 2.0])


def test_the_stated_noise_is_that_of_an_entry_off_the_diagonal() -> None:
    rng = np.random.default_rng(1)
    n_samples, variances, bound = [1000, 4000], [2**34, 2**36], 2.0
    drawn = []
    for _ in range(4000):
        noise = [
            rng.normal(scale=(v / 2) ** 0.5) * bound**2 / (LATTICE * n)
            for n, v in zip(n_samples, variances, strict=True)
        ]
        drawn.append(sum(n * x for n, x in zip(n_samples, noise, strict=True)) / sum(n_samples))
    eye = np.eye(4)
    found = pool([eye, eye], n_samples, variances, W=np.zeros((4, 4)), scales=np.ones(4), norm_bound=bound)
    assert np.std(drawn) == pytest.approx(found.noise_std, rel=0.05)
    halved = pool([eye / 2, eye / 2], n_samples, variances, W=np.zeros((4, 4)), scales=np.ones(4), norm_bound=bound)
    assert halved.noise_std == pytest.approx(2 * found.noise_std), "relative to the residuals' variance"


def test_what_may_be_noise_counts_as_zero_and_what_is_not_stays() -> None:
    variance = 2 * (LATTICE * 1000 // 4 // 100) ** 2  # a standard deviation of 0.01
    S_z = np.eye(4)
    S_z[0, 1] = S_z[1, 0] = 0.029
    S_z[0, 2] = S_z[2, 0] = -0.031
    found = pooled(np.zeros((4, 4)), np.ones(4), S_z, variance=variance)
    assert found.noise_std == pytest.approx(0.01, rel=1e-3)
    assert (found.moments[0, 1], found.moments[0, 2]) == (pytest.approx(0.0, abs=1e-12), pytest.approx(-0.031))
    assert found.correlated.nonzero()[0].tolist() == [0, 2]


def test_moments_that_noise_made_indefinite_become_positive() -> None:
    S_z = np.eye(4) + 0.9 * (1 - np.eye(4)) * np.array([1, -1, 1, -1])[:, None] * np.ones(4)
    S_z = (S_z + S_z.T) / 2 - 0.5 * np.diag([1.0, 0.0, 0.0, 0.0])
    S_z[0, 0] = -0.2
    assert np.linalg.eigvalsh(pooled(W, np.ones(4), S_z).moments)[0] > 0.0


def test_an_edge_costs_what_the_threshold_saves_or_what_noise_may() -> None:
    def penalty(noise_std: float) -> float:
        return PooledMoments(np.eye(4), noise_std, np.zeros((4, 4), dtype=bool)).edge_penalty(0.3)

    assert penalty(0.0) == penalty(0.01) == pytest.approx(0.045)
    assert penalty(0.5) == pytest.approx(2 * np.log(4) * 0.25)


def test_the_neighbours_hold_every_true_edge_and_the_last_graph() -> None:
    found = pooled(np.zeros((4, 4)), np.sqrt(MOMENTS.diagonal()))
    assert found.correlated.any()
    pairs = neighbours(found, np.zeros((4, 4), dtype=bool), np.ones(4), 0.3)
    assert not ((W != 0) & ~(pairs | pairs.T)).any()
    last = np.zeros((4, 4), dtype=bool)
    last[3, 0] = True
    assert (neighbours(found, last, np.ones(4), 0.3, most=0) == (last | found.correlated)).all()
    unrelated = pooled(np.zeros((4, 4)), np.ones(4), np.eye(4))
    assert (neighbours(unrelated, last, np.ones(4), 0.3) == last).all()
    assert not neighbours(found, np.zeros((4, 4), dtype=bool), np.ones(4), 0.3, most=0).any()
    assert not pairs.diagonal().any()


def test_an_edge_that_a_graph_lacks_shows_in_its_residuals() -> None:
    found = pooled(W, np.ones(4))
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
