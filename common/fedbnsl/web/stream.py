"""Server-sent events: a whole snapshot, and then whatever changes, at most a few times a second for each viewer."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from fedbnsl.web.publisher import SnapshotPublisher

MOST_VIEWERS = 64
"""At once, over all boards of a port."""

_PAUSE_S = 0.5  # between two messages to a viewer
_MOST_A_SECOND = 20  # to all viewers together: many viewers take no more of the processor, but wait longer for news
_REFRESH_S = 1.0
_BEAT_S = 15.0  # a silent connection is closed by what lies between
_RETRY_MS = 1500


class Streams:
    """The viewers of all boards of a port; used on its event loop only."""

    def __init__(self) -> None:
        self.n_viewers = 0
        self._changes: dict[SnapshotPublisher, asyncio.Event] = {}
        self._refreshed: dict[SnapshotPublisher, float] = {}
        self.over = asyncio.Event()  # Python 3.10 and later bind it to the loop that first waits

    async def watch(self, publisher: SnapshotPublisher, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one viewer until it goes, or the port is closed."""
        if self.n_viewers >= MOST_VIEWERS:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"10")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b"there are as many viewers as this page takes"})
            return
        change = self._change_of(publisher)
        self.n_viewers += 1
        publisher.viewers += 1
        gone = asyncio.ensure_future(_gone(receive))
        over = asyncio.ensure_future(self.over.wait())
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _write(send, f"retry: {_RETRY_MS}\n\n".encode())
            await self._follow(publisher, change, send, gone, over)
        finally:
            self.n_viewers -= 1
            publisher.viewers -= 1
            gone.cancel()
            over.cancel()
        if not gone.done():
            with suppress(OSError):
                await send({"type": "http.response.body", "body": b""})

    async def _follow(
        self,
        publisher: SnapshotPublisher,
        change: asyncio.Event,
        send: Send,
        gone: "asyncio.Task[bool]",
        over: "asyncio.Task[bool]",
    ) -> None:
        seen: dict[str, tuple[int, int]] = {}
        said = time.monotonic()
        while True:
            await self._refresh(publisher)
            change.clear()
            publisher.looked()  # before looking: what comes from now on wakes again
            news = publisher.news(seen, newest=over.done())
            if news or time.monotonic() - said > _BEAT_S:
                said = time.monotonic()
                parts = [b"event: " + name.encode() + b"\ndata: " + text + b"\n\n" for name, text in news]
                await _write(send, b"".join(parts) or b":\n\n")
            if over.done() and not news:
                return
            waiting = asyncio.ensure_future(change.wait())
            pause_s = max(_PAUSE_S, self.n_viewers / _MOST_A_SECOND)
            looks_s = max(_REFRESH_S, pause_s)
            await asyncio.wait({waiting, gone, over}, timeout=looks_s, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if gone.done():
                return
            if not over.done():
                await asyncio.wait({gone, over}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)

    def _change_of(self, publisher: SnapshotPublisher) -> asyncio.Event:
        """Shared by all viewers of a publisher; each looks again when it is set, and in any case after a while."""
        if publisher not in self._changes:
            event, loop = asyncio.Event(), asyncio.get_running_loop()

            def wake() -> None:
                with suppress(RuntimeError):  # the port is closed
                    loop.call_soon_threadsafe(event.set)

            publisher.on_change(wake)
            self._changes[publisher] = event
        return self._changes[publisher]

    async def _refresh(self, publisher: SnapshotPublisher) -> None:
        """For all viewers of a snapshot publisher together."""
        now = time.monotonic()
        if publisher.refresh is not None and now - self._refreshed.get(publisher, 0.0) >= _REFRESH_S:
            self._refreshed[publisher] = now
            await publisher.refresh()


class StreamedPublisher:
    """The application that streams what a request asks for; `publisher_of` raises HTTPException without one."""

    def __init__(self, streams: Streams, publisher_of: Callable[[Request], SnapshotPublisher]) -> None:
        self._streams, self._publisher_of = streams, publisher_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one viewer."""
        await self._streams.watch(self._publisher_of(Request(scope, receive)), scope, receive, send)


async def _write(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _gone(receive: Receive) -> bool:
    while (await receive())["type"] != "http.disconnect":
        pass
    return True
