"""Pause a run while its machine lacks room, such as on a full disk, instead of ending it.

What could not be written is tried again and again until the operator has made room; the sites wait for their next task
as they always do. A deadline that passes meanwhile ends nothing: sites that join have all their time again, and a round
that did not get its quorum is asked again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fedbnsl.errors import FedbnslError, InterruptedRunError
from fedbnsl.events.emitter import Emit
from fedbnsl.files.shortage import shortage

_RETRY_S = 1.0

_T = TypeVar("_T")


class Pause:
    """What waits for room, and why; made and used on one event loop, but for `outlast_in_thread`."""

    def __init__(self, notice: Callable[[str], None], emit: Emit) -> None:
        self._notice = notice
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[object, str] = {}  # what each that waits is lacking
        self._stopped = False
        self._again = asyncio.Event()  # replaced whenever those that wait shall try again
        self._over = asyncio.Event()
        self._over.set()

    @property
    def reason(self) -> str:
        """What is lacking, in words that anybody may see; empty if nothing waits."""
        return next(iter(self._waiting.values()), "")

    def stop(self) -> None:
        """Wait no longer, now and later: the run is to stop."""
        self._stopped = True
        self.try_again()

    def try_again(self) -> None:
        """There may be room again: wait no longer for the next attempt."""
        self._again.set()
        self._again = asyncio.Event()

    async def over(self) -> None:
        """Return when nothing waits."""
        await self._over.wait()

    async def outlast(self, write: Callable[[], _T]) -> _T:
        """Write, and again until nothing is lacking for it.

        Raises InterruptedRunError if the run was stopped meanwhile, and an error of `write` that waiting does not cure.
        """
        writer = object()
        try:
            while True:
                try:
                    return write()
                except (FedbnslError, OSError, MemoryError) as error:
                    await self._wait(writer, error)
        finally:
            self._done(writer)

    def outlast_in_thread(self, write: Callable[[], _T]) -> _T:
        """The same for another thread than the event loop's."""
        writer = object()
        try:
            while True:
                try:
                    return write()
                except (FedbnslError, OSError, MemoryError) as error:
                    asyncio.run_coroutine_threadsafe(self._wait(writer, error), self._loop).result()
        finally:
            with suppress(RuntimeError):  # the loop is closed: the run was interrupted
                self._loop.call_soon_threadsafe(self._done, writer)

    async def _wait(self, writer: object, error: Exception) -> None:
        lacking = shortage(error)
        if not lacking or self._stopped:
            raise error
        if not self._waiting:
            self._over.clear()
            self._notice(f"paused: {error}; the run goes on by itself once there is room")
            self._emit("paused", reason=lacking)
        self._waiting[writer] = lacking
        with suppress(TimeoutError):
            await asyncio.wait_for(self._again.wait(), _RETRY_S)
        if self._stopped:
            raise InterruptedRunError(f"stopped while the run was paused ({lacking})")

    def _done(self, writer: object) -> None:
        if self._waiting.pop(writer, None) and not self._waiting:
            self._over.set()
            if not self._stopped:
                self._notice("the run goes on")
                self._emit("goes on")
