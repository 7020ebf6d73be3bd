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


class Health:
    """The health status of a server: not serving until told otherwise, and never again once it drains."""

    def __init__(self) -> None:
        self._servicer = cast(Any, health).aio.HealthServicer()  # without types, as are the stubs

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Answer health calls on this server, before it starts."""
        await self._set(health_pb2.HealthCheckResponse.NOT_SERVING)
        cast(Any, health_pb2_grpc).add_HealthServicer_to_server(self._servicer, server)

    async def serving(self) -> None:
        """Calls are taken from now on."""
        await self._set(health_pb2.HealthCheckResponse.SERVING)

    async def draining(self) -> None:
        """No new work is handed out any more."""
        await self._servicer.enter_graceful_shutdown()

    async def _set(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", _SERVICE):
            await self._servicer.set(service, status)


def why_not_serving(address: str, credentials: "Credentials | None") -> str:
    """Ask a coordinator whether it serves; empty if it does, otherwise the reason.

    Raises SetupError if the address cannot be used.
    """
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
