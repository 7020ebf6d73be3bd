"""The runs that a coordinator offers to protobuf and back; what is not valid raises MalformedMessageError."""

from collections.abc import Sequence

from fedbnsl.console.shown import shown
from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol.codec import check_text
from fedbnsl.protocol.messages import RUN_STATES, RunOffer, is_site_name
from fedbnsl.protocol.plain_codec import from_wire, to_wire
from fedbnsl.wire import federation_pb2 as federation

QUEUED = "queued"

_DIGEST_BYTES = 32
_MOST_RUNS = 10_000


def encode_offers(version: int, offers: Sequence[RunOffer]) -> federation.RunsReply:
    """Wire form of a list of runs, and of the number of that list."""
    runs = [to_wire(federation.RunOffer, one, site=one.sites, plan=one.plan_toml) for one in offers]
    return federation.RunsReply(version=version, run=runs)


def decode_offers(wire: federation.RunsReply) -> tuple[int, tuple[RunOffer, ...]]:
    """The number of a list of runs, and the list."""
    if len(wire.run) > _MOST_RUNS:
        raise MalformedMessageError(f"a list of {len(wire.run)} runs; expected at most {_MOST_RUNS}")
    return wire.version, tuple(map(_decode_offer, wire.run))


def _decode_offer(wire: federation.RunOffer) -> RunOffer:
    if wire.state not in (*RUN_STATES, QUEUED):
        raise MalformedMessageError(f"unknown run state {shown(wire.state, 40)!r}")
    if len(wire.plan_digest) != _DIGEST_BYTES:
        raise MalformedMessageError(f"a plan digest of {len(wire.plan_digest)} bytes; expected {_DIGEST_BYTES}")
    check_text("name of a run", wire.name)
    check_text("name of a plan", wire.plan_name)
    if not all(map(is_site_name, wire.site)):
        raise MalformedMessageError("a run with an invalid site name")
    return from_wire(RunOffer, wire, sites=tuple(wire.site), plan_toml=wire.plan)
