"""One direction of an edge between two columns, looked at beside other parents that its target may have."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class DirectedPair(NamedTuple):
    """Columns of a run, or places among some of them."""

    source: int
    target: int
    others: tuple[int, ...]  # columns of the other parents, ascending

    def at(self, places: Sequence[int] | Mapping[int, int]) -> "DirectedPair":
        """The pair between columns at other places, in the same order."""
        return DirectedPair(places[self.source], places[self.target], tuple(places[c] for c in self.others))
