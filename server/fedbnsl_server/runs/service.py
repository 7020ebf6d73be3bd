"""Plays the runs of a folder behind one port, several at a time, for as long as the process lives.

What the operator wants of a run stands in files (`fedbnsl_server.runs.queue`), and its outcome in its run folder: a
service that is killed goes on where it stood when it is started again.
"""

import asyncio
import fcntl
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fedbnsl.console.shown import shown
from fedbnsl.errors import FedbnslError, ResultError, SetupError
from fedbnsl.events.security_log import Record
from fedbnsl.files.shortage import shortage
from fedbnsl.protocol.channel import MAX_MESSAGE_BYTES
from fedbnsl.protocol.messages import RunOffer, run_tag
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.server import CoordinatorServer
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.run.coordinator import Coordinator
from fedbnsl_server.run.serve import check_plan, finished_run, heed_signals, look_for_certificates
from fedbnsl_server.run.settings import SILENT, Follower, ServerSettings
from fedbnsl_server.runs import queue
from fedbnsl_server.runs.folder import RunsFolder
from fedbnsl_server.runs.queue import QueuedRun
from fedbnsl_server.runs.studies import ListedRun
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.store.run_folder import RunFolder, can_be_continued, is_worked_on
from fedbnsl_server.store.run_id import RunIdentity

_log = logging.getLogger(__name__)

_LOOK_S = 0.25
_AGAIN_S = (5.0, 300.0)  # after something was lacking, and at most, doubling
_LOCK = "service.lock"
_WAITS_S = 60.0
_MOST_OPEN = 32
# Connections are limited by the sites that may call; without a federation, on loopback, nobody knows how many.
_SITES_ON_LOOPBACK = 64


def serve_runs(
    folder: Path,
    server: ServerSettings,
    *,
    at_once: int = 2,
    follower_of: Callable[[str], Follower] = lambda run: SILENT,
) -> None:
    """Play the runs of a folder until a signal asks to stop; runs that go on are then paused.

    At most `at_once` runs are open at the same time; the others wait in their order. `follower_of` gives who follows a
    run, by its name; the empty name stands for the whole folder. Raises SetupError if the port cannot be had.
    """
    server.check()
    federation = server.federation
    n_sites = _SITES_ON_LOOPBACK if federation is None else max(_SITES_ON_LOOPBACK, len(federation.enrolled()))
    server.make_room(n_sites * at_once)
    log = server.open_log(folder)
    if server.page is not None:
        server.page.requests.runs = RunsFolder(folder)

    async def serving() -> None:
        port = CoordinatorServer(
            server.listen,
            federation,
            n_sites=n_sites,
            largest_bytes=MAX_MESSAGE_BYTES,
            on_open=server.on_listening,
            log=log,
            metrics=server.metrics,
            runs_at_once=at_once + 2,
        )
        service = Service(
            folder,
            port.listener,
            server,
            at_once=at_once,
            follower_of=follower_of,
            record=partial(log.count, sync=True),
        )
        heed_signals(service.stop)
        log.enter("service started", folder=folder.name)
        try:
            service.look()
            await port.start()
            await service.play()
            await port.drain()
        finally:
            await port.close()
            log.close()
            log.enter("service ended", folder=folder.name)

    with _alone_in(folder):
        asyncio.run(serving())


@dataclass
class _Played:
    """A run that is open."""

    coordinator: Coordinator
    ending: str = ""  # what is wanted instead
    since: float = field(default_factory=time.monotonic)


class _RunDoor:
    """The front door, as one run sees it; a run that is over stays there, so that late sites hear its end."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._servicer: Servicer | None = None

    async def open(self, servicer: Servicer) -> None:
        """See `fedbnsl_server.run.coordinator.Door`."""
        self._servicer = servicer
        self._listener.open(servicer)

    async def drain(self) -> None:
        """The other runs go on."""

    async def close(self) -> None:
        """Whoever asks later is told the end."""

    async def close_without_a_word(self, mailbox: Mailbox) -> None:
        """As a coordinator that is away, for the sites of this run."""
        if self._servicer is not None:
            self._listener.close(self._servicer)
        mailbox.dismiss()


class Service:
    """The runs of a folder; used on one event loop."""

    def __init__(
        self,
        folder: Path,
        listener: Listener,
        server: ServerSettings,
        *,
        at_once: int,
        follower_of: Callable[[str], Follower],
        record: Record,
    ) -> None:
        self._folder = folder
        self._listener = listener
        self._ledgers = server.ledgers(folder)
        self._federation, self._page = server.federation, server.page
        self._at_once = at_once
        self._follower_of = follower_of
        self._record = record
        self._played: dict[str, _Played] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._stamp: object = None
        self._runs: list[QueuedRun] = []
        self._states: dict[str, str] = {}
        self._offers: tuple[RunOffer, ...] = ()
        self._unreadable: dict[str, str] = {}
        self._again: dict[str, tuple[float, float]] = {}  # how long a run waits to be begun again, and until when
        self._ended: dict[str, tuple[int, int]] = {}  # what the result of a run that is over was then, by its stamp
        listener.others = lambda: self._offers
        listener.reopen = self._reopen

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
        """Read the runs of the folder, if any has changed; one that cannot be read is left out, and stops no other."""
        try:
            stamp = queue.stamp(self._folder), tuple(self._tasks)
            if stamp == self._stamp:
                return
            unreadable: dict[str, str] = {}
            runs = queue.all_runs(self._folder, skip=lambda place, error: unreadable.update({place.name: str(error)}))
        except ResultError as error:  # the folder itself
            self._say_unreadable({"": str(error)})
            return
        states: dict[str, str] = {}
        offers: dict[str, RunOffer] = {}
        listed: list[ListedRun] = []
        for run in runs:
            try:
                states[run.name] = run.state()
                offer = _offer(run, states[run.name])
                listed.append(ListedRun(run.name, offer.plan_name, run.shown(), run.study, run.folder))
                offers[run.name] = offer
            except Exception as error:  # whatever is wrong with its files
                unreadable[run.name] = str(error)
        self._say_unreadable(unreadable)
        self._runs = [run for run in runs if run.name in offers]
        self._states, self._offers, self._stamp = states, tuple(offers.values()), stamp
        self._let_go()
        if self._page is not None:
            self._page.list_runs(listed)

    def _let_go(self) -> None:
        """Show and answer no more of runs that were removed, or whose results say something else since their end."""
        ended = {run.name: self._ended.get(run.name) for run in self._runs}
        stays = {run.name for run in self._runs if ended[run.name] in (None, queue.result_stamp(run.folder))}

        def is_gone(name: str) -> bool:
            return name not in stays and name not in self._tasks

        self._ended = {name: stamp for name, stamp in self._ended.items() if not is_gone(name)}
        self._listener.forget(is_gone)
        if self._page is not None:
            self._page.forget(is_gone)

    def _say_unreadable(self, unreadable: dict[str, str]) -> None:
        for name, why in unreadable.items():
            if self._unreadable.get(name) != why:
                self._follower_of(name).notice(f"left out: {why}")
        self._unreadable = unreadable

    def _do_what_is_wanted(self) -> None:
        tags = Counter(run_tag(run.run) for run in self._runs if run.name in self._tasks)
        for run in self._runs:
            played = self._played.get(run.name)
            if played is not None and run.wanted != "run" and not played.ending:
                played.ending = run.wanted
                played.coordinator.stop(signal.SIGTERM if run.wanted == "pause" else signal.SIGINT, at_once=True)
            begins = run.name not in self._tasks and run.wanted == "run" and self._states[run.name] != "finished"
            waits = time.monotonic() < self._again.get(run.name, (0.0, 0.0))[1] or tags[run_tag(run.run)]
            if begins and not waits and self._busy() < self._at_once and len(self._tasks) < _MOST_OPEN:
                tags[run_tag(run.run)] += 1  # a copy of its folder would have the same number
                self._tasks[run.name] = asyncio.ensure_future(self._played_out(run))

    def _busy(self) -> int:
        """Runs that take a place: not those that have waited for their sites for long, such as for an approval."""
        now = time.monotonic()
        waiting = [
            one
            for one in self._played.values()
            if one.coordinator.servicer.progress.state == "waiting for sites" and now - one.since > _WAITS_S
        ]
        return len(self._tasks) - len(waiting)

    async def _played_out(self, run: QueuedRun) -> None:
        """Play a run. Whatever ends it ends no other run; it is begun again by itself only if something was lacking."""
        name = run.name
        try:
            await self._play_one(run)
            self._again.pop(name, None)
        except FedbnslError as error:
            if shortage(error) or _is_played_elsewhere(run):
                self._try_later(run, error)
            else:
                self._follower_of(name).notice(f"over: {error}")
                self._want_no_more(run)
        except Exception:
            _log.exception("run %s ended unexpectedly", name)
            self._follower_of(name).notice("over: an unexpected error; see the log")
            self._want_no_more(run)
        finally:
            self._ended[name] = queue.result_stamp(run.folder)
            if self._page is not None:
                self._page.over(name)
            self._played.pop(name, None)
            del self._tasks[name]

    def _try_later(self, run: QueuedRun, error: FedbnslError) -> None:
        """Begin it again after a while, which doubles: a full disk is mended, another coordinator ends."""
        first_s, most_s = _AGAIN_S
        wait_s = min(2 * self._again.get(run.name, (first_s / 2, 0.0))[0], most_s)
        self._again[run.name] = wait_s, time.monotonic() + wait_s
        self._follower_of(run.name).notice(f"{error}; trying again in {wait_s:g} s")

    def _want_no_more(self, run: QueuedRun) -> None:
        self._again[run.name] = _AGAIN_S[1], time.monotonic() + _AGAIN_S[1]  # also if it cannot be written down
        try:
            if queue.read(run.folder).wanted == "run":
                queue.want(run, "stop")
            self._again.pop(run.name)
        except ResultError as error:
            self._follower_of(run.name).notice(str(error))

    async def _play_one(self, run: QueuedRun) -> None:
        plan, name, follower = run.plan(), run.name, self._follower_of(run.name)
        check_plan(plan)
        if self._federation is not None:
            begins = not can_be_continued(run.folder)
            look_for_certificates(plan.sites, self._federation, follower.notice, begins=begins)
        folder = RunFolder.open(run.folder, plan, RunIdentity(run.run, datetime.now(UTC), study=run.study))
        try:
            number = f"{folder.identity.run:016x}"
            self._record("run continued" if folder.is_continued else "run started", run=number, name=name)
            coordinator = Coordinator(folder, self._ledgers, follower, record=self._record)
            if self._page is not None:
                live = self._page.open(plan, folder.path, folder.identity, past=folder.past)
                live.follow(coordinator.servicer.status, asyncio.get_running_loop())
            self._played[name] = _Played(coordinator)
            if self._stopping.is_set():
                coordinator.stop(signal.SIGTERM)
            result = await coordinator.run(_RunDoor(self._listener))
            self._record("run ended", run=number, name=name, outcome=result["state"])
            follower.notice(f"{result['state']}: {folder.path}")
        finally:
            folder.close()

    async def _reopen(self, tag: int) -> Servicer | None:
        """A run that is finished, for sites that have missed its end; None if there is none."""
        for run in self._runs:
            if run_tag(run.run) == tag and run.name not in self._tasks and run.state() == "finished":
                folder = RunFolder.open(run.folder, run.plan(), RunIdentity(run.run, datetime.now(UTC)))
                try:
                    notice = self._follower_of(run.name).notice
                    servicer, end, _ = finished_run(folder, self._ledgers, notice, self._record)
                    await servicer.mailbox.finish(end, set(), 0.0)
                    self._ended[run.name] = queue.result_stamp(run.folder)
                    return servicer
                finally:
                    folder.close()
        return None


def _is_played_elsewhere(run: QueuedRun) -> bool:
    try:
        return can_be_continued(run.folder) and is_worked_on(run.folder)
    except ResultError:
        return False


@contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Let one service at a time play the runs of a folder."""
    with (folder / _LOCK).open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(
                f"another coordinator plays the runs of {folder}", remedy="End it first: SIGTERM pauses its runs."
            ) from None
        yield


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
        memberships=plan.n_participants,
        joined=0,
        plan_toml=plan.to_toml(),
    )
