"""Waiting in tests for what other processes, threads or containers do."""

import time
from collections.abc import Callable


def until(
    holds: Callable[[], bool],
    what: str,
    said: Callable[[], str] = lambda: "",  # by those who are waited for: as long as there is more of it, so is patience
    seconds: float = 90.0,
    look_s: float = 0.05,
) -> None:
    """Wait until something holds, on a slow machine too.

    Raises AssertionError, with what was said, when it does not hold and nothing new was said for so many seconds.
    """
    heard, patience = said(), time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= patience:
            before, heard, patience = heard, said(), time.monotonic() + seconds
            assert heard != before, f"nothing new in {seconds:g} s, waiting for {what}\n{heard}"
        time.sleep(look_s)
