"""The coordinator's gRPC door: decode, delegate, encode; and the one table from errors to statuses."""

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from fedbnsl import codec
from fedbnsl.channel import LONG_POLL_S
from fedbnsl.errors import (
    FedbnslError,
    LedgerError,
    MalformedMessageError,
    PlanError,
    PlanMismatchError,
    RemoteProtocolError,
    SchemaMismatchError,
    SeatRefusedError,
    StaleRoundError,
)
from fedbnsl.messages import Finished, JoinReply, RunStatus, SiteProgress, SiteState, run_tag
from fedbnsl.plan import Plan
from fedbnsl.sparse import SparseMatrix
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server.exchange import Mailbox
from fedbnsl_server.roster import Roster
from fedbnsl_server.site_ledgers import SiteLedgers

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)

# The first matching line counts. Everything the coordinator knows is public to the sites, so texts go out as they are;
# whatever is not in the table leaves as one constant sentence.
_STATUS: list[tuple[type[FedbnslError], grpc.StatusCode]] = [
    (StaleRoundError, grpc.StatusCode.ABORTED),
    (MalformedMessageError, grpc.StatusCode.INVALID_ARGUMENT),
    (SchemaMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (SeatRefusedError, grpc.StatusCode.ALREADY_EXISTS),
    (LedgerError, grpc.StatusCode.DATA_LOSS),
    (PlanMismatchError, grpc.StatusCode.NOT_FOUND),
    (PlanError, grpc.StatusCode.FAILED_PRECONDITION),
    (RemoteProtocolError, grpc.StatusCode.PERMISSION_DENIED),
]
_LEFT_BECAUSE = {
    federation.LEAVE_REASON_LOCAL_ERROR: ": an error at the site",
    federation.LEAVE_REASON_POLICY: ": its policy, budget or table does not allow the run; ask the site",
}
_OTHERWISE = "the coordinator could not handle this call"

# A text travels in the trailing metadata, up to 12 bytes a character; beyond 8 KiB gRPC loses the call with its text.
_MAX_TEXT_LENGTH = 600


@dataclass
class Progress:
    """What `Status` tells beside the roster and the mailbox."""

    state: str = "waiting for sites"
    acyclicity: float = 0.0
    edges: int = 0
    started: float | None = None
    ended: float | None = None


@dataclass
class Servicer(federation_grpc.FederationServicer):
    """One run's calls; see proto/fedbnsl/wire/federation.proto."""

    plan: Plan
    run: int
    roster: Roster
    mailbox: Mailbox
    ledgers: SiteLedgers
    notice: Callable[[str], None] = lambda text: None
    progress: Progress = field(default_factory=Progress)

    async def Join(self, request: federation.JoinRequest, context: Context) -> federation.JoinReply:  # noqa: N802
        """Seat a site."""
        async with _refusals(context):
            joining = codec.decode_join(request)
            if joining.ledger is not None:
                self.ledgers.check(joining.site, joining.ledger)
            self.roster.join(joining)
            if joining.ledger is not None:
                self.ledgers.note(joining.site, joining.ledger)
            self.mailbox.welcome(joining.site)
            seats = f"{len(self.roster.members)} of {self.plan.n_participants} sites"
            self.notice(f"{joining.site} joined with {joining.n_samples} rows ({seats})")
            zero = SparseMatrix.zeros(len(self.roster.variables))
            snapshot = self.mailbox.snapshots.get(joining.site, SiteState(zero, zero))
            reply = codec.encode_join_reply(
                JoinReply(
                    run=self.run,
                    plan_toml=self.plan.to_toml(),
                    plan_digest=self.plan.digest(),
                    variables=self.roster.variables,
                    snapshot=snapshot,
                    round=max(0, self.mailbox.round - 1),
                ),
                dense=self.plan.dense_messages,
            )
            self._count_control(joining.site, request, reply)
            return reply

    async def PullTask(self, request: federation.PullRequest, context: Context) -> federation.PullReply:  # noqa: N802
        """The next task, or the end, or after a while: nothing yet."""
        async with _refusals(context):
            self._admit(request.run, request.site)
            answer = await self.mailbox.pull(request.site, request.last_round, LONG_POLL_S)
            self.roster.heard(request.site)
            if answer is None:
                reply = federation.PullReply(wait=federation.Wait())
            elif isinstance(answer, Finished):
                end = codec.encode_finished(answer, value_type=self.plan.value_type)
                reply = federation.PullReply(finished=end)
            else:
                task = codec.encode_task(answer, value_type=self.plan.value_type, dense=self.plan.dense_messages)
                reply = federation.PullReply(task=task)
                self.mailbox.traffic.down[request.site][answer.round] += reply.ByteSize()
                self._count_control(request.site, request)
                return reply
            self._count_control(request.site, request, reply)
            return reply

    async def PushUpdate(self, request: federation.Update, context: Context) -> federation.PushReply:  # noqa: N802
        """Take in a site's update."""
        async with _refusals(context):
            self._admit(request.run, request.site)
            update = codec.decode_update(
                request, n_variables=len(self.roster.variables), dense=self.plan.dense_messages
            )
            # Late or refused, it crossed the wire all the same.
            self.mailbox.traffic.up[request.site][update.round] += request.ByteSize()
            if update.ledger is not None:  # late or refused, it was paid for
                self.ledgers.note(request.site, update.ledger)
            reply = federation.PushReply(duplicate=self.mailbox.push(update))
            self._count_control(request.site, reply)
            return reply

    async def Leave(self, request: federation.LeaveRequest, context: Context) -> federation.LeaveReply:  # noqa: N802
        """A site's good-bye."""
        async with _refusals(context):
            self._admit(request.run, request.site)  # and, having been heard of, out:
            self.mailbox.leave(request.site)
            self.roster.leave(request.site)
            because = _LEFT_BECAUSE.get(request.reason, "")
            self.notice(f"{request.site} left the run{because}")
            return federation.LeaveReply()

    async def Status(self, request: federation.StatusRequest, context: Context) -> federation.StatusReply:  # noqa: N802
        """Where the run stands; public to whoever reaches the port."""
        async with _refusals(context):
            now = time.monotonic()
            traffic, answered, left = self.mailbox.traffic, self.mailbox.answered, self.mailbox.left
            started, ended = self.progress.started, self.progress.ended
            status = RunStatus(
                state=self.progress.state,
                round=self.mailbox.round,
                rounds=self.plan.rounds + self.plan.refit_rounds,
                acyclicity=self.progress.acyclicity,
                edges=self.progress.edges,
                elapsed_s=0.0 if started is None else (now if ended is None else ended) - started,
                sites=tuple(
                    SiteProgress(
                        site=site,
                        answered=site in answered,
                        left=site in left,
                        last_seen_s=now - member.last_seen,
                        bytes_up=sum(traffic.up[site].values()),
                        bytes_down=sum(traffic.down[site].values()),
                    )
                    for site, member in sorted(self.roster.members.items())
                ),
            )
            return codec.encode_status(status)

    def _admit(self, run: int, site: str) -> None:
        if run != run_tag(self.run):
            raise PlanMismatchError("this call belongs to another run; join again")
        self.roster.heard(site)
        self.mailbox.welcome(site)

    def _count_control(self, site: str, *messages: Any) -> None:
        self.mailbox.traffic.control[site] += sum(message.ByteSize() for message in messages)


@asynccontextmanager
async def _refusals(context: Context) -> AsyncGenerator[None]:
    """End the call with the status of its error; left to itself, gRPC would send the text of any exception."""
    try:
        yield
    except Exception as error:
        for kind, status in _STATUS:
            if isinstance(error, kind):
                await context.abort(status, _clipped(str(error)))
        _log.exception("a call failed unexpectedly")
        await context.abort(grpc.StatusCode.INTERNAL, _OTHERWISE)


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else text[: _MAX_TEXT_LENGTH - 1] + "…"
