"""Families of a network as distributions: what they draw, expect and call likely belongs together."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import nbinom, poisson

from fedbnsl.errors import SetupError
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Bend, Count, Family, Grade, Levels, Number, Table, positions
from fedbnsl.plan.dictionary import TRANSFORMS

N = 200_000
BEND = Bend(0, np.array([-1.0, 0.0, 2.0]), np.array([3.0, 0.0, 1.0]))
NUMBER = Number(1, np.array([0]), np.array([0.5]), 2.0, 1.5)
BENT = Number(1, np.array([], dtype=np.int64), np.array([]), 1.0, 0.7, bends=(BEND,))
WITHIN = Number(1, np.array([0]), np.array([2.0]), 0.0, 1.0, -1.0, 1.5)
GRADE = Grade(1, np.array([0]), np.array([1.0]), 0.3, np.array([-1.0, 0.5, 2.0]), 0.8)
RATES = Count(1, np.array([0]), np.array([0.8]), 0.4, "log1p", by_rates=True, size=2.5)
POISSON = Count(1, np.array([0]), np.array([-0.5]), 2.0, "none", by_rates=False, size=np.inf, low=0.0, high=4.0)
ODDS = Levels(np.array([1, 2]), np.array([0]), np.array([[1.0, -2.0]]), np.array([0.3, -0.5]), by_odds=True)
SHARES = Levels(np.array([1]), np.array([0]), np.array([[0.2]]), np.array([0.4]), by_odds=False)
TABLE = Table(np.array([1, 2]), 3, ((np.array([0]), 2),), np.array([[0.2, 0.3, 0.5], [0.7, 0.3, 0.0]]))
FAMILIES: dict[str, Family] = {
    "number": NUMBER,
    "bent": BENT,
    "within its range": WITHIN,
    "grade": GRADE,
    "rates": RATES,
    "count within its range": POISSON,
    "odds": ODDS,
    "shares": SHARES,
    "table": TABLE,
}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def rows(value: float, n: int = N) -> np.ndarray:
    X = np.zeros((n, 3))
    X[:, 0] = value
    return X


@each_family
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_drawn_values_have_the_expected_mean(family: Family, value: float) -> None:
    X = rows(value)
    drawn = family.sample(X, np.random.default_rng(1))
    error = 5.0 * drawn.std(axis=0) / np.sqrt(N) + 1e-12
    assert (np.abs(drawn.mean(axis=0) - family.mean(X[:1])[0]) <= error).all()


@each_family
def test_densities_add_up_to_one(family: Family) -> None:
    def density(*own: float) -> float:
        X = rows(1.0, 1)
        X[0, family.columns] = own
        return float(np.exp(family.log_density(X)[0]))

    if isinstance(family, Number):
        low, high = max(family.low, -30.0), min(family.high, 30.0)
        assert quad(density, low, high, points=[0.0])[0] == pytest.approx(1.0, abs=1e-6)
        return
    codes = [[0.0], [1.0], [2.0], [3.0]] if isinstance(family, Grade) else [[0.0], [1.0]]
    if isinstance(family, Count):
        top = 400 if np.isinf(family.high) else family.high
        codes = TRANSFORMS[family.transform].forth(np.arange(top + 1.0))[:, None].tolist()
    if len(family.columns) == 2:
        codes = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert sum(density(*own) for own in codes) == pytest.approx(1.0)


def test_a_bend_goes_on_beyond_its_ends_as_a_line() -> None:
    found = BEND.of(np.array([-3.0, -1.0, -0.5, 0.0, 1.0, 2.0, 4.0]))
    np.testing.assert_allclose(found, [9.0, 3.0, 1.5, 0.0, 0.5, 1.0, 2.0])


def test_a_value_stays_within_its_range_however_far_its_mean_lies() -> None:
    for value in (-50.0, 0.0, 50.0):
        drawn = WITHIN.sample(rows(value, 1000), np.random.default_rng(2))
        assert ((drawn >= -1.0) & (drawn <= 1.5)).all()
        assert np.isfinite(WITHIN.log_density(rows(value, 1))).all()


def test_indicators_and_positions_of_levels_belong_together() -> None:
    drawn = rows(0.0)
    drawn[:, 1:] = ODDS.sample(drawn, np.random.default_rng(3))
    at = positions(drawn, np.array([1, 2]), 3)
    np.testing.assert_allclose(np.bincount(at) / N, ODDS.probabilities(drawn[:1])[0], atol=0.005)


def chain() -> BayesianNetwork:
    """x -> y -> z, all numbers: what is known below says something of what is above."""
    none = np.array([], dtype=np.int64)
    x = Number(0, none, np.array([]), 1.0, 2.0)
    y = Number(1, np.array([0]), np.array([0.5]), 0.0, 1.0)
    z = Number(2, np.array([1]), np.array([-1.0]), 3.0, 0.5)
    return BayesianNetwork(3, {"x": x, "y": y, "z": z})


def test_draws_where_a_value_is_known_follow_the_conditional_distribution() -> None:
    X, weights = chain().draws(400_000, np.random.default_rng(4), known={"z": [1.0]})
    assert weights.sum() == pytest.approx(1.0)
    # By hand: y has mean .5 and variance 2, z variance 2.25, their covariance is -2; z has mean 2.5.
    assert weights @ X[:, 1] == pytest.approx(0.5 + 2.0 / 2.25 * 1.5, abs=0.01)
    # x and z: covariance -2.
    assert weights @ X[:, 0] == pytest.approx(1.0 + 2.0 / 2.25 * 1.5, abs=0.02)


def test_what_is_set_says_nothing_of_its_causes() -> None:
    X, weights = chain().draws(100_000, np.random.default_rng(5), set_to={"y": [4.0]})
    assert weights @ X[:, 0] == pytest.approx(1.0, abs=0.03)
    assert weights @ X[:, 2] == pytest.approx(-1.0, abs=0.01)
    assert weights.std() == 0.0


def test_the_columns_that_are_asked_for_are_drawn_from_what_they_depend_on_alone() -> None:
    class Unasked(Number):
        def sample(self, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            raise AssertionError("nothing that is asked for depends on it")

    none, of = np.array([], dtype=np.int64), chain()
    network = BayesianNetwork(4, {"w": Unasked(3, none, np.array([]), 0.0, 1.0), **of.families})
    X, weights = network.draws(1000, np.random.default_rng(7), {"z": [1.0]}, columns=np.array([1, 0]))
    whole, others = of.draws(1000, np.random.default_rng(7), {"z": [1.0]})
    np.testing.assert_array_equal(X, whole[:, [1, 0]])
    np.testing.assert_array_equal(weights, others)
    above, _ = network.draws(10, np.random.default_rng(7), set_to={"y": [2.0]}, columns=np.array([2]))
    assert above.shape == (10, 1)


def test_draws_of_many_columns_are_made_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbnsl.network.bayesian_network._MOST_NUMBERS", 3 * 1000)
    X, weights = chain().draws(100_500, np.random.default_rng(8), known={"z": [1.0]})
    assert len(X) == len(weights) == 100_500
    assert weights @ X[:, 1] == pytest.approx(0.5 + 2.0 / 2.25 * 1.5, abs=0.02)
    assert X[-1, 0] != X[499, 0] != 0.0


def test_values_that_never_occur_are_refused() -> None:
    parent = Levels(np.array([0]), np.array([], dtype=np.int64), np.empty((0, 1)), np.array([0.0]), by_odds=True)
    network = BayesianNetwork(3, {"parent": parent, "child": TABLE})
    with pytest.raises(SetupError, match="never occurs in the network: 'parent', 'child'"):
        network.draws(1000, np.random.default_rng(6), known={"parent": [1.0], "child": [0.0, 1.0]})


def test_odds_are_against_the_first_level_and_of_grades_between_those_above_a_cut_and_those_below() -> None:
    a, b = np.exp(0.3 + 1.0), np.exp(-0.5 - 2.0)
    np.testing.assert_allclose(ODDS.probabilities(rows(1.0, 1))[0], np.array([1.0, a, b]) / (1.0 + a + b))
    above = 1.0 / (1.0 + np.exp((GRADE.cuts - 1.3) / 0.8))
    np.testing.assert_allclose(GRADE.probabilities(rows(1.0, 1))[0], -np.diff([1.0, *above, 0.0]))


@pytest.mark.parametrize("size", [0.3, 4.0, np.inf])
@pytest.mark.parametrize("ends", [(0.0, np.inf), (2.0, 9.0)])
def test_counts_are_those_of_scipy_whose_tails_count_at_the_ends_of_the_range(
    size: float, ends: tuple[float, float]
) -> None:
    low, high = ends
    family = Count(1, np.array([0]), np.array([0.0]), np.log(3.5), "none", True, size, low, high)
    peer = poisson(3.5) if np.isinf(size) else nbinom(size, size / (size + 3.5))
    X = np.column_stack([np.zeros(11), np.arange(11.0)])
    expected = peer.pmf(np.arange(11))
    if low:
        expected[:3], expected[9:] = peer.cdf(2), peer.sf(8)
    np.testing.assert_allclose(np.exp(family.log_density(X)), expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1e6, np.inf])
def test_a_count_is_not_impossible_where_its_probability_is_too_small_for_a_float(size: float) -> None:
    """A zero among thrombocytes, or a hundred visits of one who has none."""
    for rate, k in ((900.0, 0.0), (1e-6, 100.0)):
        family = Count(1, np.array([0]), np.array([0.0]), np.log(rate), "none", True, size, 0.0, 100.0)
        peer = poisson(rate) if np.isinf(size) else nbinom(size, size / (size + rate))
        assert family.log_density(np.array([[0.0, k]]))[0] == pytest.approx(peer.logpmf(k), rel=1e-6)


def test_the_mean_of_a_count_follows_its_rate_up_to_the_largest() -> None:
    for rate in (5e4, 2e5, 1e9):
        family = Count(1, np.array([0]), np.array([0.0]), np.log(rate), "log1p", True, np.inf)
        assert family.mean(rows(0.0, 1))[0, 0] == pytest.approx(np.log1p(rate), abs=1e-4)


def test_densities_add_up_to_one_however_far_the_mean_lies_beyond_the_range() -> None:
    def density(own: float) -> float:
        X = rows(50.0, 1)
        X[0, 1] = own
        return float(np.exp(WITHIN.log_density(X)[0]))

    assert quad(density, -1.0, 1.5)[0] == pytest.approx(1.0, abs=1e-4)
