"""Selections counted by Gaussian DP: the lemma, whole runs, and runs that are chosen in view of what was seen.

docs/explanation/selections.md has the proof.
"""

import math

import mpmath
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as losses

from audit import adaptive_runs
from audit.adaptive_runs import Runs
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import gaussian_dp, zcdp
from fedbnsl.privacy.calibration import LATTICE, Price, price_of


def gaussian_delta(mu_squared: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
    """Of a Gaussian mechanism, at an epsilon of any sign."""
    mu = mpmath.sqrt(mu_squared)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def worst_selection(eta: mpmath.mpf, t: mpmath.mpf) -> mpmath.mpf:
    """Probability of the answer with loss t, where the other one has t - eta: both tables' laws then add up to 1."""
    return (mpmath.exp(eta) - mpmath.exp(t)) / mpmath.expm1(eta)


@pytest.mark.parametrize("eta", [1e-3, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("ratio", [1.01, 1.5, 2.0, 10.0, 1000.0])
@pytest.mark.long
def test_a_selection_and_a_gaussian_release_are_dominated_by_one_of_the_lemma(eta: float, ratio: float) -> None:
    """To 60 digits, of which both deltas may share many; also below tau = 2 v, where the map is not increasing."""
    with mpmath.workdps(60):
        v = mpmath.mpf(eta) ** 2 / 4
        tau = v * mpmath.mpf(ratio)
        dominating = tau**2 / (tau - v)
        for t in (mpmath.mpf(eta) * k / 8 for k in range(9)):
            high = worst_selection(mpmath.mpf(eta), t)
            for epsilon in (mpmath.sqrt(tau + v) * k / 2 for k in range(-12, 13)):
                both = high * gaussian_delta(tau, epsilon - t) + (1 - high) * gaussian_delta(tau, epsilon - t + eta)
                assert both <= gaussian_delta(dominating, epsilon)


def test_the_sum_of_the_costs_alone_does_not_dominate() -> None:
    with mpmath.workdps(60):
        v, tau, t = mpmath.mpf(0.25), mpmath.mpf(0.5), mpmath.mpf(0.5)
        high = worst_selection(mpmath.mpf(1), t)
        both = high * gaussian_delta(tau, -t) + (1 - high) * gaussian_delta(tau, 1 - t)
        assert both > gaussian_delta(tau + v, mpmath.mpf(0))


# ---- runs that are chosen by what was seen ---------------------------------------------------------------------------

GAMES = [(0.5, 2, 3.0), (0.5, 3, 2.5), (0.5, 3, 6.0), (0.8, 3, 7.0), (0.8, 30, 5.0), (0.2, 4, 5.25)]


def excess(rule: str, share: float, steps: int, budget: float) -> float:
    runs = Runs(share, steps, lambda k: 0.0)
    return adaptive_runs.largest_excess(adaptive_runs.charged(rule, runs, gaussian_dp.surcharge(share, steps)), budget)


@pytest.mark.parametrize(("share", "steps", "budget"), GAMES)
def test_no_choice_of_runs_tells_more_than_the_budget_if_each_pays_its_surcharge_first(
    share: float, steps: int, budget: float
) -> None:
    """Runs are opened, interleaved with others and with Gaussian releases, and stopped, in view of every answer."""
    assert excess("first", share, steps, budget) <= 1e-9


@pytest.mark.parametrize(
    ("rule", "share", "steps", "budget"),
    [("never", 0.5, 3, 2.5), ("last", 0.5, 3, 2.5), ("last", 0.8, 30, 2.0), ("spread", 0.8, 30, 1.15)],
)
def test_a_surcharge_that_is_left_out_or_comes_late_is_seen(rule: str, share: float, steps: int, budget: float) -> None:
    assert excess(rule, share, steps, budget) > 1e-3


# ---- whole plans, by another accountant ------------------------------------------------------------------------------


def epsilon_by_losses(price: Price, t: float) -> float:
    """Epsilon of the noise of a run without moments rounds, by dp-accounting; each selection with losses t and t - 1.

    t is in units of the range of a selection.
    """
    times, cells = price.rounds * price.local_steps, 20
    eta = 2 * math.sqrt(2 * zcdp.selection(price.sharpness))
    cell, k = eta / cells, round(t * cells)
    high = float(worst_selection(mpmath.mpf(eta), mpmath.mpf(k * cell)))
    one = losses.PrivacyLossDistribution(pld_pmf.SparsePLDPmf({k: high, k - cells: 1 - high}, cell, 0.0, True))
    mu_squared = times * (2 * LATTICE) ** 2 / price.update_variance + 2 * zcdp.zcdp_of(price.setup_units)
    noise = losses.from_gaussian_mechanism(
        1 / math.sqrt(mu_squared), value_discretization_interval=cell, log_mass_truncation_bound=-40
    )
    return float(one.self_compose(times).compose(noise).get_epsilon_for_delta(price.delta))


@pytest.mark.parametrize("rows", [500, 5000])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0, 10.0])
def test_dp_accounting_finds_no_more_than_the_plan_promises_and_hardly_less(epsilon: float, rows: int) -> None:
    price = price_of(Plan.load("private-steps", epsilon=epsilon), n_samples=rows, n_variables=20)
    assert price.gaussian
    worst = max(epsilon_by_losses(price, t) for t in (0.25, 0.5, 0.75))
    assert 0.99 * epsilon <= worst <= epsilon * (1 + 1e-4)  # it rounds losses up
