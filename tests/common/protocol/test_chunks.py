"""Messages in chunks: what is cut is joined again, and nothing else is taken."""

import pytest

from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol import chunks as chunks
from fedbnsl.protocol import codec
from fedbnsl.protocol.chunks import CutMessage, JoinedMessage, cut, is_last, wire_bytes
from fedbnsl.wire import federation_pb2 as federation

SMALL = 10
MESSAGE = federation.LeaveRequest(run=7, site="a site with a long name", reason=federation.LEAVE_REASON_POLICY)
DATA = MESSAGE.SerializeToString()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", SMALL)


def whole(data: bytes = DATA) -> CutMessage:
    found = cut(data)
    assert found is not None
    return found


def joined(*given: federation.Chunk, most_bytes: int = 1000) -> JoinedMessage:
    message = JoinedMessage(given[0], most_bytes=most_bytes)
    for chunk in given:
        message.add(chunk)
    return message


def changed(chunk: federation.Chunk, **fields: int | bytes) -> federation.Chunk:
    """A copy with other fields."""
    other = federation.Chunk.FromString(chunk.SerializeToString())
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def test_a_cut_message_is_the_same_when_it_is_joined() -> None:
    given = [*whole().chunks()]
    assert [len(chunk.data) for chunk in given] == [SMALL] * (len(DATA) // SMALL) + [len(DATA) % SMALL]
    assert [is_last(chunk) for chunk in given] == [False] * (len(given) - 1) + [True]
    message = JoinedMessage(given[0], most_bytes=len(DATA))
    for chunk in given:
        assert not message.is_whole
        message.add(chunk)
    assert message.is_whole
    assert message.parsed(federation.LeaveRequest) == MESSAGE


def test_only_a_message_that_does_not_fit_is_cut() -> None:
    assert cut(bytes(SMALL)) is None
    assert len([*whole(bytes(SMALL + 1)).chunks()]) == 2
    assert [len(chunk.data) for chunk in whole(bytes(2 * SMALL)).chunks()] == [SMALL, SMALL]


def test_a_chunk_and_what_is_around_it_fit_into_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (first, _) = whole(bytes(chunks.CHUNK_BYTES + 1)).chunks()
    update = federation.Update(run=2**32 - 1, site="s" * 64, round=2**32 - 1, chunk=first)
    variables = tuple(f"x{k}" for k in range(1200))  # the fewest, about, of which an update can be so large
    assert codec.largest_update_bytes(len(variables)) > chunks.CHUNK_BYTES
    assert update.ByteSize() <= codec.largest_call_bytes(variables)
    assert federation.PullReply(chunk=first).ByteSize() <= chunks.MAX_MESSAGE_BYTES


def test_a_message_that_the_other_side_would_not_take_is_not_cut() -> None:
    with pytest.raises(MalformedMessageError, match=rf"a message larger than max \({len(DATA)} vs. {len(DATA) - 1}\)"):
        cut(DATA, most_bytes=len(DATA) - 1)


def test_the_bytes_of_a_message_are_those_of_its_chunks() -> None:
    def wrap(chunk: federation.Chunk) -> federation.PullReply:
        return federation.PullReply(chunk=chunk)

    sent = sum(len(wrap(chunk).SerializeToString()) for chunk in whole().chunks())
    assert wire_bytes(MESSAGE, wrap) == sent > len(DATA)
    small = federation.LeaveRequest(site="a")
    assert wire_bytes(small, wrap) == small.ByteSize()


def test_nobody_holds_more_than_the_run_can_send() -> None:
    with pytest.raises(MalformedMessageError, match=rf"of {len(DATA)} bytes in chunks; in this run it has at most 20"):
        joined(*whole().chunks(), most_bytes=20)
    (first, *_) = whole().chunks()
    with pytest.raises(MalformedMessageError, match="of 0 bytes"):
        joined(changed(first, n_bytes=0))
    with pytest.raises(MalformedMessageError, match=rf"at most {2**31 - 1}"):
        joined(changed(first, n_bytes=2**40), most_bytes=2**50)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ((0, 2), "a chunk that begins at byte 20; expected 10"),
        ((0, 0), "a chunk that begins at byte 0; expected 10"),
        ((1,), "a chunk that begins at byte 10; expected 0"),
        ((0, 1, 2, 0), "a chunk that begins at byte 0; expected 30"),
    ],
    ids=["missing", "repeated", "late", "once more"],
)
def test_chunks_are_taken_in_their_order_alone(order: tuple[int, ...], text: str) -> None:
    given = [*whole().chunks()]
    with pytest.raises(MalformedMessageError, match=text):
        joined(*(given[k] for k in order))


def test_a_chunk_of_another_message_is_refused() -> None:
    (first, second, *_) = whole().chunks()
    for other in (changed(second, digest=bytes(32)), changed(second, n_bytes=len(DATA) + 1)):
        with pytest.raises(MalformedMessageError, match="of another message"):
            joined(first, other)


def test_a_chunk_is_neither_empty_nor_longer_than_what_is_left() -> None:
    (first, second, *_) = whole().chunks()
    left = len(DATA) - SMALL
    for data in (b"", bytes(left + 1)):
        with pytest.raises(MalformedMessageError, match=rf"a chunk of {len(data)} bytes where 1 to {left} are left"):
            joined(first, changed(second, data=data))


def test_bytes_that_were_not_announced_are_no_message() -> None:
    given = [*whole().chunks()]
    given[1] = changed(given[1], data=bytes(SMALL))
    with pytest.raises(MalformedMessageError, match="do not have its SHA-256"):
        joined(*given).parsed(federation.LeaveRequest)
    with pytest.raises(MalformedMessageError, match="make none that can be parsed"):
        joined(*whole(b"\xff" * 30).chunks()).parsed(federation.LeaveRequest)
