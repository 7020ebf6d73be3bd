"""What a site is told of spent and left, and by which of the two ways of counting."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import MOST_EM_ROUNDS
from fedbnsl.privacy import gaussian_dp, zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.messages import FindingCode
from fedbnsl.rounds.kinds import KINDS, most_rounds
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.policy import DatasetPolicy, Policy
from fedbnsl_client.budget.report import approval_lines, ledger_lines, small_cell_lines, spending
from private_site import private_plan

DATA = DatasetPolicy.model_validate(
    {"id": "a", "path": "a.csv", "max_epsilon": 10.0, "max_delta": 1e-6, "max_epsilon_per_run": 10.0}
)
POLICY = Policy(site="north", datasets=(DATA,))
GAUSSIAN = private_plan(rounds=0, moments_rounds=2, privacy={"epsilon": 5.0})
STEPS = private_plan(local_steps=40, privacy={"epsilon": 5.0})
ONE_STEP = private_plan(rounds=1, local_steps=1, privacy={"epsilon": 5.0})
UNITS = 10**12


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.db") as made:
        made.registrations.register("a", tuple("xyz"), np.random.default_rng(1).normal(size=(100, 3)))
        yield made


def pay(ledger: Ledger, units: int, *, gaussian: bool) -> None:
    ledger.payments.reserve(Request("a", 1, len(ledger.entries()), "north"), Payment(units, {}, gaussian), DATA.cap)


def test_a_table_without_spending_has_its_whole_budget_by_either_count(ledger: Ledger) -> None:
    of = spending(DATA, ledger)
    assert of["spent"] == {"zcdp": 0.0, "epsilon": 0.0}
    assert of["left"]["epsilon"] == pytest.approx(10.0, rel=1e-6)
    assert of["left_if_not_gaussian"]["epsilon"] == pytest.approx(10.0, rel=1e-6)
    [line, *_] = ledger_lines(POLICY, ledger)
    assert "not priced" not in line, "one number, where both are the same"


def test_gaussian_spending_is_told_as_gaussian_and_the_room_for_either_kind(ledger: Ledger) -> None:
    pay(ledger, price_of(GAUSSIAN, n_samples=100, n_variables=3).units, gaussian=True)
    of = spending(DATA, ledger)
    assert of["accounting"] == "Gaussian"
    assert of["spent"]["epsilon"] == pytest.approx(5.0, rel=1e-6)
    left = gaussian_dp.budget(10.0, 1e-6) - gaussian_dp.budget(5.0, 1e-6)
    other = zcdp.budget(10.0, 1e-6) - gaussian_dp.budget(5.0, 1e-6)
    assert of["left"]["epsilon"] == pytest.approx(gaussian_dp.epsilon_of(left, 1e-6))
    assert of["left_if_not_gaussian"]["epsilon"] == pytest.approx(zcdp.epsilon_of(other, 1e-6))
    [line, *_] = ledger_lines(POLICY, ledger)
    assert "spent epsilon 5 of 10" in line
    assert "one more run of up to epsilon 8.058 " in line
    assert line.endswith("or 7.85 if it is not priced by Gaussian DP")


def test_mixed_spending_is_told_as_zcdp(ledger: Ledger) -> None:
    pay(ledger, UNITS // 10, gaussian=True)
    pay(ledger, UNITS // 10, gaussian=False)
    of = spending(DATA, ledger)
    assert of["accounting"] == "zCDP"
    assert of["spent"]["epsilon"] == zcdp.epsilon_of(0.2, 1e-6)
    assert of["left"] == of["left_if_not_gaussian"]
    assert of["left"]["zcdp"] == pytest.approx(DATA.cap.units / UNITS - 0.2)


def test_an_approval_tells_one_epsilon_of_a_run_where_plan_and_policy_have_two_deltas(ledger: Ledger) -> None:
    plan = private_plan(rounds=0, moments_rounds=2, privacy={"epsilon": 5.0, "delta": 1e-9})
    cap = gaussian_dp.epsilon_of(gaussian_dp.budget(10.0, 1e-6), 1e-9)
    assert cap > 11.0
    first, _, third, *_ = approval_lines(plan, DATA, ledger, every=True)
    left = gaussian_dp.budget(10.0, 1e-6) - gaussian_dp.budget(5.0, 1e-9)
    assert first == (
        "This run costs epsilon 5 at delta 1e-09 against the coordinator and all other sites; room for one more such "
        f"run of epsilon {gaussian_dp.epsilon_of(left, 1e-9):.4g}, or for 4 like this one, is left."
    )
    assert third == (
        f"Dataset a, for a record at this delta: budget epsilon {cap:.4g}; the policy has epsilon 10 at delta 1e-06; "
        "spent so far epsilon 0, with this run (3 rounds) 5. Epsilons do not add up."
    )


def test_an_approval_says_how_a_run_is_counted_and_what_that_does_to_the_rest(ledger: Ledger) -> None:
    said = "\n".join(approval_lines(GAUSSIAN, DATA, ledger, every=True))
    assert "This run costs epsilon 5 at delta 1e-06 against" in said
    assert "one more such run of epsilon 8.058, or for 2 like this one, is left" in said
    assert "accounting    Gaussian differential privacy" in said
    said = "\n".join(approval_lines(STEPS, DATA, ledger, every=True))
    assert "accounting    Gaussian differential privacy" in said
    assert "as the surcharge of selections" in said
    said = "\n".join(approval_lines(ONE_STEP, DATA, ledger, every=True))
    assert "accounting    zCDP" in said
    pay(ledger, UNITS // 10, gaussian=False)
    said = "\n".join(approval_lines(GAUSSIAN, DATA, ledger))
    assert "Earlier runs of the table were not all priced by Gaussian DP" in said


def test_private_steps_that_do_not_fit_beside_gaussian_releases_are_told_to_be_too_much(ledger: Ledger) -> None:
    pay(ledger, DATA.cap.gaussian_units - UNITS // 100, gaussian=True)
    of = spending(DATA, ledger)
    assert of["spent"]["epsilon"] <= 10.0
    assert of["left_if_not_gaussian"] == {"zcdp": 0.0, "epsilon": 0.0}
    assert "have room for such a run of epsilon 0.5" in "\n".join(approval_lines(STEPS, DATA, ledger))


@pytest.mark.parametrize("name", ["lean", "standard"])
def test_who_approves_a_run_without_privacy_reads_which_mean_products_it_sends(name: str, ledger: Ledger) -> None:
    (line,) = (one for one in approval_lines(Plan.load(name), DATA, ledger) if "exact second moments" in one)
    assert ("mean products of all pairs of columns" in line) == (name == "standard")
    assert "of those that knowledge keeps apart" in line


def test_who_approves_a_run_with_ratios_reads_what_its_regressions_send(ledger: Ledger) -> None:
    plan = Plan.load("standard")
    described = plan.with_settings(dictionary={"x": {}, "sick": {"kind": "binary", "levels": ["no", "yes"]}})
    for one, sends in ((plan, False), (described, True)):
        assert ("in up to 12 rounds, it tells how likely" in "\n".join(approval_lines(one, DATA, ledger))) == sends


def test_what_leaves_where_rows_with_gaps_are_used_is_said(ledger: Ledger) -> None:
    """Counts of values and of pairs, and likelihoods, of all pairs of columns, however many these are."""
    said = "\n".join(approval_lines(Plan.load("standard"), DATA, ledger))
    assert "how many rows have a value, in each column too" in said
    assert "for all pairs of columns their mean product and how many rows have both" in said
    assert f"in up to {MOST_EM_ROUNDS} rounds" in said
    assert "how likely its values are" in said
    complete = Plan.load("standard", ["preparation.missing='complete-cases'"])
    assert "how many rows have both" not in "\n".join(approval_lines(complete, DATA, ledger))


def test_every_warning_about_a_table_that_leaves_the_site_is_said(ledger: Ledger) -> None:
    said = "\n".join(approval_lines(Plan.load("standard"), DATA, ledger))
    told = {
        FindingCode.MEANS_FAR_FROM_ZERO: "means far from zero",
        FindingCode.LOOKS_CATEGORICAL: "look like categories",
        FindingCode.NUMBERS_ROWS: "row numbers",
        FindingCode.LOOKS_LIKE_A_CODE: "a code of a missing value",
        FindingCode.COPIED_RECORDS: "many records have an equal one",
        FindingCode.ROWS_OF_GROUPS: "how many groups",
    }
    assert set(told) == set(FindingCode)
    assert all(words in said for words in told.values())


def test_every_kind_of_round_of_a_run_without_privacy_is_said_and_no_other(ledger: Ledger) -> None:
    told = {
        "statistics": "the exact variance of every column",
        "completion": "the mean products expected under the covariances of all sites",
        "admm": "the weights that it sends are exact functions",
        "refit": "exact least-squares weights along the learned edges",
        "moments": "exact second moments",
        "counts": "in 5 rounds it sends exact contingency tables: how many records have each combination of levels",
        "hinges": "how far numbers lie above 5 fixed values",
        "noise": "exact sums over its rows of products of functions of residuals",
        "curvature": "exact sums over its rows of residuals times steps of other columns",
        "regressions": "in regressions on the variables that edges lead from",
        "validation": "exact sums that score the learned network on its rows",
    }
    levels = {name: {"kind": "binary", "levels": ["no", "yes"]} for name in "ab"}
    standard = Plan.load("standard")
    plans = [standard, Plan.load("lean"), Plan(), standard.with_settings(dictionary=levels)]
    seen = set[str]()
    for plan in plans:
        said = "\n".join(approval_lines(plan, DATA, ledger))
        of_run = {kind for kind in KINDS if most_rounds(plan, kind)}
        assert {kind for kind, words in told.items() if words in said} == of_run
        seen |= of_run
    assert seen == set(told), "keys, scales and residual_moments are of private runs"


def test_counts_of_far_values_are_said_where_they_are_sent_and_where_the_setting_does_nothing(ledger: Ledger) -> None:
    sent, kept = "1.4 times the standard deviation", "far apart from all others count like them"
    for settings, is_sent, is_vain in (
        ([], True, False),
        (["preparation.outlying='keep'"], False, False),
        (["preparation.missing='complete-cases'"], False, True),
    ):
        said = "\n".join(approval_lines(Plan.load("standard", settings), DATA, ledger))
        assert ((sent in said), (kept in said)) == (is_sent, is_vain)
    private = Plan.load("private", ["preparation.outlying='missing'"], epsilon=1.0)
    assert kept in " ".join(private.preparation_lines())


@pytest.mark.parametrize("ready", ["standard", "private"])
@pytest.mark.parametrize("tells", [True, False])
def test_means_are_said_to_stay_only_where_the_plan_does_not_tell_them(ledger: Ledger, ready: str, tells: bool) -> None:
    plan = Plan.load(ready, [f"tell_means={str(tells).lower()}"], epsilon=1.0 if ready == "private" else None)
    said = " ".join(plan.preparation_lines())
    assert ("means off its columns (and tells them)" in said, "(they stay there)" in said) == (tells, not tells)
    if ready == "standard":
        assert ("the exact means of all columns" in "\n".join(approval_lines(plan, DATA, ledger))) == tells
        held_back = "\n".join(small_cell_lines(plan, Policy(site="north", least_cell=5)))
        assert ("none is told where a column has fewer values" in held_back) == tells
