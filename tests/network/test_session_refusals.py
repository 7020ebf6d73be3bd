"""What a coordinator refuses, and what of its errors a site learns; a coordinator that is away."""

import errno
import logging
import os
from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from fedbnsl.errors import (
    DataError,
    DivergenceError,
    FedbnslError,
    LocalProtocolError,
    MalformedMessageError,
    MembershipRefusedError,
    PlanError,
    PlanMismatchError,
    ProtocolError,
    QuorumLostError,
    RemoteProtocolError,
    ResultError,
    SchemaMismatchError,
    StaleRoundError,
    UnreachableError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import (
    PROTOCOL_VERSION,
    JoinRequest,
    LeaveReason,
    LocalUpdate,
    RoundTask,
)
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values
from fedbnsl_client import join_run
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import Told
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from free_port import free_port
from network.by_hand import (
    CALLS,
    LONG_S,
    NAMES,
    OTHERWISE,
    Call,
    Coordinator,
    Joined,
    Start,
    connect,
    joined,
    matrix,
    refused,
    request,
    start,
    update,
)

__all__ = ["connect", "joined", "start"]  # fixtures

MALFORMED = {
    "more indices than values": values.SparseMatrix(n_variables=3, index_gap=[1, 1], value=[0.5]),
    "not a number": values.SparseMatrix(n_variables=3, index_gap=[1], value=[float("nan")]),
}


def test_a_malformed_matrix_is_refused_as_an_invalid_argument_and_the_server_goes_on(joined: Joined) -> None:
    coordinator, session = joined
    closing = coordinator.open_round(1)
    session.pull(0)
    stub = coordinator.stub()
    for name, wire in MALFORMED.items():
        message = federation.Update(run=coordinator.tag, site="north", round=1, admm=wire)
        code, details = refused(stub.PushUpdate, message)
        assert code is grpc.StatusCode.INVALID_ARGUMENT, name
        assert details.startswith(("matrix ", "numbers ", "a number ")), name
    assert coordinator.mailbox.answered == frozenset()
    with pytest.raises(LocalProtocolError, match="the coordinator refused: matrix with an entry on the diagonal"):
        session.push(LocalUpdate("north", 1, admm_rounds.Answer(matrix((4, 0.5)))))
    session.push(update(1))
    assert closing.result(LONG_S)["north"] == update(1)


def test_bytes_that_are_no_message_are_refused_and_the_server_goes_on(start: Start, connect: Call) -> None:
    coordinator = start()
    coordinator.stub()
    for call in CALLS:
        code, details = refused(coordinator._raw.unary_unary(f"/fedbnsl.wire.Federation/{call}"), b"\xff\xff\xff")
        assert (code, details) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the request cannot be parsed; install the same version of fedbnsl at both ends",
        )
    assert coordinator.servicer.requests == []
    connect(coordinator).join(request())


def test_after_a_damaged_stream_or_a_stopping_server_a_site_calls_again_and_the_coordinators_own_error_is_not(
    start: Start, connect: Call
) -> None:
    coordinator = start()
    said = [
        (grpc.StatusCode.INTERNAL, "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.INTERNAL, OTHERWISE),
    ]

    async def damage(context: Any) -> None:
        if said:
            await context.abort(*said.pop(0))

    coordinator.servicer.after["Join"] = damage
    with pytest.raises(ProtocolError, match=f"the coordinator refused: {OTHERWISE}$"):
        connect(coordinator).join(request())
    assert coordinator.servicer.count(federation.JoinRequest) == 3


def calls_of(tag: int, site: str) -> dict[str, Message]:
    zero = values.SparseMatrix(n_variables=3)
    return {
        "PullTask": federation.PullRequest(run=tag, site=site),
        "PushUpdate": federation.Update(run=tag, site=site, round=1, admm=zero),
        "Alive": federation.AliveRequest(run=tag, site=site),
        "Leave": federation.LeaveRequest(run=tag, site=site),
    }


@pytest.mark.parametrize("call", ["PullTask", "PushUpdate", "Alive", "Leave"])
def test_calls_of_another_run_and_of_a_site_that_has_not_joined_are_refused(
    call: str, start: Start, connect: Call
) -> None:
    coordinator = start()
    connect(coordinator).join(request())
    stub = coordinator.stub()
    assert refused(getattr(stub, call), calls_of(coordinator.tag + 1, "north")[call]) == (
        grpc.StatusCode.NOT_FOUND,
        "this call belongs to another run; join again",
    )
    assert refused(getattr(stub, call), calls_of(coordinator.tag, "south")[call]) == (
        grpc.StatusCode.NOT_FOUND,
        "site 'south' has not joined this run",
    )
    assert coordinator.mailbox.left == frozenset()


def test_a_site_whose_coordinator_was_replaced_by_another_run_learns_it(start: Start, connect: Call) -> None:
    first = start()
    session = connect(first)
    session.join(request())
    first.close()
    first.close = lambda: None  # type: ignore[method-assign]
    second = start(port=first.port)
    connect(second).join(request())
    with pytest.raises(PlanMismatchError, match="this call belongs to another run; join again"):
        session.pull(0)


REFUSED_JOINS: dict[str, tuple[Plan, list[JoinRequest], JoinRequest, type[FedbnslError], str]] = {
    "another version": (
        Plan(), [], JoinRequest("north", NAMES, 5, protocol_version=99), LocalProtocolError,
        f"the site speaks protocol 99, the coordinator {PROTOCOL_VERSION}; install the same version of fedbnsl",
    ),
    "a bad name": (
        Plan(), [], request("a/b"), MembershipRefusedError,
        "site name 'a/b': use 1 to 64 letters, digits, '.', '-' or '_'",
    ),
    "other variables": (
        Plan(variables=("größe", "IL 6", "mass")), [], request(), SchemaMismatchError,
        "the site's variables are not those of the run (missing: größe, IL 6; not in the run: age, dose)",
    ),
    "no membership left": (
        Plan(n_participants=1), [request("south")], request(), MembershipRefusedError,
        "all 1 memberships of this run are taken",
    ),
    "another table than before": (
        Plan(), [request(n_samples=9)], request(n_samples=8), MembershipRefusedError,
        "site 'north' has already joined, with another table",
    ),
    "a repeated variable": (
        Plan(), [], request(variables=("age", "age")), LocalProtocolError,
        "a table with a repeated variable name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_JOINS)
def test_every_refusal_of_a_join_reaches_the_site_with_its_text(case: str, start: Start, connect: Call) -> None:
    plan, before, refused_one, kind, text = REFUSED_JOINS[case]
    coordinator = start(plan)
    for earlier in before:
        connect(coordinator).join(earlier)
    with pytest.raises(FedbnslError) as caught:
        connect(coordinator).join(refused_one)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"the coordinator refused: {text}")


@pytest.mark.parametrize(
    "names",
    [
        tuple(f"gene_{k:04d}" for k in range(2000)),
        tuple(f"{k}" + "x" * 190 for k in range(100)),
        tuple(f"{k}" + "漢" * 190 for k in range(100)),
    ],
    ids=["2000 names", "long names", "long names of 3 bytes a letter"],
)
def test_a_refusal_that_would_name_too_much_is_cut_and_still_arrives(
    names: tuple[str, ...], start: Start, connect: Call
) -> None:
    """Beyond 8 KiB of trailing metadata gRPC would deliver only "received metadata size exceeds limit"."""
    coordinator = start(Plan(variables=names))
    with pytest.raises(SchemaMismatchError, match="the site's variables are not those of the run") as caught:
        connect(coordinator).join(request(variables=tuple(f"o {name}" for name in names)))
    assert f"missing: {names[0][:100]}" in str(caught.value)


STATUS_OF = {
    StaleRoundError: (grpc.StatusCode.ABORTED, StaleRoundError),
    MalformedMessageError: (grpc.StatusCode.INVALID_ARGUMENT, LocalProtocolError),
    SchemaMismatchError: (grpc.StatusCode.FAILED_PRECONDITION, SchemaMismatchError),
    MembershipRefusedError: (grpc.StatusCode.ALREADY_EXISTS, MembershipRefusedError),
    PlanMismatchError: (grpc.StatusCode.NOT_FOUND, PlanMismatchError),
    PlanError: (grpc.StatusCode.FAILED_PRECONDITION, SchemaMismatchError),
    RemoteProtocolError: (grpc.StatusCode.PERMISSION_DENIED, LocalProtocolError),
}


@pytest.mark.parametrize("kind", STATUS_OF)
def test_each_public_error_has_its_status_and_arrives_as_the_error_of_the_other_side(
    kind: type[FedbnslError], start: Start, connect: Call
) -> None:
    coordinator = start()

    def refuse(request: JoinRequest, certificate: bytes) -> NoReturn:
        raise kind("what, and what to do")

    coordinator.roster.join = refuse  # type: ignore[method-assign]
    status, expected = STATUS_OF[kind]
    wire = codec.encode_join(request())
    assert refused(coordinator.stub().Join, wire) == (status, "what, and what to do")
    with pytest.raises(FedbnslError, match="the coordinator refused: what, and what to do") as caught:
        connect(coordinator).join(request())
    assert type(caught.value) is expected


# ---- nothing leaks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret 42"),
        KeyError("secret 42"),
        DataError("column 'secret': 42 rows"),
        DivergenceError("secret 42"),
        QuorumLostError("secret 42"),
        FedbnslError("secret 42"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_leaves_as_one_constant_sentence_and_the_server_goes_on(
    error: Exception, start: Start, connect: Call, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    connect(coordinator).join(request())

    def fail(*arguments: object) -> NoReturn:
        raise error

    stub = coordinator.stub()
    messages = {
        "Join": codec.encode_join(request()),
        **calls_of(coordinator.tag, "north"),
        "Status": federation.StatusRequest(),
    }
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
        broken.setattr(coordinator.roster, "join", fail)
        for name in ("welcome", "pull", "push", "leave"):
            broken.setattr(coordinator.mailbox, name, fail)
        broken.setattr(type(coordinator.mailbox), "answered", property(fail))
        for call in CALLS:
            caplog.clear()
            with pytest.raises(grpc.RpcError) as caught:
                getattr(stub, call)(messages[call], timeout=LONG_S)
            raised: Any = caught.value
            assert (raised.code(), raised.details()) == (grpc.StatusCode.INTERNAL, OTHERWISE), call
            assert "secret" not in repr(raised.trailing_metadata()) + repr(raised.initial_metadata())
            assert "secret" not in str(raised)
            assert "secret" in caplog.text, "the coordinator's own operator reads what happened"
        with pytest.raises(ProtocolError, match=f"the coordinator refused: {OTHERWISE}$"):
            connect(coordinator).join(request())
    connect(coordinator).join(request())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_site_tries_again_while_the_coordinator_lacks_something(
    number: int, start: Start, connect: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    genuine, left = coordinator.roster.join, 10  # more than gRPC repeats by itself

    def join(request: JoinRequest, certificate: bytes) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ResultError("/secret/events.jsonl cannot be written") from OSError(number, os.strerror(number))
        genuine(request, certificate)

    monkeypatch.setattr(coordinator.roster, "join", join)
    refusal = refused(coordinator.stub().Join, codec.encode_join(request()))
    assert refusal == (grpc.StatusCode.UNAVAILABLE, f"the coordinator has to wait: {os.strerror(number)}")
    assert connect(coordinator).join(request()).round == 0
    assert left < 0


@pytest.mark.parametrize("error", [DataError("column 'secret': 42 rows"), ValueError("secret 42")])
def test_what_goes_wrong_at_a_site_stays_there(
    error: Exception, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Failing(join_run.Participant):
        def handle(self, task: RoundTask) -> NoReturn:
            raise error

    monkeypatch.setattr(join_run, "Participant", Failing)
    coordinator = start()
    table = Dataset(NAMES, np.random.default_rng(1).standard_normal((50, 3)))

    async def open_round(context: Any) -> None:
        coordinator.open_round(1)

    coordinator.servicer.after["Join"] = open_round
    notices: list[str] = []
    with pytest.raises(type(error)):
        join_run.take_part(
            PublicTable("north", table), Link(coordinator.address), patience_s=LONG_S, told=Told(notices.append)
        )
    sent = coordinator.servicer.requests
    assert [type(message) for message in sent] == [
        federation.JoinRequest,
        federation.PullRequest,
        federation.LeaveRequest,
    ]
    assert sent[-1] == federation.LeaveRequest(
        run=coordinator.tag, site="north", reason=federation.LEAVE_REASON_LOCAL_ERROR
    )
    assert not any(b"secret" in message.SerializeToString() for message in sent)
    assert coordinator.mailbox.left == {"north"}


# ---- a coordinator that is away ------------------------------------------------------------------------------------


def test_a_coordinator_that_is_not_there_is_called_until_patience_is_over(connect: Call) -> None:
    notices: list[str] = []
    port = free_port()
    session = connect(f"127.0.0.1:{port}", patience_s=0.5, notice=notices.append)
    with pytest.raises(UnreachableError, match=rf"127\.0\.0\.1:{port} did not answer for 0\.5 s") as caught:
        session.join(request())
    assert caught.value.exit_code == 6
    assert notices == [f"the coordinator at 127.0.0.1:{port} does not answer; trying again for up to 0.5 s"]


def test_a_coordinator_that_appears_late_is_joined(start: Start, connect: Call) -> None:
    late: list[Coordinator] = []
    port = free_port()

    def appear(text: str) -> None:
        late.append(start(port=port))

    told: list[bool] = []
    session = connect(f"127.0.0.1:{port}", notice=appear, is_there=told.append)
    assert session.join(request()).run == late[0].run
    assert told == [False, True], "away, and back"
    assert len(late) == 1
    assert list(late[0].roster.members) == ["north"]


def test_an_end_notice_that_nobody_hears_is_no_error(start: Start, connect: Call) -> None:
    notices: list[str] = []
    coordinator = start()
    session = connect(coordinator, notice=notices.append)
    session.join(request())
    coordinator.close()
    coordinator.close = lambda: None  # type: ignore[method-assign]
    session.leave(LeaveReason.LOCAL_ERROR)
    assert notices == ["the coordinator could not be told that this site leaves"]
