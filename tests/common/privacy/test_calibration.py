"""What a private run costs: from the plan and public counts alone, whole units, never more than the plan allows."""

import inspect
import json
import math
from dataclasses import replace

import pytest

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.settings import PRIVATE_SOLVERS
from fedbnsl.privacy import gaussian_dp, zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import guarantee_sentence, price_lines, price_summary
from fedbnsl.rounds.kinds import n_rounds
from private_site import private_plan

every_solver = pytest.mark.parametrize("solver", PRIVATE_SOLVERS)
UNITS = 10**12


def plan_of(solver: str = "dp-pgcd", epsilon: float = 1.0, **settings: object) -> Plan:
    given = {"rounds": 10, "local_steps": 10, **settings}
    return private_plan(local_solver=solver, privacy={"epsilon": epsilon}, **given)


def test_a_price_is_asked_of_nothing_but_the_plan_and_counts() -> None:
    assert list(inspect.signature(price_of).parameters) == ["plan", "n_samples", "n_variables", "n_squares"]
    plan = plan_of()
    prices = [price_of(plan, n_samples=n, n_variables=5) for n in (10, 100, 10**6)]
    assert [price.n_samples for price in prices] == [10, 100, 10**6]
    assert len({replace(price, n_samples=0) for price in prices}) == 1, "with a delta in the plan, not even rows matter"


def test_without_a_delta_each_site_has_one_over_the_square_of_its_rows() -> None:
    plan = private_plan(privacy={"delta": 0.0})
    assert price_of(plan, n_samples=1000, n_variables=3).delta == 1e-6
    assert price_of(plan, n_samples=100, n_variables=3).delta == pytest.approx(1e-4)


@every_solver
def test_a_larger_epsilon_buys_more_zcdp_and_less_noise(solver: str) -> None:
    small, large = (price_of(plan_of(solver, e), n_samples=100, n_variables=5) for e in (1.0, 2.0))
    assert large.units > small.units
    for noise in ("setup_variance", "update_variance", "update_scale"):
        assert getattr(large, noise) < getattr(small, noise) or getattr(small, noise) == 0


@pytest.mark.parametrize("solver", ["dp-pgcd", "dp-pgcd-laplace"])
@pytest.mark.parametrize("more", [{"rounds": 40}, {"local_steps": 40}])
def test_more_steps_share_the_same_budget(solver: str, more: dict[str, int]) -> None:
    few, many = (price_of(p, n_samples=100, n_variables=5) for p in (plan_of(solver), plan_of(solver, **more)))
    assert many.update_variance + many.update_scale > few.update_variance + few.update_scale
    assert many.sharpness < few.sharpness


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("rounds", [1, 3, 7, 99])
def test_the_units_of_all_rounds_never_add_up_to_more_than_the_plan_asks_for(epsilon: float, rounds: int) -> None:
    price = price_of(plan_of(epsilon=epsilon, rounds=rounds), n_samples=100, n_variables=5)
    assert sum(price.units_of(t) for t in range(rounds + 1)) + price.surcharge_units == price.units
    accountant = gaussian_dp if price.gaussian else zcdp
    assert accountant.epsilon_of(price.units / UNITS, 1e-6) <= epsilon
    assert accountant.epsilon_of((price.units + rounds + 5) / UNITS, 1e-6) > epsilon * (1 - 1e-6), "nor to much less"
    each = (2 * 2**20) ** 2 / (2 * price.update_variance) + zcdp.selection(price.sharpness)
    assert math.ceil(10 * each * UNITS) <= price.round_units + 1, "a round's noise costs no more than its units"


@pytest.mark.parametrize("bits", range(0, 60, 7))
def test_a_budget_becomes_units_by_rounding_down(bits: int) -> None:
    amount = math.pi * 2.0**-bits
    units = zcdp.units_within(amount)
    assert zcdp.zcdp_of(units) <= amount < zcdp.zcdp_of(units + 1)


def test_epsilon_grows_with_zcdp_and_falls_with_delta() -> None:
    epsilons = [zcdp.epsilon_of(x, 1e-6) for x in (0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0.0
    assert zcdp.epsilon_of(0.1, 1e-4) < zcdp.epsilon_of(0.1, 1e-8)
    assert zcdp.epsilon_of(0.1, 1e-6) < zcdp.epsilon_as_in_the_paper(0.1, 1e-6)


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_plan_without_privacy_has_no_price() -> None:
    with pytest.raises(PlanError, match=r"the plan has no \[privacy\]"):
        price_of(Plan(), n_samples=100, n_variables=5)


@pytest.mark.parametrize(("delta", "rows"), [(0.5, 100), (0.9, 100), (0.0, 1)])
def test_a_delta_of_one_half_or_more_protects_nobody(delta: float, rows: int) -> None:
    with pytest.raises(PlanError, match=rf"privacy\.delta = .* for a site of {rows} rows: must be below 0\.5"):
        price_of(private_plan(privacy={"delta": delta}), n_samples=rows, n_variables=3)


def test_a_budget_that_cannot_be_split_is_refused() -> None:
    plan = private_plan(rounds=100_000, local_steps=10_000, privacy={"epsilon": 1e-6})
    with pytest.raises(PlanError, match="too small for 100000 rounds of 10000 steps"):
        price_of(plan, n_samples=100, n_variables=3)


# ---- in words ------------------------------------------------------------------------------------------------------


@every_solver
def test_a_summary_is_strict_json_and_says_what_the_price_says(solver: str) -> None:
    plan = plan_of(solver)
    summary = price_summary(plan, n_samples=100, n_variables=5)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    price = price_of(plan, n_samples=100, n_variables=5)
    assert summary["zcdp"]["total"] == price.units / UNITS
    assert summary["guarantee"] is True
    text = "\n".join(price_lines(summary))
    assert solver in text
    assert "epsilon 1, delta 1e-06" in text


def test_the_sentence_names_epsilon_delta_neighbours_and_what_was_released() -> None:
    sentence = guarantee_sentence(plan_of(epsilon=2.5), 5, 100, 7)
    for part in (
        "(epsilon = 2.5, delta = 1e-06)",
        "replacement of one record",
        "5 noisy second moments",
        "at most 7 rounds x 10 steps",
    ):
        assert part in sentence
    first, _, rest = sentence.partition(" steps, each one selected coordinate and its noisy gradient. ")
    assert ". " not in first
    assert rest.startswith("A record is a row. ")


def test_no_sentence_is_said_where_nothing_is_guaranteed() -> None:
    for plan in (Plan(), private_plan(privacy={"smoothness": "exact"})):
        with pytest.raises(PlanError, match="no privacy guarantee"):
            guarantee_sentence(plan, 5, 100, 1)
    assert any(
        "NO GUARANTEE" in line
        for line in price_lines(
            price_summary(private_plan(privacy={"smoothness": "exact"}), n_samples=100, n_variables=3)
        )
    )


# ---- counted by Gaussian differential privacy ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "gaussian"),
    [
        (plan_of(rounds=0, moments_rounds=3), True),
        (plan_of("noisy-covariance"), True),
        (plan_of(rounds=1, local_steps=1), False),
        (plan_of(rounds=2, local_steps=2, moments_rounds=3), False),
        (plan_of("dp-pgcd-laplace"), False),
    ],
)
def test_a_plan_whose_releases_are_gaussian_is_counted_as_such(plan: Plan, gaussian: bool) -> None:
    price = price_of(plan, n_samples=100, n_variables=5)
    assert price.gaussian == gaussian
    summary = price_summary(plan, n_samples=100, n_variables=5)
    assert summary["accounting"] == ("Gaussian" if gaussian else "zCDP")
    [line] = [line for line in price_lines(summary) if line.startswith("accounting")]
    assert ("as every release is Gaussian" in line) == gaussian
    if gaussian:
        of_the_budgets = math.sqrt(zcdp.budget(1.0, 1e-6) / gaussian_dp.budget(1.0, 1e-6))
        assert summary["noise_relative_to_zcdp"] == pytest.approx(of_the_budgets) == pytest.approx(0.9324, abs=1e-4)
        assert f"{of_the_budgets:.3f} times the noise that zCDP would ask for" in line
        assert summary["epsilon"] == pytest.approx(1.0, rel=1e-6)
        assert summary["epsilon_by_zcdp"] == zcdp.epsilon_of(price.units / UNITS, 1e-6) > 1.05
        assert gaussian_dp.epsilon_of(price.units / UNITS, 1e-6) <= 1.0
    else:
        assert summary["noise_relative_to_zcdp"] == 1.0
        assert ("zCDP: not every release is Gaussian" in line) == (plan.local_solver == "dp-pgcd-laplace")


@pytest.mark.parametrize("share", [0.05, 0.35, 0.6, 0.95])
@pytest.mark.parametrize("steps", [1, 2, 7, 100, 3000, 20_000])
def test_a_surcharge_pays_for_every_step_from_the_last_to_the_first(share: float, steps: int) -> None:
    mu_squared = max(3.0 * share - 1.0, 0.0)  # of the release after the end
    for _ in range(steps):
        mu_squared += 1.0 - share
        assert mu_squared >= 2.0 * share * (1 - 1e-12), "from here on the map is increasing"
        mu_squared *= mu_squared / (mu_squared - share)
    found = gaussian_dp.surcharge(share, steps)
    assert mu_squared - steps - 1e-9 <= found <= mu_squared - steps + 2e-4


@pytest.mark.parametrize(("share", "fewest"), [(0.05, 1), (0.35, 4), (0.5, 10), (0.7, 20), (0.9, 31)])
def test_steps_are_counted_by_gaussian_dp_unless_they_are_so_few_that_zcdp_asks_for_less_noise(
    share: float, fewest: int
) -> None:
    for steps in {1, fewest - 1, fewest, 10 * fewest} - {0}:
        given = {"epsilon": 1.0, "selection_share": share, "smoothness": "public", "second_moments": [2.0]}
        plan = private_plan(rounds=1, local_steps=steps, privacy=given)
        price = price_of(plan, n_samples=100, n_variables=5)
        assert price.gaussian == (steps >= fewest)
        assert (price.surcharge_units > 0) == price.gaussian
        noise = price_summary(plan, n_samples=100, n_variables=5)["noise_relative_to_zcdp"]
        assert noise == pytest.approx(math.sqrt(zcdp.budget(1.0, 1e-6) * UNITS / price.round_units))
        assert noise <= 1.0


def test_the_surcharge_is_told_and_is_in_the_price_once() -> None:
    price = price_of(plan_of(moments_rounds=2), n_samples=100, n_variables=5)
    rounds = range(price.last_round + 1)
    assert price.units == sum(map(price.units_of, rounds)) + price.surcharge_units == price.share_units
    assert price.step_rounds == range(1, 11)
    assert price.surcharge_of(rounds) == price.surcharge_of([10]) == price.surcharge_units > 0
    assert price.surcharge_of([0, 11, 12, 13]) == 0
    summary = price_summary(plan_of(moments_rounds=2), n_samples=100, n_variables=5)
    assert summary["zcdp"]["surcharge"] == price.surcharge_units / UNITS
    text = "\n".join(price_lines(summary))
    assert f"{summary['zcdp']['surcharge']:.4g} as the surcharge of selections" in text
    assert "as every release is Gaussian or a selection, for which the surcharge is paid" in text


# ---- residual moments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("times", "share"), [(1, 0.5), (4, 0.99)])
def test_residual_moments_are_paid_from_the_same_budget(epsilon: float, times: int, share: float) -> None:
    plan = plan_of(epsilon=epsilon, moments_rounds=times)
    assert plan.privacy is not None
    plan = plan.with_settings(privacy={**plan.privacy.model_dump(), "moments_share": share})
    price = price_of(plan, n_samples=100, n_variables=5)
    assert price.last_round == 10 + 1 + times == n_rounds(plan)
    assert price.units_of(11) == 0, "the setup is told again, which was paid for"
    assert sum(price.units_of(t) for t in range(price.last_round + 1)) + price.surcharge_units == price.units
    assert gaussian_dp.epsilon_of(price.units / UNITS, 1e-6) <= epsilon
    without_setup = price.units - price.setup_units
    assert price.moments_rounds * price.moments_units == pytest.approx(share * without_setup, rel=1e-6)
    assert (math.sqrt(2) * 2**20 + 5) ** 2 / (2 * price.moments_variance) * UNITS <= price.moments_units
    assert price.moments_variance % 2 == 0


def test_noise_of_residual_moments_covers_the_rounding_of_squares_too() -> None:
    price = price_of(private(1.0), n_samples=100, n_variables=3, n_squares=3)
    of_honest, each = price.n_honest * price.moments_variance, math.sqrt(2) * 2**20 + 3 + 3 + 1
    assert each**2 / (2 * of_honest) * UNITS <= price.moments_units - price.means_units


def test_a_round_that_was_not_priced_is_not_free() -> None:
    price = price_of(plan_of(moments_rounds=2), n_samples=100, n_variables=5)
    for t in (-1, 14):
        with pytest.raises(PlanError, match=f"round {t} has no privacy cost: the plan has 13 rounds"):
            price.units_of(t)


@pytest.mark.parametrize("solver", ["dp-pgcd-laplace", "noisy-covariance"])
def test_other_solvers_have_no_residual_moments(solver: str) -> None:
    with pytest.raises(PlanError, match="moments_rounds = 1: must be 0 with"):
        price_of(plan_of(solver, moments_rounds=1), n_samples=100, n_variables=5)


def test_a_summary_says_what_residual_moments_cost_and_the_sentence_that_they_were_released() -> None:
    plan = plan_of(moments_rounds=2)
    summary = price_summary(plan, n_samples=100, n_variables=5)
    assert summary["zcdp"]["moments_round"] * UNITS == pytest.approx(
        price_of(plan, n_samples=100, n_variables=5).moments_units
    )
    text = "\n".join(price_lines(summary))
    assert "squared scales" in text
    assert f", 2 x {summary['zcdp']['moments_round']:.4g}" in text
    assert "the noisy moments of its residuals at most 2 times" in guarantee_sentence(plan, 5, 100, 13)
    early = guarantee_sentence(plan, 5, 100, 4)
    assert "at most 4 rounds" in early
    assert "residuals" not in early


def test_a_plan_without_admm_rounds_is_shown_without_steps_and_with_its_releases() -> None:
    plan = plan_of(rounds=0, moments_rounds=4)
    summary = price_summary(plan, n_samples=100, n_variables=5)
    assert set(summary["noise"]) == {"second_moments", "residual_moments"}
    text = "\n".join(price_lines(summary))
    assert "none: the plan has no ADMM rounds" in text
    assert "4 times the site releases noisy second moments of residuals, 15 numbers, each time for" in text
    assert "0 x" not in text
    assert "run: 5 noisy second moments." in guarantee_sentence(plan, 5, 100, 1)
    assert "run: 5 noisy second moments, and the noisy moments of its residuals at most 4 times." in (
        guarantee_sentence(plan, 5, 100, 5)
    )


@pytest.mark.parametrize("share", [0.1, 0.3], ids=["a moments round is dearest", "the setup is dearest"])
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_price_keeps_enough_for_rounds_that_are_asked_anew(share: float, retries: int) -> None:
    settings = [
        "privacy.secure_aggregation=true", "privacy.delta=1e-6", "privacy.colluding=2",
        f"privacy.secure_aggregation_retries={retries}", f"privacy.smoothness_share={share}",
    ]  # fmt: skip
    plan = Plan.load("private-moments", settings, epsilon=1.0)
    price = price_of(plan, n_samples=500, n_variables=20)
    rounds = [price.units_of(t) for t in range(price.last_round + 1)]
    assert (max(rounds) == price.setup_units) == (share > 0.2)
    assert price.units == sum(rounds) + retries * max(rounds)
    assert price.reserve == retries * max(rounds)
    whole = zcdp.units_within(gaussian_dp.budget(1.0, 1e-6))
    assert whole - 2 * plan.moments_rounds - retries <= price.units <= whole, "and nothing is left over"
    assert price.share_units >= sum(map(price.share_units_of, range(price.last_round + 1))) * (1 + retries / 100)
    told = "\n".join(price_lines(price_summary(plan, n_samples=500, n_variables=20)))
    assert ("kept for rounds that are asked again" in told) == (retries > 0)


def test_a_price_that_cannot_keep_enough_is_refused() -> None:
    settings = ["privacy.secure_aggregation=true", "privacy.delta=1e-6", "privacy.smoothness_share=0.6"]
    with pytest.raises(PlanError, match="too small"):
        price_of(Plan.load("private-moments", settings, epsilon=1.0), n_samples=500, n_variables=20)


def test_a_plan_may_lose_no_more_sites_than_may_collude() -> None:
    settings = [
        "privacy.secure_aggregation=true",
        "privacy.delta=1e-6",
        "n_participants=5",
        "privacy.secure_aggregation_retries=2",
    ]
    with pytest.raises(PlanError, match="secure_aggregation_retries"):
        Plan.load("private-moments", settings)
    assert Plan.load("private-moments", [*settings, "privacy.colluding=2"]).retries == 2
    assert Plan.load("private-moments", []).retries == 0


def private(epsilon: float, **settings: object) -> Plan:
    ranges = {f"x{k}": {"range": [0.0, 1.0]} for k in range(3)}
    return Plan.load("private", epsilon=epsilon).with_settings(dictionary=ranges, **settings)


def test_each_sites_part_of_the_noise_of_a_secure_aggregation_is_256_grid_units_wide_or_the_plan_is_refused() -> None:
    """For each of the sites that share it: else rounding changes probabilities by more than the docs say."""
    refused, least = 0, math.inf
    for n_sites in range(10, 800, 10):
        try:
            price = price_of(private(1000.0, n_participants=n_sites), n_samples=1000, n_variables=3)
        except PlanError:
            refused += 1
            continue
        smallest = min(price.setup_variance, price.moments_variance // 2) / price.n_honest
        least = min(least, smallest)
        assert smallest >= 256.0**2
    assert refused
    assert least < 2 * 256.0**2, "the grid comes near the limit"


@pytest.mark.parametrize(("columns", "fits"), [(5791, True), (5792, False)])
def test_scaled_shares_move_sums_no_further_than_a_record_of_a_site_that_counts_in_full(
    columns: int, fits: bool
) -> None:
    """The largest share below the whole takes sqrt(2) 2^20 / 256 off; rounding (d + 1)^2 numbers adds d + 1."""
    assert (math.sqrt(2.0) * 2**20 * 255 / 256 + columns + 1 <= math.sqrt(2.0) * 2**20) == fits
    ranges = {f"x{k}": {"range": [0.0, 1.0]} for k in range(columns)}
    plan = Plan.load("private", epsilon=1.0).with_settings(dictionary=ranges)
    if fits:
        assert price_of(plan, n_samples=1000, n_variables=columns).n_honest > 1
    else:
        with pytest.raises(
            PlanError, match="5792 columns are too many for secure aggregation of moments: at most 5791"
        ):
            price_of(plan, n_samples=1000, n_variables=columns)


def test_columns_without_means_of_each_site_are_not_scaled_and_may_be_more() -> None:
    """Shares make up for the error of a site's means: without a preparation there are none."""
    plan = Plan.load("private-moments", ["privacy.secure_aggregation=true", "privacy.delta=1e-8"])
    assert plan.preparation is None
    assert price_of(plan, n_samples=1000, n_variables=5792).n_honest > 1
