"""Look at what lives on an event loop from another thread, such as that of a page."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_LOOK_S = 2.0

_T = TypeVar("_T")


def from_loop(loop: asyncio.AbstractEventLoop, look: Callable[[], _T]) -> Callable[[], _T | None]:
    """Let any thread call `look`, which must run on the event loop; None if the loop has ended or is too busy."""

    def ask() -> _T | None:
        answer: Future[_T] = Future()
        try:
            loop.call_soon_threadsafe(lambda: answer.set_result(look()))
            return answer.result(_LOOK_S)
        except (RuntimeError, TimeoutError):
            return None

    return ask
