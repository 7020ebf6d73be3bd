"""How far a search is, for those that watch it from other threads, and their wish that it ends early.

A search says which part of its work begins and what share of it is done; compiled loops write the share into an array.
Whoever wants an end asks for it: each part then returns the best that it has found so far, and parts that would be
wrong if they were cut short are left out.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np

from fedbnsl.protocol.sparse import Matrix

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Each(Protocol):
    """Results of a function for each item, in the order of the items; with threads, several at a time."""

    def __call__(self, function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterable[_Result]:
        """See above."""
        ...


def in_turn(function: Callable[[_Item], _Result], items: Iterable[_Item], /) -> Iterable[_Result]:
    """One after the other, without threads."""
    return [function(item) for item in items]


class Progress:
    """Shared by one search and those that watch it.

    Attributes
    ----------
    each
        Goes through the parts of the search.
    share, asked
        (1,) share of the present part that is done, and (1,) 1 once it is enough: for compiled loops.
    part
        What is done now, in words; empty: nothing yet.
    ended_in
        The part in which its end was asked for; empty: nobody has asked.
    """

    def __init__(self, each: Each = in_turn) -> None:
        self.each = each
        self.share: Matrix = np.zeros(1)
        self.asked: Matrix = np.zeros(1)
        self.part = self.ended_in = ""

    def begin(self, part: str) -> None:
        """Another part of the work begins."""
        self.part, self.share[0] = part, 0.0

    def step(self) -> "Progress":
        """Progress of one step of the part: it has the same end, and its share is not shown."""
        step = Progress()
        step.asked = self.asked
        return step

    def at(self, share: float) -> None:
        """Say that this share of the part is done, 0 to 1."""
        self.share[0] = share

    @property
    def done(self) -> float:
        """Share of the part that is done."""
        return float(self.share[0])

    def enough(self) -> None:
        """Ask the search to end with the best that it has."""
        if not self.is_enough:
            self.ended_in = self.part
        self.asked[0] = 1.0

    @property
    def is_enough(self) -> bool:
        """Whether somebody has asked for the end."""
        return bool(self.asked[0])


UNWATCHED = Progress()
"""Of searches that nobody watches or ends."""
