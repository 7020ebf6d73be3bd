"""The bound of a one-run audit holds of an ideal Gaussian mechanism, and refutes a claim that is half of the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index
from fedbnsl_research.bench.one_run import is_refuted, least_mu
from fedbnsl_research.bench.privacy_audit import audited

M, GUESSES, RUNS = 4000, 200, 300


def guessed_right(mu: float, made: int) -> Index:
    """(RUNS,) right guesses: each coin moves a noisy number by mu, and is guessed by its sign where it is largest."""
    drawn = np.random.default_rng(1)
    told = mu * drawn.choice([-0.5, 0.5], (RUNS, M))
    noisy = told + drawn.standard_normal(told.shape)
    sure = np.argsort(-np.abs(noisy), axis=1)[:, :made]
    return np.asarray((np.take_along_axis(noisy * told, sure, axis=1) > 0.0).sum(axis=1))


def critical(mu: float, *, n_guesses: int) -> int:
    """The fewest right guesses that refute mu."""
    low, high = n_guesses // 2, n_guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        refuted = is_refuted(mu, n_right=middle, n_guesses=n_guesses, n_canaries=M)
        low, high = (low, middle) if refuted else (middle, high)
    return high


@pytest.mark.parametrize("made", [M, GUESSES], ids=["all are guessed", "the surest are guessed"])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_true_claim_is_refuted_no_more_often_than_the_level(mu: float, made: int) -> None:
    right = guessed_right(mu, made)
    assert (right >= critical(mu, n_guesses=made)).mean() <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / RUNS)


@pytest.mark.parametrize("mu", [1.0, 1.5, 2.0])
def test_a_claim_of_half_the_truth_is_refuted(mu: float) -> None:
    """What is twice as much noise as there is."""
    assert (guessed_right(mu, GUESSES) >= critical(mu / 2.0, n_guesses=GUESSES)).mean() > 0.95


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("m", [1, 2, 7, 40])
def test_no_number_of_right_guesses_has_a_larger_chance_under_independent_coins(mu: float, m: int) -> None:
    """The chance of an ideal mechanism is binomial, and so never refuted at its own level."""
    for c in range(1, m + 1):
        chance = float(stats.binom.sf(c - 1, m, stats.norm.cdf(mu / 2.0)))
        assert not is_refuted(mu, n_right=c, n_guesses=m, n_canaries=m, level=chance * (1.0 - 1e-9))


@pytest.mark.parametrize(("m", "c"), [(5, 4), (12, 9), (30, 18)])
def test_without_any_information_the_bound_is_a_binomial_distribution_below_what_was_right(m: int, c: int) -> None:
    """With mu = 0, and p_c = chance: (m - c + 1) p_(c-1) = (2 c - m) p_c, and (i + 1) p_(i+1) = (m - i) p_i below."""
    below = sum(math.comb(m, i) for i in range(c)) / math.comb(m, c - 1)
    chance = 1.0 / (1.0 + (2 * c - m) / (m - c + 1) * below)
    for factor, refuted in ((0.999, False), (1.001, True)):
        for n_canaries in (m, 3 * m):  # of which those that are not guessed tell nothing
            found = is_refuted(0.0, n_right=c, n_guesses=m, n_canaries=n_canaries, level=factor * chance)
            assert found == refuted


def test_the_least_mu_is_where_refutation_ends() -> None:
    guessed = {"n_right": 180, "n_guesses": GUESSES, "n_canaries": M}
    mu = least_mu(**guessed)
    assert mu > 0.3
    assert is_refuted(mu - 1e-6, **guessed)
    assert not is_refuted(mu + 1e-6, **guessed)
    assert least_mu(n_right=M // 2, n_guesses=M, n_canaries=M) == 0.0


def test_released_moments_keep_their_claim_and_a_quarter_of_the_variance_is_flagged() -> None:
    """By chance, a true claim is refuted in less than one of 20 runs, and the planted fault is missed in less."""
    plan = Plan.load("private-moments", epsilon=5.0)
    kept, planted = (audited(plan, d=100, n_rows=6000, what="", divisor=divisor) for divisor in (1, 4))
    assert not kept["claim refuted at 5 %"]
    assert planted["claim refuted at 5 %"]
    assert planted["right"] > kept["right"] > kept["guessed"] / 2
