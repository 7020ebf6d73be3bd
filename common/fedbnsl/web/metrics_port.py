"""The HTTP server behind `--metrics`: in plaintext on loopback, elsewhere over TLS and for those who have a token."""

import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from fedbnsl.channel import require_loopback, split_address
from fedbnsl.errors import SetupError
from fedbnsl.web.exposure import bears, read_token

_PATIENCE_S = 10.0  # for a whole request, however slowly its bytes come
_AT_ONCE = 16  # connections; a scraper needs one


class MetricsPort:
    """The HTTP server that Prometheus asks, in its own threads.

    Parameters
    ----------
    address
        host:port; port 0 takes a free one.
    collector
        Gives the metrics, from other threads.
    token_file
        Holds what a scraper must show as bearer token; None: nothing, in plaintext, on loopback only.
    secure
        TLS for the next connection; needed with a token.
    needs
        The option that gives it.

    Attributes
    ----------
    port
        The real one.

    Raises
    ------
    SetupError
        If it cannot listen there, or would without TLS or a token.
    """

    def __init__(
        self,
        address: str,
        collector: Collector,
        *,
        token_file: Path | None,
        secure: Callable[[], ssl.SSLContext] | None,
        needs: str,
    ) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        app = cast(Any, prometheus_client).make_wsgi_app(registry)  # its types are partial
        if token_file is not None:
            if secure is None:
                raise SetupError(f"--metrics-token needs {needs}: a token is shown over TLS only")
            app = _for_bearers(app, read_token(token_file, option="--metrics-token"))
        try:
            host, port = split_address(address)
            if token_file is None:
                require_loopback(address)
            self._server = _listening(host, port, app, secure if token_file is not None else None)
        except (SetupError, OSError) as error:
            remedy = None
            if token_file is None:
                remedy = f"Beyond this machine metrics need {needs} and --metrics-token FILE: TLS and a token."
            raise SetupError(f"--metrics: cannot listen on {address!r}: {error}", remedy=remedy) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _for_bearers(app: WSGIApplication, token: bytes) -> WSGIApplication:
    """The application for those alone who show the token."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if bears(str(environ.get("HTTP_AUTHORIZATION", "")), token):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b""]

    return guarded


class _Server(ThreadingWSGIServer):
    """Of few connections at once; strangers are not worth a line of log each."""

    secure: Callable[[], ssl.SSLContext] | None = None

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, peer = super().get_request()
        connection.settimeout(_PATIENCE_S)  # what blocks outside `finish_request`
        if self.secure is not None:
            # The handshake comes with the first read, in the connection's own thread: here it would hold up the others.
            connection = self.secure().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started that would give the place back
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        # A timeout of the socket is one for each read: a byte now and then would hold the place for hours.
        # Not `request.shutdown`: that of TLS takes its state away from the thread that reads.
        deadline = threading.Timer(_PATIENCE_S, _cut, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().finish_request(request, client_address)
        finally:
            deadline.cancel()
            deadline.join()  # before the file is closed, whose number another connection may get

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # broken connections and handshakes are
            super().handle_error(request, client_address)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # closed by the other side meanwhile
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's names
        """Say nothing of single requests."""


def _listening(host: str, port: int, app: WSGIApplication, secure: Callable[[], ssl.SSLContext] | None) -> _Server:
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    kind = type("_Server", (_Server,), {"address_family": family, "secure": staticmethod(secure) if secure else None})
    return cast(_Server, make_server(str(place[0]), port, app, kind, _Handler))
