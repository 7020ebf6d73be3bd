"""How far a piece of work is and how long it still takes, from the share of it that is done.

A terminal shows it all the time; elsewhere `SparseLines` says when another line is due.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedbnsl.console.wording import duration
from fedbnsl.protocol.messages import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedbnsl.console.phase_display import PhaseDisplay

# What a time left is based on, at least: seconds, and a share of the work.
_LEAST_S, _LEAST_SHARE = 2.0, 0.02
# The time constant with which a new estimate replaces the one before.
_SMOOTH_S = 5.0
# Work that takes less is not told of, where lines stay.
_WORTH_A_LINE_S = 2.0
_MOST_BETWEEN_LINES_S = 60.0


class TimeLeft:
    """How long one piece of work still takes; all times are seconds of a clock that does not go back."""

    def __init__(self, what: str, now: float) -> None:
        self._what, self._began = what, now
        self._basis: tuple[float, float] | None = None  # when it was first looked at, and the share then
        self._left: tuple[float, float] | None = None  # when a time left was told last, and which

    def phase(self, share: float | None, now: float) -> Phase:
        """Where it stands, from the share of the work that is done, 0 to 1; None: not known."""
        if share is None:
            return Phase(self._what, None, now - self._began)
        share = min(max(share, 0.0), 1.0)
        return Phase(self._what, share, now - self._began, self._left_s(share, now))

    def _left_s(self, share: float, now: float) -> float | None:
        """Of what was told before, less the time since; what the pace so far says replaces it little by little."""
        if self._basis is None:
            self._basis = now, share
        since, done = now - self._basis[0], share - self._basis[1]
        if done >= _LEAST_SHARE and since >= _LEAST_S:
            left = since * (1.0 - share) / done
            if self._left is not None and share < 1.0:
                at, before = self._left
                before = max(before - (now - at), 0.0)
                left = before + (left - before) * (1.0 - math.exp(-(now - at) / _SMOOTH_S))
            self._left = now, left
        return None if self._left is None else self._left[1]


class SparseLines:
    """When another line is due: after two seconds, then at doubling times, and at least once in a minute."""

    def __init__(self) -> None:
        self._what, self._seen, self._next = "", 0.0, 0.0

    def is_due(self, phase: Phase) -> bool:
        """Whether a line should say now where this phase stands."""
        if phase.what != self._what or phase.elapsed_s < self._seen:
            self._what, self._next = phase.what, _WORTH_A_LINE_S
        self._seen = phase.elapsed_s
        if phase.elapsed_s < self._next:
            return False
        self._next = min(2.0 * phase.elapsed_s, phase.elapsed_s + _MOST_BETWEEN_LINES_S)
        return True


def phases_shown(say: Callable[[str], None], *, err: bool) -> Callable[[str, Phase | None], None]:
    """`PhaseDisplay.show` on standard output or error; what draws is loaded once there is something to show."""
    display: PhaseDisplay | None = None

    def show(run: str, phase: Phase | None) -> None:
        nonlocal display
        if display is None and phase is not None and phase.is_work:
            from rich.console import Console

            from fedbnsl.console.phase_display import PhaseDisplay

            display = PhaseDisplay(Console(stderr=err), say)
        if display is not None:
            display.show(run, phase)

    return show


def in_words(phase: Phase) -> str:
    """`bootstrap: 43 %, 20 s, about 27 s left`; what else there is to say of it stands behind its name, in brackets."""
    share = "" if phase.share is None else f"{math.floor(100.0 * phase.share)} %, "
    left = "" if phase.left_s is None else f", about {duration(phase.left_s)} left"
    what = f"{phase.what} ({phase.detail})" if phase.detail else phase.what
    return f"{what}: {share}{duration(phase.elapsed_s)}{left}"
