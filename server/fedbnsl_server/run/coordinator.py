"""One run at the coordinator: let the sites join, play the rounds, and end in an orderly way, also after an error.

Several runs may be played at once, on one event loop and behind one port. A lack of room only pauses a run: see
`fedbnsl_server.run.pause`. Sites are ejected by `fedbnsl_server.run.operator_commands`.
"""

import asyncio
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from fedbnsl.console.wording import counted
from fedbnsl.errors import InterruptedRunError, QuorumLostError, ResultError
from fedbnsl.events.security_log import Record
from fedbnsl.files.shortage import shortage
from fedbnsl.graphs import files as graph_files
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LOADING, WAITING_FOR_SITES, Finished, Phase
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_server.algorithm import global_step
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.results.outlier_scores import outliers_now
from fedbnsl_server.results.results import RunRecorder
from fedbnsl_server.results.sentences import sentence
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.end_notice import end_of, public_reason, told
from fedbnsl_server.run.operator_commands import OperatorCommands, RunParts
from fedbnsl_server.run.pause import Pause
from fedbnsl_server.run.phases import ENDING, Phases
from fedbnsl_server.run.round_loop import RoundRecord, Searching
from fedbnsl_server.run.secure_aggregation import SecureSites
from fedbnsl_server.run.settings import Follower
from fedbnsl_server.run.threads import at_once, processors
from fedbnsl_server.search import graph_search, order_search, sparse_products
from fedbnsl_server.sites.ejection import losses
from fedbnsl_server.sites.mailbox import CompleteRounds, Mailbox, RecalledError
from fedbnsl_server.sites.roster import Member, Roster
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.site_ledgers import SiteLedgers

_GOODBYE_S = 5.0
_HASTY_GOODBYE_S = 0.5
_LAST_LOOKS_S = 1.0
_LOOK_S = 0.25  # from one look at how far a search is to the next

_T = TypeVar("_T")


@dataclass(frozen=True)
class _End:
    """How the rounds ended: `outcome` as in result.json, and the error that ended them early, if any."""

    outcome: str
    finished: Finished = field(default_factory=lambda: Finished(None))
    error: Exception | None = None
    paused: bool = False


class Door(Protocol):
    """Where the sites of a run call: a server for one run, or the listener of a service."""

    async def open(self, servicer: Servicer) -> None:
        """Take the calls of a run."""
        ...

    async def drain(self) -> None:
        """Hand out no new work."""
        ...

    async def close(self) -> None:
        """Take no more calls of the run, whose sites were told its end."""
        ...

    async def close_without_a_word(self, mailbox: Mailbox) -> None:
        """Take no more calls, without telling the sites, so that they keep trying; end pulls that wait for a task."""
        ...


class Coordinator:
    """The rounds of a run, or what is left of them, and its results; made and used on one event loop.

    The follower's events get the name of the run's folder.
    """

    def __init__(self, folder: RunFolder, ledgers: SiteLedgers, follower: Follower, *, record: Record) -> None:
        plan, past, identity = folder.plan, folder.past, folder.identity
        self._plan = plan
        self._past = past
        self._ledgers = ledgers
        self._follower = follower
        self._emit = partial(follower.emit, run=folder.path.name)
        self._end_notice: asyncio.Future[None] | None = None
        self._pause = Pause(self._note, self._emit)
        self._probing: asyncio.Future[None] | None = None
        self._broken: Exception | None = None
        self._named: set[str] = set()  # sites that were said to stand out
        self._phases = Phases(n_rounds(plan))
        self._is_loaded = False
        self._asked_to_stop: signal.Signals | None = None
        self._rounds: asyncio.Future[AdmmState] | None = None
        if folder.is_continued:
            folder.take_up()
            where = f"after round {past.round}" if past.round else "before round 1"
            follower.notice(f"continuing run {identity.run:016x} {where}")
        self._recorder = RunRecorder(
            folder, run=identity.run, seeds=identity.seeds, created_at=identity.created_at, study=identity.study
        )
        self._roster = Roster(
            plan,
            members=past.membership.members,
            ejected=[one.site for one in past.membership.ejected],
            on_change=self._keep_membership,
        )
        self._mailbox = Mailbox(
            plan,
            asyncio.get_running_loop(),
            self._note,
            past=CompleteRounds(past.round, {} if past.state is None else past.state.sites, past.last_answered()),
            traffic=past.traffic(),
            is_away=self._roster.is_away,
            emit=self._emit,
        )
        self.servicer = Servicer(  # answers the calls of the run's sites, and knows where it stands
            plan,
            identity.run,
            self._roster,
            self._mailbox,
            ledgers,
            self._note,
            record,
            on_turned_out=self._keep_turned_out,
            emit=self._emit,
            name=folder.path.name,
            why_paused=lambda: self._pause.reason,
            phase=self._phase,
        )
        self._commands = OperatorCommands(
            RunParts(folder, self._recorder, self._roster, self._mailbox),
            self._pause,
            say=self._say,
            note=self._note,
            record=record,
            on_broken=self._break,
        )

    async def run(self, door: Door) -> dict[str, Any]:
        """Open the door, play the rounds, write the results, tell the sites; return what result.json holds.

        Raises the `FedbnslError` that ended the run, once the results are written and the sites are told.
        """
        await door.open(self.servicer)
        watching = asyncio.ensure_future(self._watch_phases())
        end = await self._play()
        watching.cancel()
        _to_the_log(lambda: self._follower.on_phase(None))
        ended = time.monotonic()
        end, result = await self._write_results(end)
        self._pause.stop()
        error = end.error
        await door.drain()
        self.servicer.progress.ended = ended
        if not end.paused:
            self.servicer.progress.state = end.outcome
        if end.paused:
            self._emit("run over", outcome=end.outcome, reason="paused by its operator")
            await door.close_without_a_word(self._mailbox)
        else:
            finished = (
                Finished(None, public_reason(error))
                if error
                else told(end.finished, result, self._recorder.scored_network)
            )
            grace_s = _GOODBYE_S if error is None else _HASTY_GOODBYE_S
            self._emit("run over", outcome=end.outcome, reason="" if error is None else str(error))
            self._end_notice = asyncio.ensure_future(self._mailbox.finish(finished, set(self._roster.members), grace_s))
            with suppress(asyncio.CancelledError):
                await self._end_notice
            if end.outcome != "interrupted":  # an interrupted run may go on later, so watchers keep watching
                await self.servicer.last_looks(_LAST_LOOKS_S)
            await door.close()
        if error is not None:
            raise error
        return result

    async def _play(self) -> _End:
        looking = asyncio.ensure_future(self._commands.look())
        try:
            await self._pause.outlast(self._commands.take)  # one that waits is older than everything that follows
            if self._roster.is_complete:  # before anything can stop the run: its results include the earlier rounds
                await self._start()
            self._rounds = asyncio.ensure_future(self._learn())
            if self._broken or self._asked_to_stop:
                self._interrupt()
            state = await self._rounds
            return _End("finished", end_of(state, self._plan, self._roster.variables))
        except (asyncio.CancelledError, InterruptedRunError):  # the latter if the mailbox told the rounds first
            return self._as_asked()
        except Exception as failure:  # raised again by `run`, once the folder is closed and the sites are told
            return _End("failed", error=failure)
        finally:
            looking.cancel()

    async def _watch_phases(self) -> None:
        while True:
            _to_the_log(lambda: self._follower.on_phase(self._phase()))
            await asyncio.sleep(_LOOK_S)

    def _phase(self) -> Phase:
        first: tuple[str, float | None] | None = None
        if self.servicer.progress.state == "waiting for sites":
            first = WAITING_FOR_SITES, len(self._roster.members) / self._roster.memberships
        elif not self._is_loaded:
            first = LOADING, None
        return self._phases.look(self._mailbox.round, time.monotonic(), first=first)

    def _as_asked(self) -> _End:
        if self._broken is not None:
            return _End("failed", error=self._broken)
        if self._asked_to_stop is signal.SIGTERM:
            return _End("interrupted", paused=True)
        where = f"in round {self._mailbox.round}" if self._mailbox.round else "while it waited for sites"
        return _End("interrupted", error=InterruptedRunError(f"interrupted {where}"))

    async def _learn(self) -> AdmmState:
        loading = asyncio.ensure_future(_in_daemon_thread(partial(warm_up, self._plan)))
        if not self._roster.is_complete:
            self._say(f"waiting for {counted(self._roster.memberships - len(self._roster.members), 'site')} to join")
            await self._wait_for_sites()
            await self._start()
        await loading
        self._is_loaded = True
        plan, roster = self._plan, self._roster
        while True:
            self._commands.rounds_are_played = True
            play = partial(
                round_loop.run,
                plan,
                roster.variables,
                {site: member.n_samples for site, member in roster.members.items()},
                self._mailbox,
                on_round=self._after_round,
                state=self._recorder.state,
                secure=SecureSites(
                    {site: member.certificate for site, member in roster.members.items()},
                    losses(self._recorder.ejected) if plan.secure_aggregation else (),
                ),
                search=Searching(follow=self._phases.follow, each=at_once(processors())),
                network=self._recorder.network,
            )
            try:
                state = await _in_daemon_thread(play)
                if self._commands.recalled_for is None:
                    return state
            except RecalledError:
                pass
            except QuorumLostError as error:
                if self._pause.reason:
                    await self._pause.over()  # sites could not take part: the round is asked again
                elif not await self._commands.go_on_without(error.missing):
                    raise
            await self._commands.take_between_rounds()

    async def _wait_for_sites(self) -> None:
        while not self._roster.is_complete:
            try:
                await self._roster.wait_until_complete()
            except QuorumLostError:
                if not self._pause.reason:
                    raise
                await self._pause.over()  # sites could not join: their time begins again

    async def _start(self) -> None:
        def start() -> None:  # whoever is a member when it succeeds: one may be ejected while it waits for room
            members = sorted(self._roster.members.items())
            self._recorder.start(
                self._roster.variables,
                {site: member.n_samples for site, member in members},
                self._mailbox.traffic,
                uncounted=[f"{site} keeps no privacy ledger" for site, member in members if not member.has_ledger],
            )

        await self._pause.outlast(start)
        self._emit(
            "run started",
            plan=self._plan.digest().hex(),
            rounds=n_rounds(self._plan),
            variables=self._roster.variables,
            sites=sorted(self._roster.members),
            after_round=self._past.round,
        )
        progress = self.servicer.progress
        progress.state, progress.started = "running", time.monotonic() - self._past.elapsed_s
        if self._past.rounds:
            last = self._past.rounds[-1]
            progress.acyclicity, progress.edges = _shown(last["acyclicity"]), last["edges"]
            progress.undirected = last.get("undirected", 0)

    def _after_round(self, state: AdmmState, record: RoundRecord) -> None:
        self._pause.outlast_in_thread(self._ledgers.save)
        self._pause.outlast_in_thread(lambda: self._recorder.on_round(state, record))
        progress = self.servicer.progress
        progress.acyclicity, progress.edges = _shown(record.acyclicity), record.edges
        progress.undirected, progress.rounds = record.undirected, record.rounds
        self._phases.n_rounds, self._phases.completion = record.rounds, state.completion
        self._emit(
            "round over",
            round=record.round,
            stage=record.kind,
            acyclicity=_shown(record.acyclicity),
            edges=record.edges,
            undirected=record.undirected,
            contributed=record.contributed,
            n_bytes=self._mailbox.traffic.of_round(record.round),
            local_s=record.local_s,
            global_s=record.global_s,
        )
        _to_the_log(lambda: self._follower.on_round(state, record))
        odd = outliers_now(record.influence, record.kind, record.round, self._roster.variables)
        for site in odd.keys() - self._named:  # once: the result has the largest of all rounds
            self._named.add(site)
            self._say(f"be careful: {sentence(odd[site])}")

    async def _write_results(self, end: _End) -> tuple[_End, dict[str, Any]]:
        """Write the results before the sites are told: ending the process then loses nothing."""
        # After an unfinished round, too: remember what the sites spent on it.
        end, _ = await self._written(end, lambda end: self._ledgers.save())
        end, result = await self._written(end, self._results)
        return end, result or {}

    def _results(self, end: _End) -> dict[str, Any]:
        if end.paused and end.error is None:
            return self._recorder.pause()
        return self._recorder.finish(end.outcome, "" if end.error is None else str(end.error))

    async def _written(self, end: _End, write: Callable[[_End], _T]) -> tuple[_End, _T | None]:
        """Write at the end, and wait for room for it; whoever is asked to stop then tries once more and gives up."""
        try:
            try:
                return end, await self._pause.outlast(lambda: write(end))
            except InterruptedRunError:
                asked = self._as_asked() if end.error is None else end
                return asked, write(asked)
        except Exception as unwritten:  # raised by `run`, once the sites are told
            if self._asked_to_stop is not None and end.error is None:
                end = self._as_asked()
            return replace(end, outcome="failed", error=end.error or unwritten), None

    def stop(self, number: signal.Signals, *, at_once: bool = False) -> None:
        """Pause the run (SIGTERM) or end it and tell the sites; after its end, wait no longer for those to hear it.

        Unless `at_once`, the first SIGINT while a search goes on ends that search alone, with the best graph so far:
        the run goes on.
        """
        if self._end_notice is not None:
            self._end_notice.cancel()
            return
        asked = self._asked_to_stop is not None
        if number is signal.SIGINT and not at_once and not asked and self._phases.end_search():
            self._note(ENDING)
            return
        self._asked_to_stop = self._asked_to_stop or number
        if number is signal.SIGTERM:
            self.servicer.progress.state = "draining"
        self._interrupt()

    def _interrupt(self) -> None:
        self._mailbox.stop()
        self._pause.stop()
        if self._rounds is not None:
            self._rounds.cancel()

    def _say(self, text: str) -> None:
        _to_the_log(lambda: self._follower.notice(text))
        self._emit("notice", text=text)

    def _note(self, text: str) -> None:
        self._say(text)
        try:
            self._recorder.event("notice", text=text)
        except (ResultError, MemoryError) as error:
            if not shortage(error):
                self._break(error)
            # Otherwise the line is missing in events.jsonl, and the operator was told.

    def _keep_membership(self, site: str, member: Member | None) -> None:
        self._keep(lambda: self._recorder.membership(site, member))

    def _keep_turned_out(self, site: str) -> None:
        self._keep(lambda: self._recorder.turned_out(site))

    def _keep(self, write: Callable[[], None]) -> None:
        """Write something down at a site's call; without room for it, the call fails and the site tries again."""
        try:
            write()
            self._pause.try_again()
        except (ResultError, MemoryError) as error:
            if shortage(error):
                self._probe()
                raise
            self._break(error)

    def _break(self, error: Exception) -> None:
        """Fail the run, not the site's call that caused the error."""
        self._broken = self._broken or error
        self._interrupt()

    def _probe(self) -> None:
        """Be paused until something can be written again."""
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._until_there_is_room())

    async def _until_there_is_room(self) -> None:
        try:
            await self._pause.outlast(self._recorder.probe)
        except InterruptedRunError:  # the run ends, and says so itself
            return
        except (ResultError, MemoryError) as error:
            self._break(error)


def _to_the_log(tell: Callable[[], None]) -> None:
    """Tell the operator something. If the log has no room, or nobody reads it any more, the run goes on without."""
    try:
        tell()
    except OSError as error:
        if not (shortage(error) or isinstance(error, BrokenPipeError)):
            raise


def _shown(acyclicity: float | None) -> float:
    """What a status can hold: the largest number in place of one that left the finite numbers."""
    return acyclicity if acyclicity is not None and math.isfinite(acyclicity) else sys.float_info.max


def warm_up(plan: Plan) -> None:
    """Load what the rounds of a plan and its files need, so that nobody waits then for a library or a compiler."""
    global_step.warm_up()
    graph_files.warm_up()
    if plan.graph_class == "cpdag":
        order_search.warm_up()
    if plan.moments_rounds:
        from fedbnsl_server.algorithm import walks  # here: loads a compiler, as the search does

        graph_search.warm_up()
        walks.warm_up()
        if plan.privacy is not None:
            sparse_products.warm_up()


async def _in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Run blocking work in a daemon thread, which does not keep an interrupted process alive."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # from here on only its own thread settles it

    def body() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # any error is passed on to the awaiting task
            future.set_exception(error)

    threading.Thread(target=body, name="rounds", daemon=True).start()
    return await asyncio.wrap_future(future)
