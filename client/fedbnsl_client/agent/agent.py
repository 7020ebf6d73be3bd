"""A site's agent: waits for runs that its operator has approved, or the policy allows, and takes part in them.

Whatever it may do stands in the site's folder, which it reads again for each decision: policy, approvals, certificate.
It never joins a run whose plan, privacy cost or sites differ from what was approved (`UnattendedTable`), and
leaves one whose approval is taken back. It keeps nothing in memory that a restart would need: runs that go on are
joined again, results that were missed are fetched.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedbnsl.errors import (
    BudgetExhaustedError,
    EjectedError,
    FedbnslError,
    LeftError,
    PlanError,
    PlanMismatchError,
    PolicyRefusal,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RunOffer
from fedbnsl_client.agent import results
from fedbnsl_client.agent.part import Part, Site
from fedbnsl_client.budget.approvals import Approval
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.secure_aggregation import peers
from fedbnsl_client.session import Session
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import approval_for, approved_terms
from fedbnsl_client.site.identity import place_with
from fedbnsl_client.solvers.local_solver import warm_up

_LOOK_S = 1.0  # at the folder and at the runs
_AGAIN_S = (5.0, 300.0)  # after a failure, and at most, doubling
_LONGEST_WAIT_S = 15.0  # between calls to a coordinator that is away
_GOODBYE_S = 15.0
_MOST_SHOWN = 20
# Until somebody changes the policy, the confirmed peers or the approval.
_FOR_GOOD = (PolicyRefusal, BudgetExhaustedError, LeftError, EjectedError)


@dataclass(frozen=True)
class _Decided:
    """Why a run is not joined now."""

    why: str
    rules: object  # the policy, the confirmed peers and the approval that this was decided by
    wait_s: float = math.inf
    again_at: float = math.inf  # when it is tried again under the same rules, in seconds of the monotonic clock
    of_budget: bool = False  # whether the budget did not hold it: a run that ends may leave some of what it was to pay


class _Rules:
    """What the site's folder says, read again when it has changed; for one thread."""

    def __init__(self, folder: Path, authority: str) -> None:
        self._folder, self._place, self._authority = folder, place_with(folder, authority), authority
        self._seen: object = None
        self._open: ExitStack = ExitStack()
        self.policy: Policy
        self.ledger: Ledger

    def read(self) -> dict[str, tuple[Approval, ...]]:
        """Bring policy and ledger up to date; return what is approved."""
        ledger = (self._folder / site_folder.LEDGER).stat()
        # By its inode: a file that was put in its place is another ledger.
        policy, confirmed = self._folder / site_folder.POLICY, peers.path_in(self._place)
        changed = policy.stat().st_mtime_ns, confirmed.stat().st_mtime_ns if confirmed.exists() else 0
        now = *changed, ledger.st_dev, ledger.st_ino
        if now != self._seen:
            self.close()
            self.policy, self.ledger = self._open.enter_context(site_folder.opened(self._folder))
            self._seen = now
        self.ledger.require_open()
        return self.ledger.approvals.current()

    def for_run(self, offer: RunOffer, approvals: Mapping[str, Sequence[Approval]]) -> tuple[object, int]:
        """What decides about a run, to compare: state of the folder, and number of the approval's entry, 0 without."""
        known = approval_for(self._folder, approvals.get(offer.plan_digest.hex(), ()), self._authority)
        return self._seen, 0 if known is None else known.number

    def close(self) -> None:
        """Close the ledger."""
        self._open.close()
        self._seen = None


class Agent:
    """Takes part in runs, in `at_once` at a time, until it is stopped.

    One thread uses it, but for what pages and metrics read.
    """

    def __init__(self, site: Site, *, at_once: int) -> None:
        self._site = site
        self._at_once = at_once
        self._rules = _Rules(site.folder, site.authority)
        self._parts: dict[int, Part] = {}
        self._decided: dict[int, _Decided] = {}
        self._plans: dict[int, str] = {}
        self._offers: tuple[RunOffer, ...] = ()
        self._looked = 0.0
        self.trouble = ""  # why the coordinator cannot be asked, or the folder not be read
        self.reached = False  # whether the coordinator answered last
        self._outcomes: dict[str, int] = {}
        self._shown: dict[int, Part] = {}

    # ---- for pages and metrics -------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the runs that go on here."""
        return (*self._parts.values(),)

    @property
    def shown(self) -> Mapping[int, Part]:
        """The last parts by their runs' numbers, also those that are over."""
        return dict(self._shown)

    @property
    def waiting(self) -> Mapping[str, str]:
        """Open runs that are not joined, and why not, by name."""
        names = {one.run: one.name for one in self._offers if one.is_open}
        decided = [*self._decided.items()]
        return {names[run]: one.why for run, one in decided if run in names and run not in self._parts}

    @property
    def proposals(self) -> Mapping[str, tuple[str, str]]:
        """Open runs that are not joined, and whose plan is known: name and plan by the number in an address."""
        plans = dict(self._plans)
        return {
            f"{one.run:016x}": (one.name, plans[one.run])
            for one in self._offers
            if one.is_open and one.run in plans and one.run not in self._parts
        }

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How many runs ended how."""
        return dict(self._outcomes)

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take part in runs until an exception, such as that of a signal, ends this."""
        warm_up()
        session: Session | None = None
        seen, wait_s = 0, _LOOK_S
        try:
            while True:
                try:
                    session = session or self._connected()
                    seen, self._offers = session.offers(seen)
                    wait_s, self.reached = _LOOK_S, True
                    if self._look():
                        self._note_trouble(None)
                except FedbnslError as error:  # whatever the coordinator answers, this site's other runs go on
                    self.reached = False
                    self._note_trouble(error)
                    if session is not None:
                        session.close()
                    session, seen = None, 0  # the next one has the certificate of then
                    time.sleep(wait_s)
                    wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                    self._look()
        finally:
            if session is not None:
                session.close()
            self._leave_all()
            self._rules.close()

    def _connected(self) -> Session:
        link = self._site.link()
        return Session(link.address, link.credentials, meanwhile=self._meanwhile)

    def _meanwhile(self) -> None:
        if time.monotonic() - self._looked >= _LOOK_S:
            self._look()

    def _look(self) -> bool:
        """Decide about every run that is offered: approvals may have changed, and runs ended.

        Returns whether the site's folder could be read.
        """
        self._looked = time.monotonic()
        try:
            approvals = self._rules.read()
        except (FedbnslError, OSError) as error:  # somebody edits it, or has to mend it
            self._note_trouble(error)
            return False
        self._reap()
        offered = {one.run: one for one in self._offers}
        self._decided = {run: why for run, why in self._decided.items() if run in offered}
        self._plans = {run: plan for run, plan in self._plans.items() if run in offered}
        # A run that is paused keeps its part, and takes no place.
        n_open = sum(1 for run in self._parts if run in offered and offered[run].is_open)
        # One at a look, and at all sites in the same order: of two runs that no budget holds together, all join one.
        for offer in sorted(self._offers, key=lambda one: one.run):
            if n_open < self._at_once and self._is_due(offer, approvals):
                known = len(self._plans)
                self._consider(offer, approvals)
                if offer.run in self._parts or len(self._plans) > known:
                    break
        return True

    def _is_due(self, offer: RunOffer, approvals: Mapping[str, Sequence[Approval]]) -> bool:
        if offer.run in self._parts or not (offer.is_open or offer.state == "finished"):
            return False
        if results.is_kept(results.folder_of(self._site.out, offer)):
            return False
        known = self._decided.get(offer.run)
        if known is None:
            return True
        return known.rules != self._rules.for_run(offer, approvals) or time.monotonic() >= known.again_at

    def _consider(self, offer: RunOffer, approvals: Mapping[str, Sequence[Approval]]) -> None:
        _, number = rules = self._rules.for_run(offer, approvals)
        authority, of_ledger = self._site.authority, self._rules.ledger.approvals
        if offer.state == "finished" and not of_ledger.agent_was_in(offer.run, offer.plan_digest, authority=authority):
            self._decided[offer.run] = _Decided("it was over before this agent could take part", rules)
            return
        if results.left_under(results.folder_of(self._site.out, offer)) == number:
            self._decided[offer.run] = _Decided("it was left for good; approve its plan again to join it again", rules)
            return
        try:
            plan = self._plan_of(offer)
            dataset, blocks = self._site.dataset, tuple[int, ...]()
            if not self._rules.policy.lists_exactly(offer.plan_digest):
                _, terms = approved_terms(self._site.folder, self._rules.ledger, plan, offer.run, authority)
                dataset, blocks = terms.dataset, terms.blocks
        except (PolicyRefusal, PlanError, PlanMismatchError) as error:
            if offer.run not in self._decided or self._decided[offer.run].why != str(error):
                self._site.notice(offer.name, f"not joined: {error}\n{error.remedy}")
                self._site.emit("not taken part", run=offer.name, why=type(error).__name__)
            self._decided[offer.run] = _Decided(str(error), rules)
            return
        except (FedbnslError, OSError) as error:  # the coordinator went away, or answers oddly: of this run alone
            again_at = time.monotonic() + _AGAIN_S[0]
            self._decided[offer.run] = _Decided(str(error), rules, _AGAIN_S[0], again_at)
            return
        part = self._parts[offer.run] = Part(
            self._site, offer, self._plans[offer.run], dataset, blocks, approval=number, rules=rules
        )
        kept = [*self._shown.items()][-_MOST_SHOWN:]
        self._shown = {**{run: one for run, one in kept if run != offer.run}, offer.run: part}
        part.start()

    def _plan_of(self, offer: RunOffer) -> Plan:
        if offer.run not in self._plans:
            with self._connected() as session:
                self._plans[offer.run] = session.plan_of(offer.run)
        plan = Plan.from_toml(self._plans[offer.run], origin=f"the plan of run {offer.name}")
        if plan.digest() != offer.plan_digest:
            raise PlanMismatchError("the coordinator offers a plan that does not have the digest that it says")
        return plan

    def _reap(self) -> None:
        for run, part in [*self._parts.items()]:
            if part.goes_on:
                continue
            del self._parts[run]
            outcome = "finished" if part.failure is None else type(part.failure).__name__
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
            known = self._decided.pop(run, None)
            if not isinstance(part.failure, BudgetExhaustedError):
                self._decided = {one: why for one, why in self._decided.items() if not why.of_budget}
            if part.failure is None:
                continue
            again = known is not None and math.isfinite(known.wait_s)
            wait_s = min(2 * known.wait_s, _AGAIN_S[1]) if known is not None and again else _AGAIN_S[0]
            if isinstance(part.failure, _FOR_GOOD):
                wait_s = math.inf
            of_budget = isinstance(part.failure, BudgetExhaustedError)
            again_at = time.monotonic() + wait_s
            self._decided[run] = _Decided(str(part.failure), part.rules, wait_s, again_at, of_budget)

    def _note_trouble(self, error: Exception | None) -> None:
        """Say once what is wrong, and once that it is over."""
        trouble = "" if error is None else str(error)
        if trouble and not self.trouble:
            self._site.notice("", f"{trouble}; trying again for as long as it takes")
        elif self.trouble and not trouble:
            self._site.notice("", "all is well again")
        self.trouble = trouble

    def _leave_all(self) -> None:
        """Leave the runs that go on, so that nobody waits for this site in vain; a restart joins them again."""
        for part in self._parts.values():
            part.leaving.ask("the agent was stopped", comes_back=True)
        until = time.monotonic() + _GOODBYE_S
        for part in self._parts.values():
            part.wait(max(0.0, until - time.monotonic()))
