"""The coordinator's gRPC calls: decode, delegate, encode; and the one table from errors to statuses."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from fedbnsl.errors import (
    FedbnslError,
    LedgerError,
    MalformedMessageError,
    MembershipLostError,
    MembershipRefusedError,
    PlanError,
    PlanMismatchError,
    RemoteProtocolError,
    ResultError,
    SchemaMismatchError,
    StaleRoundError,
)
from fedbnsl.events.emitter import Emit, silent
from fedbnsl.events.security_log import Record, unrecorded
from fedbnsl.files.shortage import shortage
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import LONG_POLL_S
from fedbnsl.protocol.chunks import CutMessage, JoinedMessage, cut, is_last
from fedbnsl.protocol.messages import (
    UNHANDLED,
    Finished,
    JoinReply,
    LeaveReason,
    Phase,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
    run_tag,
)
from fedbnsl.protocol.plain_codec import to_wire
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.kinds import most_iterations, n_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_server.grpc_api.authentication import certificate_of
from fedbnsl_server.grpc_api.incoming import caller, identity
from fedbnsl_server.grpc_api.refusals import refuse
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.sites.why_left import WHY_LEFT
from fedbnsl_server.store.site_ledgers import SiteLedgers

Context = grpc.aio.ServicerContext[Any, Any]

_Answer = RoundTask | Finished | None  # to a pull
_Reply = tuple[federation.PullReply, CutMessage | None]  # all of it, or its first chunk and all of it

_log = logging.getLogger(__name__)

# The first matching line counts. Everything the coordinator knows is public to the sites, so these errors are sent with
# their text. Any other error is sent as one fixed sentence. The third column is what the security log says.
_STATUS: list[tuple[type[FedbnslError], grpc.StatusCode, str]] = [
    (StaleRoundError, grpc.StatusCode.ABORTED, "stale round"),
    (MalformedMessageError, grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
    (SchemaMismatchError, grpc.StatusCode.FAILED_PRECONDITION, "other variables"),
    (MembershipRefusedError, grpc.StatusCode.ALREADY_EXISTS, "no membership"),
    (LedgerError, grpc.StatusCode.DATA_LOSS, "older ledger"),
    (MembershipLostError, grpc.StatusCode.NOT_FOUND, "not joined"),
    (PlanMismatchError, grpc.StatusCode.NOT_FOUND, "other run"),
    (PlanError, grpc.StatusCode.FAILED_PRECONDITION, "other plan"),
    (RemoteProtocolError, grpc.StatusCode.PERMISSION_DENIED, "against the protocol"),
]
_WATCHING_S = 3.0

# A text travels in the trailing metadata, up to 12 bytes a character; beyond 8 KiB gRPC loses the call with its text.
_MAX_TEXT_LENGTH = 600


@dataclass
class Progress:
    """What `Status` reports in addition to the roster and the mailbox."""

    state: str = "waiting for sites"
    acyclicity: float = 0.0
    edges: int = 0
    undirected: int = 0
    rounds: int = 0  # of the whole run, as far as known; 0: as many as the plan has
    started: float | None = None
    ended: float | None = None


@dataclass
class Servicer:
    """One run's calls, which come through a `Listener`; see proto/fedbnsl/wire/federation.proto."""

    plan: Plan
    run: int
    roster: Roster
    mailbox: Mailbox
    ledgers: SiteLedgers
    notice: Callable[[str], None] = lambda text: None
    record: Record = unrecorded  # told who joins and who leaves
    on_turned_out: Callable[[str], None] = lambda site: None
    progress: Progress = field(default_factory=Progress)
    onlookers: dict[str, float] = field(default_factory=dict)  # who asked for the status when, in monotonic seconds
    emit: Emit = silent
    name: str = ""  # of the run's folder
    why_paused: Callable[[], str] = lambda: ""  # what the coordinator lacks at present, without a path
    phase: Callable[[], Phase | None] = lambda: None  # what takes time at present

    def __post_init__(self) -> None:
        self._plan_toml, self.plan_digest = self.plan.to_toml(), self.plan.digest()
        self._task_replies: dict[bool, tuple[RoundTask, _Reply]] = {}
        # By site, one message each way: a reply that it pulls in chunks, and what has come of its update.
        self._outgoing: dict[str, tuple[_Answer, CutMessage]] = {}
        self._incoming: dict[str, JoinedMessage] = {}
        self._why_left: dict[str, LeaveReason] = {}  # of those that have left, and not come back

    async def Join(self, request: federation.JoinRequest, context: Context) -> federation.JoinReply:  # noqa: N802
        """Give a site a membership."""
        async with refusals(context):
            joining = codec.decode_join(request)
            if joining.ledger is not None:
                try:
                    self.ledgers.check(joining.site, joining.ledger)
                except LedgerError as error:  # the operator should know: somebody restored a backup
                    self.notice(f"refused: {_clipped(str(error))}")
                    raise
            self.roster.join(joining, certificate_of(context))
            if joining.ledger is not None:
                self.ledgers.note(joining.site, joining.ledger)
            self.mailbox.take_over(joining.site)
            self._forget_chunks(joining.site)
            memberships = f"{len(self.roster.members)} of {self.roster.memberships} sites"
            self.notice(f"{joining.site} joined with {joining.n_samples} rows ({memberships})")
            self._record("joined", joining.site)
            self.emit("site joined", site=joining.site, n_samples=joining.n_samples)
            zero = SparseMatrix.zeros(len(self.roster.variables))
            snapshot = self.mailbox.snapshots.get(joining.site, SiteState(zero, zero))
            reply = codec.encode_join_reply(
                JoinReply(
                    run=self.run,
                    plan_toml=self._plan_toml,
                    plan_digest=self.plan_digest,
                    variables=self.roster.variables,
                    snapshot=snapshot,
                    round=self.mailbox.complete_rounds,
                ),
                dense=self.plan.dense_messages,
            )
            whole = self._cut(reply)
            if whole is not None:
                self._outgoing[joining.site] = None, whole
                reply = federation.JoinReply(run=self.run, chunk=whole.chunk(0))
            self._count_control(joining.site, request, reply)
            return reply

    async def PullTask(self, request: federation.PullRequest, context: Context) -> federation.PullReply:  # noqa: N802
        """The next task, the end of the run, or after a while that there is nothing new."""
        async with refusals(context):
            self._admit(request.run, request.site)
            site = request.site
            if request.HasField("chunk"):
                answer, whole = self._kept_for(site, request.chunk)
                reply = federation.PullReply(chunk=whole.chunk(request.chunk.start))
            else:
                self._forget_chunks(site)
                answer = await self.mailbox.pull(site, request.last_round, LONG_POLL_S)
                reply, rest = self._reply(answer)
                if rest is not None:
                    self._outgoing[site] = answer, rest
            if isinstance(answer, RoundTask):
                self.mailbox.traffic.down[site][answer.round] += reply.ByteSize()
                self._count_control(site, request)
                return reply
            if isinstance(answer, Finished) and (not reply.HasField("chunk") or is_last(reply.chunk)):
                self.mailbox.told(site)
            self._count_control(site, request, reply)
            return reply

    async def PushUpdate(self, request: federation.Update, context: Context) -> federation.PushReply:  # noqa: N802
        """Accept a site's update."""
        async with refusals(context):
            self._admit(request.run, request.site)
            self._outgoing.pop(request.site, None)  # the task is there, or it could not be answered
            self._count_up(request)
            if request.HasField("ledger"):  # late or refused, it was paid for
                self.ledgers.note(request.site, codec.decode_ledger(request.ledger))
            reply = self._chunk_pushed(request) if request.HasField("chunk") else self._pushed(request)
            self._count_control(request.site, reply)
            return reply

    async def Leave(self, request: federation.LeaveRequest, context: Context) -> federation.LeaveReply:  # noqa: N802
        """A site leaves the run."""
        async with refusals(context):
            self._admit(request.run, request.site)  # counts as a sign of life, so it comes before the leaving
            why = codec.decode_leave_reason(request.reason)
            self._record("left", request.site, why=WHY_LEFT[why].word)
            self._let_go(request.site, why)
            return federation.LeaveReply()

    async def Alive(self, request: federation.AliveRequest, context: Context) -> federation.AliveReply:  # noqa: N802
        """A site has nothing to say but that it lives."""
        async with refusals(context):
            if request.site not in self.mailbox.left:  # a late one does not bring back a site that left
                self._admit(request.run, request.site)
            reply = federation.AliveReply()
            self._count_control(request.site, request, reply)
            return reply

    def turn_out(self, site: str) -> None:
        """Remove a site whose enrolment has ended: it can no longer call `Leave`."""
        if site in self.roster.members and site not in self.mailbox.left:
            try:
                self.on_turned_out(site)
                self._let_go(site, LeaveReason.CERTIFICATE)
            except (ResultError, MemoryError) as error:  # its next call tries again
                if not shortage(error):
                    raise
                return
            self._record("turned out", site, why="revoked or expired")

    def _let_go(self, site: str, why: LeaveReason) -> None:
        self._forget_chunks(site)
        self.roster.leave(site)
        self.mailbox.leave(site)
        self._why_left[site] = why
        word, text, to_do = WHY_LEFT[why]
        self.notice(f"{site} left the run" + (f": {text}. {to_do}" if text else ""))
        self.emit("site left", site=site, why=word)

    def _record(self, event: str, site: str, *, why: str = "") -> None:
        self.record(event, **{"site": site, **identity.get()}, run=f"{self.run:016x}", why=why)

    async def Status(self, request: federation.StatusRequest, context: Context) -> federation.StatusReply:  # noqa: N802
        """Where the run stands; needs no membership in the run."""
        async with refusals(context):
            if self.progress.ended is None:
                now = time.monotonic()
                self.onlookers = {who: seen for who, seen in self.onlookers.items() if seen > now - _WATCHING_S}
                self.onlookers[context.peer()] = now
            else:
                self.onlookers.pop(context.peer(), None)
            return codec.encode_status(replace(self.status(), site=caller.get()))

    def status(self) -> RunStatus:
        """Where the run stands; on the event loop only."""
        now = time.monotonic()
        started, ended, why_paused = self.progress.started, self.progress.ended, self.why_paused()
        return RunStatus(
            state="paused" if why_paused else self.progress.state,
            round=self.mailbox.round,
            rounds=self.progress.rounds or n_rounds(self.plan),
            acyclicity=self.progress.acyclicity,
            edges=self.progress.edges,
            undirected=self.progress.undirected,
            elapsed_s=0.0 if started is None else (now if ended is None else ended) - started,
            sites=tuple(self._progress_of(site, now) for site in sorted(self.roster.members)),
            run=run_tag(self.run),
            time_unix_s=time.time(),
            reason=why_paused or self.mailbox.lacking,
            name=self.name,
            phase=self.phase() if self.progress.ended is None else None,
        )

    async def last_looks(self, grace_s: float) -> None:
        """After the end, wait until every watcher has seen it, at most `grace_s` seconds."""
        until = time.monotonic() + grace_s
        watching = {peer for peer, seen in self.onlookers.items() if seen > time.monotonic() - _WATCHING_S}
        while watching & self.onlookers.keys() and time.monotonic() < until:
            await asyncio.sleep(0.02)

    def _progress_of(self, site: str, now: float) -> SiteProgress:
        member, traffic, head = self.roster.members[site], self.mailbox.traffic, self.ledgers.head(site)
        is_online = site not in self.mailbox.left and not self.roster.is_away(site)
        return SiteProgress(
            site=site,
            answered=site in self.mailbox.answered,
            left=site in self.mailbox.left,
            why_left=self._why_left.get(site, LeaveReason.UNSPECIFIED),
            last_seen_s=now - member.last_seen,
            bytes_up=sum(traffic.up[site].values()),
            bytes_down=sum(traffic.down[site].values()),
            online_s=now - member.online_since if is_online else 0.0,
            last_round=self.mailbox.last_answered(site),
            spent_units=head.spent_units if member.has_ledger and head is not None else None,
        )

    def _admit(self, run: int, site: str) -> None:
        if run != run_tag(self.run):
            raise PlanMismatchError("this call belongs to another run; join again")
        self.roster.heard(site, came_back=site in self.mailbox.left)
        self._why_left.pop(site, None)
        self.mailbox.welcome(site)

    def _reply(self, answer: _Answer) -> _Reply:
        """What a site is told of the next task, of the end, or that there is nothing new."""
        if isinstance(answer, RoundTask):
            return self._task_reply(answer)
        if isinstance(answer, Finished):
            end = codec.encode_finished(answer, value_type=self.plan.value_type)
            return self._in_chunks(federation.PullReply(finished=end))
        phase = self.phase()
        works = to_wire(federation.Phase, phase) if phase is not None and phase.is_work else None
        return federation.PullReply(wait=federation.Wait(phase=works)), None

    def _task_reply(self, task: RoundTask) -> _Reply:
        """A task as it is sent; encoded once a round for all sites whose last update entered W, once for the others."""
        known, reply = self._task_replies.get(task.contributed, (None, None))
        if reply is None or task != known:
            wire = codec.encode_task(task, value_type=self.plan.value_type, dense=self.plan.dense_messages)
            reply = self._in_chunks(federation.PullReply(task=wire))
            self._task_replies[task.contributed] = task, reply
        return reply

    def _in_chunks(self, reply: federation.PullReply) -> _Reply:
        whole = self._cut(reply)
        return (reply, None) if whole is None else (federation.PullReply(chunk=whole.chunk(0)), whole)

    def _cut(self, reply: federation.JoinReply | federation.PullReply) -> CutMessage | None:
        return cut(reply.SerializeToString(), most_bytes=codec.largest_reply_bytes(len(self.roster.variables)))

    def _kept_for(self, site: str, wanted: federation.Chunk) -> tuple[_Answer, CutMessage]:
        answer, whole = self._outgoing.get(site, (None, None))
        if whole is None or whole.digest != wanted.digest:  # another coordinator had begun it
            raise StaleRoundError("the message that this chunk is of is not kept any more; ask for its beginning again")
        return answer, whole

    def _pushed(self, request: federation.Update) -> federation.PushReply:
        update = codec.decode_update(request, n_variables=len(self.roster.variables), dense=self.plan.dense_messages)
        reply = federation.PushReply(duplicate=self.mailbox.push(update))
        if not reply.duplicate:
            self.emit("site answered", site=request.site, round=update.round, n_bytes=request.ByteSize())
        return reply

    def _chunk_pushed(self, request: federation.Update) -> federation.PushReply:
        """Take a chunk of an update, and with the last one the update: once, however often chunks come again."""
        site, held = request.site, self._held(request)
        if held is None:  # not its beginning
            return federation.PushReply()
        if request.chunk.start != held.n_held:
            return federation.PushReply(duplicate=held.is_whole, n_held=held.n_held)
        held.add(request.chunk)
        if not held.is_whole:
            return federation.PushReply(n_held=held.n_held)
        try:
            reply = self._pushed(_update_in(held, request))
        except FedbnslError:
            del self._incoming[site]
            raise
        reply.n_held = held.n_held
        return reply

    def _held(self, request: federation.Update) -> JoinedMessage | None:
        """What is here of the update that a chunk is of; None: nothing, and this is not its first chunk."""
        site, chunk = request.site, request.chunk
        self.mailbox.stored(site, request.round)  # refuses a round that is over before all of it has come
        if not chunk.start:
            most_bytes = codec.largest_update_bytes(len(self.roster.variables), self.plan.further_bytes)
            self._incoming[site] = JoinedMessage(chunk, most_bytes=most_bytes)
        held = self._incoming.get(site)
        return held if held is not None and held.is_of(chunk) else None

    def _forget_chunks(self, site: str) -> None:
        self._outgoing.pop(site, None)
        self._incoming.pop(site, None)

    def _count_up(self, request: federation.Update) -> None:
        most = n_rounds(self.plan) + most_iterations(self.plan)
        if request.round <= most:  # or a site could fill the memory with rounds
            # Late or refused, it crossed the wire all the same.
            self.mailbox.traffic.up[request.site][request.round] += request.ByteSize()

    def _count_control(self, site: str, *messages: Any) -> None:
        self.mailbox.traffic.control[site] += sum(message.ByteSize() for message in messages)


def _update_in(held: JoinedMessage, last: federation.Update) -> federation.Update:
    """The update whose last chunk has come: for the site and round that its chunks were accepted for."""
    update = held.parsed(federation.Update)
    if (update.run, update.site, update.round) != (last.run, last.site, last.round):
        raise MalformedMessageError("the chunks of an update hold one of another run, site or round")
    return update


@asynccontextmanager
async def refusals(context: Context) -> AsyncGenerator[None]:
    """End the call with the status of its error; left to itself, gRPC would send the text of any exception."""
    try:
        yield
    except Exception as error:
        for kind, status, why in _STATUS:
            if isinstance(error, kind):
                await refuse(context, status, why, _clipped(str(error)))
        if lacking := shortage(error):
            _log.warning("a call shall be tried again: %s", error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the coordinator has to wait: {lacking}")
        _log.exception("a call failed unexpectedly")
        await refuse(context, grpc.StatusCode.INTERNAL, "unexpected", UNHANDLED)


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else text[: _MAX_TEXT_LENGTH - 1] + "…"
