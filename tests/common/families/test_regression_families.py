"""Sums of the families against numerical derivatives and densities that scipy knows."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedbnsl.families.categorical import Categorical
from fedbnsl.families.ordinal import Ordinal
from fedbnsl.families.poisson import Poisson
from fedbnsl.families.profile import Profile, best_intercepts, profile
from fedbnsl.families.regression import Family, Sums
from fedbnsl.protocol.sparse import Index, Matrix

X = np.random.default_rng(0).normal(size=(200, 2))
DRAWN = np.random.default_rng(1).integers(0, 3, 200)


def categorical(y: Index, n_levels: int) -> Family:
    return Categorical(Categorical.totals(y, n_levels))


def ordinal(y: Index, n_levels: int) -> Family:
    return Ordinal(Ordinal.totals(y, n_levels))


CASES: dict[str, tuple[Family, Index, int]] = {
    "two levels": (categorical(DRAWN % 2, 2), DRAWN % 2, 2),
    "three levels": (categorical(DRAWN, 3), DRAWN, 4),
    "without the reference level": (categorical(DRAWN % 2 + 1, 3), DRAWN % 2 + 1, 4),
    "without the level between": (categorical(DRAWN % 2 * 2, 3), DRAWN % 2 * 2, 4),
    "ordered": (ordinal(DRAWN, 3), DRAWN, 2),
    "ordered without the level between": (ordinal(DRAWN % 2 * 2, 3), DRAWN % 2 * 2, 2),
    "counts": (Poisson(Poisson.totals(DRAWN, 0)), DRAWN, 2),
}


def told(case: tuple[Family, Index, int], beta: Matrix) -> Profile:
    family, y, _ = case
    eta = family.predictors(X, beta)
    alpha = best_intercepts(family, lambda a: family.sums(X[:, :0], y, eta, a))
    return profile(family.sums(X, y, eta, alpha), len(alpha))


def slopes(f: Callable[[Matrix], Matrix | float], at: Matrix) -> Matrix:
    h = 1e-5
    return np.array([(f(at + h * e) - f(at - h * e)) / (2 * h) for e in np.eye(len(at))])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradient_and_information_are_the_slopes_of_the_profile_log_likelihood(
    case: tuple[Family, Index, int],
) -> None:
    beta = np.random.default_rng(2).normal(size=case[2])
    found = told(case, beta)
    assert found.gradient == pytest.approx(slopes(lambda b: told(case, b).log_likelihood, beta), abs=1e-6)
    assert found.information == pytest.approx(-slopes(lambda b: told(case, b).gradient, beta), abs=1e-5)


def test_the_log_likelihoods_are_those_of_their_densities() -> None:
    alpha, beta = np.array([0.3]), np.array([0.5, -1.0])
    rate = np.exp(0.3 + X @ beta)
    family, y, _ = CASES["counts"]
    counted = family.sums(X, y, family.predictors(X, beta), alpha)
    constant = stats.poisson.logpmf(y, 1.0).sum() + len(y)  # log y!
    assert counted.log_likelihood + constant == pytest.approx(stats.poisson.logpmf(y, rate).sum())
    assert counted.dispersion == pytest.approx(((y - rate) ** 2 / rate).sum())
    family, y, _ = CASES["two levels"]
    binary = family.sums(X, y, family.predictors(X, beta), alpha)
    assert binary.log_likelihood == pytest.approx(stats.bernoulli.logpmf(y, rate / (1 + rate)).sum())


def test_ordered_levels_have_proportional_odds() -> None:
    family, y, _ = CASES["ordered"]
    alpha, beta = np.array([-0.4, 0.9]), np.array([0.5, -1.0])
    up_to = stats.logistic.cdf(np.array([-np.inf, *alpha, np.inf])[:, None] - X @ beta)
    found = family.sums(X, y, family.predictors(X, beta), alpha).log_likelihood
    assert found == pytest.approx(np.log(up_to[y + 1, np.arange(200)] - up_to[y, np.arange(200)]).sum())


def test_records_with_one_level_or_without_a_count_tell_nothing() -> None:
    assert not categorical(np.ones(9, dtype=np.int64), 2).varies
    assert not Poisson(Poisson.totals(np.zeros(9, dtype=np.int64), 0)).varies


def test_sums_of_blocks_add_up() -> None:
    family, y, q = CASES["three levels"]
    beta, alpha = np.ones(q), np.array([0.1, 0.2])

    def vector(rows: slice) -> Matrix:
        return family.sums(X[rows], y[rows], family.predictors(X[rows], beta), alpha).as_vector()

    whole, parts = vector(slice(None)), vector(slice(0, 70)) + vector(slice(70, 200))
    assert parts == pytest.approx(whole)
    assert Sums.of_vector(whole).as_vector().tolist() == whole.tolist()


def test_a_far_trial_of_counts_has_finite_sums() -> None:
    found = told(CASES["counts"], np.array([1e30, 0.0]))
    assert np.isfinite(found.log_likelihood)
    assert np.isfinite(found.information).all()
