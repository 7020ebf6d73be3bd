"""Health checks by grpc.health.v1, the protocol of container platforms: whether the coordinator takes calls."""

from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fedbnsl.console.shown import shown
from fedbnsl.protocol.channel import open_channel

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

_SERVICE = "fedbnsl.wire.Federation"
_TIMEOUT_S = 3.0


def health_of(server: grpc.aio.Server) -> Any:
    """What answers the health calls on a server, before it starts; without types, as are the stubs."""
    servicer = cast(Any, health).aio.HealthServicer()
    cast(Any, health_pb2_grpc).add_HealthServicer_to_server(servicer, server)
    return servicer


async def report(servicer: Any, *, serving: bool) -> None:
    """Say whether calls are taken; once it drains, a servicer says for good that none are."""
    status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    for service in ("", _SERVICE):
        await servicer.set(service, status)


def why_not_serving(address: str, credentials: "Credentials | None") -> str:
    """Ask a coordinator whether it serves; empty if it does, otherwise why not. Raises SetupError for the address."""
    with open_channel(address, credentials) as channel:
        stub = cast(Any, health_pb2_grpc).HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=_SERVICE), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else str(error)
            return f"no answer: {shown(details or '')}"
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return "not serving: it is starting or ending"
