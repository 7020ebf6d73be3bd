"""Where values lie apart from all others: errors are found, and smooth tails are left alone, however heavy."""

import numpy as np
import pytest

from fedbnsl.plan.preparation import BINS_AN_OCTAVE, FIRST_BIN, NORMAL
from fedbnsl_server.algorithm.outlying import limits, weighted_median

SMOOTH = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "t1": lambda rng, n: rng.standard_t(1, n),
    "t2": lambda rng, n: rng.standard_t(2, n),
    "t3": lambda rng, n: rng.standard_t(3, n),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 1.5, n),
    "few counts": lambda rng, n: rng.poisson(3.0, n).astype(float),
    "overdispersed counts": lambda rng, n: rng.negative_binomial(0.5, 0.1, n).astype(float),
    "two levels": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
}


def apart(values):
    """Which values count as outlying, by a plain count of all."""
    away = values - np.median(values)
    spread = NORMAL * float(np.median(np.abs(away)))
    if not spread:
        return np.zeros(len(values), dtype=bool)
    bins = np.floor(BINS_AN_OCTAVE * np.log2(np.maximum(np.abs(away) / spread, 1e-9))).astype(int)
    bins, counts = np.unique(np.sign(away[bins >= FIRST_BIN]) * bins[bins >= FIRST_BIN], return_counts=True)
    above, below = limits(bins.astype(int), counts, len(values))
    return (away >= above * spread) | (away <= -below * spread)


@pytest.mark.parametrize("law", SMOOTH)
@pytest.mark.parametrize("n", [100, 1000, 20_000])
def test_smooth_tails_have_no_limit(law, n):
    rng = np.random.default_rng(n)
    for _ in range(40):
        values = SMOOTH[law](rng, n)
        assert not apart(values).any()
        assert not apart(-values).any()


@pytest.mark.parametrize("unit", [1e-9, 1.0, 3e12])
def test_one_per_cent_of_values_ten_standard_deviations_away_lie_apart(unit):
    rng = np.random.default_rng(1)
    wrong = rng.random(8000) < 0.01
    values = (rng.standard_normal(8000) + np.where(wrong, 10.0, 0.0)) * unit
    np.testing.assert_array_equal(apart(values), wrong)


def test_a_single_value_lies_apart_if_it_is_very_far():
    rng = np.random.default_rng(2)
    values = rng.standard_normal(2000)
    assert not apart(np.append(values, 12.0)).any(), "chance alone cannot be told from a slip"
    assert apart(np.append(values, 1e7)).sum() == 1


def test_a_twentieth_of_the_values_is_a_population_of_its_own():
    rng = np.random.default_rng(3)
    few, many = (rng.standard_normal(4000) + np.where(rng.random(4000) < share, 1000.0, 0.0) for share in (0.03, 0.08))
    assert apart(few).any()
    assert not apart(many).any()


def test_a_column_whose_middle_half_is_one_value_has_no_limit():
    assert not apart(np.array([0.0] * 900 + [1.0, 1e9] * 50)).any()


def test_half_of_the_rows_have_at_most_the_weighted_median():
    rng = np.random.default_rng(4)
    values, rows = rng.normal(size=(5, 3)), rng.integers(1, 30, size=(5, 3)).astype(float)
    long = [np.sort(np.repeat(values[:, k], rows[:, k].astype(int))) for k in range(3)]
    expected = [one[(len(one) - 1) // 2] for one in long]
    assert weighted_median(values, rows).tolist() == expected


def test_a_few_slips_of_a_narrow_column_lie_apart():
    rng = np.random.default_rng(5)
    potassium = rng.normal(4.2, 0.45, 1200)
    slipped = np.arange(0, 1200, 110)
    potassium[slipped] /= 10.0
    assert np.flatnonzero(apart(potassium)).tolist() == slipped.tolist()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_long_tail_on_one_side_hides_no_slips_on_the_other(sign):
    rng = np.random.default_rng(6)
    bmi = 22.0 + 2.1 * rng.gamma(2.0, 1.0, 2000) + 1.6 * rng.standard_normal(2000)
    slipped = np.arange(0, 2000, 220)
    bmi[slipped] /= 10.0
    assert np.flatnonzero(apart(sign * bmi)).tolist() == slipped.tolist()
