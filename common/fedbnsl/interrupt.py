"""Ctrl-C and SIGTERM as an ordinary error, so that a command can put its house in order before it ends."""

import signal
from collections.abc import Generator
from contextlib import contextmanager

from fedbnsl.errors import InterruptedRunError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Generator[None]:
    """Let SIGINT and SIGTERM raise InterruptedRunError in the main thread; restore the old handlers at the end."""
    previous = [signal.signal(number, _interrupted) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(_SIGNALS, previous, strict=True):
            signal.signal(number, handler)


def _interrupted(number: int, frame: object) -> None:
    raise InterruptedRunError(f"interrupted by {signal.Signals(number).name}")
