"""Which total effects a partial ancestral graph identifies by adjustment, whatever causes are hidden.

The generalised adjustment criterion (Perkovic, Textor, Kalisch and Maathuis 2018): every path on which the sources may
act on the target begins with a visible edge, the set has nothing that such a path may lead to, and it blocks all other
paths. If any set does so, the possible ancestors of sources and target do that are left: all of these are adjusted for,
since smaller sets rest on more of the graph, and fewer draws of a bootstrap allow them. Whether a set blocks is looked
up in one MAG that the PAG stands for: it is the same in all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Literal

import numpy as np

from fedbnsl.graphs.meek import bits, numbers_of
from fedbnsl.graphs.pag import ARROW, NONE, TAIL, Marks
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.inference.ancestral_graphs import mag_of
from fedbnsl_server.inference.hidden_causes import Mixed


@dataclass(frozen=True)
class Adjustment:
    """How far a PAG tells the effect of some variables on another."""

    verdict: Literal["no path", "identified", "not identified"]
    given: tuple[int, ...] = ()  # identified: what to adjust for
    # Not identified: a first edge of a path that may carry the effect is no arrow; or it is one, beside which a hidden
    # cause of both ends may stand; or no set blocks the other paths. And that edge, from a source.
    because: Literal["", "open", "invisible", "no_set"] = ""
    edge: tuple[int, int] | None = None


def visible(marks: Marks, a: int, b: int) -> bool:
    """Whether no hidden cause of a and b stands behind a --> b: something tells that acts on a, and not on b but by a.

    Something without an edge to b has an arrowhead at a, or begins a path of colliders into a that are parents of b.
    """
    seen, waiting = {a, b}, [a]
    while waiting:
        v = waiting.pop()
        for w in np.flatnonzero(marks[:, v] == ARROW).tolist():
            if w in seen:
                continue
            if marks[w, b] == NONE:
                return True
            is_parent = marks[w, b] == ARROW and marks[b, w] == TAIL
            if is_parent and marks[v, w] == ARROW:
                seen.add(w)
                waiting.append(w)
    return False


class Adjustments:
    """Adjustment in one PAG, (V, V) marks, of some of its variables for the effect of others."""

    def __init__(self, marks: Marks) -> None:
        onward = (marks != NONE) & (marks.T != ARROW)  # from u to v if the edge has no arrowhead at u
        self._marks, self._onward, self._back = marks, numbers_of(onward), numbers_of(onward.T)
        self._visible: dict[tuple[int, int], bool] = {}

    def of(self, sources: Sequence[int], target: int) -> Adjustment:
        """What to adjust for, to tell the joint effect of some variables on another one."""
        first, forbidden = self._acting(sources, target)
        if not first:
            return Adjustment("no path")
        given = _closure([*sources, target], self._back) & ~forbidden & ~_set_of([*sources, target])
        for x, v in first:
            if not self._acts(x, v):
                return Adjustment("not identified", because="open", edge=(x, v))
        for x, v in first:
            if not self._is_visible(x, v):
                return Adjustment("not identified", because="invisible", edge=(x, v))
        if not self._blocks(sources, target, given, first):
            return Adjustment("not identified", because="no_set")
        return Adjustment("identified", tuple(bits(given)))

    def may_act(self) -> Mask:
        """(V, V) [i, j]: a path on which i may act on j."""
        found = np.zeros(self._marks.shape, dtype=bool)
        for i in range(len(found)):
            found[i, list(bits(_closure([i], self._onward) & ~(1 << i)))] = True
        return found

    def identified(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Source, target, and what is adjusted for, of each single variable's effect that is identified."""
        for x, y in permutations(range(len(self._marks)), 2):
            if (found := self.of([x], y)).verdict == "identified":
                yield x, y, found.given

    def has_set(self, sources: Sequence[int], target: int, given: Sequence[int]) -> bool:
        """Whether adjusting for some variables gives the effect, and there is a path that may carry one."""
        first, forbidden = self._acting(sources, target)
        wanted = _set_of(given)
        return (
            bool(first)
            and not wanted & forbidden
            and all(self._acts(x, v) and self._is_visible(x, v) for x, v in first)
            and self._blocks(sources, target, wanted, first)
        )

    def _acting(self, sources: Sequence[int], target: int) -> tuple[list[tuple[int, int]], int]:
        """The first edges of paths on which the sources may act on the target, and what these paths may lead to."""
        of_sources = _set_of(sources)
        # What paths come from that end in the target and pass no source, the target itself among it.
        to_target = _closure([target], self._back, avoid=of_sources)
        first = [(x, v) for x in sources for v in bits(self._onward[x] & to_target)]
        on_paths = _closure([v for _, v in first], self._onward, avoid=of_sources) & to_target
        return first, _closure(bits(on_paths), self._onward)

    def _acts(self, x: int, v: int) -> bool:
        """Whether x --> v."""
        return bool(self._marks[v, x] == TAIL and self._marks[x, v] == ARROW)

    def _is_visible(self, x: int, v: int) -> bool:
        """Of x --> v."""
        if (x, v) not in self._visible:
            self._visible[x, v] = visible(self._marks, x, v)
        return self._visible[x, v]

    def _blocks(self, sources: Sequence[int], target: int, given: int, first: Sequence[tuple[int, int]]) -> bool:
        """Whether a set blocks all paths from the sources to the target but those that begin with these edges."""
        if self._mag is None:
            return False
        mag = self._mag.copy()
        for x, v in first:
            mag[x, v] = mag[v, x] = NONE
        graph = Mixed.of_marks(mag)
        return not any(graph.reached(x, given) >> target & 1 for x in sources)

    @cached_property
    def _mag(self) -> Marks | None:
        return mag_of(self._marks)


def _set_of(nodes: Iterable[int]) -> int:
    return sum(1 << k for k in {*nodes})


def _closure(start: Iterable[int], steps: Sequence[int], *, avoid: int = 0) -> int:
    found = waiting = _set_of(start)
    while waiting:
        further = 0
        for k in bits(waiting):
            further |= steps[k]
        waiting = further & ~found & ~avoid
        found |= waiting
    return found
