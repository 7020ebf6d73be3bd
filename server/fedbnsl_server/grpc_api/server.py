"""The coordinator's gRPC server: binds its port first, then serves one run, then closes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from fedbnsl.channel import server_credentials, server_options
from fedbnsl.errors import SetupError
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server.grpc_api.authentication import Authentication
from fedbnsl_server.grpc_api.health import Health
from fedbnsl_server.grpc_api.servicer import RefuseGarbage, Servicer
from fedbnsl_server.sites.mailbox import Mailbox

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.prometheus import MetricsPort

_STOP_S = 0.5


class CoordinatorServer:
    """A port that is bound, so that nobody else takes it; nobody is answered before `open`.

    Parameters
    ----------
    listen
        host:port; port 0 takes a free one.
    federation
        Whose sites may call, over TLS; None: anybody, in plaintext.
    on_open
        Called with the real address once sites can call.
    metrics
        Shows where the run stands.

    Raises
    ------
    SetupError
        If the port cannot be had.
    """

    def __init__(
        self,
        listen: str,
        federation: "Federation | None",
        *,
        on_open: Callable[[str], None],
        metrics: "MetricsPort | None" = None,
    ) -> None:
        # RefuseGarbage is the outer one, so authentication sees only parsed messages.
        self._authentication = None if federation is None else Authentication(federation)
        interceptors = [RefuseGarbage(), *([] if self._authentication is None else [self._authentication])]
        self._server = grpc.aio.server(options=server_options(), interceptors=interceptors)
        self._health = Health()
        self._on_open = on_open
        self._metrics = metrics
        try:
            if federation is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, server_credentials(federation.credentials))
        except RuntimeError:
            raise SetupError(
                f"cannot listen on {listen}: the port is in use or not permitted, or not this machine's"
            ) from None
        self._address = f"{listen.rpartition(':')[0]}:{port}"

    async def open(self, servicer: Servicer) -> None:
        """Take calls."""
        federation_grpc.add_FederationServicer_to_server(servicer, self._server)
        if self._authentication is not None:
            self._authentication.on_ended = servicer.turn_out
        await self._health.add_to(self._server)
        if self._metrics is not None:
            from fedbnsl_server.observe.prometheus import from_loop  # here: few runs show metrics

            self._metrics.look = from_loop(asyncio.get_running_loop(), servicer.status)
        await self._server.start()
        await self._health.serving()
        self._on_open(self._address)

    async def drain(self) -> None:
        """Report in health checks that no new work is handed out."""
        await self._health.draining()

    async def close(self) -> None:
        """Take no calls any more."""
        await self._server.stop(_STOP_S)

    async def close_without_a_word(self, mailbox: Mailbox) -> None:
        """Stop taking calls without telling the sites, so that they keep trying; end the pulls that wait for a task."""
        stopping = asyncio.ensure_future(self.close())
        await asyncio.sleep(0)  # from here on new calls are turned away
        mailbox.dismiss()
        await stopping
