"""A participant's gRPC session: join, then pull a task, answer, push, until the run is over."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import grpc

from fedbnsl import codec
from fedbnsl.channel import LONG_POLL_S, open_channel
from fedbnsl.errors import (
    FedbnslError,
    IdentityError,
    LedgerError,
    LocalProtocolError,
    PlanMismatchError,
    ProtocolError,
    RemoteProtocolError,
    SchemaMismatchError,
    SeatLostError,
    SeatRefusedError,
    StaleRoundError,
    UnreachableError,
)
from fedbnsl.messages import (
    NOT_SEATED,
    UNHANDLED,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveReason,
    LocalUpdate,
    RoundTask,
    RunStatus,
    run_tag,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

_FIRST_CALL_TIMEOUT_S = 10.0
_GOODBYE_TIMEOUT_S = 0.5

_Reply = TypeVar("_Reply")

# The other end of the table in fedbnsl_server.grpc_api.servicer.
_ERRORS: dict[grpc.StatusCode, type[FedbnslError]] = {
    grpc.StatusCode.ABORTED: StaleRoundError,
    grpc.StatusCode.INVALID_ARGUMENT: LocalProtocolError,
    grpc.StatusCode.FAILED_PRECONDITION: SchemaMismatchError,
    grpc.StatusCode.ALREADY_EXISTS: SeatRefusedError,
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

# gRPC says UNAVAILABLE for these as well, and calling again would not help before somebody has corrected something.
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

    def pause(self) -> bool:
        """Sleep; False if patience is over."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not now - self._since <= self.patience_s:  # NaN is no patience
            return False
        time.sleep(self._wait_s * random.uniform(0.5, 1.5))  # noqa: S311  # jitter, not a secret
        self._wait_s = min(5.0, 2 * self._wait_s)
        return True


class Session:
    """Calls of one site to one coordinator.

    Parameters
    ----------
    address
        host:port of the coordinator.
    credentials
        For TLS; None: plaintext, on loopback only.
    patience_s
        How long an unreachable coordinator is called again.
    notice
        Told, once an outage, that the coordinator does not answer.
    """

    def __init__(
        self,
        address: str,
        credentials: "Credentials | None" = None,
        *,
        patience_s: float,
        notice: Callable[[str], None],
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._connect()
        self._back_off = BackOff(patience_s)
        self._notice = notice
        self._timeout_s = _FIRST_CALL_TIMEOUT_S
        self._run = 0
        self._site = ""
        self._value_type, self._dense = "float64", False
        self._n_variables = 0

    def _connect(self) -> None:
        self._channel = open_channel(self._address, self._credentials)
        self._stub = federation_grpc.FederationStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def look(self) -> RunStatus:
        """Where the coordinator's run stands; asked once.

        Raises
        ------
        IdentityError, ProtocolError
            If the coordinator does not take this site for what it says it is, or answers something else.
        UnreachableError
            If it does not answer.
        """
        self._back_off.patience_s = 0.0
        status = codec.decode_status(
            self._call(lambda: self._stub.Status(federation.StatusRequest(), timeout=_FIRST_CALL_TIMEOUT_S))
        )
        self._run = status.run
        return status

    def withdraw(self, site: str) -> None:
        """Say good-bye for a site whose process is gone; see `look` for the errors."""
        run = self.look().run
        wire = federation.LeaveRequest(run=run, site=site, reason=federation.LEAVE_REASON_OPERATOR)
        self._call(lambda: self._stub.Leave(wire, timeout=_FIRST_CALL_TIMEOUT_S))

    def join(self, request: JoinRequest) -> JoinReply:
        """Ask to take part.

        Raises
        ------
        SchemaMismatchError, PlanMismatchError, ProtocolError
            If the coordinator refuses; the text is the coordinator's.
        IdentityError
            If one side does not take the other for what it says it is.
        UnreachableError
            If it does not answer within the session's patience.
        """
        wire = codec.encode_join(request)
        reply = codec.decode_join_reply(self._call(lambda: self._stub.Join(wire, timeout=self._timeout_s)))
        self._run, self._site, self._n_variables = run_tag(reply.run), request.site, len(reply.variables)
        return reply

    def settle(self, plan: Plan) -> None:
        """Take over the settings of the plan that was joined."""
        self._timeout_s = plan.rpc_timeout_s
        self._value_type, self._dense = plan.value_type, plan.dense_messages
        self._back_off.patience_s = plan.join_deadline_s

    def pull(self, last_round: int) -> RoundTask | Finished:
        """The next task after `last_round`, or the end of the run; waits for it."""
        wire = federation.PullRequest(run=self._run, site=self._site, last_round=last_round)
        while True:
            reply = self._call(lambda: self._stub.PullTask(wire, timeout=LONG_POLL_S + self._timeout_s))
            answer = reply.WhichOneof("answer")
            if answer == "task":
                return codec.decode_task(reply.task, n_variables=self._n_variables, dense=self._dense)
            if answer == "finished":
                return codec.decode_finished(reply.finished, n_variables=self._n_variables)
            if answer != "wait":
                raise RemoteProtocolError("the coordinator's answer to a pull holds nothing")

    def push(self, update: LocalUpdate) -> None:
        """Deliver an update; a repeat is a success.

        Raises
        ------
        StaleRoundError
            If its round is over.
        """
        wire = codec.encode_update(update, run=self._run, value_type=self._value_type, dense=self._dense)
        self._call(lambda: self._stub.PushUpdate(wire, timeout=self._timeout_s))

    def leave(self, reason: LeaveReason) -> None:
        """Tell the coordinator, if it can be reached, that the site leaves, and the class of its reason."""
        wire = federation.LeaveRequest(
            run=self._run, site=self._site, reason=federation.LeaveReason.ValueType(reason.value)
        )
        try:
            self._stub.Leave(wire, timeout=_GOODBYE_TIMEOUT_S)
        except grpc.RpcError:
            self._notice("the coordinator did not hear the good-bye")

    def _refuse_misconfigured(self, details: str) -> None:
        for text, meaning in _MISCONFIGURED.items():
            if text in details:
                raise IdentityError(f"the coordinator at {self._address}: {meaning}", remedy=_ASK_THE_OPERATOR)

    def _call(self, call: Callable[[], _Reply]) -> _Reply:
        while True:
            try:
                reply = call()
            except grpc.RpcError as error:
                status, details = _status(error)
                damaged = status is grpc.StatusCode.INTERNAL and details != UNHANDLED
                if damaged:  # gRPC reports a broken stream as INTERNAL; the connection may break others, too
                    self._channel.close()
                    self._connect()
                if damaged or status in _TRANSIENT:
                    if not self._run:  # once joined, it is an outage, which the coordinator's operator can end
                        self._refuse_misconfigured(details)
                    if not self._back_off.waiting:
                        self._notice(
                            f"the coordinator at {self._address} does not answer; "
                            f"trying again for up to {self._back_off.patience_s:g} s"
                        )
                    if self._back_off.pause():
                        continue
                    patience_s = self._back_off.patience_s
                    how_long = f" for {patience_s:g} s" if patience_s else ""
                    if self._credentials is None and "Socket closed" in details:
                        details = "it closes plaintext connections: does it speak TLS? Then leave --insecure out"
                    raise UnreachableError(
                        f"the coordinator at {self._address} did not answer{how_long} ({details})"
                    ) from None
                seat_lost = status is grpc.StatusCode.NOT_FOUND and details.endswith(NOT_SEATED)
                kind = SeatLostError if seat_lost else _ERRORS.get(status, ProtocolError)
                remedy = _ASK_THE_OPERATOR if kind is IdentityError else None
                raise kind(f"the coordinator refused: {details}", remedy=remedy) from None
            self._back_off.reset()
            return reply


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call = cast(grpc.Call, error)  # what grpc raises is both
    return call.code(), call.details() or call.code().name
