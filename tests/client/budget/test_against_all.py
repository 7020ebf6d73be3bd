"""Secure aggregation has a second price, against the coordinator and all other sites: it is kept, capped and told."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import BudgetExhaustedError, PolicyRefusal, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.policy import DatasetPolicy, Policy
from fedbnsl_client.budget.report import approval_lines, ledger_lines, spending
from fedbnsl_client.budget.spending import Cap, Spending
from fedbnsl_client.secure_aggregation import peers
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.new_site import NewSite
from private_site import NAMES, private_plan, rows, units_spent, write_table

PLAN = Plan.load(
    "private-moments",
    [
        "n_participants=8",
        "privacy.secure_aggregation=true",
        "privacy.delta=1e-6",
        "privacy.secure_aggregation_retries=0",
    ],
    epsilon=2.0,
)
PRICE = price_of(PLAN, n_samples=120, n_variables=3)
DATASET = "ward-7"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.create(tmp_path / "ledger.db")
    ledger.registrations.register(DATASET, NAMES, rows())
    return ledger


def policy(*, against_all: float | None, epsilon: float = 100.0) -> DatasetPolicy:
    return DatasetPolicy(
        id=DATASET, path=Path("x"), max_epsilon=epsilon, max_delta=1e-6, max_epsilon_per_run=epsilon,
        max_epsilon_against_all=against_all,
    )  # fmt: skip


def journal(ledger: Ledger, dataset: DatasetPolicy, *, run: int = 1, plan: Plan = PLAN) -> RunJournal:
    price = price_of(plan, n_samples=120, n_variables=3)
    return RunJournal(ledger.payments, dataset, plan, price, RunHere(run, "north", NAMES))


def play(journal: RunJournal, *, last: int = PRICE.last_round) -> None:
    for t in range(last + 1):
        journal.release(t, lambda t=t: bytes([t]))  # type: ignore[misc]


def test_the_second_price_is_what_the_part_of_one_site_alone_would_cost() -> None:
    assert [PRICE.share_units_of(t) for t in range(PRICE.last_round + 1)] == [
        6 * PRICE.units_of(t) for t in range(PRICE.last_round + 1)
    ]
    own = price_of(private_plan(), n_samples=120, n_variables=3)
    assert [own.share_units_of(t) for t in range(own.last_round + 1)] == [
        own.units_of(t) for t in range(own.last_round + 1)
    ]


def test_both_prices_are_kept(ledger: Ledger) -> None:
    play(journal(ledger, policy(against_all=900.0)))
    assert ledger.payments.spending(DATASET) == Spending(PRICE.units)
    assert ledger.payments.spending(DATASET, against_all=True) == Spending(PRICE.share_units)
    ledger.verify()
    ledger.payments.reserve(Request(DATASET, 2, 1, "north"), Payment(7, {}), Cap(10**15, 0))
    assert units_spent(ledger, DATASET, against_all=True) == PRICE.share_units + 7, (
        "a release of another kind counts once"
    )


def test_without_the_rule_secure_sums_are_refused_with_what_they_would_cost(ledger: Ledger) -> None:
    with pytest.raises(PolicyRefusal, match="`max_epsilon_against_all` is missing") as caught:
        journal(ledger, policy(against_all=None)).check()
    whole = Spending(PRICE.share_units).epsilon(1e-6)
    assert f"epsilon {whole:.4g}" in str(caught.value)
    assert whole > 2 * 2.0
    journal(ledger, policy(against_all=None), plan=private_plan()).check()  # others do not need it


def test_the_second_cap_holds_over_runs_before_and_while_they_go_on(ledger: Ledger) -> None:
    whole = Spending(PRICE.share_units).epsilon(1e-6)
    enough = policy(against_all=1.01 * whole, epsilon=1.01 * whole)
    first = journal(ledger, enough)
    first.check()
    play(first)
    second = journal(ledger, enough, run=2)
    with pytest.raises(BudgetExhaustedError, match="`max_epsilon_against_all`"):
        second.check()
    with pytest.raises(BudgetExhaustedError, match="against all other sites together"):
        play(second)
    assert units_spent(ledger, DATASET) < 2 * PRICE.units
    cap = enough.cap_against_all
    assert cap is not None
    assert cap.allows(ledger.payments.spending(DATASET, against_all=True))
    assert enough.cap.allows(ledger.payments.spending(DATASET) + Spending(PRICE.units)), (
        "the first cap would have let it pass"
    )


def test_rounds_that_were_skipped_are_still_to_pay_once_the_last_one_is_answered(ledger: Ledger) -> None:
    """The coordinator chooses the order of its tasks: a site that joins again counts every round that may yet come."""
    epsilon = 1.01 * Spending(PRICE.units).epsilon(1e-6)
    first = journal(ledger, policy(against_all=900.0, epsilon=epsilon))
    first.release(PRICE.last_round, lambda: b"the last")
    first.check()
    play(journal(ledger, policy(against_all=900.0, epsilon=epsilon), run=2), last=PRICE.last_round - 1)
    with pytest.raises(BudgetExhaustedError):
        first.check()


def test_a_run_without_secure_sums_is_held_to_the_second_cap_too(ledger: Ledger) -> None:
    whole = Spending(PRICE.share_units).epsilon(1e-6)
    enough = policy(against_all=1.01 * whole, epsilon=1.01 * whole)
    play(journal(ledger, enough))
    alone = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "secure_aggregation": False, "epsilon": 4.0})
    other = journal(ledger, enough, run=2, plan=alone)
    with pytest.raises(BudgetExhaustedError, match="`max_epsilon_against_all`"):
        other.check()


@pytest.mark.parametrize("of_all", [9, 10.0, True])
def test_the_second_price_is_never_below_the_first(ledger: Ledger, of_all: int) -> None:
    cap = Cap.of(100.0, 1e-6)
    with pytest.raises(ValueError, match="at least 10 units"):
        ledger.payments.reserve(
            Request(DATASET, 1, 1, "a"), Payment(10, {}, units_against_all=of_all), Cap(100, 0), cap
        )
    assert units_spent(ledger, DATASET) == 0


def test_a_ledger_pays_for_no_secure_aggregation_without_a_cap_for_it(ledger: Ledger) -> None:
    asked = Request(DATASET, 1, 1, "a")
    with pytest.raises(BudgetExhaustedError, match="no cap for secure aggregation"):
        ledger.payments.reserve(asked, Payment(10, {}, units_against_all=11), Cap(100, 0))
    ledger.payments.reserve(asked, Payment(10, {}, units_against_all=10), Cap(100, 0))
    assert units_spent(ledger, DATASET, against_all=True) == 10


def test_a_policy_that_allows_less_against_all_than_against_some_is_refused() -> None:
    with pytest.raises(ValueError, match="at least max_epsilon"):
        policy(against_all=1.0, epsilon=2.0)


def test_a_restored_backup_is_charged_both_prices(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.create(path) as ledger:
        ledger.registrations.register(DATASET, NAMES, rows())
    old = path.read_bytes()
    with Ledger.open(path) as ledger:
        play(journal(ledger, policy(against_all=900.0)))
        paid = units_spent(ledger, DATASET, against_all=True)
    path.write_bytes(old)
    with Ledger.open(path, accept_backup=True) as ledger:
        assert units_spent(ledger, DATASET) == PRICE.units
        assert units_spent(ledger, DATASET, against_all=True) == paid == PRICE.share_units
        ledger.verify()
    with Ledger.open(path) as ledger:
        assert units_spent(ledger, DATASET, against_all=True) == paid


def test_approve_and_ledger_tell_both(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    table = write_table(folder / "table.csv", rows())
    made: Policy = site_folder.create(
        folder, NewSite("north", table, DATASET, max_epsilon=100.0, max_delta=1e-6, max_epsilon_against_all=900.0)
    )
    with site_folder.opened(folder) as (_, ledger):
        dataset = made.dataset(None)
        said = "\n".join(approval_lines(PLAN, dataset, ledger, every=True))
        in_all = Spending(PRICE.share_units).epsilon(1e-6)
        assert "at most 2 of the other sites collude with the coordinator, counting those that are not" in said
        assert f"If it and all other sites collude, the run spends epsilon {in_all:.4g}" in said
        assert "of at most 900 in all" in said
        assert "spent_against_all" not in spending(dataset, ledger)
        play(journal(ledger, dataset))
        assert spending(dataset, ledger)["spent_against_all"]["epsilon"] == pytest.approx(in_all)
        assert any("all other sites collude: spent epsilon" in line for line in ledger_lines(made, ledger))


@pytest.mark.parametrize(
    ("sites", "retries", "said"),
    [(3, 1, "any 1 other site"), (4, 1, "any 1 other site"), (4, 0, "any 1 other site"), (8, 1, "any 2 other sites")],
)
def test_approve_says_how_many_others_a_coordinator_that_pretends_losses_may_have(
    sites: int, retries: int, said: str, ledger: Ledger
) -> None:
    plan = PLAN.with_settings(
        n_participants=sites,
        privacy={**PLAN.model_dump()["privacy"], "secure_aggregation_retries": retries},
    )
    told = "\n".join(approval_lines(plan, policy(against_all=900.0), ledger, every=True))
    assert f"against the coordinator together with {said}; " in told
    left = (2 if sites == 8 else 1) - retries
    assert f"as many losses as the plan allows, {retries}, together with {left} others." in told


@pytest.mark.parametrize("k", [1, 2])
def test_approve_says_what_somebody_at_several_sites_loses_and_the_ledger_pays_for_a_record(
    k: int, ledger: Ledger
) -> None:
    plan = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "sites_per_person": k})
    price = price_of(plan, n_samples=120, n_variables=3)
    dataset = policy(against_all=900.0)
    told = "\n".join(approval_lines(plan, dataset, ledger, every=True))
    one = f"{Spending(price.units).epsilon(1e-6):.4g}"
    who = "at delta 1e-06 against the coordinator together with any 2 other sites"
    assert told.startswith(f"This run costs epsilon 2 {who}"), "the plan's, whatever k is"
    if k == 1:
        assert one == "2"
        at_two = Spending(4 * price.units).epsilon(1e-6)  # all of this plan's releases have their noise in sums
        assert "nobody has a record at two sites (privacy.sites_per_person = 1)" in told
        assert f"Whoever has a record at 2 sites loses epsilon {at_two:.4g}." in told
    else:
        assert (
            f"{who} for somebody with a record at 2 sites, as many as the plan says (privacy.sites_per_person); room "
            "for one more such run of epsilon " in told
        )
        assert f"A record here alone loses epsilon {one} at the same delta." in told
    play(journal(ledger, dataset, plan=plan))
    assert units_spent(ledger, DATASET) == price.units < PRICE.units + (k == 1)


@pytest.mark.parametrize("rule", ["max_epsilon", "max_epsilon_per_person", "max_epsilon_per_run", "against_all"])
def test_the_room_that_is_told_is_what_the_tightest_rule_leaves(rule: str, ledger: Ledger) -> None:
    """`participant approve` tells an epsilon to ask for: a plan of it is allowed, and one of a little more is not."""
    settings = {**PLAN.model_dump()["privacy"], "sites_per_person": 2}
    plan = PLAN.with_settings(privacy=settings)
    rules = {**policy(against_all=900.0).model_dump(), "max_epsilon_per_person": 100.0}
    tight = {"max_epsilon": 1.5, "max_epsilon_per_person": 2.7, "max_epsilon_per_run": 1.2, "against_all": 6.0}
    if rule == "against_all":
        rules |= {"max_epsilon": tight[rule], "max_epsilon_against_all": tight[rule]}
    else:
        rules[rule] = tight[rule]
    rules["max_epsilon_per_run"] = min(rules["max_epsilon"], rules["max_epsilon_per_run"])
    dataset = DatasetPolicy.model_validate(rules)
    said = r"room for one more such run of epsilon (\S+), or for (\d+) like this one, is left"
    told = re.search(said, approval_lines(plan, dataset, ledger)[0])
    assert told is not None
    play(journal(ledger, dataset, run=1, plan=plan))
    room = float(told[1])

    def asking(epsilon: float) -> Plan:
        return PLAN.with_settings(privacy={**settings, "epsilon": epsilon})

    dear = asking(room * 1.001 + 0.001)
    with pytest.raises((BudgetExhaustedError, PolicyRefusal)):
        journal(ledger, dataset, run=2, plan=dear).check()
    least = f"policy and ledger have room for such a run of epsilon {room:.4g} at most"
    assert least in approval_lines(dear, dataset, ledger)[0]
    journal(ledger, dataset, run=3, plan=asking(room * 0.999)).check()


def test_so_many_runs_as_are_told_are_allowed_and_no_more(ledger: Ledger) -> None:
    plan = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "sites_per_person": 2})
    dataset = DatasetPolicy.model_validate({**policy(against_all=900.0).model_dump(), "max_epsilon_per_person": 3.7})
    assert ", or for 2 like this one, is left" in approval_lines(plan, dataset, ledger)[0]
    for run in (1, 2, 3):
        journal(ledger, dataset, run=run, plan=plan).check()
        play(journal(ledger, dataset, run=run, plan=plan))
    with pytest.raises(BudgetExhaustedError):
        journal(ledger, dataset, run=4, plan=plan).check()


def test_an_epsilon_at_another_delta_than_the_plans_is_named_with_it(ledger: Ledger) -> None:
    """One run has one epsilon for `approve`, at its own delta; the policy's rules are about another delta."""
    rules = {**policy(against_all=None).model_dump(), "max_delta": 1e-4}
    at_plans = Spending(PRICE.share_units).epsilon(1e-6)
    with pytest.raises(PolicyRefusal, match=rf"costs epsilon {at_plans:.4g} at delta 1e-06"):
        journal(ledger, DatasetPolicy.model_validate(rules)).check()
    few = DatasetPolicy.model_validate({**rules, "max_epsilon": 0.5, "max_epsilon_per_run": 0.5})
    with pytest.raises(PolicyRefusal, match=r"`max_epsilon_per_run` = 0.5: .* \(all at delta 0\.0001, the policy's\)"):
        journal(ledger, few).check()


def test_the_ledger_tells_what_every_rule_leaves(ledger: Ledger) -> None:
    plan = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "sites_per_person": 2})
    dataset = DatasetPolicy.model_validate({**policy(against_all=900.0).model_dump(), "max_epsilon_per_person": 2.5})
    play(journal(ledger, dataset, plan=plan))
    of = spending(dataset, ledger)
    # In sums over two sites mu is that of one, times two: its square is left of the person's.
    spent = 4 * of["spent"]["zcdp"]
    left = zcdp_of(dataset.cap_per_person.gaussian_units) - spent
    assert of["left_per_person"]["zcdp"] == pytest.approx(left)
    told = "\n".join(ledger_lines(Policy(site="site-1", datasets=(dataset,)), ledger))
    assert "of 2.5 at 2 sites, as many as plans said (max_epsilon_per_person), which leaves room for one more " in told
    assert f"{of['left_per_person']['epsilon']:.4g} for this person" in told
    assert "of 900 (max_epsilon_against_all)" in told


def test_a_person_at_several_sites_may_lose_as_much_as_the_policy_says_over_all_runs(ledger: Ledger) -> None:
    """The plan's epsilon of 2 is that of somebody at two sites, who may lose 2.5 in all: a second run is too many."""
    plan = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "sites_per_person": 2})
    rules = policy(against_all=900.0).model_dump()
    rule = DatasetPolicy.model_validate({**rules, "max_epsilon_per_person": 1.9})
    with pytest.raises(
        PolicyRefusal,
        match=r"rule `max_epsilon_per_person` = 1\.9: somebody with a record at 2 sites .* loses epsilon 2 by the run",
    ):
        journal(ledger, rule, plan=plan).check()
    enough = DatasetPolicy.model_validate({**rules, "max_epsilon_per_person": 2.5})
    both = [journal(ledger, enough, run=run, plan=plan) for run in (1, 2)]
    both[0].check()
    play(both[0])
    both[0].check()  # after a restart what it has paid counts once
    price = price_of(plan, n_samples=120, n_variables=3)
    after = Spending(4 * 2 * price.units).epsilon(1e-6)  # mu of two runs in sums over two sites
    with pytest.raises(BudgetExhaustedError, match=rf"was spent before up to {after:.4g}: above `max_epsilon_per_pers"):
        both[1].check()
    journal(ledger, policy(against_all=900.0), run=2, plan=plan).check()  # not set: it is max_epsilon, 100


def test_where_no_rule_is_set_a_person_may_lose_what_a_record_may(ledger: Ledger) -> None:
    plan = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "sites_per_person": 2})
    with pytest.raises(PolicyRefusal, match=r"`max_epsilon_per_person` = 1\.5 \(not set: it is `max_epsilon`\)"):
        journal(ledger, policy(against_all=900.0, epsilon=1.5), plan=plan).check()


def test_the_ledger_tells_what_somebody_at_two_or_three_sites_has_lost_at_most(ledger: Ledger) -> None:
    dataset = policy(against_all=900.0)
    play(journal(ledger, dataset))
    told = spending(dataset, ledger)["spent_at_sites"]
    assert told["2"]["epsilon"] == pytest.approx(Spending(4 * PRICE.units).epsilon(1e-6))
    assert told["3"]["zcdp"] == pytest.approx(9 * PRICE.units / 1e12)
    ledger.registrations.register("other", NAMES, rows(2))
    own = DatasetPolicy.model_validate({**dataset.model_dump(), "id": "other"})
    alone = private_plan()
    cost = price_of(alone, n_samples=120, n_variables=3)
    without = RunJournal(ledger.payments, own, alone, cost, RunHere(2, "north", NAMES))
    for t in range(cost.last_round + 1):
        without.release(t, lambda t=t: bytes([t]))  # type: ignore[misc]
    assert spending(own, ledger)["spent_at_sites"]["2"]["zcdp"] == pytest.approx(2 * cost.units / 1e12)


def test_a_policy_without_the_rule_names_it_in_a_comment(tmp_path: Path) -> None:
    table = write_table(tmp_path / "site" / "table.csv", rows())
    made = site_folder.create(tmp_path / "site", NewSite("north", table, DATASET, max_epsilon=5.0))
    assert made.datasets[0].max_epsilon_against_all is None
    assert "# max_epsilon_against_all = " in (tmp_path / "site" / "policy.toml").read_text(encoding="utf-8")
    with pytest.raises(SetupError, match="at least max_epsilon"):
        Policy.parse(
            (tmp_path / "site" / "policy.toml").read_text(encoding="utf-8") + "\nmax_epsilon_against_all = 1.0\n",
            origin="policy.toml",
        )
    assert np.isfinite(made.datasets[0].max_epsilon)


def test_approve_says_which_peers_a_plan_needs_that_are_not_confirmed(tmp_path: Path, fedbnsl) -> None:
    folder = tmp_path / "site"
    table = write_table(folder / "table.csv", rows())
    site_folder.create(
        folder, NewSite("north", table, DATASET, max_epsilon=100.0, max_delta=1e-6, max_epsilon_against_all=900.0)
    )
    plan = PLAN.with_settings(sites=["north", *(f"s{k}" for k in range(1, 8))])
    (tmp_path / "plan.toml").write_text(plan.to_toml(), encoding="utf-8")
    needed = plan.n_honest - 1

    def said() -> str:
        told = fedbnsl("participant", "approve", tmp_path / "plan.toml", folder, "--yes", "--beyond-bounds")
        assert told[0] == 0, told
        return told[1]

    for k in range(needed):
        lacking = f"needs {needed} confirmed peers at this site; {k} are confirmed: a run is refused until more are"
        assert lacking in said()
        assert f"s{k + 1}" in said().partition(lacking)[2]
        peers.confirm(folder, f"s{k + 1}", f"{k:064x}")
    assert f"needs {needed} confirmed peers at this site; {needed} are confirmed\n" in said()
