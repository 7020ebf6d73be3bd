"""The first round of a run with secure aggregation: every site makes a key, and signs it for all sites of the run.

The coordinator only passes memberships and keys on; what they are worth, each site finds out by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding
from fedbnsl.protocol.messages import DIGEST_BYTES, KEY_BYTES, Content, Membership, Yields, is_site_name
from fedbnsl.protocol.plain_codec import from_wire, to_wire
from fedbnsl.wire import federation_pb2 as federation

PLACE = 2
NUMBERS = "keys"
RELEASES = "a public key of this run, signed: nothing of the table"
YIELDS = Yields.SETUP

_LONGEST_SIGNATURE = 128  # bytes; ECDSA over P-256 has at most 72


@dataclass(frozen=True, eq=False)
class Task(Content):
    """All sites of the run, without keys, in the order of their names."""

    of_records = False
    passes_on = ("memberships",)

    memberships: tuple[Membership, ...]


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """One site's X25519 key (32 bytes), its `Membership.signature`, and the first bytes of `codec.task_digest`."""

    public_key: bytes
    signature: bytes
    task_digest: bytes


def n_rounds(plan: Plan) -> int:
    return 1 if plan.secure_aggregation else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.keys.SetInParent()
    wire.keys.membership.extend(map(encode_membership, task.memberships))


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task(decode_memberships(wire.keys.membership))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.keys.public_key, wire.keys.signature = answer.public_key, answer.signature
    wire.keys.task_digest = answer.task_digest


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    key, signature = wire.keys.public_key, wire.keys.signature
    if len(key) != KEY_BYTES or len(signature) > _LONGEST_SIGNATURE:
        raise MalformedMessageError(f"a key of {len(key)} bytes and a signature of {len(signature)}")
    if len(wire.keys.task_digest) != DIGEST_BYTES:
        raise MalformedMessageError(f"a task digest not of {DIGEST_BYTES} bytes")
    return Answer(key, signature, wire.keys.task_digest)


def encode_membership(membership: Membership) -> federation.Membership:
    return to_wire(federation.Membership, membership)


def decode_memberships(wire: Iterable[federation.Membership]) -> tuple[Membership, ...]:
    """Memberships in their order; whether they are those of real sites is for the participant to say."""
    memberships = tuple(from_wire(Membership, one) for one in wire)
    names = [membership.site for membership in memberships]
    if not all(map(is_site_name, names)) or len(set(names)) != len(names):
        raise MalformedMessageError("memberships of invalid or repeated site names")
    if any(membership.n_samples < 1 or len(membership.public_key) not in (0, KEY_BYTES) for membership in memberships):
        raise MalformedMessageError(f"a membership of a table without rows, or with a key not of {KEY_BYTES} bytes")
    return memberships
