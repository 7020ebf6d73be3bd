"""One run at the coordinator: let the sites join, play the rounds, and end in an orderly way, also after an error."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedbnsl.errors import DivergenceError, FedbnslError, InterruptedRunError, QuorumLostError, ResultError
from fedbnsl.interrupt import signals_to_heed
from fedbnsl.messages import Finished
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm import global_step, round_loop
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.algorithm.round_loop import RoundRecord
from fedbnsl_server.grpc_api.server import CoordinatorServer
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Member, Roster
from fedbnsl_server.store.results import RunRecorder
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.site_ledgers import SiteLedgers

_GOODBYE_S = 5.0
_HASTY_GOODBYE_S = 0.5
_LAST_LOOKS_S = 1.0

_PUBLIC_REASONS: list[tuple[type[FedbnslError], str]] = [
    (InterruptedRunError, "the coordinator was interrupted; if it goes on with the run, join again"),
    (QuorumLostError, "too few sites answered in time"),
    (DivergenceError, "the iteration left the finite numbers"),
    (ResultError, "the coordinator could not write its results"),
]

_T = TypeVar("_T")


@dataclass(frozen=True)
class _End:
    """How the rounds ended: `outcome` as in result.json, and what was wrong if it was not asked for."""

    outcome: str
    finished: Finished = field(default_factory=lambda: Finished(None))
    error: Exception | None = None
    paused: bool = False


class Coordinator:
    """The rounds of a run, or what is left of them, and its results; made and used on one event loop.

    Parameters
    ----------
    folder
        With what is there of the run already.
    ledgers
        What is remembered of the sites' privacy ledgers.
    on_round
        Called after each round is saved.
    notice
        Told what an operator may want to know.
    """

    def __init__(
        self,
        folder: RunFolder,
        ledgers: SiteLedgers,
        *,
        on_round: Callable[[AdmmState, RoundRecord], None],
        notice: Callable[[str], None],
    ) -> None:
        plan, past, identity = folder.plan, folder.past, folder.identity
        self._plan = plan
        self._past = past
        self._ledgers = ledgers
        self._on_round = on_round
        self._notice = notice
        self._broken: ResultError | None = None
        self._asked_to_stop: signal.Signals | None = None
        self._rounds: asyncio.Future[AdmmState] | None = None
        if folder.is_continued:
            folder.take_up()
            where = f"after round {past.round}" if past.round else "before round 1"
            notice(f"continuing run {identity.run:016x} {where}")
        self._recorder = RunRecorder(folder, run=identity.run, seeds=identity.seeds, created_at=identity.created_at)
        self._roster = Roster(
            plan, variables=past.membership.variables, members=past.membership.members, on_change=self._keep_seat
        )
        self._mailbox = Mailbox(
            plan,
            asyncio.get_running_loop(),
            self._note,
            complete_rounds=past.round,
            snapshots=None if past.state is None else past.state.sites,
            traffic=past.traffic(),
            answered=past.last_answered(),
        )
        self._servicer = Servicer(plan, identity.run, self._roster, self._mailbox, ledgers, self._note)

    async def run(self, server: CoordinatorServer) -> dict[str, Any]:
        """Open the server, play the rounds, write the results, tell the sites; return what result.json holds.

        Raises
        ------
        FedbnslError
            Whatever ended the run, once the results are written and the sites are told.
        """
        loop = asyncio.get_running_loop()
        for number in signals_to_heed():
            loop.add_signal_handler(number, self._stop, number)
        await server.open(self._servicer)
        end = await self._play()
        await server.drain()
        if not end.paused:
            self._servicer.progress.state = end.outcome
        self._servicer.progress.ended = time.monotonic()
        result, error = self._write_results(end)
        if end.paused:
            await server.close_without_a_word(self._mailbox)
        else:
            finished = end.finished if error is None else Finished(None, _public_reason(error))
            grace_s = _GOODBYE_S if error is None else _HASTY_GOODBYE_S
            await tell_the_end(self._mailbox, finished, set(self._roster.members), grace_s)
            if end.outcome != "interrupted":  # an interrupted run may go on later, so watchers keep watching
                await self._servicer.last_looks(_LAST_LOOKS_S)
            await server.close()
        if error is not None:
            raise error
        return result

    async def _play(self) -> _End:
        try:
            if self._roster.is_complete:  # before anything can stop the run: its results need what went before
                self._start()
            self._rounds = asyncio.ensure_future(self._learn())
            if self._broken or self._asked_to_stop:
                self._interrupt()
            state = await self._rounds
            return _End("finished", end_of(state, self._plan, self._roster.variables))
        except (asyncio.CancelledError, InterruptedRunError):  # the latter if the mailbox told the engine first
            if self._broken is not None:
                return _End("failed", error=self._broken)
            if self._asked_to_stop is signal.SIGTERM:
                return _End("interrupted", paused=True)
            where = f"in round {self._mailbox.round}" if self._mailbox.round else "while it waited for sites"
            return _End("interrupted", error=InterruptedRunError(f"interrupted {where}"))
        except Exception as failure:  # raised again by `run`, once the folder is closed and the sites are told
            return _End("failed", error=failure)

    async def _learn(self) -> AdmmState:
        loading = asyncio.ensure_future(_in_daemon_thread(global_step.warm_up))
        if not self._roster.is_complete:
            self._notice(f"waiting for {self._plan.n_participants - len(self._roster.members)} sites to join")
            await self._roster.wait_until_complete()
            self._start()
        await loading
        plan, roster = self._plan, self._roster
        return await _in_daemon_thread(
            lambda: round_loop.run(
                plan,
                roster.variables,
                {site: member.n_samples for site, member in roster.members.items()},
                self._mailbox,
                on_round=self._after_round,
                state=self._past.state,
            )
        )

    def _start(self) -> None:
        members = sorted(self._roster.members.items())
        self._recorder.start(
            self._roster.variables,
            {site: member.n_samples for site, member in members},
            self._mailbox.traffic,
            uncounted=[f"{site} keeps no privacy ledger" for site, member in members if not member.has_ledger],
        )
        progress = self._servicer.progress
        progress.state, progress.started = "running", time.monotonic() - self._past.elapsed_s
        if self._past.rounds:
            last = self._past.rounds[-1]
            progress.acyclicity, progress.edges = last["acyclicity"], last["edges"]

    def _after_round(self, state: AdmmState, record: RoundRecord) -> None:
        self._ledgers.save()
        self._recorder.on_round(state, record)
        self._servicer.progress.acyclicity, self._servicer.progress.edges = record.acyclicity, record.edges
        self._on_round(state, record)

    def _write_results(self, end: _End) -> tuple[dict[str, Any], Exception | None]:
        """Write the results before the sites are told: ending the process then loses nothing."""
        result, error = dict[str, Any](), end.error
        try:  # of an unfinished round as well: what a site spent on it is not forgotten
            self._ledgers.save()
        except ResultError as unwritten:
            end, error = replace(end, outcome="failed"), error or unwritten
        try:
            if end.paused and error is None:
                result = self._recorder.pause()
            else:
                result = self._recorder.finish(end.outcome, "" if error is None else str(error))
        except Exception as unwritten:  # raised by `run`, once the sites are told
            error = error or unwritten
        return result, error

    def _stop(self, number: signal.Signals) -> None:
        self._asked_to_stop = self._asked_to_stop or number
        if number is signal.SIGTERM:
            self._servicer.progress.state = "draining"
        self._interrupt()

    def _interrupt(self) -> None:
        self._mailbox.stop()
        if self._rounds is not None:
            self._rounds.cancel()

    def _note(self, text: str) -> None:
        self._notice(text)
        self._keep(lambda: self._recorder.event("notice", text=text))

    def _keep_seat(self, site: str, member: Member | None) -> None:
        self._keep(lambda: self._recorder.seat(site, member))

    def _keep(self, write: Callable[[], None]) -> None:
        """Write to the run folder. If that fails, fail the run, not the site's call that caused it."""
        try:
            write()
        except ResultError as error:
            self._broken = self._broken or error
            self._interrupt()


def end_of(state: AdmmState, plan: Plan, variables: tuple[str, ...]) -> Finished:
    """What the sites are told when all rounds are complete."""
    return Finished(consensus_graph(state, plan, EdgeMask(plan.knowledge, variables)).as_sparse())


async def tell_the_end(mailbox: Mailbox, finished: Finished, sites: set[str], grace_s: float) -> None:
    """Tell the sites the end; another signal ends the waiting for those who have not heard it."""
    goodbye = asyncio.ensure_future(mailbox.finish(finished, sites, grace_s))
    for number in signals_to_heed():
        asyncio.get_running_loop().add_signal_handler(number, goodbye.cancel)
    with suppress(asyncio.CancelledError):
        await goodbye


def _public_reason(error: Exception) -> str:
    """What the sites are told: constant sentences, for a text may hold paths of this machine."""
    for kind, sentence in _PUBLIC_REASONS:
        if isinstance(error, kind):
            return sentence
    return "an unexpected error at the coordinator"


async def _in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Run blocking work in a daemon thread, which does not keep an interrupted process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(value: _T | None, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(value)  # type: ignore[arg-type]

    def body() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # any error is passed on to the awaiting task
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the run was interrupted
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=body, name="rounds", daemon=True).start()
    return await future
