"""What somebody with a record at several sites may lose is kept to at each payment, whatever runs there are."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedbnsl.errors import BudgetExhaustedError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.policy import DatasetPolicy
from fedbnsl_client.budget.spending import Cap, Spending
from ledgers import NAMES, ledger, path

__all__ = ["ledger", "path"]  # fixtures

WIDE = Cap(10**18, 10**18)


def plan(sites_per_person: int, *, sums: bool = True) -> Plan:
    """Its columns are prepared: a part of the noise is each site's own, the rest in sums over sites."""
    made = Plan.load(
        "private",
        [
            "n_participants=8",
            f"privacy.secure_aggregation={'true' if sums else 'false'}",
            *(["privacy.secure_aggregation_retries=0"] if sums else []),
            "privacy.delta=1e-6",
            f"privacy.sites_per_person={sites_per_person}",
        ],
        epsilon=1.0,
    )
    return made.with_settings(dictionary={name: {"range": [0.0, 1.0]} for name in NAMES})


def journal(ledger: Ledger, run: int, asked: Plan, *, per_person: float | None) -> RunJournal:
    dataset = DatasetPolicy(
        id="a", path=Path("x"), max_epsilon=100.0, max_delta=1e-6, max_epsilon_per_run=100.0,
        max_epsilon_against_all=900.0, max_epsilon_per_person=per_person,
    )  # fmt: skip
    price = price_of(asked, n_samples=30, n_variables=3)
    return RunJournal(ledger.payments, dataset, asked, price, RunHere(run, "north", NAMES))


def last_round(asked: Plan) -> int:
    return price_of(asked, n_samples=30, n_variables=3).last_round


def play(journal: RunJournal, asked: Plan) -> None:
    for t in range(last_round(asked) + 1):
        journal.release(t, lambda: b"x")


@pytest.mark.parametrize("sums", [True, False])
def test_the_payments_of_a_run_cost_somebody_at_several_sites_what_the_run_costs(ledger: Ledger, sums: bool) -> None:
    asked = plan(2, sums=sums)
    paying, price = journal(ledger, 1, asked, per_person=1.001), price_of(asked, n_samples=30, n_variables=3)
    paying.check()
    play(paying, asked)
    for k in (1, 2, 3):
        assert ledger.payments.spending("a", at_sites=k).units == price.units_at(k)
    assert price.units_at(2) < 4 * price.units or sums is False, "own means do not cost four times as much"
    paying.check()  # which counts what was paid once


def test_two_runs_at_once_stay_below_what_a_person_may_lose_even_if_neither_knows_of_the_other(ledger: Ledger) -> None:
    """Neither has promised anything, as after an older copy of the policy or a process that was gone and is back."""
    asked = plan(2)
    both = [journal(ledger, run, asked, per_person=1.2) for run in (1, 2)]
    cap = Cap.of(1.2, 1e-6)

    def draw() -> bytes:
        spent = ledger.payments.spending("a", at_sites=2)
        assert cap.allows(spent), "noise is drawn only within the limit"
        return b"x"

    def play_both() -> None:
        for t in range(last_round(asked) + 1):
            for one in both:
                one.release(t, draw)

    with pytest.raises(BudgetExhaustedError, match="for somebody with a record at 2 sites, spent"):
        play_both()
    spent = ledger.payments.spending("a", at_sites=2)
    assert spent.units > 0
    assert cap.allows(spent)


def test_runs_count_alike_in_whichever_order_they_come(ledger: Ledger) -> None:
    """The second run costs somebody at two sites epsilon 1.98, and both together more than 2.1."""
    asked = plan(2), plan(1)
    limits = {"per_person": 2.1}
    first = journal(ledger, 1, asked[0], **limits)
    first.check()
    play(first, asked[0])
    second = journal(ledger, 2, asked[1], **limits)
    with pytest.raises(BudgetExhaustedError, match=r"at 2 sites \(an earlier plan's privacy\.sites_per_person\)"):
        second.check()
    with pytest.raises(BudgetExhaustedError, match="at 2 sites, spent"):
        play(second, asked[1])


def test_a_run_that_goes_on_counts_with_the_sites_that_its_plan_says(ledger: Ledger, path: Path) -> None:
    asked = plan(2), plan(1)
    journal(ledger, 1, asked[0], per_person=2.1).check()
    with Ledger.open(path) as other:
        assert other.payments.promised("a", but=2).sites_per_person == 2
        with pytest.raises(BudgetExhaustedError, match=r"above `max_epsilon_per_person` = 2\.1; what other runs"):
            journal(other, 2, asked[1], per_person=2.1).check()
        journal(other, 2, asked[1], per_person=3.5).check()


def test_a_payment_that_a_crash_wasted_takes_nothing_off_what_a_run_is_still_to_pay(ledger: Ledger) -> None:
    asked = plan(2)
    price, paying = price_of(asked, n_samples=30, n_variables=3), journal(ledger, 1, asked, per_person=None)

    def killed() -> bytes:
        raise KeyboardInterrupt

    first = next(t for t in range(price.last_round + 1) if price.in_sums_of(t))
    for t in range(first):
        paying.release(t, lambda: b"x")
    with pytest.raises(KeyboardInterrupt):
        paying.release(first, killed)
    paying.check()
    rest = ledger.payments.promised("a", but=2)
    assert rest.at_sites(2).units == price.units_at(2) - sum(
        2 * price.units_of(t) + 2 * price.in_sums_of(t) for t in range(first)
    )


def test_what_an_older_version_paid_in_sums_counts_whole(ledger: Ledger) -> None:
    """It told no part in sums: of 10 units all may be, so that two sites are 40."""
    request = Request("a", 1, 1, "north")
    payment = Payment(10, {}, units_against_all=60)
    told = payment.to_plain()
    del told["units_in_sums"]
    with ledger._file.transaction():
        ledger._file.append("reserve", **request.to_plain(), **told)
    assert ledger.payments.spending("a", at_sites=2) == Spending(40, gaussian=False)
    ledger.payments.reserve(Request("a", 1, 2, "north"), Payment(10, {}, units_against_all=60), WIDE, WIDE)
    assert ledger.payments.spending("a", at_sites=2).units == 40 + 20


PAYING = """
import pathlib, sys
from fedbnsl.errors import BudgetExhaustedError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap
wide, per_person = Cap(10**6, 10**6), Cap(500, 500)
with Ledger.open(pathlib.Path(sys.argv[1])) as ledger:
    for t in range(30):
        payment = Payment(10, {}, units_against_all=60, units_in_sums=5, sites_per_person=2)
        try:
            ledger.payments.reserve(Request("a", int(sys.argv[2]), t, "site"), payment, wide, wide, per_person)
        except BudgetExhaustedError as error:
            print(error)
            break
"""


def test_two_processes_that_pay_at_once_stay_below_what_a_person_may_lose(ledger: Ledger, path: Path) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", PAYING, path, str(run)], stdout=subprocess.PIPE, text=True)
        for run in (1, 2)
    ]
    for one in both:
        assert "for somebody with a record at 2 sites, spent" in one.communicate(timeout=120)[0]
    # A payment costs 2 x 5 and 4 x 5 units: 16 of them are 480.
    assert ledger.payments.spending("a", at_sites=2).units == 480
    ledger.verify()
