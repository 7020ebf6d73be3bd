"""The payments of one private run. For each release: reserve its cost, draw the noise, store the answer."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbnsl.errors import BudgetExhaustedError, PlanMismatchError, PolicyRefusal, SchemaMismatchError
from fedbnsl.events.security_log import Record, unrecorded
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import Price, has_price_of, recipe
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.protocol.messages import LedgerHead
from fedbnsl_client.budget.ledger_file import run_text
from fedbnsl_client.budget.payments import Payment, Payments, Promised, Request
from fedbnsl_client.budget.policy import DatasetPolicy, check_cost, check_cost_against_all, check_cost_per_person
from fedbnsl_client.budget.spending import Spending, units_at_sites


@dataclass(frozen=True)
class RunHere:
    """One run at one site."""

    run: int
    site: str
    variables: tuple[str, ...] = ()  # d names, in the order of the run
    authority: str = ""  # fingerprint of the authority of the run's federation; empty: none, the wire is plaintext
    blocks: tuple[int, ...] = ()  # of the dataset, which the run reads; empty: it is not known by blocks


class RunJournal:
    """One site's releases in one run, paid for by one dataset.

    `record` is told of every release: its round, its cost, and the SHA-256 of its bytes, which are noise already.
    """

    def __init__(
        self,
        payments: Payments,
        dataset: DatasetPolicy,
        plan: Plan,
        price: Price,
        here: RunHere,
        record: Record = unrecorded,
    ) -> None:
        self._payments = payments
        self._dataset = dataset
        self._price = price
        self._here = here
        self._record = record
        self._recipe: Mapping[str, Any] = {
            **recipe(plan, price),
            "variables": list(here.variables),
            "plan": plan.digest().hex(),
            **({"blocks": list(here.blocks)} if here.blocks else {}),
        }

    @property
    def head(self) -> LedgerHead:
        """What the coordinator may know of the ledger."""
        return self._payments.head(self._dataset.id, self._here.authority)

    def check(self) -> None:
        """Refuse the run if policy or budget do not allow the rounds not yet paid for; reads no record of the table.

        What other runs that go on are still to pay counts as spent: none of them shall end for want of budget. Raises
        PolicyRefusal or BudgetExhaustedError, with the numbers; PolicyRefusal also if this site began this run at
        another cost; SchemaMismatchError or PlanMismatchError if this site began this run with other variables, or in
        another order, or under another plan: its stored answers are for those, and may have noise that only that plan's
        cost allows.
        """
        with self._payments.undivided():  # two runs that begin at once must see each other
            self._check()

    def _check(self) -> None:
        self._refuse_another_beginning()
        payments, run, dataset, blocks = self._payments, self._here.run, self._dataset.id, self._here.blocks
        payments.require_protected(dataset, blocks=blocks)
        price, promised = self._price, payments.promised(dataset, but=run, blocks=blocks)
        k = max(price.sites_per_person, payments.sites_per_person(dataset), promised.sites_per_person)

        def at_sites(t: int) -> int:
            return units_at_sites(k, price.units_of(t), price.in_sums_of(t))

        paid = [t for t in range(self._price.last_round + 1) for _ in self._attempts(t)]
        left = self._left(self._price.units, paid, self._price.units_of)
        left_in_all = self._left(self._price.share_units, paid, self._price.share_units_of)
        left_at_sites = self._left(price.units_at(k), paid, at_sites, surcharge=k * price.surcharge_of(paid))
        spent_in_run = payments.spending(dataset, run)
        spent = payments.spending(dataset, blocks=blocks) + promised.spending
        spent_in_all = payments.spending(dataset, against_all=True, blocks=blocks) + promised.against_all
        spent_at_sites = payments.spending(dataset, at_sites=k, blocks=blocks) + promised.at_sites(k)
        try:
            check_cost(self._dataset, self._price, to_pay=left, spent=spent, spent_in_run=spent_in_run)
            check_cost_against_all(self._dataset, self._price, to_pay=left_in_all, spent=spent_in_all)
            check_cost_per_person(self._dataset, self._price, k, to_pay=left_at_sites, spent=spent_at_sites)
        except BudgetExhaustedError as error:
            if not promised.against_all.units:
                raise
            raise BudgetExhaustedError(
                f"{error}; what other runs that go on here are still to pay is counted"
            ) from None
        payments.take_run(run)
        whole_in_all = payments.spending(dataset, run, against_all=True) + left_in_all
        # Somebody at two sites has lost twice what was spent, and of what is in sums twice as much again.
        spent_in_sums = payments.spending(dataset, run, at_sites=2).units // 2 - spent_in_run.units
        in_sums = spent_in_sums + max(price.in_sums - sum(map(price.in_sums_of, paid)), 0)
        whole = Promised(spent_in_run + left, whole_in_all, in_sums, price.sites_per_person)
        payments.promise(run, dataset, whole, blocks=blocks)

    def release(self, t: int, draw: Callable[[], bytes], *, attempt: int = 0) -> bytes:
        """The stored answer of round t (0: the setup). If none: pay, call `draw`, store and return its bytes.

        `attempt` says how often the round was given up before, since a site was lost. Raises BudgetExhaustedError if
        the dataset's budget does not hold it, or more rounds are asked again than the cost of the run includes;
        LedgerError if the ledger cannot be written.
        """
        request = self._request(t, attempt)
        kept = self._payments.stored(request)
        if kept is not None:
            self._note(t, kept, event="released again", units=0, attempt=attempt)
            return kept
        self._refuse_too_many(t, attempt)
        surcharge = self._surcharge(t)
        # Reserve before drawing: a crash may waste budget, never overspend it.
        payment = Payment(
            self._price.units_of(t) + surcharge,
            {"round": t, "attempt": attempt, **self._recipe},
            gaussian=self._price.gaussian,
            units_against_all=self._price.share_units_of(t) + surcharge,
            authority=self._here.authority,
            units_in_sums=self._price.in_sums_of(t),
            sites_per_person=self._price.sites_per_person,
        )
        dataset = self._dataset
        self._payments.reserve(
            request, payment, dataset.cap, dataset.cap_against_all, cap_per_person=dataset.cap_per_person
        )
        payload = draw()
        self._payments.store(request, payload)
        self._note(t, payload, event="released", units=payment.units, attempt=attempt)
        return payload

    def stored(self, t: int, *, attempt: int = 0) -> bytes | None:
        """The stored answer of round t, or None; pays for nothing."""
        return self._payments.stored(self._request(t, attempt))

    def _attempts(self, t: int) -> list[int]:
        """Those at round t that are paid for and answered."""
        return [k for k in range(self._price.retries + 1) if self._payments.stored(self._request(t, k)) is not None]

    def _refuse_too_many(self, t: int, attempt: int) -> None:
        """Whatever the coordinator says was lost, no more is released than the cost of the run includes."""
        if not self._price.units_of(t) or set(self._attempts(t)) <= {attempt}:
            return
        paid = [one for one in range(self._price.last_round + 1) if self._price.units_of(one)]
        if sum(max(len(self._attempts(one)) - 1, 0) for one in paid) >= self._price.retries:
            raise BudgetExhaustedError(
                f"the coordinator asks for round {t} again, and the price of the run includes {self._price.retries} "
                "such rounds: nothing more is released"
            )

    def _surcharge(self, t: int) -> int:
        """That of the run, with the first round of steps that it pays for: the coordinator may skip rounds."""
        due = self._price.surcharge_of([t])
        return 0 if due and any(self._attempts(one) for one in self._price.step_rounds) else due

    def _refuse_another_beginning(self) -> None:
        """One run has one plan and one cost: the surcharge that was paid does not cover the steps of another."""
        ours = self._recipe
        begun_with, under = self._payments.begun_with(self._here.run, self._here.site) or (ours, "")
        if under and self._here.authority not in ("", under):  # a coordinator chooses the numbers of its runs
            raise PolicyRefusal("this site began a run of this number in another federation; its answers are for that")
        if begun_with["variables"] != ours["variables"]:
            raise SchemaMismatchError(
                f"this site began this run with the variables {', '.join(begun_with['variables'])}; its stored answers "
                f"do not fit {', '.join(self._here.variables)}"
            )
        of_ours = ours.get("blocks")
        if begun_with.get("blocks", of_ours) != of_ours:  # earlier versions kept none
            blocks = ",".join(map(str, begun_with["blocks"]))
            raise PolicyRefusal(
                f"this site began this run with block {blocks} of its table; its stored answers are of those records",
                remedy=f"Go on with them: --blocks {blocks}.",
            )
        if begun_with.get("plan", ours["plan"]) != ours["plan"]:  # earlier versions kept none
            raise PlanMismatchError("this site began this run under another plan; its stored answers are for that one")
        if not has_price_of(self._price, begun_with):
            raise PolicyRefusal(
                f"this site began this run at another cost, by fedbnsl {begun_with.get('version')}",
                remedy="Begin another run, or go on with the version that this one was begun with.",
            )

    def _left(
        self, whole: int, paid: Sequence[int], units_of: Callable[[int], int], *, surcharge: int | None = None
    ) -> Spending:
        spent = sum(map(units_of, paid)) + (self._price.surcharge_of(paid) if surcharge is None else surcharge)
        return Spending(max(whole - spent, 0), self._price.gaussian)

    def _note(self, t: int, payload: bytes, *, event: str, units: int, attempt: int) -> None:
        self._record(
            event,
            dataset=self._dataset.id,
            run=run_text(self._here.run),
            round=t,
            attempt=attempt,
            zcdp=zcdp_of(units),
            sha256=hashlib.sha256(payload).hexdigest(),
        )

    def _request(self, t: int, attempt: int) -> Request:
        """An attempt counts as another round, beyond the last one."""
        number = t + attempt * (self._price.last_round + 1)
        return Request(self._dataset.id, self._here.run, number, self._here.site, self._here.blocks)
