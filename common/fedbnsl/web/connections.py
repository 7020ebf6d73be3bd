"""The connections of a page: few at once, and none that is slow for long, however slowly its bytes come or go.

uvicorn speaks HTTP on each; this is what it leaves open: how many connections there are before TLS is agreed on, how
long a request may take to arrive, and how long a browser may leave what was sent to it unread.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

AT_ONCE = 128
"""Connections; the next ones wait until one is closed. Twice the viewers: a page asks for its files beside its news."""

PATIENCE_S = 10.0
"""For a TLS handshake, for a whole request, and for a browser to read on."""

_IDLE_S = 5
_LARGEST_HEAD_BYTES = 16 * 1024
_NO_ROOM_S = 0.5


class Connections:
    """Takes up to `at_once` connections on a bound, non-blocking socket and serves an application; on one event loop.

    `secure` gives the TLS of the next connection; None: plaintext.
    """

    def __init__(
        self, app: ASGIApp, listener: socket.socket, secure: Callable[[], ssl.SSLContext] | None, *, at_once: int
    ) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers are not worth a line of log each
        self._app, self._is_closing = app, False
        self._config = Config(
            self._answer,
            interface="asgi3",
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self._config.timeout_keep_alive = _IDLE_S
        self._config.h11_max_incomplete_event_size = _LARGEST_HEAD_BYTES
        self._config.load()
        self._state = ServerState()
        self._listener, self._secure = listener, secure
        self._room = asyncio.Semaphore(at_once)
        self._greeted: set[asyncio.Task[None]] = set()
        self._open: set[_Patient] = set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # uvicorn writes a traceback of every one that it sees
            if not self._is_closing:
                raise

    async def take(self) -> None:
        """Take connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:  # no files left, or the caller is gone already
                self._room.release()
                await asyncio.sleep(_NO_ROOM_S)
                continue
            except BaseException:
                self._room.release()
                raise
            task = asyncio.ensure_future(self._greet(connection))
            self._greeted.add(task)
            task.add_done_callback(self._greeted.discard)

    async def _greet(self, connection: socket.socket) -> None:
        context = None if self._secure is None else self._secure()
        within = {} if context is None else {"ssl_handshake_timeout": PATIENCE_S}
        loop = asyncio.get_running_loop()
        patient = _Patient(self._config, self._state, loop, on_closed=self._closed)
        self._open.add(patient)
        try:
            await loop.connect_accepted_socket(lambda: patient, connection, ssl=context, **within)
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            connection.close()
        finally:
            if not patient.was_made:
                self._closed(patient)

    def _closed(self, patient: "_Patient") -> None:
        self._open.discard(patient)
        self._room.release()

    async def close(self) -> None:
        """End what is under way."""
        self._is_closing = True
        for task in self._greeted:
            task.cancel()
        for connection in [one for one in self._open if one.was_made]:  # the others are still being greeted
            connection.end()
        while any(one.was_made for one in self._open):  # the loop tells each that it is lost: no answer is expected
            await asyncio.sleep(0)
        left = list(self._state.tasks)
        for work in left:
            work.cancel()
        await asyncio.gather(*left, *self._greeted, return_exceptions=True)


class _Patient(H11Protocol):
    """One connection, with deadlines."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        *,
        on_closed: Callable[["_Patient"], None],
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._on_closed = on_closed
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self.was_made = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        self.was_made = True
        super().connection_made(transport)
        self._arriving = self.loop.call_later(PATIENCE_S, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        for deadline in (self._arriving, self._unread):
            if deadline is not None:
                deadline.cancel()
        super().connection_lost(exc)
        self._on_closed(self)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; one deadline holds for all of its parts."""
        super().data_received(data)
        # uvicorn sets `cycle` with the head of the first request; more_body until all of a request is here.
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)  # its type leaves out that there is none yet
        is_whole = cycle is not None and not cycle.more_body
        if is_whole and self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        elif not is_whole and self._arriving is None:
            self._arriving = self.loop.call_later(PATIENCE_S, self.end)

    def pause_writing(self) -> None:
        """The browser does not read: it has a while to go on."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(PATIENCE_S, self.end)

    def resume_writing(self) -> None:
        """It has read on."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def end(self) -> None:
        """Close at once, whatever is still to be sent."""
        with suppress(RuntimeError):
            self.transport.abort()
