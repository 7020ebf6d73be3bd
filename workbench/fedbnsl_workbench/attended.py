"""Work in another thread, while the main thread waits for it and hears signals.

Python handles a signal between two of its own instructions in the main thread: compiled code that runs there, such as
a search, would keep Ctrl-C waiting until it returns.
"""

import signal
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from fedbnsl.console.interrupt import Interruption

_LOOK_S = 0.1

_T = TypeVar("_T")


def attended(work: Callable[[], _T], *, look: Callable[[], None], goes_on: Callable[[], bool]) -> _T:
    """What the work gives, or the error that it raises.

    Parameters
    ----------
    look
        Called several times a second while it goes on.
    goes_on
        Called at Ctrl-C: whether the work goes on all the same.

    Raises
    ------
    Interruption, KeyboardInterrupt
        If a signal has asked for the end. The other thread is left to itself then: it does not keep the process alive.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are heard elsewhere
        return work()
    values: list[_T] = []
    failures: list[BaseException] = []
    done, context = threading.Event(), copy_context()

    def body() -> None:
        try:
            values.append(context.run(work))
        except BaseException as error:  # any error is passed on to the thread that waits
            failures.append(error)
        done.set()

    threading.Thread(target=body, name="work", daemon=True).start()
    while True:
        try:
            while not done.wait(_LOOK_S):
                look()
            break
        except (Interruption, KeyboardInterrupt) as error:
            if not (is_ctrl_c(error) and goes_on()):
                raise
    if failures:
        raise failures[0]
    return values[0]


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an interruption came from the keyboard (SIGINT)."""
    if isinstance(error, Interruption):
        return error.number == signal.SIGINT
    return isinstance(error, KeyboardInterrupt)
