"""Which total effects a partial ancestral graph identifies by adjustment, whatever causes are hidden.

The generalised adjustment criterion (Perkovic, Textor, Kalisch and Maathuis 2018): every path on which the sources may
act on the target begins with a visible edge, the set has nothing that such a path may lead to, and it blocks all other
paths. If any set does so, the possible ancestors of sources and target do that are left. Whether they block is looked
up in one MAG that the PAG stands for: it is the same in all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbnsl.graphs.meek import bits, numbers_of
from fedbnsl.graphs.pag import ARROW, NONE, TAIL, Marks
from fedbnsl_server.inference.ancestral_graphs import mag_of
from fedbnsl_server.inference.hidden_causes import Mixed


@dataclass(frozen=True)
class Adjustment:
    """How far a PAG tells the effect of some variables on another."""

    verdict: Literal["no path", "identified", "not identified"]
    given: tuple[int, ...] = ()  # identified: what to adjust for


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


def adjustment(marks: Marks, sources: Sequence[int], target: int) -> Adjustment:
    """What to adjust for, to tell the joint effect of some variables on another one from a legal PAG."""
    # From u to v if the edge has no arrowhead at u.
    onward = numbers_of((marks != NONE) & (marks.T != ARROW))
    back = numbers_of(((marks != NONE) & (marks.T != ARROW)).T)
    of_sources = sum(1 << x for x in sources)
    # What paths come from that end in the target and pass no source, the target itself among it.
    to_target = _closure([target], back, avoid=of_sources)
    first = [(x, v) for x in sources for v in bits(onward[x] & to_target)]
    if not first:
        return Adjustment("no path")
    if any(marks[v, x] != TAIL or marks[x, v] != ARROW or not visible(marks, x, v) for x, v in first):
        return Adjustment("not identified")
    on_paths = _closure([v for _, v in first], onward, avoid=of_sources) & to_target
    forbidden = _closure(bits(on_paths), onward)
    given = _closure([*sources, target], back) & ~forbidden & ~of_sources & ~(1 << target)
    mag = mag_of(marks)
    if mag is None:
        return Adjustment("not identified")
    for x, v in first:
        mag[x, v] = mag[v, x] = NONE
    graph = Mixed.of_marks(mag)
    if any(graph.reached(x, given) >> target & 1 for x in sources):
        return Adjustment("not identified")
    return Adjustment("identified", tuple(bits(given)))


def _closure(start: Iterable[int], steps: Sequence[int], *, avoid: int = 0) -> int:
    found = waiting = sum(1 << k for k in start)
    while waiting:
        further = 0
        for k in bits(waiting):
            further |= steps[k]
        waiting = further & ~found & ~avoid
        found |= waiting
    return found
