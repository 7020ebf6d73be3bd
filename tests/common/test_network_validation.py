"""Scores of a network from sums over rows: sites add up, and they are those of scikit-learn, SciPy and statsmodels."""

import functools
import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as statsmodels
from sklearn.metrics import r2_score, roc_auc_score
from statsmodels.miscmodels.ordinal_model import OrderedModel

from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Bend, Count, Family, Grade, Levels, Number, Table
from fedbnsl.network.own_means import with_own_mean
from fedbnsl.network.sums import Sums
from fedbnsl.network.validation import histogram, levels_of, nothing, sizes, sums_of
from fedbnsl.network.validation_scores import scores_of

NONE = np.array([], dtype=np.int64)
ROOT = Number(0, NONE, np.array([]), 1e4, 2.0)
LINE = Number(1, np.array([0]), np.array([0.5]), -5e3, 1.0)
BENT = Number(
    1, NONE, np.array([]), 1.0, 0.7, bends=(Bend(0, np.array([9998.0, 1e4, 10002.0]), np.array([3.0, 0.0, 1.0])),)
)
WITHIN = Number(1, np.array([0]), np.array([0.5]), -5e3, 1.0, -1.0, 1.5)
GRADE = Grade(1, np.array([0]), np.array([0.7]), -7000.0, np.array([-1.0, 0.5, 2.0]), 0.8)
RATES = Count(1, np.array([0]), np.array([0.3]), -2999.6, "log1p", by_rates=True, size=2.5)
POISSON = Count(1, np.array([0]), np.array([0.3]), -2999.0, "none", by_rates=True, size=np.inf, low=0.0, high=60.0)
YES = Levels(np.array([1]), np.array([0]), np.array([[0.7]]), np.array([-7001.0]), by_odds=True)
THREE = Levels(np.array([1, 2]), np.array([0]), np.array([[0.7, -0.4]]), np.array([-7001.0, 4000.0]), by_odds=True)
CENTRES = np.array([1e4, 0.0, 0.0])
FAMILIES: dict[str, Family] = {
    "line": LINE,
    "bent": BENT,
    "within": WITHIN,
    "grade": GRADE,
    "rates": RATES,
    "poisson": POISSON,
    "yes": YES,
    "three": THREE,
}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def network(family: Family) -> BayesianNetwork:
    return BayesianNetwork(3, {"root": ROOT, "child": family})


def rows(family: Family, n: int = 5000, seed: int = 1) -> np.ndarray:
    return network(family).sample(n, np.random.default_rng(seed))


def scores(family: Family, X: np.ndarray, name: str = "child") -> dict[str, Any]:
    used = network(family)
    return scores_of(used.families[name], [sums_of(used, X, CENTRES)[name]], CENTRES[used.families[name].columns[0]])


@each_family
def test_sums_of_sites_are_those_of_all_rows(family: Family) -> None:
    X = rows(family)
    X[::7, 0] = np.nan
    X[3::11, family.columns] = np.nan
    told = [sums_of(network(family), part, CENTRES)["child"] for part in np.split(X, [500, 1800])]
    whole = sums_of(network(family), X, CENTRES)["child"]
    added = functools.reduce(operator.add, told, nothing(family))
    lacks, has = np.isnan(X[:, 0]), ~np.isnan(X[:, 1])
    assert (added.rows, added.left_out) == (whole.rows, whole.left_out) == ((has & ~lacks).sum(), (has & lacks).sum())
    np.testing.assert_array_equal(added.counts, whole.counts)
    np.testing.assert_allclose(added.numbers, whole.numbers, rtol=1e-9)
    assert added.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-12)
    assert added.own is not None
    assert whole.own is not None
    assert added.own >= whole.own > whole.log_likelihood
    assert (added.counts.size, added.numbers.size) == sizes(family)


@each_family
def test_log_likelihoods_are_those_of_the_rows(family: Family) -> None:
    X = rows(family)
    assert scores(family, X)["log_likelihood"] == pytest.approx(family.log_density(X).mean(), rel=1e-12)
    wrong = scores(family, X, "root")
    assert wrong["own"] == pytest.approx(scipy.stats.norm.logpdf(X[:, 0], X[:, 0].mean(), X[:, 0].std()).mean())
    assert wrong["own"] == pytest.approx(wrong["of_independence"], rel=1e-7)  # no parents: the same fit


@each_family
def test_a_right_network_is_near_the_best_fit_and_better_than_none(family: Family) -> None:
    told = scores(family, rows(family, 20_000))
    assert told["of_independence"] < told["log_likelihood"] - 0.02
    # Twice the gain of a fit over the truth is chi-squared, with as many degrees of freedom as coefficients.
    assert 0.0 <= 2.0 * 20_000 * (told["own"] - told["log_likelihood"]) < scipy.stats.chi2.ppf(0.9999, 4)


@pytest.mark.parametrize("family", [LINE, BENT, WITHIN], ids=["line", "bent", "within"])
def test_r_squared_and_intervals_are_those_of_the_rows(family: Number) -> None:
    X = rows(family)
    told = scores(family, X)
    assert told["r2"] == pytest.approx(r2_score(X[:, 1], family.mean(X)[:, 0]), abs=1e-9)
    a, b = ((end - family.location(X)) / family.noise_std for end in (family.low, family.high))
    law = scipy.stats.truncnorm(a, b, family.location(X), family.noise_std)
    low, high = law.ppf(0.025), law.ppf(0.975)
    assert told["within"] == ((X[:, 1] > low) & (X[:, 1] < high)).mean()
    np.testing.assert_allclose(told["pit"], np.histogram(law.cdf(X[:, 1]), 10, (0.0, 1.0))[0] / len(X))
    np.testing.assert_allclose(told["pit"], 0.1, atol=5 * np.sqrt(0.09 / len(X)))


def test_own_fits_of_numbers_are_least_squares_and_truncated_ones_are_better() -> None:
    X = rows(LINE)
    found = statsmodels.OLS(X[:, 1], statsmodels.add_constant(X[:, 0] - 1e4)).fit()
    assert scores(LINE, X)["own"] == pytest.approx(found.llf / len(X), rel=1e-9)
    X = rows(WITHIN, 50_000)
    told = scores(WITHIN, X)
    fitted = statsmodels.OLS(X[:, 1], statsmodels.add_constant(X[:, 0] - 1e4)).fit()
    assert told["own"] > fitted.llf / len(X) + 0.05
    assert told["own"] == pytest.approx(told["log_likelihood"], abs=1e-4)


def test_own_fits_of_levels_are_logistic_regressions() -> None:
    X = rows(YES)
    by = statsmodels.add_constant(X[:, 0] - 1e4)
    assert scores(YES, X)["own"] == pytest.approx(statsmodels.Logit(X[:, 1], by).fit(disp=0).llf / len(X), rel=1e-8)
    X = rows(THREE)
    by, y = statsmodels.add_constant(X[:, 0] - 1e4), X[:, 1] + 2 * X[:, 2]
    assert scores(THREE, X)["own"] == pytest.approx(statsmodels.MNLogit(y, by).fit(disp=0).llf / len(X), rel=1e-8)


def test_own_fits_of_grades_have_proportional_odds() -> None:
    X = rows(GRADE)
    found = OrderedModel(X[:, 1], X[:, [0]] - 1e4, distr="logit").fit(method="bfgs", disp=0)
    assert scores(GRADE, X)["own"] == pytest.approx(found.llf / len(X), rel=1e-6)


def test_own_fits_of_counts_are_negative_binomial_regressions() -> None:
    X = rows(RATES)
    k, by = np.rint(np.expm1(X[:, 1])), statsmodels.add_constant(X[:, 0] - 1e4)
    told = scores(RATES, X)
    found = statsmodels.NegativeBinomial(k, by).fit(disp=0)
    assert told["own"] == pytest.approx(found.llf / len(X), rel=1e-6)
    alone = statsmodels.NegativeBinomial(k, np.ones(len(k))).fit(disp=0)
    assert told["of_independence"] == pytest.approx(alone.llf / len(X), rel=2e-4)
    X = rows(POISSON)
    rate = X[:, 1].mean()
    assert scores(POISSON, X)["of_independence"] >= scipy.stats.poisson(rate).logpmf(X[:, 1]).mean() - 1e-9


def test_counts_fall_evenly_into_the_bins_of_the_probability_integral_transform() -> None:
    X = rows(RATES, 20_000)
    told = scores(RATES, X)
    np.testing.assert_allclose(told["pit"], 0.1, atol=5 * np.sqrt(0.09 / len(X)))
    law = scipy.stats.nbinom(2.5, 2.5 / (2.5 + RATES.rates(RATES.location(X))))
    k = np.rint(np.expm1(X[:, 1]))
    assert told["within"] == ((k >= law.ppf(0.025)) & (k <= law.ppf(0.975))).mean()
    assert told["r2"] == pytest.approx(r2_score(X[:, 1], RATES.mean(X)[:, 0]), abs=1e-9)


def test_separated_levels_have_a_likelihood_of_almost_one() -> None:
    X = np.zeros((200, 3))
    X[:, 0] = 1e4 + np.linspace(-1.0, 1.0, 200)
    X[:, 1] = X[:, 0] > 1e4
    assert -1e-3 < scores(YES, X)["own"] <= 0.0


def test_the_area_under_the_curve_lies_within_its_error_and_hardly_off() -> None:
    X = rows(YES)
    told, exact = scores(YES, X), roc_auc_score(X[:, 1], YES.mean(X)[:, 0])
    assert abs(told["auc"] - exact) < 0.002
    assert abs(told["auc"] - exact) <= told["auc_error"] < 0.02


def test_rows_that_share_a_probability_count_as_half_ordered() -> None:
    X = rows(YES, 400)
    X[:, 0] = 1e4 + (X[:, 0] > 1e4)
    X[:, 1] = np.random.default_rng(4).random(400) < YES.mean(X)[:, 0]
    told = scores(YES, X)
    assert told["auc"] == pytest.approx(roc_auc_score(X[:, 1], X[:, 0]))
    tied = sum(
        p * (1 - p) * n**2 for n, p in ((len(y), y.mean()) for y in (X[X[:, 0] == x, 1] for x in (1e4, 1e4 + 1)))
    )
    assert told["auc_error"] == pytest.approx(tied / 2 / (X[:, 1].sum() * (1 - X[:, 1]).sum()))


def test_scores_do_not_hang_on_what_sums_are_taken_about() -> None:
    X, used = rows(WITHIN), network(WITHIN)
    one, other = (scores_of(WITHIN, [sums_of(used, X, np.full(3, centre))["child"]], centre) for centre in (0.0, 0.9))
    assert one["of_independence"] == pytest.approx(other["of_independence"], rel=1e-6)
    assert one["r2"] == pytest.approx(other["r2"])


def test_calibration_is_that_of_the_rows() -> None:
    X = rows(YES)
    p, told = YES.mean(X)[:, 0], scores(YES, X)["calibration"]
    bins = np.minimum((p * 10).astype(int), 9)
    expected = [(int((bins == k).sum()), p[bins == k].mean(), X[bins == k, 1].mean()) for k in np.unique(bins)]
    assert [tuple(one.values()) for one in told] == [pytest.approx(one) for one in expected]
    error = sum(one["forecasts"] * abs(one["predicted"] - one["came_true"]) for one in told) / len(X)
    assert scores(YES, X)["calibration_error"] == pytest.approx(error)
    P = THREE.probabilities(rows(THREE))
    three = scores(THREE, rows(THREE))["calibration"]
    assert sum(one["forecasts"] for one in three) == 3 * 5000
    assert sum(one["forecasts"] * one["predicted"] for one in three) == pytest.approx(P.sum())
    assert sum(one["forecasts"] * one["came_true"] for one in three) == pytest.approx(5000)


@pytest.mark.parametrize(
    "family",
    [replace(POISSON, low=3.0, high=9.0), replace(RATES, low=2.0, high=4.0), replace(WITHIN, intercept=-4990.0)],
    ids=["poisson", "rates", "far beyond its range"],
)
def test_within_a_range_the_probability_integral_transform_is_even_and_no_fit_is_worse(family: Number | Count) -> None:
    told = scores(family, rows(family, 20_000))
    np.testing.assert_allclose(told["pit"], 0.1, atol=5 * np.sqrt(0.09 / 20_000))
    assert told["own"] >= told["log_likelihood"]


def test_a_wrong_network_is_found_out() -> None:
    X = rows(LINE)
    narrow = Number(1, np.array([0]), np.array([0.5]), -5e3, 0.5)
    told = scores(narrow, X)
    assert told["within"] < 0.75
    assert told["pit"][0] > 0.15
    assert told["log_likelihood"] < told["own"] - 0.5
    # Not even the mean of all rows: R^2 below 0.
    assert scores(Number(1, np.array([0]), np.array([-0.5]), 5e3, 1.0), X)["r2"] < -1.0


def test_tables_count_their_rows() -> None:
    parent = Levels(np.array([0]), NONE, np.empty((0, 1)), np.array([0.3]), by_odds=True)
    table = Table(np.array([1, 2]), 3, ((np.array([0]), 2),), np.array([[0.2, 0.3, 0.5], [0.7, 0.3, 0.0]]))
    used = BayesianNetwork(3, {"parent": parent, "child": table})
    X = used.sample(4000, np.random.default_rng(3))
    told = scores_of(table, [sums_of(used, X, np.zeros(3))["child"]], 0.0)
    level = X[:, 1] + 2 * X[:, 2]
    counts = np.array([[((X[:, 0] == a) & (level == k)).sum() for k in range(3)] for a in range(2)])
    shares = np.maximum(counts / counts.sum(axis=1, keepdims=True), 1e-300)
    assert told["own"] == pytest.approx((counts * np.log(shares)).sum() / 4000)
    np.testing.assert_allclose(told["levels"], counts.sum(axis=0) / 4000)
    impossible = np.array([[1.0, 0.0, 1.0]])  # the network gives it no probability: one row is not all there is to say
    both = scores_of(table, [sums_of(used, np.vstack([X, impossible]), np.zeros(3))["child"]], 0.0)
    assert both["log_likelihood"] * 4001 == pytest.approx(told["log_likelihood"] * 4000 + np.log(1e-12))


@each_family
def test_of_no_row_or_of_too_few_nothing_is_made_up(family: Family) -> None:
    assert scores(family, np.full((5, 3), np.nan)) == {"rows": 0, "left_out": 0}
    X = rows(family, 50)[:1]
    assert scores(family, X)["own"] is None
    lacking = X.copy()
    lacking[0, 0] = np.nan
    assert scores(family, lacking) == {"rows": 0, "left_out": 1}


def test_an_own_fit_is_told_of_several_sites_if_all_that_have_rows_have_one() -> None:
    X = rows(LINE, 100)
    whole, few, none = (sums_of(network(LINE), part, CENTRES)["child"] for part in (X, X[:1], X[:0]))
    assert (whole + none).own == whole.own
    assert (whole + few).own is None
    assert isinstance(whole + none + whole, Sums)


def shifted(family: Family, n: int = 20_000) -> tuple[Family, np.ndarray]:
    """Rows of a site that lies higher, and the family that they are of."""
    if isinstance(family, Levels):
        other: Family = replace(family, intercepts=family.intercepts + np.array([0.8, -0.6])[: len(family.columns)])
    else:
        other = replace(family, intercept=family.intercept + 0.9)
    return other, network(other).sample(n, np.random.default_rng(9))


@each_family
def test_with_its_own_means_a_site_that_lies_higher_is_described_as_well(family: Family) -> None:
    right, X = shifted(family)
    told = sums_of(network(family), X, CENTRES, own_means=True)["child"]
    assert told.log_likelihood == pytest.approx(right.log_density(X).sum(), rel=2e-3)
    assert told.log_likelihood > family.log_density(X).sum() + 100.0
    found = with_own_mean(family, X)
    if isinstance(family, Count):
        assert found.rates(found.location(X)).mean() == pytest.approx(family.counts(X).mean())  # type: ignore[attr-defined]
    else:
        np.testing.assert_allclose(found.mean(X).mean(axis=0), X[:, family.columns].mean(axis=0), rtol=1e-6)


def test_where_sites_have_own_means_scores_compare_rows_within_them() -> None:
    used, sites = network(LINE), [rows(LINE, 800), rows(LINE, 500, seed=2)]
    sites[1][:, 1] += 5.0
    told = [sums_of(used, X, CENTRES, own_means=True)["child"] for X in sites]
    found = scores_of(LINE, told, 0.0, own_means=True)
    centred = np.concatenate([X[:, 1] - X[:, 1].mean() for X in sites])
    predicted = np.concatenate([0.5 * (X[:, 0] - X[:, 0].mean()) for X in sites])
    assert found["r2"] == pytest.approx(r2_score(centred, predicted), abs=1e-9)
    alone = sum(scipy.stats.norm.logpdf(X[:, 1], X[:, 1].mean(), X[:, 1].std()).sum() for X in sites)
    assert found["of_independence"] == pytest.approx(alone / 1300)
    empty, constant = (sums_of(used, X, CENTRES, own_means=True)["child"] for X in (sites[0][:0], sites[0][:1]))
    assert scores_of(LINE, [*told, empty], 0.0, own_means=True) == found
    assert scores_of(LINE, [*told, constant], 0.0, own_means=True)["of_independence"] is None
    sites = [rows(YES, 800), rows(YES, 500, seed=2)]
    sites[1][:, 0] += 3.0
    told = [sums_of(network(YES), X, CENTRES, own_means=True)["child"] for X in sites]
    pairs = [X[:, 1].sum() * (1 - X[:, 1]).sum() for X in sites]
    by_site = [roc_auc_score(X[:, 1], X[:, 0]) for X in sites]
    found = scores_of(YES, told, 0.0, own_means=True)
    assert found["auc"] == pytest.approx(np.average(by_site, weights=pairs), abs=0.002)


def test_a_level_that_a_site_does_not_have_is_almost_impossible_there() -> None:
    X = rows(THREE, 500)
    X = X[X[:, 1] + X[:, 2] > 0.0]  # the first level occurs nowhere
    P = with_own_mean(THREE, X).probabilities(X)  # type: ignore[attr-defined]
    np.testing.assert_allclose(P.mean(axis=0), [0.0, X[:, 1].mean(), X[:, 2].mean()], atol=1e-9)
    one = X[X[:, 1] == 1.0]
    assert (with_own_mean(THREE, one).probabilities(one)[:, 1] > 1.0 - 1e-9).all()  # type: ignore[attr-defined]


def test_a_value_with_a_probability_is_spread_over_it() -> None:
    found = histogram(np.array([0.05, 0.3, 0.99]), np.array([0.25, 0.3, 1.0]))
    np.testing.assert_allclose(found, [0.25, 0.5, 0.25, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


def test_numbers_have_no_levels() -> None:
    assert [levels_of(one) for one in (LINE, RATES, GRADE, YES, THREE)] == [0, 0, 4, 2, 3]
