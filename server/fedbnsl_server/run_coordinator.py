"""One run of the coordinator, from an open port to the run folder."""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc

from fedbnsl.channel import require_loopback, server_options
from fedbnsl.errors import (
    DivergenceError,
    FedbnslError,
    InterruptedRunError,
    QuorumLostError,
    ResultError,
    SetupError,
)
from fedbnsl.interrupt import signals_to_heed
from fedbnsl.knowledge import EdgeMask
from fedbnsl.messages import Finished
from fedbnsl.plan import Plan
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server import rounds
from fedbnsl_server.admm import AdmmState
from fedbnsl_server.consensus_graph import consensus_graph
from fedbnsl_server.exchange import Mailbox
from fedbnsl_server.results import RunFolder, RunRecorder, refuse_existing_run
from fedbnsl_server.roster import Roster
from fedbnsl_server.rounds import RoundRecord
from fedbnsl_server.servicer import Servicer
from fedbnsl_server.site_ledgers import FILE, SiteLedgers

_GOODBYE_S = 5.0
_HASTY_GOODBYE_S = 0.5
_STOP_S = 0.5

_PUBLIC_REASONS: list[tuple[type[FedbnslError], str]] = [
    (InterruptedRunError, "the coordinator was interrupted"),
    (QuorumLostError, "too few sites answered in time"),
    (DivergenceError, "the iteration left the finite numbers"),
    (ResultError, "the coordinator could not write its results"),
]

_T = TypeVar("_T")


def serve(
    plan: Plan,
    out: Path,
    *,
    listen: str,
    on_listening: Callable[[str], None],
    on_round: Callable[[AdmmState, RoundRecord], None] = lambda state, record: None,
    notice: Callable[[str], None] = lambda text: None,
    seeds: Mapping[str, int] | None = None,
    site_ledgers: Path | None = None,
) -> dict[str, Any]:
    """Serve one run and return what its result.json holds.

    Parameters
    ----------
    listen
        host:port on loopback; port 0 takes a free one.
    on_listening
        Called with the real address once sites can call.
    on_round
        Called after each round is saved.
    notice
        Told who joins, who leaves, and whom a round waits for.
    seeds
        For the manifest: seeds of generated data.
    site_ledgers
        File that remembers the sites' privacy ledgers from run to run; None: beside the run folder.

    Raises
    ------
    FedbnslError
        Whatever ended the run; the run folder is readable all the same.
    """
    require_loopback(listen)
    refuse_existing_run(out)
    ledgers = SiteLedgers(site_ledgers or out.parent / FILE)
    return asyncio.run(_serve(plan, out, listen, on_listening, on_round, notice, seeds, ledgers))


async def _serve(
    plan: Plan,
    out: Path,
    listen: str,
    on_listening: Callable[[str], None],
    on_round: Callable[[AdmmState, RoundRecord], None],
    notice: Callable[[str], None],
    seeds: Mapping[str, int] | None,
    ledgers: SiteLedgers,
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    server = grpc.aio.server(options=server_options())
    try:  # before the folder is made: whoever picks another port can take the same folder
        port = server.add_insecure_port(listen)
    except RuntimeError:
        raise SetupError(
            f"cannot listen on {listen}: the port is in use or not permitted; choose another one"
        ) from None
    broken: list[ResultError] = []
    run = secrets.randbits(64)
    recorder = RunRecorder(RunFolder.create(out, plan), run=run, seeds=seeds)

    def note(text: str) -> None:
        notice(text)
        try:
            recorder.event("notice", text=text)
        except ResultError as error:  # a site's call must not fail for it: the run does
            broken.append(error)
            interrupt()

    roster, mailbox = Roster(plan), Mailbox(plan, loop, note)
    servicer = Servicer(plan, run, roster, mailbox, ledgers, note)
    federation_grpc.add_FederationServicer_to_server(servicer, server)
    await server.start()
    on_listening(f"{listen.rpartition(':')[0]}:{port}")

    def after_round(state: AdmmState, record: RoundRecord) -> None:
        ledgers.save()
        recorder.on_round(state, record)
        servicer.progress.acyclicity, servicer.progress.edges = record.acyclicity, record.edges
        on_round(state, record)

    async def learn() -> AdmmState:
        await roster.wait_until_complete()
        recorder.start(
            roster.variables,
            {s: m.n_samples for s, m in roster.members.items()},
            mailbox.traffic,
            uncounted=[f"{s} keeps no privacy ledger" for s, m in sorted(roster.members.items()) if not m.has_ledger],
        )
        servicer.progress.state, servicer.progress.started = "running", time.monotonic()
        return await _in_daemon_thread(
            lambda: rounds.run(plan, roster.variables, list(roster.members), mailbox, on_round=after_round)
        )

    task = asyncio.ensure_future(learn())

    def interrupt() -> None:
        mailbox.stop()
        task.cancel()

    for number in signals_to_heed():
        loop.add_signal_handler(number, interrupt)
    error: Exception | None = None
    outcome, finished, result = "finished", Finished(None), dict[str, Any]()
    try:
        state = await task
        finished = Finished(consensus_graph(state, plan, EdgeMask(plan.knowledge, roster.variables)).as_sparse())
    except asyncio.CancelledError:
        where = f"in round {mailbox.round}" if mailbox.round else "while it waited for sites"
        error = broken[0] if broken else InterruptedRunError(f"interrupted {where}")
        outcome = "failed" if broken else "interrupted"
    except Exception as failure:  # raised again below, once the folder is closed and the sites are told
        error, outcome = failure, "failed"
    servicer.progress.state, servicer.progress.ended = outcome, time.monotonic()
    try:  # of an unfinished round as well: what a site spent on it is not forgotten
        ledgers.save()
    except ResultError as unwritten:
        error, outcome = error or unwritten, "failed"
    try:  # the results before the good-byes: whoever is impatient cannot lose them
        result = recorder.finish(outcome, "" if error is None else str(error))
    except Exception as unwritten:  # raised below, once the sites are told
        error = error or unwritten
    if error is not None:
        finished = Finished(None, _public_reason(error))
    goodbye = asyncio.ensure_future(
        mailbox.finish(finished, set(roster.members), _GOODBYE_S if error is None else _HASTY_GOODBYE_S)
    )
    for number in signals_to_heed():
        loop.add_signal_handler(number, goodbye.cancel)
    with suppress(asyncio.CancelledError):
        await goodbye
    await server.stop(_STOP_S)
    if error is not None:
        raise error
    return result


def _public_reason(error: Exception) -> str:
    """What the sites are told: constant sentences, for a text may hold paths of this machine."""
    for kind, sentence in _PUBLIC_REASONS:
        if isinstance(error, kind):
            return sentence
    return "an unexpected error at the coordinator"


async def _in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Run blocking work beside the event loop, in a thread that does not keep an interrupted process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(value: _T | None, error: BaseException | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(value)  # type: ignore[arg-type]

    def body() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # handed over to whoever awaits, whatever it is
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the run was interrupted
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=body, name="rounds", daemon=True).start()
    return await future
