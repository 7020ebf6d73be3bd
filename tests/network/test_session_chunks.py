"""Messages that come in chunks."""

import asyncio
import threading
from dataclasses import replace
from typing import Any
from unittest import mock

import grpc
import pytest

from fedbnsl.errors import (
    MalformedMessageError,
    ProtocolError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import chunks, codec
from fedbnsl.protocol.messages import (
    Finished,
    LeaveReason,
    LedgerHead,
    LocalUpdate,
    RoundTask,
)
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_server.grpc_api.servicer import Servicer
from network.by_hand import (
    LONG_S,
    NAMES,
    WEIGHTS,
    Call,
    Coordinator,
    Joined,
    Start,
    connect,
    joined,
    joined_round,
    matrix,
    refused,
    request,
    start,
)

__all__ = ["connect", "joined", "start"]  # fixtures

SMALL = 15
UPDATED = LocalUpdate("north", 1, admm_rounds.Answer(matrix((1, 0.1), (3, -1 / 3), (5, 5.5), (7, 1e-9))))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few bytes, of which every message but the smallest takes several."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", SMALL)


def sent_chunks(coordinator: Coordinator) -> list[federation.Update]:
    return [one for one in coordinator.servicer.requests if isinstance(one, federation.Update)]


def in_chunks(update: LocalUpdate, coordinator: Coordinator) -> list[federation.Update]:
    """The calls that bring an update, without a session's care."""
    wire = codec.encode_update(update, run=coordinator.run, value_type="float64")
    whole = chunks.cut(wire.SerializeToString())
    assert whole is not None
    return [codec.update_chunk(wire, chunk) for chunk in whole.chunks()]


@pytest.mark.usefixtures("small")
def test_every_message_can_come_in_chunks_and_their_bytes_are_counted(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)
    session.push(UPDATED)
    assert closing.result(LONG_S) == {"north": UPDATED}
    traffic, sent = coordinator.mailbox.traffic, sent_chunks(coordinator)
    assert len(sent) > 3
    assert traffic.up["north"] == {1: sum(chunk.ByteSize() for chunk in sent)}
    assert traffic.up["north"][1] == codec.update_bytes(UPDATED, run=coordinator.run, value_type="float64")
    task = RoundTask(1, admm_rounds.Task(WEIGHTS), contributed=False)
    assert traffic.down["north"] == {1: codec.task_bytes(task, value_type="float64")}
    coordinator.finish(Finished(matrix((1, 0.5), (2, 0.25))))
    assert session.pull(1) == Finished(matrix((1, 0.5), (2, 0.25)))


@pytest.mark.usefixtures("small")
def test_the_end_is_told_once_its_last_chunk_is_sent(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    session.join(request())
    telling = asyncio.run_coroutine_threadsafe(
        coordinator.mailbox.finish(Finished(matrix((1, 0.1), (2, 0.2), (5, 0.5))), {"north"}, LONG_S), coordinator._loop
    )
    ask = federation.PullRequest(run=coordinator.tag, site="north")
    stub = coordinator.stub()
    first = stub.PullTask(ask, timeout=LONG_S).chunk
    assert first.n_bytes > len(first.data)
    ask.chunk.digest = first.digest
    for start_at in range(len(first.data), first.n_bytes, len(first.data)):
        assert not telling.done()
        ask.chunk.start = start_at
        stub.PullTask(ask, timeout=LONG_S)
    telling.result(LONG_S / 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("lost", range(1, 5))
def test_a_chunk_whose_reply_is_lost_is_sent_again_with_the_same_bytes(
    lost: int, start: Start, connect: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)
    encoded: list[LocalUpdate] = []
    encode = codec.encode_update
    monkeypatch.setattr(codec, "encode_update", lambda one, **how: encoded.append(one) or encode(one, **how))

    async def lose(context: Any) -> None:
        if coordinator.servicer.count(federation.Update) == lost:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "lost")

    coordinator.servicer.after["PushUpdate"] = lose
    session.push(UPDATED)
    assert closing.result(LONG_S) == {"north": UPDATED}
    sent = sent_chunks(coordinator)
    assert sent[lost - 1] == sent[lost]
    assert len({chunk.chunk.start for chunk in sent}) == len(sent) - 1
    assert encoded == [UPDATED], "what was cut is kept"


@pytest.mark.usefixtures("small")
def test_a_coordinator_that_forgot_the_chunks_is_sent_all_of_the_same_again(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)

    async def forget(context: Any) -> None:
        if coordinator.servicer.count(federation.Update) == 3:
            coordinator.servicer._forget_chunks("north")

    coordinator.servicer.after["PushUpdate"] = forget
    session.push(UPDATED)
    assert closing.result(LONG_S) == {"north": UPDATED}
    sent = [(chunk.chunk.start, chunk.SerializeToString()) for chunk in sent_chunks(coordinator)]
    assert [start for start, _ in sent[:5]] == [0, 15, 30, 45, 0]
    assert len({data for _, data in sent}) == len({start for start, _ in sent}), "the same bytes"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("call", ["Join", "PullTask"])
def test_a_reply_that_the_coordinator_forgot_is_asked_for_anew(call: str, start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    forgotten = threading.Event()

    async def forget(context: Any) -> None:
        if "north" in coordinator.servicer._outgoing and not forgotten.is_set():
            coordinator.servicer._forget_chunks("north")
            forgotten.set()

    if call == "Join":
        coordinator.servicer.after["Join"] = forget
    else:
        session.join(request())
        coordinator.servicer.after["PullTask"] = forget
    if call == "Join":
        assert session.join(request()).variables == NAMES
    coordinator.open_round(1, WEIGHTS)
    assert session.pull(0) == RoundTask(1, admm_rounds.Task(WEIGHTS), contributed=False)
    assert forgotten.is_set()


@pytest.mark.usefixtures("small")
def test_a_chunk_of_a_reply_that_is_not_kept_is_refused(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)
    kept = coordinator.servicer._outgoing["north"][1].digest
    session.push(UPDATED)
    closing.result(LONG_S)
    coordinator.open_round(2, WEIGHTS, contributed=True)
    stub = coordinator.stub()
    first = stub.PullTask(federation.PullRequest(run=coordinator.tag, site="north", last_round=1), timeout=LONG_S)
    for digest in (kept, bytes(32)):
        wanted = federation.Chunk(digest=digest, start=SMALL)
        asked = federation.PullRequest(run=coordinator.tag, site="north", chunk=wanted)
        assert refused(stub.PullTask, asked) == (
            grpc.StatusCode.ABORTED,
            "the message that this chunk is of is not kept any more; ask for its beginning again",
        )  # fmt: skip
    asked.chunk.digest = first.chunk.digest
    assert stub.PullTask(asked, timeout=LONG_S).chunk.start == SMALL


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("end", ["pull", "leave", "join"])
def test_what_is_held_of_chunks_is_dropped_once_it_is_not_needed(end: str, start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=2, rounds=2))
    session = connect(coordinator)
    connect(coordinator).join(request("south"))
    joined_round(coordinator, session)
    servicer, stub = coordinator.servicer, coordinator.stub()
    assert "north" in servicer._outgoing
    stub.PushUpdate(in_chunks(UPDATED, coordinator)[0], timeout=LONG_S)
    assert ("north" in servicer._incoming, "north" in servicer._outgoing) == (True, False)
    if end == "pull":
        stub.PullTask(federation.PullRequest(run=coordinator.tag, site="north"), timeout=LONG_S)
    elif end == "join":
        session.join(request())
    else:
        session.leave(LeaveReason.OPERATOR)
    assert "north" not in servicer._incoming


@pytest.mark.usefixtures("small")
def test_the_ledger_of_an_update_in_chunks_that_comes_too_late_is_noted(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=1, rounds=2))
    session = connect(coordinator)
    joined_round(coordinator, session)
    head = LedgerHead(bytes(16), bytes(16), 3, bytes(32), 7)
    late = in_chunks(replace(UPDATED, round=2, ledger=head), coordinator)[0]
    with mock.patch.object(coordinator.servicer.ledgers, "note") as note:
        assert refused(coordinator.stub().PushUpdate, late)[0] is grpc.StatusCode.ABORTED
    note.assert_called_once_with("north", head)


@pytest.mark.usefixtures("small")
def test_chunks_that_do_not_follow_are_not_taken_and_others_are_refused(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=2, rounds=2))
    session = connect(coordinator)
    connect(coordinator).join(request("south"))
    closing = joined_round(coordinator, session)
    stub = coordinator.stub()

    def held(chunk: federation.Update) -> int:
        return stub.PushUpdate(chunk, timeout=LONG_S).n_held

    def altered(chunk: federation.Update, **fields: int | bytes) -> federation.Update:
        other = federation.Update.FromString(chunk.SerializeToString())
        for name, value in fields.items():
            setattr(other.chunk if name in ("digest", "n_bytes", "data") else other, name, value)
        return other

    first, second, third, *rest = in_chunks(UPDATED, coordinator)
    assert held(second) == 0, "not the beginning"
    assert [held(chunk) for chunk in (first, third, second, second, altered(third, digest=bytes(32)))] == [
        15, 15, 30, 30, 0,
    ]  # fmt: skip
    most = codec.largest_update_bytes(3)
    invalid, late = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED
    for chunk, expected in [
        (altered(first, n_bytes=most + 1), (invalid, f"a message of {most + 1} bytes in chunks; in this run it has at "
                                            f"most {most}")),
        (altered(first, data=bytes(most)), (invalid, f"a chunk of {most} bytes where 1 to {first.chunk.n_bytes} are "
                                            "left")),
        (altered(first, data=b""), (invalid, f"a chunk of 0 bytes where 1 to {first.chunk.n_bytes} are left")),
        (altered(first, round=2), (late, "update for round 2 arrived in round 1; pull the current task")),
        (altered(first, run=coordinator.tag ^ 1), (grpc.StatusCode.NOT_FOUND, "this call belongs to another run; "
                                                   "join again")),
    ]:  # fmt: skip
        assert refused(stub.PushUpdate, chunk) == expected
    assert coordinator.servicer._incoming["north"].n_held == 0
    damaged = [first, altered(second, data=bytes(SMALL)), third, *rest]
    assert [held(chunk) for chunk in damaged[:-1]] == [SMALL * k for k in range(1, len(damaged))]
    assert refused(stub.PushUpdate, damaged[-1]) == (
        invalid,
        "the chunks of a message do not have its SHA-256 together",
    )
    foreign = [altered(chunk, site="south") for chunk in (first, second, third, *rest)]
    for chunk in foreign[:-1]:
        held(chunk)
    assert refused(stub.PushUpdate, foreign[-1]) == (
        invalid, "the chunks of an update hold one of another run, site or round",
    )  # fmt: skip
    session.push(UPDATED)
    session.push(UPDATED)  # a repeat is a success
    with mock.patch.object(codec, "decode_update", side_effect=AssertionError("looked at again")):
        again = stub.PushUpdate(altered(second, data=b""), timeout=LONG_S)
    assert (again.duplicate, again.n_held) == (True, first.chunk.n_bytes)
    stub.PushUpdate(codec.encode_update(replace(UPDATED, site="south"), run=coordinator.run, value_type="float64"))
    assert set(closing.result(LONG_S)) == {"north", "south"}
    assert refused(stub.PushUpdate, in_chunks(replace(UPDATED, round=2), coordinator)[0])[0] is late


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"start": 1}, "a chunk that begins at byte 1; expected 15"),
        ({"digest": bytes(32)}, "a chunk of another message than the one before it"),
        ({"data": bytes(SMALL)}, "the chunks of a message do not have its SHA-256 together"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_site_takes_no_other_chunk_than_the_next(
    wrong: dict[str, Any], text: str, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, session = joined
    coordinator.open_round(1, WEIGHTS)
    genuine = chunks.CutMessage.chunk

    def chunk(self: chunks.CutMessage, at: int) -> federation.Chunk:
        found = genuine(self, at)
        for name, value in wrong.items() if at == SMALL else ():
            setattr(found, name, value)
        return found

    monkeypatch.setattr(chunks.CutMessage, "chunk", chunk)
    with pytest.raises(MalformedMessageError, match=text):
        session.pull(0)


@pytest.mark.usefixtures("small")
def test_a_site_takes_no_larger_message_than_its_run_can_have(
    start: Start, connect: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    session = connect(coordinator)
    session.join(request())
    coordinator.open_round(1, WEIGHTS)
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 40)
    monkeypatch.setattr(codec, "largest_update_bytes", lambda n_variables, further_bytes=0: 10)
    with pytest.raises(ProtocolError, match=r"the coordinator refused: a message larger than max \(\d+ vs. 40\)"):
        session.pull(0)
    monkeypatch.setattr(Servicer, "_cut", lambda self, reply: chunks.cut(reply.SerializeToString()))
    coordinator.servicer._task_replies.clear()
    with pytest.raises(MalformedMessageError, match=r"a message of \d+ bytes in chunks; in this run it has at most 40"):
        connect(coordinator).join(request())
    with pytest.raises(MalformedMessageError, match=r"a message larger than max \(\d+ vs. 10\)"):
        session.push(UPDATED)


def test_a_message_that_fits_into_one_call_is_sent_as_it_is(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    joined_round(coordinator, session)
    session.push(UPDATED)
    joined, pulled, pushed = coordinator.servicer.requests
    assert (pulled, pushed) == (
        federation.PullRequest(run=coordinator.tag, site="north"),
        codec.encode_update(UPDATED, run=coordinator.run, value_type="float64"),
    )
    assert joined == codec.encode_join(request())
