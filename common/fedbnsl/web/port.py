"""The HTTP server behind `--web` and `--metrics`: an event loop in its own thread, so that no viewer slows the run."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from starlette.applications import Starlette
from starlette.routing import Route

from fedbnsl.errors import SetupError
from fedbnsl.events.security_log import SecurityLog
from fedbnsl.protocol.channel import require_loopback, split_address
from fedbnsl.web.access import Access, Endpoint
from fedbnsl.web.assets import Assets
from fedbnsl.web.connections import AT_ONCE, Connections
from fedbnsl.web.exposure import read_token
from fedbnsl.web.operators import FILE as OPERATORS
from fedbnsl.web.operators import Operators
from fedbnsl.web.roles import VIEWERS, Roles
from fedbnsl.web.stream import Streams

_START_S = 30.0
_LOOK_S = 0.05


class WebPort:
    """A port that is bound; nobody is answered before the context is entered.

    Raises SetupError if it cannot listen there, or would without TLS or a token.
    """

    def __init__(
        self,
        address: str,  # host:port; port 0 takes a free one
        *,
        # Whose folder `files` holds the page; None: it needs only the form that asks for the token.
        package: str | None = None,
        token_file: Path | None = None,  # holds a token that has no name
        operators: Path | None = None,  # folder that may have a file of operators
        # What can be changed, and by whom. Without a token and operators nothing is asked for: plaintext, on loopback.
        roles: Roles = VIEWERS,
        log: Path | None = None,  # file of the security log; None: none
        secure: Callable[[], ssl.SSLContext] | None = None,  # gives the TLS of the next connection; needed with tokens
        needs: str = "--federation",  # names the option that gives the TLS, for errors
        # Names the one that gave the address, for errors; with -token after it the one that gave the token.
        option: str = "--web",
        at_once: int = AT_ONCE,  # connections; the next ones wait until one is closed
    ) -> None:
        named = operators is not None and Operators.are_named_in(operators)
        if secure is None and (token_file is not None or named):
            what = f"{option}-token" if token_file is not None else f"{option} with {operators}/{OPERATORS}"
            raise SetupError(f"{what} needs {needs}: a token is shown over TLS only")
        token = None if token_file is None else read_token(token_file, option=f"{option}-token")
        known = Operators(roles, folder=operators, token=token) if token or named else None
        try:
            host, port = split_address(address)
            if known is None:
                require_loopback(address)
            self._listener = _listening(host, port)
        except (SetupError, OSError) as error:
            remedy = "Another process may listen there: end it, or take another port; port 0 takes a free one."
            if known is None and isinstance(error, SetupError):
                remedy = f"Beyond this machine {option} needs {needs} and {option}-token FILE: TLS and a token."
            raise SetupError(f"{option}: cannot listen on {address!r}: {error}", remedy=remedy) from None
        self.port: int = self._listener.getsockname()[1]  # the real one, where 0 was asked for
        self._scheme, self._host = "http" if known is None else "https", host
        self._secure = None if known is None else secure
        self._at_once = at_once
        self.assets = Assets("fedbnsl.web", *([] if package is None else [package]))
        self._routes: list[Route] = [Route("/static/{name}", self.assets.serve)]
        login_page = self.assets.text("login.html").replace("{{ option }}", f"{option}-token")
        self.access = Access(
            self._app,
            operators=known,
            roles=roles,
            login_page=login_page,
            log=None if log is None else SecurityLog(log),
        )
        self._starlette: Starlette | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=option, daemon=True)
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self.streams = Streams()

    def add_routes(self, routes: Sequence[Route]) -> None:
        """What is shown beside the files; before the context is entered. Raises ValueError if one takes a POST."""
        for route in routes:
            if "POST" in (route.methods or ()):
                raise ValueError(f"{route.path} changes something: add it as an action")
        self._routes += routes

    def add_action(self, action: str, path: str, endpoint: Endpoint) -> None:
        """What changes something by a POST, for operators whose role allows it; see `Access.action`."""
        self._routes.append(Route(path, self.access.action(action, endpoint), methods=["POST"], name=action))

    @property
    def url(self) -> str:
        """Where the page is."""
        name = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{name}:{self.port}/"

    @property
    def n_viewers(self) -> int:
        """Browsers that look at present."""
        return self.streams.n_viewers

    def wait_for_viewers(self, at_most_s: float, *, or_until: Callable[[], bool] = lambda: False) -> None:
        """Wait until nobody looks any more; without viewers not at all."""
        until = time.monotonic() + at_most_s
        while self.n_viewers and time.monotonic() < until and not or_until():
            time.sleep(_LOOK_S)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(_START_S)
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._listener.close()
        self.access.close()

    async def _app(self, scope: object, receive: object, send: object) -> None:
        if self._starlette is None:
            self._starlette = Starlette(routes=self._routes)
        await self._starlette(scope, receive, send)  # type: ignore[arg-type]

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        connections = Connections(self.access, self._listener, self._secure, at_once=self._at_once)
        taking = asyncio.ensure_future(connections.take())
        self._ready.set()
        await self._end.wait()
        taking.cancel()
        self.streams.over.set()
        until = self._loop.time() + _LAST_WORDS_S
        while self.streams.n_viewers and self._loop.time() < until:
            await asyncio.sleep(_LOOK_S)
        await connections.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # such as a report that is being made
        for work in left:
            work.cancel()
        await asyncio.gather(*left, return_exceptions=True)


_LAST_WORDS_S = 1.0


def _listening(host: str, port: int) -> socket.socket:
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
