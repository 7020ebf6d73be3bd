"""What clipping does to the moments of Gaussian records, against many drawn ones."""

import math

import numpy as np
import pytest

from fedbnsl.privacy.squares import squares
from fedbnsl_server.search.private.clipped_moments import Told, clipping, clipping_of, normals, records_worth, room
from fedbnsl_server.search.private.released_likelihood import Release

ROWS = 200_000


def clipped(P: np.ndarray, norm_bound: float, constant: float, *, whole: float = 1.0) -> tuple[np.ndarray, float]:
    """Mean of w z z' and of w over records, a share of which counts."""
    Z = np.random.default_rng(1).standard_normal((ROWS, len(P))) @ np.linalg.cholesky(P).T
    w = np.minimum(1.0, norm_bound**2 / ((Z**2).sum(axis=1) + constant**2))
    return whole * (Z * w[:, None]).T @ Z / ROWS, whole * float(w.mean())


def covariance(d: int) -> np.ndarray:
    rng = np.random.default_rng(d)
    B = rng.standard_normal((d, d))
    return B @ B.T / d + np.diag(rng.uniform(0.05, 1.0, d))


def off(S: np.ndarray, P: np.ndarray) -> float:
    """By how much moments differ from those they should be proportional to, in units of a typical variance."""
    difference = S / S.trace() - P / P.trace()
    return float(np.abs(difference).max() * P.trace() / np.median(P.diagonal()))


@pytest.mark.parametrize("share", [0.5, 0.7, 3.0], ids=["short", "as in the plan", "hardly any is clipped"])
@pytest.mark.parametrize("d", [3, 20])
def test_moments_are_what_they_would_be_without_shortening(d: int, share: float) -> None:
    P = covariance(d)
    norm_bound, constant = share * math.sqrt(P.trace()), math.sqrt(0.1 * d)
    S, weight = clipped(P, norm_bound, constant)
    bias, _ = clipping(0.01 * P, size=S.trace(), weight=weight, norm_bound=norm_bound, constant=constant)
    assert off(S + bias, P) < 0.02
    if share < 1.0:
        assert off(S, P) > 3 * off(S + bias, P)


@pytest.mark.parametrize("share", [0.4, 0.8, 3.0], ids=["nearly all are clipped", "some are", "hardly any is"])
def test_records_without_a_constant_tell_their_lengths_by_themselves(share: float) -> None:
    P = covariance(6)
    norm_bound = share * math.sqrt(P.trace())
    S, _ = clipped(P, norm_bound, 0.0)
    bias, _ = clipping(7.0 * P, size=S.trace(), weight=math.nan, norm_bound=norm_bound, constant=0.0)
    assert off(S + bias, P) < 0.02
    if share < 1.0:
        assert off(S, P) > 3 * off(S + bias, P)


@pytest.mark.parametrize(("size", "weight"), [(-1.0, 0.5), (1.0, -0.1), (math.nan, 0.5), (1.0, math.nan)])
def test_where_noise_hides_the_records_nothing_is_added(size: float, weight: float) -> None:
    told = Told(size=size, weight=weight, norm_bound=1.0, constant=0.5)
    for bias, stretch in (clipping(np.eye(3), **told), clipping_of(lambda _: np.eye(3), **told)):
        assert bias.shape == (3, 3)
        assert not bias.any()
        assert stretch == 1.0


def test_a_release_is_taken_back_in_its_own_residuals() -> None:
    S = covariance(5)
    A = (np.eye(5) - np.triu(np.full((5, 5), 0.3), 1)) / np.linspace(0.5, 2.0, 5)
    P = A.T @ S @ A
    norm_bound = 0.7 * math.sqrt(P.trace())
    moments, weight = clipped(P, norm_bound, 0.7)
    release = Release(moments, 0.01, A, weight, norm_bound, 0.7)
    assert off(release.unclipped(5.0 * S).moments, P) < 0.02


@pytest.mark.parametrize(("d", "share"), [(4, 0.5), (4, 3.0), (20, 0.7)])
def test_moments_follow_noise_by_its_stretch(d: int, share: float) -> None:
    """If what is taken back is that of the moments themselves: a fixed point, from sums without noise and with it."""
    P = np.eye(d)
    norm_bound, constant = share * math.sqrt(d), 1.0
    S, weight = clipped(P, norm_bound, constant)
    S = np.eye(d) * S.trace() / d  # without sampling error
    noise = np.zeros((d, d))
    noise[0, 1] = noise[1, 0] = 0.02 * S[0, 0]
    known, stretch = S + noise, 1.0
    for _ in range(30):
        bias, stretch = clipping(known, size=S.trace(), weight=weight, norm_bound=norm_bound, constant=constant)
        known = S + noise + bias
    assert known[0, 1] / noise[0, 1] == pytest.approx(stretch, rel=0.05)
    assert stretch == pytest.approx(1.0, abs=0.01) if share == 3.0 else stretch > 1.2


def of_levels() -> np.ndarray:
    """Rare yes and no that go together, and grades that follow from them, as records of variance 1."""
    rng = np.random.default_rng(4)
    first = rng.random(ROWS) < 0.1
    second = rng.random(ROWS) < np.where(first, 0.6, 0.1)
    grade = np.minimum(rng.integers(0, 3, ROWS) + first + second, 3)
    X = np.column_stack([first, second, grade]).astype(float)
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


def error_with(wide: float, Z: np.ndarray) -> float:
    """The largest error of a correlation, where scales are so many times as wide; the mean of the records is known."""
    P, norm_bound = Z.T @ Z / len(Z), 0.7 * math.sqrt(3)
    z = Z / wide
    w = np.minimum(1.0, norm_bound**2 / ((z**2).sum(axis=1) + 1.0))
    S = (z * w[:, None]).T @ z / len(z)
    bias, _ = clipping(P, size=S.trace(), weight=float(w.mean()), norm_bound=norm_bound, constant=1.0)
    size = np.sqrt((S + bias).diagonal())
    return float(np.abs((S + bias) / size / size[:, None] - P).max())


def test_the_less_noise_the_nearer_are_moments_of_levels_to_those_of_records_as_they_are() -> None:
    Z = of_levels()
    wide = [
        room(noise, ROWS, d=3, norm_bound=0.7 * math.sqrt(3), constant=1.0, levels=True) for noise in (1.0, 0.003, 1e-6)
    ]
    errors = [error_with(one, Z) for one in wide]
    assert wide[0] == 1.0, "noise that is beyond all else is not made larger"
    assert errors[0] > 0.05
    assert errors[0] > 2 * errors[1] > 10 * errors[2]
    assert errors[2] < 0.005


def test_numbers_that_measure_are_clipped_as_before_where_wider_scales_would_be_felt() -> None:
    asked = {"d": 8, "norm_bound": 0.7 * math.sqrt(8), "constant": 1.0}
    assert room(0.01, 2500.0, levels=False, **asked) == 1.0  # half of the sampling error
    assert room(0.0025, 2500.0, levels=False, **asked) == pytest.approx(2.0)  # of which the noise grows fourfold
    assert room(0.008, 2500.0, levels=True, **asked) > room(0.008, 2500.0, levels=False, **asked)


def test_what_shortening_may_have_done_to_levels_counts_as_an_error_of_so_many_records() -> None:
    assert records_worth(5000.0, 0.0) == 5000.0
    assert records_worth(1e12, 0.07) == pytest.approx(1 / 0.03**2)
    assert records_worth(100.0, 0.5) < 100.0


def test_the_noise_in_moments_of_records_is_stretched_as_moments_follow_the_records() -> None:
    """Numbers and their squares, which long records have together: more than of Gaussian records."""
    x = normals(6)
    told = Told(size=6.0, weight=0.6, norm_bound=1.5, constant=1.0)

    def stretch(Z: np.ndarray) -> float:
        return clipping_of(lambda factor: math.sqrt(factor) * Z, **told).stretch

    assert stretch(x) == pytest.approx(clipping(np.eye(6), **told).stretch, rel=0.01)
    Z = np.column_stack([x[:, :3], squares(x[:, :3])])
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)

    def weights(Z: np.ndarray, factor: float) -> np.ndarray:
        return np.asarray(np.minimum(1.0, 1.5**2 / (factor * np.square(Z).sum(axis=1) + 1.0)))

    low, high, factor = 1e-3, 1e3, 1.0  # of the factor with which the mean of w |z|^2 is as told
    for _ in range(50):
        factor = math.sqrt(low * high)
        w = weights(Z, factor)
        small = factor * np.mean(w * np.square(Z).sum(axis=1)) / w.mean() < 6.0 / 0.6
        low, high = (factor, high) if small else (low, factor)
    follows = list[float]()
    for i, j in np.argwhere(~np.eye(6, dtype=bool)):
        moments = list[float]()
        for e in (-1e-4, 1e-4):
            moved = Z.copy()
            moved[:, j] += e * Z[:, i]
            moments.append(float(np.mean(weights(moved, factor) * moved[:, i] * moved[:, j])))
        follows.append((moments[1] - moments[0]) / 2e-4)
    assert stretch(Z) == pytest.approx(weights(Z, factor).mean() / np.mean(follows), rel=0.01)
    assert stretch(Z) > 1.1 * stretch(x)


def of_size(factor: float) -> np.ndarray:
    """Numbers and squares of other ones, which grow by the square of the factor that variances grow by."""
    x = normals(2)
    return np.column_stack([math.sqrt(factor) * x[:, 0], factor * squares(x[:, 1])])


def released_of(Z: np.ndarray, norm_bound: float) -> tuple[Told, np.ndarray]:
    """What is told of clipped records, and what clipping has taken from their moments."""
    w = np.minimum(1.0, norm_bound**2 / (np.square(Z).sum(axis=1) + 1.0))
    S = (Z * w[:, None]).T @ Z / len(Z)
    told = Told(size=float(S.trace()), weight=float(w.mean()), norm_bound=norm_bound, constant=1.0)
    return told, w.mean() * Z.T @ Z / len(Z) - S


def test_records_are_drawn_again_until_they_are_as_large_as_was_released() -> None:
    told, taken = released_of(of_size(3.0), 1.5)
    found = clipping_of(of_size, **told).bias
    np.testing.assert_allclose(found, taken, rtol=0.1, atol=0.01)
    as_drawn_first = clipping_of(lambda factor: math.sqrt(factor) * of_size(1.0), **told).bias
    assert np.abs(as_drawn_first - taken).max() > 3 * np.abs(found - taken).max()


@pytest.mark.parametrize("by", [0.8, 1.1])
@pytest.mark.parametrize("of_gaussian", [True, False])
def test_where_another_share_of_the_weight_was_lost_so_much_was_taken(of_gaussian: bool, by: float) -> None:
    told, _ = released_of(normals(2) if of_gaussian else of_size(1.0), 1.5)

    def bias(by: float) -> np.ndarray:
        known = Told(size=by * told["size"], weight=by * told["weight"], norm_bound=1.5, constant=1.0)
        return clipping(np.eye(2), **known).bias if of_gaussian else clipping_of(of_size, **known).bias

    lost = min((1.0 - by * told["weight"]) / (1.0 - told["weight"]), 1.0)
    np.testing.assert_allclose(bias(by), by * lost * bias(1.0), rtol=1e-6, atol=1e-9)
