"""A person at several sites: what the noise of a plan keeps of the promise, by the curve of Gaussian DP itself."""

import json
import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE, Price, own_means_sensitivity, price_of, statistics_sensitivity
from fedbnsl.privacy.report import epsilon_at, guarantee_sentence, price_lines, price_summary
from private_site import private_plan

COLUMNS = 15
DELTA = 1e-8


def plan_of(name: str = "private", *, sites: int = 1, sums: bool = True, retries: int = 1) -> Plan:
    settings = [
        f"privacy.sites_per_person={sites}",
        f"privacy.delta={DELTA}",
        f"privacy.secure_aggregation={str(sums).lower()}",
        f"privacy.secure_aggregation_retries={retries}",
    ]
    plan = Plan.load(name, settings, epsilon=1.0)
    ranges = {f"x{k}": {"range": [0.0, 1.0]} for k in range(COLUMNS)}
    return plan.with_settings(dictionary=ranges) if name == "private" else plan


def priced(plan: Plan) -> Price:
    return price_of(plan, n_samples=1000, n_variables=COLUMNS)


def epsilon_of(mu: float) -> float:
    """Dong, Roth, Su 2022, corollary 1, solved for epsilon."""

    def excess(epsilon: float) -> float:
        far = math.exp(epsilon + float(norm.logcdf(-epsilon / mu - mu / 2.0)))
        return float(norm.cdf(-epsilon / mu + mu / 2.0)) - far - DELTA

    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))


def mu_at(plan: Plan, n_sites: int) -> float:
    """From sensitivities and variances of the releases that are sent, or taken for sent, in a run that loses a site."""
    price = priced(plan)
    assert plan.privacy is not None
    prepared, honest = plan.preparation is not None, price.n_honest
    summed = honest > 1
    in_sum, own = (n_sites**2 if summed else n_sites), n_sites
    bound = plan.privacy.residual_norm_bound(COLUMNS)
    if prepared:
        first = own * statistics_sensitivity([1] * COLUMNS) ** 2 / price.setup_variance
    else:
        first = in_sum * COLUMNS * LATTICE**2 / (price.setup_variance * honest)
    moved = math.sqrt(2.0) * LATTICE + COLUMNS + (1 if prepared else 0)
    later = in_sum * moved**2 / (price.moments_variance * honest)
    if prepared and summed:
        later += own * own_means_sensitivity(bound, COLUMNS) ** 2 / price.means_variance
    return math.sqrt(first + price.moments_rounds * later + price.retries * max(first, later))


@pytest.mark.parametrize("name", ["private", "private-moments"])
@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("sites", [1, 2, 3])
def test_the_noise_of_a_plan_keeps_its_epsilon_for_a_person_at_as_many_sites_as_it_says(
    name: str, sums: bool, sites: int
) -> None:
    plan = plan_of(name, sites=sites, sums=sums)
    assert 1.0 - 1e-5 < epsilon_of(mu_at(plan, sites)) <= 1.0, "the whole budget, and no more"
    for at in (1, 2, 3):
        told = epsilon_at(priced(plan), at)
        assert epsilon_of(mu_at(plan, at)) == pytest.approx(told, rel=1e-5)
        assert (told <= 1.0) == (at <= sites)


def test_under_sums_alone_mu_is_as_many_times_as_large_as_sites_and_without_its_root() -> None:
    mu = float(brentq(lambda mu: epsilon_of(mu) - 1.0, 0.01, 1.0))
    for sums, expected in ((True, [1.0, 2.09, 3.23]), (False, [1.0, 1.44, 1.79])):
        price = priced(plan_of("private-moments", sums=sums))
        told = [epsilon_at(price, k) for k in (1, 2, 3)]
        assert told == pytest.approx([epsilon_of(mu * (k if sums else math.sqrt(k))) for k in (1, 2, 3)], rel=1e-5)
        assert [round(one, 2) for one in told] == expected


def test_more_sites_a_person_take_more_noise_and_the_ledger_pays_less_a_record() -> None:
    for sums, factor in ((True, 2.0), (False, math.sqrt(2.0))):
        one, two = priced(plan_of(sums=sums)), priced(plan_of(sums=sums, sites=2))
        assert math.sqrt(two.moments_variance / one.moments_variance) == pytest.approx(factor, rel=1e-6)
        assert two.units < one.units
        assert one.person_units == one.units
        assert two.person_units == pytest.approx(one.units, abs=30), "but for rounding down"


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_rounds_that_are_asked_again_are_paid_for_at_every_site_of_the_person(retries: int) -> None:
    for name in ("private", "private-moments"):
        plan = plan_of(name, sites=3, retries=retries)
        assert 1.0 - 1e-5 < epsilon_of(mu_at(plan, 3)) <= 1.0


@pytest.mark.parametrize("solver", ["dp-pgcd", "noisy-covariance"])
def test_without_sums_every_site_has_its_part_of_the_budget(solver: str) -> None:
    """Steps, too: each site pays the surcharge of its own run."""
    few = {"local_solver": solver, "rounds": 10, "local_steps": 10, "n_participants": 3}
    one, three = (
        price_of(private_plan(**few, privacy={"sites_per_person": k}), n_samples=100, n_variables=5) for k in (1, 3)
    )
    assert one.units - 100 < 3 * three.units == three.person_units <= one.units
    assert three.update_variance == pytest.approx(3 * one.update_variance, rel=1e-6)
    assert three.setup_variance == pytest.approx(3 * one.setup_variance, rel=1e-6)


def test_laplace_noise_composes_over_the_steps_of_all_sites() -> None:
    few = {"local_solver": "dp-pgcd-laplace", "rounds": 10, "local_steps": 10, "n_participants": 3}
    plan = private_plan(**few, privacy={"sites_per_person": 3})
    price = price_of(plan, n_samples=100, n_variables=5)
    each = [2.0 * price.sharpness, 2.0 * LATTICE / price.update_scale] * 300
    squares, drift = sum(e * e for e in each), sum(e * math.expm1(e) for e in each)
    steps = math.sqrt(2.0 * math.log(2.0 / 1e-6) * squares) + drift
    assert plan.privacy is not None
    assert steps == pytest.approx((1.0 - plan.privacy.smoothness_share) * plan.privacy.epsilon, rel=1e-4)


def test_a_person_at_several_sites_has_one_delta_and_no_more_sites_than_there_are() -> None:
    with pytest.raises(PlanError, match=r"delta = 0\.0: must be given with sites_per_person = 2"):
        private_plan(privacy={"sites_per_person": 2, "delta": 0.0})
    with pytest.raises(PlanError, match=r"privacy\.sites_per_person = 3: must be at most n_participants"):
        private_plan(n_participants=2, privacy={"sites_per_person": 3})


def test_one_site_a_person_is_what_plans_of_before_took_for_granted() -> None:
    assert Plan.load("private", ["tell_means=false", "validation=none"]).digest().hex().startswith("7bc84493fd0f"), (
        "as sites have approved it"
    )
    assert len({plan_of(sites=k).digest() for k in (1, 2, 3)}) == 3


@pytest.mark.parametrize("sums", [True, False])
def test_a_price_has_a_table_of_persons_at_one_two_and_three_sites(sums: bool) -> None:
    plan = plan_of(sums=sums, sites=2)
    summary = price_summary(plan, n_samples=1000, n_variables=COLUMNS)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["sites_per_person"] == 2
    assert summary["epsilon_per_person"]["2"] == pytest.approx(1.0, abs=1e-5)
    lines = [line for line in price_lines(summary) if " site: epsilon" in line or " sites" in line]
    assert any("at 2 sites, as the plan says: epsilon 1" in line for line in lines)
    assert any("at 3 sites: epsilon" in line for line in lines)
    assert any("(1.239 without secure aggregation)" in line for line in lines) == sums
    assert "for one replaced record at each of up to 2 sites" in "\n".join(price_lines(summary))


def test_a_price_says_what_many_runs_cost_and_how_often_a_guess_is_right() -> None:
    plan = plan_of(sites=2)
    summary = price_summary(plan, n_samples=1000, n_variables=COLUMNS, runs=12)
    for k in (1, 2, 3):
        after = epsilon_of(mu_at(plan, k) * math.sqrt(12))
        assert summary["epsilon_after_runs"][str(k)] == pytest.approx(after, rel=1e-5)
    assert summary["right_guess"] == pytest.approx(norm.cdf(mu_at(plan, 2) / 2), rel=1e-6)
    told = "\n".join(price_lines(summary))
    assert f"after 12 such runs of the same tables: epsilon {summary['epsilon_after_runs']['1']:.4g} at 1" in told
    assert summary["right_guess_after_runs"] == pytest.approx(norm.cdf(mu_at(plan, 2) * math.sqrt(12) / 2), rel=1e-6)
    alone = priced(plan).share_units / 1e12  # what one site has released, without the noise of the others
    of_all = norm.cdf(math.sqrt(2 * alone * 2 * 12) / 2)  # at two sites, in twelve runs
    assert summary["secure_aggregation"]["right_guess_after_runs"] == pytest.approx(of_all, rel=1e-6)
    assert (
        "all that the coordinator together with any 2 other sites see of a run, guesses the true one at most "
        f"{summary['right_guess']:.1%} of the time; {summary['right_guess_after_runs']:.1%} in 12 runs; together with "
        f"all other sites {of_all:.1%} in 12 runs" in told
    )
    assert "one of 8 in the run (the plan's n_participants)" in told
    assert "against the coordinator together with any 2 other sites; all epsilons below are at this delta" in told
    few = price_lines(price_summary(plan_of(), n_samples=1000, n_variables=COLUMNS))
    assert not any("runs" in line for line in few)
    by_zcdp = private_plan(local_solver="dp-pgcd-laplace")
    assert price_summary(by_zcdp, n_samples=100, n_variables=3)["right_guess"] is None


def test_the_sentence_names_the_unit_the_sites_and_what_a_person_at_one_more_would_lose() -> None:
    one, two = (guarantee_sentence(plan_of(sites=k), COLUMNS, 1000, 5) for k in (1, 2))
    assert "under replacement of one record, over everything that the site released" in one
    assert "A record is a row. The plan takes it that nobody has a record at more than one site" in one
    assert "for a person with a record at 2 sites, epsilon is 1.952 at the same delta." in one
    assert "(epsilon = 1, delta = 1e-08) differential privacy under replacement of one record at each of up to 2" in two
    assert "with a single record, epsilon is 0.5392; with a record at 3 sites, epsilon is 1.471 at the same" in two
    assert "and all sites but those of the person together, epsilon is" in two
    summary = price_summary(plan_of(sites=2), n_samples=1000, n_variables=COLUMNS)
    of_person = f"{summary['secure_aggregation']['epsilon_of_person_against_all_others']:.4g}"
    assert f"of the person together, epsilon is {of_person} at" in two, "the price and the result tell the same"
    told = "\n".join(price_lines(summary))
    assert f"somebody with a record at 2 sites, if all but these collude: epsilon {of_person}" in told
    assert "epsilon       0.5392 for a record here by the optimal conversion" in told, "the plan asks another for two"
