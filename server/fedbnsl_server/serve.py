"""One run of the coordinator, from an open port to the run folder."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbnsl.channel import require_loopback, split_address
from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.round_loop import RoundRecord
from fedbnsl_server.coordinator import Coordinator, end_of, tell_the_end
from fedbnsl_server.grpc_api.open_files import make_room
from fedbnsl_server.grpc_api.server import CoordinatorServer
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_server.store.site_ledgers import FILE, SiteLedgers

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.prometheus import MetricsPort


def serve(
    plan: Plan,
    out: Path,
    *,
    listen: str,
    federation: "Federation | None" = None,
    on_listening: Callable[[str], None],
    on_round: Callable[[AdmmState, RoundRecord], None] = lambda state, record: None,
    notice: Callable[[str], None] = lambda text: None,
    seeds: Mapping[str, int] | None = None,
    site_ledgers: Path | None = None,
    metrics: "MetricsPort | None" = None,
) -> dict[str, Any]:
    """Serve one run and return what its result.json holds.

    An unfinished run of the same plan in the folder is continued. For a finished one, the sites that missed the end
    are told it again. SIGTERM pauses the run: the result says "interrupted", the sites are not told and keep calling.
    SIGINT and SIGHUP end it. A paused or ended run can be continued later.

    Parameters
    ----------
    out
        The run folder.
    listen
        host:port; port 0 takes a free one.
    federation
        Whose sites may call, over TLS; None: anybody, in plaintext, on loopback only.
    on_listening
        Called with the real address once sites can call.
    on_round
        Called after each round is saved.
    notice
        Told who joins, who leaves, and whom a round waits for.
    seeds
        For the manifest: seeds of generated data.
    site_ledgers
        File that remembers the sites' privacy ledgers from run to run; None: next to the run folder.
    metrics
        Shows where the run stands.

    Raises
    ------
    FedbnslError
        Whatever ended the run; the run folder is readable all the same.
    """
    if federation is None:
        require_loopback(listen)
    else:
        split_address(listen)
        federation.credentials()  # refused now rather than by a port that nobody can use
    make_room(plan.n_participants)
    ledgers = SiteLedgers(site_ledgers or out.parent / FILE)

    async def serve_run() -> dict[str, Any]:
        # Bind the port before making the folder: after a port conflict, the same folder can still be used.
        server = CoordinatorServer(listen, federation, on_open=on_listening, metrics=metrics)
        folder = RunFolder.open(out, plan, RunIdentity(secrets.randbits(64), datetime.now(UTC), seeds or {}))
        try:
            stored = folder.finished_result()
            if stored is not None:
                await _repeat_the_end(server, folder, ledgers, notice)
                return stored
            return await Coordinator(folder, ledgers, on_round=on_round, notice=notice).run(server)
        finally:
            folder.close()

    return asyncio.run(serve_run())


async def _repeat_the_end(
    server: CoordinatorServer, folder: RunFolder, ledgers: SiteLedgers, notice: Callable[[str], None]
) -> None:
    """Tell the sites of a finished run the end that they may have missed; the folder stays as it is.

    Raises
    ------
    ResultError
        If its checkpoint is gone.
    """
    plan, state, identity = folder.plan, folder.past.state, folder.identity
    if state is None:
        raise ResultError(f"{folder.checkpoint}, the end of a finished run, is missing")
    seats = folder.past.membership
    roster = Roster(plan, variables=seats.variables, members=seats.members)
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(plan, loop, complete_rounds=state.round, snapshots=state.sites, traffic=folder.past.traffic())
    servicer = Servicer(plan, identity.run, roster, mailbox, ledgers, notice)
    servicer.progress.state = "finished"
    notice(
        f"run {identity.run:016x} is finished: nothing is run again; for up to {plan.site_grace_s:g} s its sites are "
        "told the end once more (Ctrl-C ends the waiting)"
    )
    await server.open(servicer)
    await tell_the_end(mailbox, end_of(state, plan, roster.variables), set(roster.members), plan.site_grace_s)
    await server.close()
