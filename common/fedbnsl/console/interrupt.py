"""Ctrl-C, SIGTERM and a closed terminal as an ordinary error, so that a command can clean up before it ends.

A signal may arrive anywhere. What it raises is therefore no Exception until it has left `interruptible`: like Python's
own KeyboardInterrupt, it passes handlers that are there for a coordinator that is away or a listener that fails.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

from fedbnsl.errors import InterruptedRunError


class Interruption(BaseException):
    """A signal has asked for the end: what it raises within `interruptible`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number
        self.remedy: str | None = None  # what the person at the keyboard can do; None: as InterruptedRunError says


def outcome_of(error: BaseException) -> str:
    """The class of the error that ended a run, for logs and events; a signal is an InterruptedRunError there, too."""
    return (InterruptedRunError if isinstance(error, Interruption) else type(error)).__name__


def signals_to_heed() -> list[signal.Signals]:
    """SIGINT, SIGTERM and SIGHUP, without those that this process was started to ignore (as nohup does).

    Nor those with a handler that was not set from Python, but by a program that embeds it: it could not be put back.
    None in another thread than the main one, to which signals belong.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    asking_to_end = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asking_to_end if signal.getsignal(number) not in (signal.SIG_IGN, None)]


@contextmanager
def interruptible() -> Generator[None]:
    """Let these signals end what is within, in the main thread; restore the old handlers at the end.

    Meanwhile, what a parent passed on by mistake is undone: a blocked signal would never arrive, and where SIGCHLD is
    ignored, every child process seems to have ended well. Raises InterruptedRunError if a signal has arrived. Within,
    it is an `Interruption`.
    """
    try:
        with _handled():
            yield
    except Interruption as error:
        interrupted = InterruptedRunError(str(error), remedy=error.remedy)
        interrupted.signal_number = error.number
        raise interrupted from error


@contextmanager
def _handled() -> Generator[None]:
    heeded = signals_to_heed()
    previous = {number: signal.signal(number, _interrupted) for number in heeded}
    if signal.getsignal(signal.SIGCHLD) is not None:
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, heeded)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupted(number: int, frame: object) -> None:
    raise Interruption(number)
