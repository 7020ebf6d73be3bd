"""Plays the runs of a folder behind one port, so many at a time, for as long as the process lives.

What is wanted of a run stands in files (`fedbnsl_server.runs.queue`), and what has become of it in its run folder: a
service that is killed goes on where it stood when it is started again.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl.channel import MAX_MESSAGE_BYTES, require_loopback, split_address
from fedbnsl.errors import FedbnslError, ResultError
from fedbnsl.events import Emit, silent
from fedbnsl.messages import RunOffer
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.security_log import NAME, Record, SecurityLog
from fedbnsl.shown import shown
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.round_loop import RoundRecord
from fedbnsl_server.coordinator import Coordinator
from fedbnsl_server.grpc_api.connections import make_room, most_connections
from fedbnsl_server.grpc_api.front_door import FrontDoor
from fedbnsl_server.grpc_api.server import CoordinatorServer
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.runs import queue
from fedbnsl_server.runs.queue import QueuedRun
from fedbnsl_server.serve import check_plan, finished_run, heed_signals, look_for_certificates
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.store.run_folder import RunFolder, can_be_continued
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_server.store.site_ledgers import FILE, SiteLedgers

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.metrics_port import MetricsPort
    from fedbnsl_server.observe.page.runs_page import RunsPage

_log = logging.getLogger(__name__)

_LOOK_S = 0.25
# Connections are limited by the sites that may call; without a federation, on loopback, nobody knows how many.
_SITES_ON_LOOPBACK = 64


def serve_runs(
    folder: Path,
    *,
    listen: str,
    federation: "Federation | None" = None,
    at_once: int = 2,
    on_listening: Callable[[str], None],
    on_round: Callable[[str, AdmmState, RoundRecord], None] = lambda name, state, record: None,
    notice: Callable[[str, str], None] = lambda name, text: None,
    site_ledgers: Path | None = None,
    security_log: Path | None = None,
    metrics: "MetricsPort | None" = None,
    emit: Emit = silent,
    page: "RunsPage | None" = None,
) -> None:
    """Play the runs of a folder until a signal asks to stop; runs that go on are then paused.

    Parameters
    ----------
    at_once
        How many runs are open at the same time; the others wait in their order.
    on_listening
        Called with the real address once sites can call.
    on_round, notice
        Called with the name of the run, and as in `fedbnsl_server.serve.serve`.
    site_ledgers
        File that remembers the sites' privacy ledgers; None: in the folder.
    security_log
        File of who called and who was refused; None: in the federation's folder, without one in the folder.
    page
        Shows the runs to browsers; it hears of them by `emit` and `on_round`.

    Raises
    ------
    SetupError
        If the port cannot be had.
    """
    if federation is None:
        require_loopback(listen)
        n_sites = _SITES_ON_LOOPBACK
    else:
        split_address(listen)
        federation.credentials()  # fail now, not after the port is open
        n_sites = max(_SITES_ON_LOOPBACK, len(federation.enrolled()))
    make_room(most_connections(n_sites * at_once) + (0 if page is None else page.most_connections))
    log = SecurityLog(security_log or (folder if federation is None else federation.folder) / NAME)

    async def serving() -> None:
        server = CoordinatorServer(
            listen,
            federation,
            n_sites=n_sites,
            largest_bytes=MAX_MESSAGE_BYTES,
            on_open=on_listening,
            log=log,
            metrics=metrics,
            runs_at_once=at_once + 1,
        )
        service = Service(
            folder,
            server.front_door,
            SiteLedgers(site_ledgers or folder / FILE),
            at_once=at_once,
            federation=federation,
            on_round=on_round,
            notice=notice,
            record=partial(log.count, sync=True),
            emit=emit,
            page=page,
        )
        heed_signals(service.stop)
        log.enter("service started", folder=folder.name)
        try:
            service.look()
            await server.start()
            await service.play()
            await server.drain()
        finally:
            await server.close()
            log.close()
            log.enter("service ended", folder=folder.name)

    asyncio.run(serving())


@dataclass
class _Played:
    """A run that is open."""

    coordinator: Coordinator
    ending: str = ""  # what is wanted instead


class _RunDoor:
    """The front door, as one run sees it; a run that is over stays there, so that late sites hear its end."""

    def __init__(self, front_door: FrontDoor) -> None:
        self._front_door = front_door
        self._servicer: Servicer | None = None

    async def open(self, servicer: Servicer) -> None:
        """See `fedbnsl_server.coordinator.Door`."""
        self._servicer = servicer
        self._front_door.open(servicer)

    async def drain(self) -> None:
        """The other runs go on."""

    async def close(self) -> None:
        """Whoever asks later is told the end."""

    async def close_without_a_word(self, mailbox: Mailbox) -> None:
        """As a coordinator that is away, for the sites of this run."""
        if self._servicer is not None:
            self._front_door.close(self._servicer)
        mailbox.dismiss()


class Service:
    """The runs of a folder; used on one event loop."""

    def __init__(
        self,
        folder: Path,
        front_door: FrontDoor,
        ledgers: SiteLedgers,
        *,
        at_once: int,
        federation: "Federation | None",
        on_round: Callable[[str, AdmmState, RoundRecord], None],
        notice: Callable[[str, str], None],
        record: Record,
        emit: Emit,
        page: "RunsPage | None",
    ) -> None:
        self._folder = folder
        self._front_door = front_door
        self._ledgers = ledgers
        self._at_once = at_once
        self._federation = federation
        self._on_round = on_round
        self._notice = notice
        self._record = record
        self._emit = emit
        self._page = page
        self._played: dict[str, _Played] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._stamp: object = None
        self._runs: list[QueuedRun] = []
        self._states: dict[str, str] = {}
        self._offers: tuple[RunOffer, ...] = ()
        self._unreadable = ""
        front_door.others = lambda: self._offers
        front_door.reopen = self._reopen

    def stop(self, number: signal.Signals) -> None:
        """Pause all runs, and end; a second signal waits no longer for sites to hear the end of theirs."""
        self._stopping.set()
        for played in self._played.values():
            played.coordinator.stop(signal.SIGTERM)

    async def play(self) -> None:
        """Do what is wanted of the runs until `stop`."""
        try:
            while not self._stopping.is_set():
                self.look()
                self._do_what_is_wanted()
                try:
                    await asyncio.wait_for(self._stopping.wait(), _LOOK_S)
                except TimeoutError:
                    continue
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks.values())

    def look(self) -> None:
        """Read the runs of the folder, if any has changed."""
        try:
            stamp = queue.stamp(self._folder), tuple(self._tasks)
            if stamp != self._stamp:
                self._runs = queue.all_runs(self._folder)
                self._states = {one.name: one.state() for one in self._runs}
                self._offers = tuple(_offer(one, self._states[one.name]) for one in self._runs)
                self._stamp = stamp
                if self._page is not None:
                    self._page.list_runs([(one.name, one.plan().name, self._states[one.name]) for one in self._runs])
            self._unreadable = ""
        except FedbnslError as error:  # somebody may be writing it; the runs that go on are not disturbed
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                self._notice("", str(error))

    def _do_what_is_wanted(self) -> None:
        for run in self._runs:
            played = self._played.get(run.name)
            if played is not None and run.wanted != "run" and not played.ending:
                played.ending = run.wanted
                played.coordinator.stop(signal.SIGTERM if run.wanted == "pause" else signal.SIGINT)
            begins = run.name not in self._tasks and run.wanted == "run" and self._states[run.name] != "finished"
            if begins and len(self._tasks) < self._at_once:
                self._tasks[run.name] = asyncio.ensure_future(self._played_out(run))

    async def _played_out(self, run: QueuedRun) -> None:
        """Play a run; whatever ends it ends no other run, and it is not begun again by itself."""
        name = run.name
        try:
            await self._play_one(run)
        except FedbnslError as error:
            self._notice(name, f"over: {error}")
            self._want_no_more(run)
        except Exception:
            _log.exception("run %s ended unexpectedly", name)
            self._notice(name, "over: an unexpected error; see the log")
            self._want_no_more(run)
        finally:
            if self._page is not None:
                self._page.over(name)
            self._played.pop(name, None)
            del self._tasks[name]

    def _want_no_more(self, run: QueuedRun) -> None:
        try:
            if queue.read(run.folder).wanted == "run":
                queue.want(run, "stop")
        except ResultError as error:
            self._notice(run.name, str(error))

    async def _play_one(self, run: QueuedRun) -> None:
        plan, name = run.plan(), run.name
        check_plan(plan)
        if self._federation is not None:
            begins = not can_be_continued(run.folder)
            look_for_certificates(plan.sites, self._federation, partial(self._notice, name), begins=begins)
        folder = RunFolder.open(run.folder, plan, RunIdentity(run.run, datetime.now(UTC)))
        try:
            number = f"{folder.identity.run:016x}"
            self._record("run continued" if folder.is_continued else "run started", run=number, name=name)
            coordinator = Coordinator(
                folder,
                self._ledgers,
                on_round=partial(self._on_round, name),
                notice=partial(self._notice, name),
                record=self._record,
                emit=self._emit,
            )
            if self._page is not None:
                live = self._page.open(plan, folder.path, folder.identity.run, past=folder.past)
                live.follow(coordinator.servicer.status, asyncio.get_running_loop())
            self._played[name] = _Played(coordinator)
            if self._stopping.is_set():
                coordinator.stop(signal.SIGTERM)
            result = await coordinator.run(_RunDoor(self._front_door))
            self._record("run ended", run=number, name=name, outcome=result["state"])
            self._notice(name, f"{result['state']}: {folder.path}")
        finally:
            folder.close()

    async def _reopen(self, tag: int) -> Servicer | None:
        """A run that is finished, for sites that have missed its end; None if there is none."""
        for run in self._runs:
            if run.run & 0xFFFF_FFFF == tag and run.name not in self._tasks and run.state() == "finished":
                folder = RunFolder.open(run.folder, run.plan(), RunIdentity(run.run, datetime.now(UTC)))
                try:
                    servicer, end, _ = finished_run(
                        folder, self._ledgers, partial(self._notice, run.name), self._record
                    )
                    await servicer.mailbox.finish(end, set(), 0.0)
                    return servicer
                finally:
                    folder.close()
        return None


def _offer(run: QueuedRun, state: str) -> RunOffer:
    plan = run.plan()
    return RunOffer(
        run=run.run,
        name=run.name,
        state="interrupted" if state == "running" else state,  # it is not open here
        plan_digest=plan.digest(),
        plan_name=shown(plan.name, 200),
        sites=plan.sites,
        round=0,
        rounds=n_rounds(plan),
        seats=plan.n_participants,
        joined=0,
        plan_toml=plan.to_toml(),
    )
