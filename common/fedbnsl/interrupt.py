"""Ctrl-C, SIGTERM and a closed terminal as an ordinary error, so that a command can clean up before it ends."""

import signal
from collections.abc import Generator
from contextlib import contextmanager

from fedbnsl.errors import InterruptedRunError


def signals_to_heed() -> list[signal.Signals]:
    """SIGINT, SIGTERM and SIGHUP, without those that this process was started to ignore (as nohup does)."""
    asking_to_end = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asking_to_end if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def interruptible() -> Generator[None]:
    """Let these signals raise InterruptedRunError in the main thread; restore the old handlers at the end.

    Meanwhile, what a parent passed on by mistake is undone: a blocked signal would never arrive, and where SIGCHLD is
    ignored, every child process seems to have ended well.
    """
    heeded = signals_to_heed()
    previous = {number: signal.signal(number, _interrupted) for number in heeded}
    previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupted(number: int, frame: object) -> None:
    error = InterruptedRunError(f"interrupted by {signal.Signals(number).name}")
    error.signal_number = number
    raise error
