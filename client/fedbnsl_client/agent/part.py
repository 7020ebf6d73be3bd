"""The part of a site's agent in one run: a thread with its own ledger, table and connection."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbnsl.errors import DataError, FedbnslError, LeftError, SetupError
from fedbnsl.events.emitter import Emit, Event, Events
from fedbnsl.events.security_log import once_each
from fedbnsl.protocol.messages import RunOffer
from fedbnsl_client.agent import results
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.join_run import Told, take_part
from fedbnsl_client.observe.site_view import SiteView
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import UnattendedTable, approval_for
from fedbnsl_client.site.identity import Link

_log = logging.getLogger(__name__)

_PATIENCE_S = 60.0

Notice = Callable[[str, str], None]
"""Told the name of a run, or nothing, and a text for people."""


@dataclass(frozen=True)
class Site:
    """What all parts of an agent share."""

    folder: Path  # the site's: policy, ledger, certificate
    out: Path  # where results are kept
    dataset: str | None  # of the policy; None: that of the approval, or the only one
    link: Callable[[], Link]  # gives the coordinator's address and the site's present certificate
    notice: Notice
    emit: Emit
    # name, coordinator: of the site, and host:port of the coordinator, to be shown
    name: str = ""
    coordinator: str = ""
    authority: str = ""  # fingerprint of that of the federation; empty in plaintext


class Part:
    """One run, from joining it to its end."""

    def __init__(
        self,
        site: Site,
        offer: RunOffer,
        plan_toml: str,
        dataset: str | None,
        blocks: Sequence[int] = (),
        *,
        approval: int,
        rules: object,
    ) -> None:
        self.offer = offer
        self.approval = approval  # number of the ledger's entry that approves it; 0: the policy does
        self.rules = rules  # by which it was decided to join
        self.leaving = Leaving(self._why_leave)
        self._still_allowed: Callable[[], bool] = lambda: True
        self.failure: FedbnslError | None = None  # what ended it here, before a result was kept
        self._site = site
        self.round = 0  # the last that was asked
        self.view = SiteView(site.name, site.coordinator)
        self._plan_toml = plan_toml
        self._dataset, self._blocks = dataset, blocks
        self._thread = threading.Thread(target=self._run, name=f"run {offer.run:016x}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        self._thread.join(seconds)

    def _run(self) -> None:
        name, place = self.offer.name, results.folder_of(self._site.out, self.offer)
        try:
            results.keep_plan(place, self._plan_toml)
            self._take_part(place)
            learned = results.learned(place)
            results.keep_outcome(place, self.offer, "finished", learned)
            self._notice(f"the run is over: {learned}; kept in {place}")
        except FedbnslError as error:
            self._failed(error, place)
        except Exception as error:
            _log.exception("the part in run %s ended unexpectedly", name)
            self._failed(FedbnslError(f"unexpected {type(error).__name__}: {error}"), place)

    def _take_part(self, place: Path) -> None:
        site = self._site
        link = site.link()
        with site_folder.opened(site.folder) as (policy, ledger):
            self._still_allowed = lambda: is_allowed(site.folder, ledger, self.offer, link.authority)
            policy.check_coordinator(link.address, authority=link.authority)
            record = once_each(site_folder.security_log(site.folder).enter)
            table = UnattendedTable(
                site.folder,
                policy,
                ledger,
                self._dataset,
                blocks=self._blocks,
                authority=link.authority,
                record=record,
            )
            told = Told(
                self._notice,
                aside=lambda text: None,  # they were shown when the plan was approved
                record=record,
                emit=self._events(),
            )
            take_part(table, link, patience_s=_PATIENCE_S, told=told, out=place, offer=self.offer, leaving=self.leaving)

    def _why_leave(self) -> str:
        """Whether policy and ledger, as they are now, still allow the run; a policy that cannot be read allows none."""
        try:
            return "" if self._still_allowed() else "its approval was taken back"
        except SetupError as error:
            return str(error).partition("\n")[0]

    def _events(self) -> Events:
        events = Events()
        events.listen(self._heard)
        events.listen(lambda event: self._site.emit(event.kind, run=event.run, **event.fields))
        return events

    def _heard(self, event: Event) -> None:
        self.view.heard(event)
        if event.kind == "round asked":
            self.round = event.fields["round"]

    def _notice(self, text: str) -> None:
        self._site.notice(self.offer.name, text)
        self.view.note(text)

    def _failed(self, error: FedbnslError, place: Path) -> None:
        self.failure = error
        if isinstance(error, DataError):  # its text may quote the table, and a log is kept and collected
            self._notice(f"the table cannot be used ({type(error).__name__}): {place / 'outcome.json'} says why")
        else:
            self._notice(str(error) if isinstance(error, LeftError) else f"{error}\n{error.remedy}")
        try:
            for_good = isinstance(error, LeftError) and not self.leaving.comes_back
            results.keep_outcome(
                place, self.offer, type(error).__name__, str(error), left_under=self.approval if for_good else None
            )
        except FedbnslError as unwritten:
            self._notice(str(unwritten))


def is_allowed(folder: Path, ledger: Ledger, offer: RunOffer, authority: str) -> bool:
    """Whether a run's very plan is listed in the policy, or approved for an agent in the federation of an authority."""
    if Policy.load(folder / site_folder.POLICY).lists_exactly(offer.plan_digest):
        return True
    known = approval_for(folder, ledger.approvals.current().get(offer.plan_digest.hex(), ()), authority)
    return known is not None and known.terms is not None
