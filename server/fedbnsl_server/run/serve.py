"""One run of the coordinator, from an open port to the run folder."""

import asyncio
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbnsl.console.interrupt import Interruption, outcome_of, signals_to_heed
from fedbnsl.console.wording import first_few
from fedbnsl.errors import FedbnslError, IdentityError, ResultError, SetupError
from fedbnsl.events.security_log import Record
from fedbnsl.network import NETWORK
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import Finished
from fedbnsl_server.grpc_api.server import CoordinatorServer
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.run.coordinator import Coordinator
from fedbnsl_server.run.end_notice import end_of, told
from fedbnsl_server.run.settings import SILENT, Follower, ServerSettings
from fedbnsl_server.sites.mailbox import CompleteRounds, Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store import operator_commands
from fedbnsl_server.store.run_folder import RunFolder, can_be_continued
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_server.store.site_ledgers import SiteLedgers

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation


def serve(
    plan: Plan,
    out: Path,
    server: ServerSettings,
    follower: Follower = SILENT,
    *,
    seeds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Serve one run and return what its result.json holds.

    An unfinished run of the same plan in the folder is continued. For a finished one, the sites that missed the end are
    told it again. SIGTERM pauses the run: the result says "interrupted", the sites are not told and keep calling.
    SIGINT and SIGHUP end it, but the first SIGINT while a search goes on ends that search alone, with the best graph so
    far. A paused or ended run can be continued later. Raises the FedbnslError that ended the run; the run folder is
    readable all the same.

    The plan must name its variables: the first site that joins does not choose them. `out` is the run folder; `seeds`
    of generated data are for the manifest.
    """
    federation, page = server.federation, server.page
    server.check()
    check_plan(plan)
    if federation is not None:
        look_for_certificates(plan.sites, federation, follower.notice, begins=not can_be_continued(out))
    server.make_room(plan.n_participants)
    ledgers, log = server.ledgers(out.parent), server.open_log(out.parent)
    record = partial(log.count, sync=True)

    async def serve_run() -> dict[str, Any]:
        # Bind the port before making the folder: after a port conflict, the same folder can still be used.
        port = CoordinatorServer(
            server.listen,
            federation,
            n_sites=plan.n_participants,
            largest_bytes=codec.largest_call_bytes(plan.column_names, plan.further_bytes),
            on_open=server.on_listening,
            log=log,
            metrics=server.metrics,
        )
        folder = RunFolder.open(out, plan, RunIdentity(secrets.randbits(64), datetime.now(UTC), seeds or {}))
        run = f"{folder.identity.run:016x}"
        outcome = "failed"
        log.enter("run continued" if folder.is_continued else "run started", run=run, plan_digest=plan.digest().hex())
        live = None if page is None else page.open(plan, folder.path, folder.identity, past=folder.past)
        try:
            stored = folder.finished_result()
            if stored is not None:
                follower.emit("run over", run=folder.path.name, outcome=stored["state"], reason="")
                _refuse_command(out, follower.notice)
                await _repeat_the_end(port, folder, ledgers, follower.notice, record)
                outcome = "finished before"
                return stored
            coordinator = Coordinator(folder, ledgers, follower, record=record)
            if live is not None:
                live.follow(coordinator.servicer.status, asyncio.get_running_loop())
            heed_signals(coordinator.stop)
            result = await coordinator.run(port)
            outcome = result["state"]
            return result
        except (FedbnslError, Interruption) as error:
            outcome = outcome_of(error)
            raise
        finally:
            folder.close()
            log.close()
            log.enter("run ended", run=run, outcome=outcome)

    return asyncio.run(serve_run())


def check_plan(plan: Plan) -> None:
    """Refuse a plan that no site could join. Raises SetupError or PlanError saying what is missing."""
    if not plan.column_names:
        raise SetupError(
            "the plan does not name its variables, and sites do not choose them",
            remedy="Name them by --variables a,b,c (or a file whose first line names them, as a CSV header does), or "
            "as `variables` in the plan.",
        )
    if plan.privacy is not None and plan.preparation is not None:
        plan.require_ranges(len(plan.column_names))
    if plan.interventions and not plan.sites:
        raise SetupError(
            "the plan says what was set at which site (interventions), and not which sites take part",
            remedy="Name all sites in the plan's `sites`, so that a slip in a name is found before the run.",
        )


def heed_signals(stop: Callable[[signal.Signals], object]) -> None:
    """Call `stop` with every signal that asks this process to end; on the event loop."""
    for number in signals_to_heed():
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def look_for_certificates(
    sites: Sequence[str], federation: "Federation", notice: Callable[[str], None], *, begins: bool
) -> None:
    """Say which of the run's sites cannot join as things stand: it would wait for them until `join_deadline_s`.

    They may be enrolled while it waits. A site that was revoked is refused, unless it lost its enrolment during the
    run, which goes on without it.
    """
    states = {site: state for site in sites if (state := federation.state_of(site)) != "valid"}
    revoked = [site for site, state in states.items() if state == "revoked"]
    if begins and revoked:
        raise IdentityError(
            f"the plan names {first_few(revoked)}, whose certificate is revoked",
            remedy="Leave it out of --sites (or `sites` in the plan), or enrol it again: fedbnsl participant request "
            f"... --renew at the site, then fedbnsl coordinator approve {federation.folder} REQUEST.",
        )
    if states:
        without = first_few(f"{site} ({state})" for site, state in states.items())
        others = [site for site in federation.enrolled() if site not in sites and federation.state_of(site) == "valid"]
        notice(
            f"no valid certificate: {without}. Each can join once this is done: fedbnsl coordinator approve "
            f"{federation.folder} REQUEST" + (f". Enrolled, but not among them: {first_few(others)}" if others else "")
        )


def _refuse_command(out: Path, notice: Callable[[str], None]) -> None:
    """Answer a command to a finished run; a damaged file, or no room for the answer, changes nothing at its end."""
    try:
        command = operator_commands.pending(out)
        if command is not None:
            text = f"the run is finished: begin a new one without {command.site}"
            notice(f"not ejected: {text}")
            operator_commands.settle(out, operator_commands.Answer(command.id, False, text))
    except ResultError as error:
        notice(str(error))


async def _repeat_the_end(
    server: CoordinatorServer,
    folder: RunFolder,
    ledgers: SiteLedgers,
    notice: Callable[[str], None],
    record: Record,
) -> None:
    """Tell the sites of a finished run again that it has ended: some may have missed it. The folder stays as it is."""
    servicer, end, grace_s = finished_run(folder, ledgers, notice, record)
    mailbox = servicer.mailbox
    notice(
        f"run {servicer.run:016x} is finished and is not repeated; waiting up to {grace_s:g} s for sites "
        "that missed its end (Ctrl-C stops waiting)"
    )
    await server.open(servicer)
    end_notice = asyncio.ensure_future(mailbox.finish(end, set(servicer.roster.members), grace_s))
    heed_signals(lambda number: end_notice.cancel())
    with suppress(asyncio.CancelledError):
        await end_notice
    await server.close()


def finished_run(
    folder: RunFolder, ledgers: SiteLedgers, notice: Callable[[str], None], record: Record
) -> tuple[Servicer, Finished, float]:
    """The calls of a run that is finished, what its sites are told, and how long to wait for them, in seconds.

    Raises ResultError if its checkpoint is missing.
    """
    plan, state, identity = folder.plan, folder.past.state, folder.identity
    if state is None:
        raise ResultError(
            f"{folder.checkpoint} is missing, although the run is finished; restore it, or pass another --out (in "
            "Python, out=)"
        )
    memberships = folder.past.membership
    roster = Roster(plan, members=memberships.members, ejected=[one.site for one in memberships.ejected])
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(plan, loop, past=CompleteRounds(state.round, state.sites), traffic=folder.past.traffic())
    servicer = Servicer(plan, identity.run, roster, mailbox, ledgers, notice, record, name=folder.path.name)
    servicer.progress.state = "finished"
    end = told(end_of(state, plan, roster.variables), folder.finished_result() or {}, _scored(folder.path, plan))
    return servicer, end, plan.site_grace_s


def _scored(run: Path, plan: Plan) -> str:
    """The network that sites score, of a finished run; empty: they score none."""
    kept = run / NETWORK
    return kept.read_text(encoding="utf-8") if plan.validation != "none" and kept.exists() else ""
