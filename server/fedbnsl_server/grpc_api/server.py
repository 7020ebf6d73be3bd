"""The coordinator's gRPC server: binds its port first, then serves one run or several, then closes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc

from fedbnsl.errors import SetupError
from fedbnsl.events.security_log import SecurityLog
from fedbnsl.protocol.channel import server_credentials, server_options
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server.grpc_api.authentication import Authentication
from fedbnsl_server.grpc_api.connections import ConnectionLimit, most_connections, most_strangers
from fedbnsl_server.grpc_api.health import health_of, report
from fedbnsl_server.grpc_api.incoming import IncomingCalls
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.observe.from_loop import from_loop
from fedbnsl_server.sites.mailbox import Mailbox

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.prometheus import MetricsPort

_STOP_S = 0.5
_FLUSH_S = 1.0


class CoordinatorServer:
    """A bound port, so that nobody else takes it; nobody is answered before `open`. Raises SetupError."""

    _connections: ConnectionLimit  # once the port is bound

    def __init__(
        self,
        listen: str,  # host:port; port 0 takes a free one
        federation: "Federation | None",  # whose sites may call, over TLS; None: anybody, in plaintext
        *,
        n_sites: int,  # how many call
        largest_bytes: int,  # no call of a site is larger
        on_open: Callable[[str], None],  # called with the real address once sites can call
        log: SecurityLog,  # told who is refused and why
        metrics: "MetricsPort | None" = None,  # shows where the run stands, and the totals of the log
        runs_at_once: int = 1,  # how many runs are open at the same time
    ) -> None:
        self.listener = Listener()
        authentication = None if federation is None else Authentication(federation, self.listener.turn_out)
        calls = IncomingCalls(
            authentication,
            on_admitted=lambda peer, site: self._connections.admitted(peer, site),
            record=log.count,
            runs_at_once=runs_at_once,
        )
        n_callers = n_sites * runs_at_once
        options = server_options(largest_bytes=largest_bytes, connections=most_connections(n_callers))
        self._server = grpc.aio.server(options=options, interceptors=[calls])
        self._health = health_of(self._server)
        self._on_open, self._log, self._metrics = on_open, log, metrics
        try:
            if federation is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, server_credentials(federation.credentials))
        except RuntimeError:
            raise SetupError(
                f"cannot listen on {listen}: the port is in use or not permitted, or the address is not this machine's"
            ) from None
        self._connections = ConnectionLimit(
            port,
            most_strangers(n_callers),
            on_closed=lambda address, site, n: log.count("connections closed", times=n, address=address, site=site),
        )
        self._keeping: list[asyncio.Future[None]] = []
        self._address = f"{listen.rpartition(':')[0]}:{port}"

    async def open(self, servicer: Servicer) -> None:
        """Take the calls of one run."""
        self.listener.open(servicer)
        await self.start()

    async def start(self) -> None:
        """Take calls."""
        federation_grpc.add_FederationServicer_to_server(self.listener, self._server)
        await report(self._health, serving=False)
        if self._metrics is not None:
            self._metrics.look = from_loop(asyncio.get_running_loop(), self.listener.statuses)
            self._metrics.totals = self._log.totals.copy
        await self._server.start()
        self._keeping = [asyncio.ensure_future(work) for work in (self._connections.keep(), self._flush_log())]
        await report(self._health, serving=True)
        self._on_open(self._address)

    async def drain(self) -> None:
        """Report in health checks that no new work is handed out."""
        await self._health.enter_graceful_shutdown()

    async def close(self) -> None:
        """Stop taking calls; those that wait for news of runs are answered first."""
        self.listener.closing = True
        for one in self._keeping:
            one.cancel()
        await self._server.stop(_STOP_S)

    async def _flush_log(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            self._log.flush()

    async def close_without_a_word(self, mailbox: Mailbox) -> None:
        """Stop taking calls without telling the sites, so that they keep trying; end the pulls that wait for a task."""
        stopping = asyncio.ensure_future(self.close())
        await asyncio.sleep(0)  # from here on new calls are refused
        mailbox.dismiss()
        await stopping
