"""Arithmetic against three independent accountants, prices against the noise that is drawn, and who pays when."""

import math
from typing import Any

import dp_accounting
import numpy as np
import opendp.prelude as opendp
import pytest
from dp_accounting import pld, rdp
from scipy import stats
from scipy.special import logsumexp

from audit import accounts, reference
from fedbnsl.errors import PlanError
from fedbnsl.privacy import gaussian_dp, zcdp
from fedbnsl.privacy.calibration import LATTICE, SCORE_SENSITIVITY, price_of

COSTS = [(1e-6, 1e-9), (0.001, 1e-6), (0.03, 1e-5), (0.4, 4e-8), (3.0, 0.05), (60.0, 1e-10)]


@pytest.fixture
def contrib() -> Any:
    opendp.enable_features("contrib")
    yield
    opendp.disable_features("contrib")


@pytest.mark.parametrize(("cost", "delta"), COSTS)
def test_epsilon_is_the_best_that_many_orders_find(cost: float, delta: float) -> None:
    found = zcdp.epsilon_of(cost, delta)
    assert found == pytest.approx(reference.epsilon_of(cost, delta), rel=1e-6)
    assert zcdp.epsilon_of(zcdp.budget(found, delta), delta) <= found
    assert zcdp.budget(found, delta) == pytest.approx(cost, rel=1e-6)


@pytest.mark.parametrize(("cost", "delta"), COSTS)
def test_dp_accounting_agrees_on_gaussian_noise(cost: float, delta: float) -> None:
    orders = (1 + np.geomspace(1e-3, 1e5, 4000)).tolist()
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(orders, relation)
    # Four releases that together cost as much.
    accountant.compose(dp_accounting.GaussianDpEvent(zcdp.gaussian_multiplier(cost / 4)), 4)
    assert zcdp.epsilon_of(cost, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


@pytest.mark.parametrize(("cost", "delta"), COSTS)
def test_opendp_agrees_on_the_conversion_and_on_gaussian_noise(cost: float, delta: float, contrib: None) -> None:
    space = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
    scale = 7.0 / math.sqrt(2 * cost)
    measurement = opendp.m.make_gaussian(*space, scale=scale)
    assert zcdp.gaussian_multiplier(measurement.map(7)) == pytest.approx(scale / 7, rel=1e-9)
    profile = opendp.c.make_zCDP_to_approxDP(measurement).map(7)
    assert profile.epsilon(delta) == pytest.approx(zcdp.epsilon_of(cost, delta), rel=1e-4)


@pytest.mark.parametrize("sharpness", [1e-3, 0.2, 3.0])
def test_opendp_agrees_on_both_selections(sharpness: float, contrib: None) -> None:
    space = opendp.vector_domain(opendp.atom_domain(T=float, nan=False)), opendp.linf_distance(T=float)
    gumbel = opendp.m.make_noisy_max(*space, opendp.zero_concentrated_divergence(), scale=1 / sharpness)
    assert zcdp.selection(sharpness) == pytest.approx(gumbel.map(1.0), rel=1e-4)
    assert zcdp.selection(sharpness) >= gumbel.map(1.0)
    laplace = opendp.m.make_noisy_max(*space, opendp.max_divergence(), scale=1 / sharpness)
    assert 2 * sharpness == pytest.approx(laplace.map(1.0), rel=1e-9)
    assert 2 * (LATTICE + 4) / math.ceil(SCORE_SENSITIVITY / sharpness) <= 2 * sharpness


@pytest.mark.parametrize("sharpness", [0.01, 0.5, 2.0])
def test_no_selection_among_few_scores_costs_more_than_its_price(sharpness: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        scores = rng.normal(size=4) * 3 * rng.integers(0, 2)
        moves = rng.choice([-1.0, 1.0], size=4)
        p, q = (sharpness * s - logsumexp(sharpness * s) for s in (scores, scores + moves))
        for order in (1.001, 2.0, 5.0, 30.0):
            divergence = logsumexp(order * p + (1 - order) * q) / (order - 1)
            assert divergence <= zcdp.selection(sharpness) * order * (1 + 1e-9)


@pytest.mark.parametrize(
    ("epsilon", "rounds", "steps", "papers_z", "by_zcdp", "ratio"),
    [
        (0.5, 10, 10, 166.29, 0.846, 0.803),
        (1, 10, 10, 83.74, 0.869, 0.827),
        (2, 100, 10, 134.24, 0.892, 0.845),
        (5, 100, 20, 78.90, 0.922, 0.877),
        (10, 100, 30, 51.09, 0.943, 0.901),
        (25, 100, 30, 23.25, 0.967, 0.931),
        (50, 100, 50, 17.42, 0.980, 0.950),
    ],
)
def test_noise_is_narrower_than_the_papers_by_the_better_conversion_and_by_gaussian_dp(
    epsilon: float, rounds: int, steps: int, papers_z: float, by_zcdp: float, ratio: float
) -> None:
    plan = accounts.private_plan("dp-pgcd", epsilon, rounds, steps, "public")
    assert plan.privacy is not None
    plan = plan.with_settings(privacy={**plan.privacy.model_dump(), "delta": 4e-8})
    z = math.sqrt(price_of(plan, n_samples=5000, n_variables=20).update_variance) / (2 * LATTICE)
    assert z / papers_z == pytest.approx(ratio, abs=0.001)
    z = zcdp.gaussian_multiplier(zcdp.budget(epsilon, 4e-8) / (2 * rounds * steps))
    assert z / papers_z == pytest.approx(by_zcdp, abs=0.001)


EPSILONS = [1e-6, 1e-3, 0.1, 0.5, 1.0, 5.0, 50.0, 1000.0]
DELTAS = [1e-100, 1e-30, 1e-10, 4e-8, 4e-6, 0.05, 0.4]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_gaussian_releases_within_a_budget_keep_their_delta_to_60_digits(epsilon: float) -> None:
    for delta in DELTAS:
        cost = gaussian_dp.budget(epsilon, delta)
        lost = reference.gaussian_delta(math.sqrt(2 * cost), epsilon)
        assert delta * (1 - 1e-6) <= lost <= delta, "rounded down, and none is wasted"
        assert gaussian_dp.epsilon_of(cost, delta) <= epsilon
        assert gaussian_dp.epsilon_of(cost * (1 + 1e-5) ** 2, delta) > epsilon


@pytest.mark.parametrize("units", [1, 10**3, 10**8, 10**11, 10**13, 10**18])
def test_epsilon_of_gaussian_releases_keeps_its_delta_to_60_digits(units: int) -> None:
    for delta in DELTAS:
        mu = math.sqrt(2 * zcdp.zcdp_of(units))
        epsilon = gaussian_dp.epsilon_of(zcdp.zcdp_of(units), delta)
        lost = reference.gaussian_delta(mu, epsilon)
        assert lost <= delta, "rounded up"
        assert epsilon == 0.0 or lost >= delta * (1 - 1e-6)
        assert epsilon <= zcdp.epsilon_of(zcdp.zcdp_of(units), delta), "zCDP knows less"


def test_a_budget_of_gaussian_releases_has_its_known_values() -> None:
    # Balle and Wang 2018: the analytic Gaussian mechanism; for delta alone, 2 Phi(mu / 2) - 1.
    assert zcdp.gaussian_multiplier(gaussian_dp.budget(1.0, 1e-5)) == pytest.approx(3.7306, abs=1e-4)
    for mu in (0.01, 0.3, 1.0):
        delta = 2 * stats.norm.cdf(mu / 2) - 1
        assert gaussian_dp.delta_of(mu, 0.0) == pytest.approx(delta, rel=1e-12)
        assert gaussian_dp.epsilon_of(mu**2 / 2, delta * (1 + 1e-6)) == 0.0
    assert gaussian_dp.epsilon_of(0.0, 1e-6) == 0.0
    assert gaussian_dp.delta_of(0.0, 1.0) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 4e-8), (1.0, 4e-6), (5.0, 1e-5), (10.0, 4e-8)])
@pytest.mark.long
def test_dp_accounting_agrees_on_many_gaussian_releases(epsilon: float, delta: float) -> None:
    """Its privacy loss distributions, which know no closed form: five releases of unequal noise together."""
    cost = gaussian_dp.budget(epsilon, delta)
    # Under REPLACE_ONE this accountant doubles the sensitivity, which our multipliers are already relative to.
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for share in (0.1, 0.15, 0.2, 0.25, 0.3):
        accountant.compose(dp_accounting.GaussianDpEvent(zcdp.gaussian_multiplier(share * cost)))
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=2e-3)
    assert dp_accounting.get_epsilon_gaussian(zcdp.gaussian_multiplier(cost), delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "ratio"),
    [
        (0.5, 4e-8, 0.940),
        (1.0, 4e-8, 0.943),
        (5.0, 4e-8, 0.950),
        (10.0, 4e-8, 0.955),
        (0.5, 4e-6, 0.922),
        (1.0, 4e-6, 0.927),
        (5.0, 4e-6, 0.939),
        (10.0, 4e-6, 0.946),
    ],
)
@pytest.mark.long
def test_noise_of_a_gaussian_plan_is_narrower_than_zcdp_would_have_it(
    epsilon: float, delta: float, ratio: float
) -> None:
    plan = accounts.private_plan("dp-pgcd", epsilon, 1, 1, "estimated").with_settings(rounds=0, moments_rounds=3)
    assert plan.privacy is not None
    plan = plan.with_settings(privacy={**plan.privacy.model_dump(), "delta": delta})
    price = price_of(plan, n_samples=5000, n_variables=20)
    by_zcdp = (math.sqrt(2) * LATTICE + 20) / math.sqrt(2 * 0.8 * reference.budget(epsilon, delta) / 3)
    assert math.sqrt(price.moments_variance) / by_zcdp == pytest.approx(ratio, abs=0.001)


@pytest.mark.long
def test_a_price_covers_the_noise_that_is_drawn_and_no_more_than_the_plan_promises() -> None:
    accounts.check_prices(price_of)


@pytest.mark.long
def test_a_ledger_pays_what_its_cap_allows_by_zcdp_or_for_gaussian_releases_alone() -> None:
    accounts.check_caps()


@pytest.mark.long
def test_a_whole_run_pays_its_price_before_the_table_is_read() -> None:
    accounts.check_whole_runs()


def test_a_task_of_another_kind_than_the_plan_says_is_refused_before_the_table_is_read() -> None:
    accounts.check_order_of_tasks()


def test_advanced_composition_of_the_laplace_plan_stays_within_its_epsilon() -> None:
    for plan in accounts.plans():
        if plan.local_solver != "dp-pgcd-laplace" or plan.privacy is None:
            continue
        price = price_of(plan, n_samples=50, n_variables=3)
        times = plan.rounds * plan.local_steps
        each = [2 * (LATTICE + 4) / math.ceil((LATTICE + 4) / price.sharpness), 2 * LATTICE / price.update_scale]
        setup = reference.epsilon_of(price.setup_units * 1e-12, 5e-7) if price.setup_units else 0.0
        left = 5e-7 if price.setup_units else 1e-6
        squares, drift = sum(times * e * e for e in each), sum(times * e * math.expm1(e) for e in each)
        assert setup + math.sqrt(2 * math.log(1 / left) * squares) + drift <= plan.privacy.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("solver", ["dp-pgcd", "dp-pgcd-laplace"])
def test_a_setup_without_budget_is_refused_and_not_released_without_noise(solver: str) -> None:
    plan = accounts.private_plan(solver, 0.01, 2, 1, "estimated", smoothness_share=1e-14)
    with pytest.raises(PlanError, match="too small"):
        price_of(plan, n_samples=50, n_variables=3)


@pytest.mark.parametrize("setting", ["clip", "row_norm_bound", "second_moments"])
@pytest.mark.parametrize("value", [5e-324, 1e-200, 1e200])
def test_a_scale_at_the_ends_of_floating_point_is_refused(setting: str, value: float) -> None:
    with pytest.raises(PlanError, match=setting):
        accounts.private_plan("dp-pgcd", 1.0, 2, 1, "public", **{setting: [value] if "moments" in setting else value})
