"""A participant's gRPC session: join, then pull a task, answer, push, until the run is over.

Between its calls, as it computes, a thread tells the coordinator that the site lives.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message

from fedbnsl.console.shown import shown
from fedbnsl.console.time_left import SparseLines, in_words
from fedbnsl.errors import (
    EjectedError,
    FedbnslError,
    IdentityError,
    LedgerError,
    LocalProtocolError,
    MembershipLostError,
    MembershipRefusedError,
    PlanMismatchError,
    ProtocolError,
    RemoteProtocolError,
    SchemaMismatchError,
    StaleRoundError,
    UnreachableError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import ALIVE_EVERY_S, ALIVE_TIMEOUT_S, LONG_POLL_S, open_channel
from fedbnsl.protocol.chunks import CutMessage, JoinedMessage, cut
from fedbnsl.protocol.messages import (
    NOT_JOINED,
    TAKEN_OUT,
    UNHANDLED,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveReason,
    LocalUpdate,
    RoundTask,
    RunOffer,
    RunStatus,
    run_tag,
)
from fedbnsl.protocol.offer_codec import decode_offers
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

_FIRST_CALL_TIMEOUT_S = 10.0
_GOODBYE_TIMEOUT_S = 0.5
_LOOK_S = 1.0
_MEANWHILE_S = 0.25

_Reply = TypeVar("_Reply")
_Message = TypeVar("_Message", bound=Message)

# The inverse of the table in fedbnsl_server.grpc_api.servicer.
_ERRORS: dict[grpc.StatusCode, type[FedbnslError]] = {
    grpc.StatusCode.ABORTED: StaleRoundError,
    grpc.StatusCode.INVALID_ARGUMENT: LocalProtocolError,
    grpc.StatusCode.FAILED_PRECONDITION: SchemaMismatchError,
    grpc.StatusCode.ALREADY_EXISTS: MembershipRefusedError,
    grpc.StatusCode.DATA_LOSS: LedgerError,
    grpc.StatusCode.NOT_FOUND: PlanMismatchError,
    grpc.StatusCode.PERMISSION_DENIED: LocalProtocolError,
    grpc.StatusCode.UNAUTHENTICATED: IdentityError,
}
# A site never cancels its own calls: CANCELLED comes from a coordinator that shuts down before it answers.
_TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

_ASK_THE_OPERATOR = (
    "Ask the coordinator's operator; `fedbnsl participant check FOLDER` shows what fits and what does not."
)

# Of a refusal by the coordinator; else that of the error's class. A ledger that only the coordinator refuses is one
# that the site goes on with: what to do about it is done there.
_REMEDIES: dict[type[FedbnslError], str] = {
    IdentityError: _ASK_THE_OPERATOR,
    LedgerError: "No value of a table was sent. Ask the coordinator's operator to do what the message says; then join "
    "with the same command.",
}

# gRPC reports these as UNAVAILABLE, too, but another call would not help: somebody has to correct the setup.
_MISCONFIGURED = {
    "Hostname Verification Check failed": "its certificate is for other host names",
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet: is this machine's clock right?",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of this site's federation",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}


@dataclass
class BackOff:
    """Waits that double from 0.1 s to 5 s, with jitter, until a total patience in seconds is used up."""

    patience_s: float

    def __post_init__(self) -> None:
        self._since: float | None = None
        self._wait_s = 0.1

    @property
    def waiting(self) -> bool:
        """Whether the last call failed."""
        return self._since is not None

    def reset(self) -> None:
        """A call went through."""
        self._since, self._wait_s = None, 0.1

    def pause(self, meanwhile: Callable[[], None] | None = None) -> bool:
        """Sleep before the next call; False if patience is over. `meanwhile` is called several times a second."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not now - self._since <= self.patience_s:  # NaN counts as no patience
            return False
        left_s = self._wait_s * random.uniform(0.5, 1.5)  # noqa: S311  # jitter, not a secret
        while meanwhile is not None and left_s > _MEANWHILE_S:
            meanwhile()
            time.sleep(_MEANWHILE_S)
            left_s -= _MEANWHILE_S
        time.sleep(left_s)
        self._wait_s = min(5.0, 2 * self._wait_s)
        return True


class Session:
    """Calls of one site to one coordinator at host:port; without credentials in plaintext, on loopback only.

    Calls to an unreachable coordinator are retried for `patience_s`. `notice` is called once per outage, with a text
    for people; `is_there` with False once per outage, and with True when it is over; `meanwhile` several times a second
    while a long poll waits: what it raises ends the wait.
    """

    def __init__(
        self,
        address: str,
        credentials: "Credentials | None" = None,
        *,
        patience_s: float = 0.0,
        notice: Callable[[str], None] = lambda text: None,
        meanwhile: Callable[[], None] | None = None,
        is_there: Callable[[bool], None] = lambda answers: None,
    ) -> None:
        self.pushed_bytes = 0  # serialised, of the last update that was sent
        self._meanwhile = meanwhile
        self._address = address
        self._credentials = credentials
        self._connecting = threading.Lock()  # the channel is replaced and closed, and the other thread calls over it
        self._connect()
        self._back_off = BackOff(patience_s)
        self._notice = notice
        self._is_there = is_there
        self._timeout_s = _FIRST_CALL_TIMEOUT_S
        self._run = 0
        self._site = ""
        self._value_type, self._dense = "float64", False
        self._n_variables = self._further_bytes = 0
        # For a coordinator that lets the run get nowhere: rounds that this site answered, since it joined and ever.
        self._reached = self._furthest = 0
        self._nowhere = BackOff(math.inf)
        self._calling, self._last_call = False, 0.0
        self._lines = SparseLines()
        self._silent = threading.Event()
        self._living: threading.Thread | None = None

    def _connect(self) -> None:
        self._channel = open_channel(self._address, self._credentials)
        self._stub = federation_grpc.FederationStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._silent.set()
        with self._connecting:
            self._channel.close()
        if self._living is not None:
            self._living.join()

    def look(self) -> RunStatus:
        """Where the coordinator's run stands.

        Raises IdentityError or ProtocolError if the coordinator does not accept this site's identity, or its answer is
        not valid; UnreachableError if it does not answer.
        """
        status = codec.decode_status(
            self._call(lambda: self._stub.Status(federation.StatusRequest(), timeout=_FIRST_CALL_TIMEOUT_S))
        )
        self._run = status.run
        return status

    def offers(self, seen: int = 0) -> tuple[int, tuple[RunOffer, ...]]:
        """The coordinator's runs that concern this site, and the number of this list; see `look` for the errors.

        Waits, as long as a long poll, for another list than that of the number `seen`.
        """
        wire = federation.RunsRequest(seen=seen)
        reply = self._call(lambda: self._polled(self._stub.Runs, wire, LONG_POLL_S + _FIRST_CALL_TIMEOUT_S))
        return decode_offers(reply)

    def plan_of(self, run: int) -> str:
        """The plan of an offered run, TOML; empty if it is offered no more. See `look` for the errors."""
        wire = federation.RunsRequest(run=run)
        _, found = decode_offers(self._call(lambda: self._stub.Runs(wire, timeout=_FIRST_CALL_TIMEOUT_S)))
        return found[0].plan_toml if found else ""

    def withdraw(self, site: str) -> None:
        """Leave the run for a site whose process is gone; see `look` for the errors."""
        run = self.look().run
        wire = federation.LeaveRequest(run=run, site=site, reason=federation.LEAVE_REASON_OPERATOR)
        self._call(lambda: self._stub.Leave(wire, timeout=_FIRST_CALL_TIMEOUT_S))

    def join(self, request: JoinRequest) -> JoinReply:
        """Ask to take part.

        Raises SchemaMismatchError, PlanMismatchError or ProtocolError if the coordinator refuses; the text is the
        coordinator's; IdentityError if one side does not accept the identity of the other; UnreachableError if it does
        not answer within the session's patience.
        """
        if self._site:  # again: the coordinator sent a task that does not follow, or lost this site's membership
            self._nowhere.pause()
        wire = codec.encode_join(request)
        while True:
            found = self._call(lambda: self._stub.Join(wire, timeout=self._timeout_s))
            self._run, self._site, self._n_variables = run_tag(found.run), request.site, len(request.variables)
            if not found.HasField("chunk"):
                break
            try:
                found = self._joined(found.chunk, federation.JoinReply)
                break
            except StaleRoundError:  # the coordinator was restarted between two chunks
                self._nowhere.pause(self._meanwhile)
        reply = codec.decode_join_reply(found)
        self._n_variables = len(reply.variables)
        self._reached = reply.round
        if self._living is None:
            self._living = threading.Thread(target=self._live, name="alive", daemon=True)
            self._living.start()
        return reply

    def settle(self, plan: Plan) -> None:
        """Take over the settings of the plan that was joined."""
        self._timeout_s = plan.rpc_timeout_s
        self._value_type, self._dense = plan.value_type, plan.dense_messages
        self._further_bytes = plan.further_bytes
        self._back_off.patience_s = plan.join_deadline_s

    def pull(self, last_round: int) -> RoundTask | Finished:
        """Wait for the next task after `last_round`, or for the end of the run."""
        wire = federation.PullRequest(run=self._run, site=self._site, last_round=last_round)
        while True:
            asked = time.monotonic()
            reply = self._call(lambda: self._polled(self._stub.PullTask, wire, LONG_POLL_S + self._timeout_s))
            if reply.HasField("chunk"):
                try:
                    reply = self._joined(reply.chunk, federation.PullReply)
                except StaleRoundError:  # as above
                    self._nowhere.pause(self._meanwhile)
                    continue
            answer = reply.WhichOneof("answer")
            if answer == "task":
                return codec.decode_task(reply.task, n_variables=self._n_variables, dense=self._dense)
            if answer == "finished":
                return codec.decode_finished(reply.finished, n_variables=self._n_variables)
            if answer == "wait" and reply.wait.HasField("phase"):
                phase = codec.decode_phase(reply.wait.phase)
                if self._lines.is_due(phase):
                    self._notice(f"waiting for the coordinator: {shown(in_words(phase))}")
            if answer != "wait":
                raise RemoteProtocolError(
                    "the coordinator's answer to a pull is empty; expected a task, a wait or the end of the run"
                )
            if time.monotonic() - asked < LONG_POLL_S / 2:  # it should have waited itself
                self._nowhere.pause()

    def push(self, update: LocalUpdate) -> None:
        """Deliver an update; a repeat is a success. Raises StaleRoundError if its round is over."""
        if update.round <= self._reached:  # a repeat
            self._nowhere.pause()
        self._reached = max(self._reached, update.round)
        if update.round > self._furthest:
            self._furthest = update.round
            self._nowhere.reset()
        wire = codec.encode_update(update, run=self._run, value_type=self._value_type, dense=self._dense)
        data = wire.SerializeToString()
        self.pushed_bytes = len(data)  # also of one that comes too late
        whole = cut(data, most_bytes=codec.largest_update_bytes(self._n_variables, self._further_bytes))
        if whole is None:
            self._pushed(wire)
        else:
            self._push_chunks(wire, whole)

    def _pushed(self, wire: federation.Update) -> federation.PushReply:
        return self._call(lambda: self._stub.PushUpdate(wire, timeout=self._timeout_s))

    def _push_chunks(self, update: federation.Update, whole: CutMessage) -> None:
        """Send each chunk from where the coordinator says that it stands: a restarted one begins at the first again."""
        n_held = 0
        while n_held < len(whole.data):
            before, n_held = n_held, self._pushed(codec.update_chunk(update, whole.chunk(n_held))).n_held
            if n_held <= before:
                self._nowhere.pause(self._meanwhile)

    def _joined(self, first: federation.Chunk, kind: type[_Message]) -> _Message:
        """A reply of which the first chunk has come.

        Raises StaleRoundError if the coordinator does not keep it any more; MalformedMessageError if it is larger than
        any of the run, a chunk does not follow, or they are no such message together.
        """
        whole, chunk = JoinedMessage(first, most_bytes=codec.largest_reply_bytes(self._n_variables)), first
        while True:
            whole.add(chunk)
            if whole.is_whole:
                return whole.parsed(kind)
            chunk = self._pulled(federation.Chunk(digest=first.digest, start=whole.n_held)).chunk

    def _pulled(self, wanted: federation.Chunk) -> federation.PullReply:
        wire = federation.PullRequest(run=self._run, site=self._site, chunk=wanted)
        return self._call(lambda: self._stub.PullTask(wire, timeout=self._timeout_s))

    def leave(self, reason: LeaveReason) -> None:
        """Tell the coordinator, if it can be reached, that the site leaves, and the class of its reason."""
        self._silent.set()
        wire = federation.LeaveRequest(
            run=self._run, site=self._site, reason=federation.LeaveReason.ValueType(reason.value)
        )
        try:
            self._stub.Leave(wire, timeout=_GOODBYE_TIMEOUT_S)
        except grpc.RpcError:
            self._notice("the coordinator could not be told that this site leaves")

    def _live(self) -> None:
        """Tell the coordinator that this site lives whenever nothing else has told it so for a while."""
        while not self._silent.wait(_LOOK_S):
            now = time.monotonic()
            if self._calling or now - self._last_call < ALIVE_EVERY_S:
                continue
            wire = federation.AliveRequest(run=self._run, site=self._site)
            with self._connecting:
                if self._silent.is_set():
                    return
                call = self._stub.Alive.future(wire, timeout=ALIVE_TIMEOUT_S)
            if call.code() is grpc.StatusCode.OK:  # otherwise the next call of the site says what is wrong
                self._last_call = now

    def _polled(self, call: Any, wire: Message, timeout_s: float) -> Any:
        """The reply of a long poll."""
        if self._meanwhile is None:
            return call(wire, timeout=timeout_s)
        waiting = call.future(wire, timeout=timeout_s)
        try:
            while True:
                with suppress(grpc.FutureTimeoutError):
                    return waiting.result(_MEANWHILE_S)
                self._meanwhile()
        finally:
            waiting.cancel()  # it has ended, or is waited for no more

    def _refuse_misconfigured(self, details: str) -> None:
        for text, meaning in _MISCONFIGURED.items():
            if text in details:
                raise IdentityError(f"the coordinator at {self._address}: {meaning}", remedy=_ASK_THE_OPERATOR)

    def _call(self, call: Callable[[], _Reply]) -> _Reply:
        self._calling = True
        try:
            return self._call_patiently(call)
        finally:
            self._calling = False

    def _call_patiently(self, call: Callable[[], _Reply]) -> _Reply:
        while True:
            self._last_call = time.monotonic()
            try:
                reply = call()
            except grpc.RpcError as error:
                status, details = _status(error)
                damaged = status is grpc.StatusCode.INTERNAL and details != UNHANDLED
                if damaged:  # gRPC reports a broken stream as INTERNAL; the connection may break others, too
                    with self._connecting:
                        self._channel.close()
                        self._connect()
                if damaged or status in _TRANSIENT:
                    if not self._run:  # after joining it is an outage, which the coordinator's operator can end
                        self._refuse_misconfigured(details)
                    if not self._back_off.waiting:
                        self._is_there(False)
                        self._notice(
                            f"the coordinator at {self._address} does not answer; "
                            f"trying again for up to {self._back_off.patience_s:g} s"
                        )
                    if self._back_off.pause(self._meanwhile if self._run else None):
                        continue
                    patience_s = self._back_off.patience_s
                    how_long = f" for {patience_s:g} s" if patience_s else ""
                    if self._credentials is None and "Socket closed" in details:
                        details = "it closes plaintext connections: does it speak TLS? Then leave --insecure out"
                    raise UnreachableError(
                        f"the coordinator at {self._address} did not answer{how_long} ({details})"
                    ) from None
                kind = _ERRORS.get(status, ProtocolError)
                if kind is PlanMismatchError and details.endswith(NOT_JOINED):
                    kind = MembershipLostError
                elif kind is MembershipRefusedError and details.endswith(TAKEN_OUT):
                    kind = EjectedError
                raise kind(f"the coordinator refused: {details}", remedy=_REMEDIES.get(kind)) from None
            if self._back_off.waiting:
                self._is_there(True)
            self._back_off.reset()
            return reply


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call = cast(grpc.Call, error)  # what grpc raises is both
    return call.code(), shown(call.details() or call.code().name)
