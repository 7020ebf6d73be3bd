"""A TCP proxy on loopback that breaks what goes through it, on command."""

import asyncio
import math
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

_CHUNK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST
_ANSWER_S = 10.0


@dataclass(eq=False)
class Flow:
    """One direction through the proxy; attributes may be set while it runs, and hold for all connections.

    Attributes
    ----------
    n_bytes
        Forwarded so far, repeats included.
    n_swallowed
        Bytes that were accepted and not passed on.
    delay_s
        Wait before each chunk.
    bytes_per_s
        Speed of the line.
    black_hole
        Whether everything is accepted and nothing is passed on.
    left
        Bytes that may still pass; with the last one the connection is reset. None: any number.
    repeats
        How many of the next chunks are sent twice.
    """

    n_bytes: int = 0
    n_swallowed: int = 0
    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    black_hole: bool = False
    left: int | None = None
    repeats: int = 0


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    ended: set[Flow] = field(default_factory=set)


class Proxy:
    """Listens on a free port and passes each connection on to `upstream`, which may change for those to come.

    Parameters
    ----------
    upstream
        host:port; empty: every connection is reset.

    Attributes
    ----------
    up, down
        What happens to bytes from client to server, and from server to client.
    n_connections
        Accepted so far.
    """

    def __init__(self, upstream: str = "") -> None:
        self.upstream = upstream
        self.up, self.down = Flow(), Flow()
        self.n_connections = 0
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._accepting = asyncio.run_coroutine_threadsafe(self._accept(), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ANSWER_S)
        self._loop.close()

    def cut(self) -> int:
        """Reset every connection, on both sides; how many there were."""
        return self._run(self._cut())

    def half_close(self, flow: Flow) -> None:
        """End this direction of every connection as if the sender had nothing more to say; the other one goes on."""
        self._run(self._half_close(flow))

    def go_silent(self) -> None:
        """Pass on nothing more over any present connection, and end none: both sides believe in it. New ones work."""
        self._run(self._go_silent())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_S)

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setblocking(False)
            self.n_connections += 1
            host, _, port = self.upstream.rpartition(":")
            server = socket.socket()
            server.setblocking(False)
            connection = _Connection(client, server)
            try:
                await self._loop.sock_connect(server, (host, int(port or 0)))
            except OSError:
                _reset(connection)
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[connection] = self._loop.create_task(self._pass_on(connection))

    async def _pass_on(self, connection: _Connection) -> None:
        directions = [
            self._loop.create_task(self._pump(connection, connection.client, connection.server, self.up)),
            self._loop.create_task(self._pump(connection, connection.server, connection.client, self.down)),
        ]
        try:
            await asyncio.gather(*directions)
            connection.client.close()
            connection.server.close()
        except OSError:  # reset by an end, or broken here: the other end shall feel it
            _reset(connection)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            self._connections.pop(connection, None)
            _reset(connection)

    async def _pump(self, connection: _Connection, source: socket.socket, sink: socket.socket, flow: Flow) -> None:
        while chunk := await self._loop.sock_recv(source, _CHUNK_BYTES):
            if flow.black_hole or flow in connection.ended:
                flow.n_swallowed += len(chunk)
                continue
            wait_s = flow.delay_s + len(chunk) / flow.bytes_per_s
            if wait_s:
                await asyncio.sleep(wait_s)
            times = 1
            if flow.repeats:
                flow.repeats -= 1
                times = 2
            if flow.left is not None:
                chunk = chunk[: flow.left]
                flow.left -= len(chunk)
            for _ in range(times):
                await self._loop.sock_sendall(sink, chunk)
                flow.n_bytes += len(chunk)
            if flow.left == 0:
                flow.left = None
                raise ConnectionResetError("cut short")
        with suppress(OSError):  # the other side may be gone already
            sink.shutdown(socket.SHUT_WR)

    async def _cut(self) -> int:
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    async def _half_close(self, flow: Flow) -> None:
        for connection in self._connections:
            connection.ended.add(flow)
            sink = connection.server if flow is self.up else connection.client
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    async def _go_silent(self) -> None:
        for connection in self._connections:
            connection.ended |= {self.up, self.down}

    async def _end(self) -> None:
        self._accepting.cancel()
        await self._cut()
        await asyncio.sleep(0)  # lets the accepting task see its end before its socket closes
        self._listener.close()


def _reset(connection: _Connection) -> None:
    """Close both ends with RST; on closed ones, nothing."""
    for end in (connection.client, connection.server):
        if end.fileno() >= 0:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()
