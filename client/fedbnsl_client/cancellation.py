"""A request to leave a run that goes on: from the site's page, or since the plan is approved no more."""

import threading
from collections.abc import Callable

from fedbnsl.errors import LeftError


class Leaving:
    """Asked from any thread; the run's own thread leaves once the answer to its present task is delivered.

    `may_stay` is called in the run's own thread before each answer, and while it waits: why the run has to be left;
    empty: it need not.
    """

    def __init__(self, may_stay: Callable[[], str] = lambda: "") -> None:
        self._may_stay = may_stay
        self.why = ""  # in words; empty: nobody has asked
        self.comes_back = True  # whether an agent may join the run again by itself
        self._lock = threading.Lock()

    def ask(self, why: str, *, comes_back: bool = False) -> None:
        """Ask to leave; the first reason counts."""
        with self._lock:
            if not self.why:
                self.why, self.comes_back = why, comes_back

    def leave_if_asked(self) -> None:
        """End the run here; between two answers only. Raises LeftError if somebody has asked."""
        if not self.why and (why := self._may_stay()):
            self.ask(why)
        if self.why:
            raise LeftError(f"left the run: {self.why}")
