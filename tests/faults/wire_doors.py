"""Every way in which bytes from the other side become a value, and what must hold for whatever gets in."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from content_numbers import numbers_in
from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol import codec
from fedbnsl.protocol.chunks import JoinedMessage
from fedbnsl.protocol.messages import (
    Finished,
    JoinReply,
    JoinRequest,
    LedgerHead,
    LocalUpdate,
    RoundTask,
    RunStatus,
    SiteProgress,
    SiteState,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl.wire import federation_pb2 as federation

D = 4
NAMES = ("age", "dose", "mass", "pulse")


@dataclass(frozen=True)
class Door:
    """One function that decodes, with an example of what it takes."""

    kind: type[Message]
    decode: Callable[[Any], Any]
    example: Message


def _matrix(*values: float) -> SparseMatrix:
    index = np.array([1, 2, 7, 11][: len(values)], dtype=np.int64)
    return SparseMatrix(D, index, np.array(values))


def _full() -> SparseMatrix:
    return SparseMatrix(D, np.arange(D * D), np.linspace(-1.0, 1.0, D * D))


_HEAD = LedgerHead(bytes(16), bytes(16), 3, bytes(32), 10**12)
_REQUEST = JoinRequest("north", NAMES, 120, 1, _HEAD)
_JOIN = JoinReply(7, "rounds = 1", bytes(32), NAMES, SiteState(_matrix(0.5), _matrix(0.25, -1.0)), 2)
_DENSE_JOIN = JoinReply(7, "rounds = 1", bytes(32), NAMES, SiteState(_full(), _full()), 2)
_TASK = RoundTask(1, admm_rounds.Task(_matrix(0.5, 1.5)), contributed=True)
_UPDATE = LocalUpdate("north", 1, admm_rounds.Answer(_matrix(0.5, -0.5, 2.0)), ledger=_HEAD)
_REFIT = LocalUpdate("north", 4, refit_rounds.Answer(_matrix(0.5), np.ones(D)))
_STATUS = RunStatus("running", 1, 3, 0.5, 2, 1.5, (SiteProgress("north", True, False, 0.1, 10, 20),))


def _chunk(message: Message) -> federation.Chunk:
    data = message.SerializeToString()
    return federation.Chunk(digest=hashlib.sha256(data).digest(), n_bytes=len(data), data=data)


def _joined(chunk: federation.Chunk) -> federation.Update:
    whole = JoinedMessage(chunk, most_bytes=codec.largest_update_bytes(D))
    whole.add(chunk)
    return whole.parsed(federation.Update)


DOORS = {
    "join": Door(federation.JoinRequest, codec.decode_join, codec.encode_join(_REQUEST)),
    "join reply": Door(federation.JoinReply, codec.decode_join_reply, codec.encode_join_reply(_JOIN)),
    "dense join reply": Door(
        federation.JoinReply, codec.decode_join_reply, codec.encode_join_reply(_DENSE_JOIN, dense=True)
    ),
    "task": Door(
        federation.Task,
        lambda wire: codec.decode_task(wire, n_variables=D),
        codec.encode_task(_TASK, value_type="float64"),
    ),
    "dense task": Door(
        federation.Task,
        lambda wire: codec.decode_task(wire, n_variables=D, dense=True),
        codec.encode_task(RoundTask(1, admm_rounds.Task(_full()), contributed=False), value_type="float32", dense=True),
    ),
    "end": Door(
        federation.Finished,
        lambda wire: codec.decode_finished(wire, n_variables=D),
        codec.encode_finished(Finished(_matrix(0.5)), value_type="float64"),
    ),
    "update": Door(
        federation.Update,
        lambda wire: codec.decode_update(wire, n_variables=D),
        codec.encode_update(_UPDATE, run=7, value_type="float32"),
    ),
    "refit": Door(
        federation.Update,
        lambda wire: codec.decode_update(wire, n_variables=D),
        codec.encode_update(_REFIT, run=7, value_type="float64"),
    ),
    "dense update": Door(
        federation.Update,
        lambda wire: codec.decode_update(wire, n_variables=D, dense=True),
        codec.encode_update(
            LocalUpdate("north", 1, admm_rounds.Answer(_full())), run=7, value_type="float64", dense=True
        ),
    ),
    "update in a chunk": Door(
        federation.Chunk,
        lambda wire: codec.decode_update(_joined(wire), n_variables=D),
        _chunk(codec.encode_update(_UPDATE, run=7, value_type="float64")),
    ),
    "status": Door(federation.StatusReply, codec.decode_status, codec.encode_status(_STATUS)),
}


def knock(data: bytes) -> None:
    """Try bytes at a door, which the first byte chooses: refused as malformed, or a value that keeps its promises."""
    if data:
        enter(list(DOORS)[data[0] % len(DOORS)], data[1:])


def enter(name: str, data: bytes) -> bool:
    """Whether the bytes got in at a door; AssertionError if what got in is not valid."""
    door = DOORS[name]
    try:
        wire = door.kind.FromString(data)
    except DecodeError:
        return False
    try:
        value = door.decode(wire)
    except MalformedMessageError:
        return False
    for matrix in _matrices(value):
        _is_valid(matrix, dense=name.startswith("dense"))
    if isinstance(value, JoinRequest | JoinReply):
        assert 2 <= len(set(value.variables)) == len(value.variables)
        assert all(name.strip() for name in value.variables)
    if isinstance(value, LocalUpdate | RoundTask):
        assert value.round >= 1
        for numbers in numbers_in(vars(value.content)):
            assert np.isfinite(numbers).all()
    if isinstance(value, JoinRequest | LocalUpdate) and value.ledger is not None:
        assert (len(value.ledger.ledger_id), len(value.ledger.dataset), len(value.ledger.digest)) == (16, 16, 32)
    return True


def _matrices(value: Any) -> list[SparseMatrix]:
    match value:
        case JoinReply():
            return [value.snapshot.local_weights, value.snapshot.consensus_dual]
        case RoundTask() | LocalUpdate():
            return [part for part in vars(value.content).values() if isinstance(part, SparseMatrix)]
        case Finished():
            return [] if value.graph is None else [value.graph]
    return []


def _is_valid(matrix: SparseMatrix, *, dense: bool) -> None:
    d = matrix.n_variables
    assert matrix.index.size == matrix.value.size <= d * d
    assert np.isfinite(matrix.value).all()
    assert (np.diff(matrix.index) > 0).all()
    if matrix.index.size:
        assert matrix.index[0] >= 0
        assert matrix.index[-1] < d * d
        if matrix.index.size < d * d:
            assert not (matrix.index % (d + 1) == 0).any(), "on the diagonal"
    matrix.to_dense()
