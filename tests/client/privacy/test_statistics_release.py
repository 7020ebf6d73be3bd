"""One private statistics round: what a record adds, how far one can move the sums, and what follows from them."""

import itertools
from unittest import mock

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE, price_of, statistics_sensitivity
from fedbnsl.protocol.messages import RoundTask, Units
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import residual_moments, statistics
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.preparation import NoisyColumns, Prepared, prepared_rows
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.privacy.private_moments import Whole, release_residual_moments, release_statistics

LOW, HIGH, VARIABLE_OF = np.array([-2.0, 0.0, 0.0]), np.array([6.0, 1.0, 1.0]), np.array([0, 1, 1])
SYSTEM = randomness.system


@pytest.fixture
def _without_noise():
    with (
        mock.patch.object(private_moments, "rounded_gaussian", return_value=0),
        mock.patch.object(private_moments, "rounded_gaussians", return_value=0),
    ):
        yield


without_noise = pytest.mark.usefixtures("_without_noise")


def sums(*records: tuple[float, ...]) -> np.ndarray:
    return release_statistics(np.array(records), LOW, HIGH, VARIABLE_OF, 0, SYSTEM)


@without_noise
def test_a_record_adds_one_its_place_between_the_bounds_and_its_square():
    # 4 lies halfway between the middle 2 and the edge 6: u = 0.5; 1 and 0 are the edges of [0, 1].
    np.testing.assert_allclose(sums((4.0, 1.0, 0.0)), [1, 1, 0.5, 1, -1, 0.25, 1, 1], atol=1e-6)
    two = sums((4.0, 1.0, 0.0), (np.nan, 0.0, 1.0))
    np.testing.assert_allclose(two, [1, 2, 0.5, 0, 0, 0.25, 2, 2], atol=1e-6)
    np.testing.assert_allclose(sums((4.0, np.nan, np.nan)), [1, 0, 0.5, 0, 0, 0.25, 0, 0], atol=1e-6)
    np.testing.assert_allclose(sums((1e300, 1.0, 0.0)), sums((6.0, 1.0, 0.0)), atol=0)


def told_by(sums: np.ndarray, n_samples: int, *, noise_std: float = 0.0) -> NoisyColumns:
    return NoisyColumns.of(sums, LOW, HIGH, VARIABLE_OF, n_samples=n_samples, noise_std=noise_std)


EXTREME = (-1e308, -2.0, -1.9999, 0.0, 2.0, 4.1, 6.0, 7.0, 1e308, np.inf, -np.inf, np.nan)
INDICATORS = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (np.nan, np.nan))


@without_noise
def test_no_record_moves_the_sums_further_than_is_paid_for():
    other = (1.0, 0.0, 0.0)
    records = [(x, *pair) for x, pair in itertools.product(EXTREME, INDICATORS)]
    found = [LATTICE * sums(record, other) for record in records]
    furthest = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(found, 2))
    bound = statistics_sensitivity([1, 2])
    assert furthest <= bound
    assert furthest >= 0.999 * bound, "the bound is reached: none of the budget is wasted"


@without_noise
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_no_group_moves_the_sums_further_than_is_paid_for(size: int):
    """Means over the rows of a group: shares of levels, which sum to at most 1. Corners and halves are the worst."""
    rng = np.random.default_rng(size)
    low, high = np.array([-2.0, *[0.0] * size]), np.array([6.0, *[1.0] * size])
    corners = [np.eye(size + 1)[k, :size] for k in range(size + 1)]
    halves = [(a + b) / 2 for a, b in itertools.combinations(corners, 2)]
    inner = list(rng.dirichlet(np.full(size + 1, 0.3), 60)[:, :size])
    nothing = np.full(size, np.nan)
    records = [(x, *shares) for x in (-2.0, 6.0, np.nan) for shares in [nothing, *corners, *halves, *inner]]
    variable_of = np.array([0, *[1] * size])
    found = [LATTICE * release_statistics(np.array([one]), low, high, variable_of, 0, SYSTEM) for one in records]
    furthest = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(found, 2))
    bound = statistics_sensitivity([1, size])
    assert furthest <= bound
    assert furthest >= 0.99 * bound, "none of the budget is wasted"


@pytest.mark.parametrize("blocks", [[1], [1, 1, 1], [1, 2], [3], [5, 1]])
def test_the_bound_is_that_of_the_worst_of_many_pairs(blocks: list[int]):
    """Of values on a grid, where the squared distance is a sum over variables."""
    grid = np.linspace(-1, 1, 41)
    one = max((u - v) ** 2 + (u * u - v * v) ** 2 for u in grid for v in grid)
    indicators = 2 * 2.0**2  # two of them change places
    apart = sum(max(one if size == 1 else indicators, 1 + 2 * size) for size in blocks)  # or a value and none
    assert statistics_sensitivity(blocks) == pytest.approx(np.sqrt(apart) * LATTICE, rel=1e-5)


@without_noise
def test_means_and_variances_are_those_of_the_values_that_are_there():
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.uniform(-2, 6, 500), rng.integers(0, 2, 500), rng.integers(0, 2, 500)])
    X[::10, 1:] = np.nan
    noisy = told_by(release_statistics(X, LOW, HIGH, VARIABLE_OF, 0, SYSTEM), len(X))
    assert noisy.n_values.tolist() == [500, 450, 450]
    np.testing.assert_allclose(noisy.means, np.nanmean(X, axis=0), atol=1e-5)
    np.testing.assert_allclose(noisy.variances, np.nanvar(X, axis=0), atol=1e-4)


def test_a_count_within_its_noise_of_all_records_is_all_of_them():
    counts = np.r_[470.0, 120.0, np.zeros(6)]
    assert told_by(counts, 500, noise_std=15.0).share.tolist() == [1.0, 0.24, 0.24]
    assert told_by(counts, 500, noise_std=9.0).share.tolist() == [0.94, 0.24, 0.24]


def test_noise_is_drawn_once_for_every_number():
    drawn: list[int] = []

    def draw(variance: int, randbelow: object) -> int:
        drawn.append(variance)
        return LATTICE * len(drawn)

    with mock.patch.object(private_moments, "rounded_gaussian", draw):
        noisy = sums((4.0, 1.0, 0.0))
    assert drawn == [0] * 8
    np.testing.assert_allclose(noisy, np.array([1, 1, 0.5, 1, -1, 0.25, 1, 1]) + np.arange(1, 9), atol=1e-6)


def test_a_prepared_record_is_centred_scaled_and_zero_if_incomplete():
    by = Prepared(np.array([1.0, 10.0]), np.array([2.0, 5.0]))
    rows = prepared_rows(np.array([[5.0, 0.0], [np.nan, 3.0]]), by)
    assert rows.tolist() == [[2.0, -2.0], [0.0, 0.0]]


@without_noise
def test_residual_moments_of_prepared_records_hold_the_constant():
    X = np.array([[5.0, 20.0], [1.0, 10.0], [np.nan, 10.0]])
    W = np.array([[0.0, 0.5], [0.0, 0.0]])
    by = Whole(np.array([1.0, 10.0]), np.array([2.0, 5.0]), np.array([1.0, 3.0]))
    S = release_residual_moments(X, W, np.ones(2), 10.0, 0, SYSTEM, by)
    # By hand: (2, 2) - (0, 0.5 * 2) = (2, 1), then (0, 0), all with the constant 1. The third has 0 second,
    # which is 0.5 a + b, with variances 1 and 9 of a and b: that leaves a the variance 36 / 37, and b = -0.5 a.
    a = 36.0 / 37.0
    expected = np.array([[4.0 + a, 2.0 - 0.5 * a, 2.0], [2.0 - 0.5 * a, 1.0 + 0.25 * a, 1.0], [2.0, 1.0, 3.0]]) / 3
    np.testing.assert_allclose(S, expected, atol=1e-4)


PLAN = Plan.load("private", ["privacy.secure_aggregation=false", "privacy.delta=0.0"]).with_settings(
    n_participants=2, dictionary={"a": {"range": [-2.0, 6.0]}, "b": {"range": [0.0, 1.0]}}
)


def answers(X: np.ndarray, *, seed: str = "same", plan: Plan = PLAN) -> list[np.ndarray]:
    """What a site sends in a statistics round and a moments round."""
    site = Participant("site", Dataset(("a", "b"), X), plan, randbelow=randomness.seeded(seed))
    told = site.handle(RoundTask(1, statistics.Task(), False)).content
    units = Units(np.empty(0), np.array([1.0, 0.5]))
    task = residual_moments.Task(SparseMatrix.zeros(2), np.ones(2), np.ones(2))
    sent = site.handle(RoundTask(2, task, True, units)).content
    assert isinstance(told, statistics.Answer)
    assert isinstance(sent, residual_moments.Answer)
    return [told.means, told.variances, sent.moments]


def test_a_site_sends_noisy_means_or_none_and_its_answers_follow_from_noisy_releases():
    X = np.random.default_rng(1).uniform(0, 1, (200, 2))
    means, variances, moments = answers(X)
    assert (np.abs(means - X.mean(axis=0)) > 1e-6).all(), "those that the statistics released, with their noise"
    silent = answers(X, plan=PLAN.with_settings(tell_means=False))
    assert silent[0].size == 0
    np.testing.assert_array_equal(silent[1], variances)
    np.testing.assert_array_equal(silent[2], moments)
    assert variances.size == 2
    assert moments.size == 6, "three residuals: two columns and the constant"


@without_noise
def test_an_outlier_moves_other_records_only_through_what_was_paid_for():
    """With the exact mean taken off, one record of 10^6 would move every other one by its share."""
    X = np.random.default_rng(1).uniform(0, 1, (200, 2))
    outlier = X.copy()
    outlier[0, 0] = 1e6
    released, moved = (
        NoisyColumns.of(
            release_statistics(table, LOW[:2], HIGH[:2], np.arange(2), 0, SYSTEM),
            LOW[:2],
            HIGH[:2],
            np.arange(2),
            n_samples=200,
            noise_std=0.0,
        )
        for table in (X, outlier)
    )
    assert np.abs(moved.means - released.means).max() <= 8.0 / 200, "the range, not the outlier, bounds the mean"
    with np.errstate(all="raise"):
        one, other = answers(X)[2], answers(outlier)[2]
    n, R2 = 200, PLAN.privacy.residual_norm_bound(2) ** 2
    # The centres differ by what was paid for; the record itself by at most sqrt(2) R^2 / n.
    assert np.abs(one - other).max() <= np.sqrt(2) * R2 / n + 0.2


def test_the_noise_is_that_of_the_price():
    price = price_of(PLAN, n_samples=200, n_variables=2)
    drawn: list[int] = []
    genuine, many = private_moments.rounded_gaussian, private_moments.rounded_gaussians

    def draw(variance: int, randbelow: object) -> int:
        drawn.append(variance)
        return genuine(variance, randbelow)

    def draw_many(variances: tuple[int, ...], which: np.ndarray, randbelow: object) -> np.ndarray:
        drawn.extend(variances[k] for k in which)
        return many(variances, which, randbelow)

    with (
        mock.patch.object(private_moments, "rounded_gaussian", draw),
        mock.patch.object(private_moments, "rounded_gaussians", draw_many),
    ):
        answers(np.random.default_rng(1).uniform(0, 1, (200, 2)))
    half = price.moments_variance // 2
    whole = price.moments_variance
    assert drawn == [price.setup_variance] * 6 + [whole, half, half, whole, half, whole]


@pytest.mark.parametrize("scales", [[5e-324, 1.0], [1.0, np.inf], [np.nan, 1.0]])
def test_units_that_no_record_could_be_measured_in_are_refused(scales: list[float]):
    site = Participant("site", Dataset(("a", "b"), np.ones((50, 2))), PLAN)
    task = residual_moments.Task(SparseMatrix.zeros(2), np.ones(2), np.ones(2))
    with pytest.raises(RemoteProtocolError, match="units that this run cannot have"):
        site.handle(RoundTask(2, task, True, Units(np.empty(0), np.array(scales))))


def test_units_come_once():
    site = Participant("site", Dataset(("a", "b"), np.ones((50, 2))), PLAN)
    task = residual_moments.Task(SparseMatrix.zeros(2), np.ones(2), np.ones(2))
    site.handle(RoundTask(2, task, True, Units(np.empty(0), np.ones(2))))
    with pytest.raises(RemoteProtocolError, match="units that this run cannot have"):
        site.handle(RoundTask(3, task, True, Units(np.empty(0), np.full(2, 2.0))))
