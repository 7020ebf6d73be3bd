"""Partial ancestral graphs: what every graph says of cause and effect that explains the data, hidden causes allowed.

An edge has a mark at either end. At j, an arrowhead says that j is no cause of i, a tail that j is one, and a circle
that the data do not tell. The rules are R1 to R4 and R8 to R10 of Zhang (2008); R5 to R7 are for selection bias, which
is taken to be absent: no row is missing because of its values.

Marks are written as in the R package pcalg: [i, j] is the mark at j of the edge between i and j, NONE where there is
no edge.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix

NONE, CIRCLE, ARROW, TAIL = 0, 1, 2, 3
_UNSURE = 4  # in place of a circle while rules are at work: they read no such mark, and see an edge

MARK_NAMES = {NONE: "none", CIRCLE: "circle", ARROW: "arrow", TAIL: "tail"}
"""As files and results say them."""

MAJORITY = 0.75
"""Least share of the bootstrap draws that an arrow, of those with its edge, or a mark, of all, needs to be told.

Three to one. `fedbnsl bench confidence` counts how many directions are true by their share of all draws.
"""

Marks = NDArray[np.int8]
Triple = tuple[int, int, int]


def as_read(marks: Marks, shares: Matrix | None) -> Marks:
    """The marks as people are to read them: circles at both ends of an edge with a mark that too few draws have.

    `shares`: (V, V) of the draws, with the same mark; None: not told.
    """
    if shares is None:
        return marks
    few = np.nan_to_num(shares, nan=1.0) < MAJORITY
    return np.where((few | few.T) & (marks != NONE), CIRCLE, marks).astype(np.int8)


def towards_arrow(marks: Marks, i: int, j: int) -> tuple[int, int]:
    """The ends of an edge in the order in which it is told: towards an arrowhead, if only one end has one."""
    return (j, i) if marks[j, i] == ARROW and marks[i, j] != ARROW else (i, j)


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of causes beforehand, between V variables."""

    # no_cause, cause: (V, V) [i, j]: i is no cause of j, and i is a cause of j
    no_cause: Mask
    cause: Mask

    @classmethod
    def of(cls, mask: EdgeMask) -> "Known":
        """What is known of edges, see `of_edges`."""
        return cls.of_edges(mask.of_variables.allowed, mask.of_variables.required)

    @classmethod
    def of_edges(cls, allowed: Mask, required: Mask) -> "Known":
        """From (V, V) edges that are allowed and required: what no path of allowed ones leads to is not caused."""
        reached = allowed.copy()
        for k in range(len(reached)):
            reached |= reached[:, k, None] & reached[k]
        return cls(~reached, required)


class PartialAncestralGraph:
    """Marks that get closed under the rules.

    Parameters
    ----------
    adjacent
        (V, V) symmetric.
    colliders
        a, b, c: b is no cause of a or c.
    separates
        Whether b is in a set that separates a and c, which have no edge.
    known
        Causes, and what is no cause.
    unsure
        (V, V) symmetric edges that may be none: they keep circles, and no rule concludes anything from them, nor from
        their absence. None: there are none.
    """

    def __init__(
        self,
        adjacent: Mask,
        colliders: Iterable[Triple],
        separates: Callable[[int, int, int], bool],
        known: Known,
        unsure: Mask | None = None,
    ) -> None:
        unsure = np.zeros_like(adjacent) if unsure is None else unsure
        sure = adjacent & ~unsure
        self.marks: Marks = np.where(adjacent, np.where(sure, CIRCLE, _UNSURE), NONE).astype(np.int8)
        self._separates = separates
        self._near = [np.flatnonzero(row).tolist() for row in sure]
        for a, b, c in colliders:
            if sure[a, b] and sure[c, b]:
                self.marks[a, b] = self.marks[c, b] = ARROW
        self.marks[sure & (known.no_cause.T | known.cause)] = ARROW
        self.marks[sure & known.cause.T] = TAIL
        while any(rule() for rule in (self._rule_1, self._rule_2, self._rule_3, self._rule_4)):
            pass

    def with_tails(self) -> Marks:
        """The marks when no rule has anything to add; the rules for tails add no arrowhead."""
        while any(rule() for rule in (self._rule_8, self._rule_9, self._rule_10)):
            pass
        return np.where(self.marks == _UNSURE, CIRCLE, self.marks).astype(np.int8)

    def _set(self, i: int, j: int, mark: int) -> bool:
        """Replace the circle at j of the edge between i and j; whether there was one."""
        if self.marks[i, j] != CIRCLE:
            return False
        self.marks[i, j] = mark
        return True

    def _apart(self, a: int, c: int) -> bool:
        return a != c and self.marks[a, c] == NONE

    def _rule_1(self) -> bool:
        """R1: a *-> b o-* c, a and c not adjacent: b -> c."""
        m, found = self.marks, False
        for a, b in np.argwhere(m == ARROW).tolist():
            for c in self._near[b]:
                if m[c, b] == CIRCLE and m[b, c] != TAIL and self._apart(a, c):
                    self._set(b, c, ARROW)
                    found |= self._set(c, b, TAIL)
        return found

    def _rule_2(self) -> bool:
        """R2: a -> b *-> c or a *-> b -> c, and a *-o c: a *-> c."""
        m, found = self.marks, False
        for a, c in np.argwhere(m == CIRCLE).tolist():
            into = m[a] == ARROW
            on = m[:, c] == ARROW
            if (into & on & ((m[:, a] == TAIL) | (m[c] == TAIL))).any():
                found |= self._set(a, c, ARROW)
        return found

    def _rule_3(self) -> bool:
        """R3: a *-> b <-* c, a *-o d o-* c, a and c not adjacent, d *-o b: d *-> b."""
        m, found = self.marks, False
        for d, b in np.argwhere(m == CIRCLE).tolist():
            both = np.flatnonzero((m[:, b] == ARROW) & (m[:, d] == CIRCLE)).tolist()
            if any(self._apart(a, c) for k, a in enumerate(both) for c in both[k + 1 :]):
                found |= self._set(d, b, ARROW)
        return found

    def _rule_4(self) -> bool:
        """R4: a discriminating path (d, ..., a, b, c), b o-* c: b -> c if b separates d and c, else a <-> b <-> c."""
        m, found = self.marks, False
        for c, b in np.argwhere((m == CIRCLE) & (m.T != TAIL)).tolist():
            for a in self._near[b]:
                if m[b, a] == ARROW and m[a, c] == ARROW and m[c, a] == TAIL:
                    d = self._discriminates(a, b, c)
                    if d is None:
                        continue
                    if self._separates(d, b, c):
                        self._set(b, c, ARROW)
                        found |= self._set(c, b, TAIL)
                    else:
                        self._set(a, b, ARROW)
                        self._set(b, c, ARROW)
                        found |= self._set(c, b, ARROW)
                    break
        return found

    def _discriminates(self, a: int, b: int, c: int) -> int | None:
        """The first node of a shortest discriminating path to c that ends in a, b, c: not adjacent to c."""
        m, seen, waiting = self.marks, {a, b, c}, [a]
        while waiting:
            x = waiting.pop(0)
            for d in self._near[x]:
                if d in seen or m[d, x] != ARROW:  # all between d and b are colliders
                    continue
                if m[d, c] == NONE:
                    return d
                if m[x, d] == ARROW and m[d, c] == ARROW and m[c, d] == TAIL:  # and parents of c
                    seen.add(d)
                    waiting.append(d)
        return None

    def _rule_8(self) -> bool:
        """R8: a -> b -> c or a -o b -> c, and a o-> c: a -> c."""
        m, found = self.marks, False
        for a, c in np.argwhere((m == ARROW) & (m.T == CIRCLE)).tolist():
            if ((m[:, a] == TAIL) & ((m[a] == ARROW) | (m[a] == CIRCLE)) & (m[:, c] == ARROW) & (m[c] == TAIL)).any():
                found |= self._set(c, a, TAIL)
        return found

    def _rule_9(self) -> bool:
        """R9: a o-> c, an uncovered potentially directed path (a, b, ..., c), b and c not adjacent: a -> c."""
        m, found = self.marks, False
        for a, c in np.argwhere((m == ARROW) & (m.T == CIRCLE)).tolist():
            if any(self._apart(b, c) and self._leads(a, b, c) for b in self._onward(a) if b != c):
                found |= self._set(c, a, TAIL)
        return found

    def _rule_10(self) -> bool:
        """R10: a o-> c, b -> c <- d, uncovered potentially directed paths from a to b and to d: a -> c.

        The paths begin in different nodes that are not adjacent.
        """
        m, found = self.marks, False
        for a, c in np.argwhere((m == ARROW) & (m.T == CIRCLE)).tolist():
            parents = np.flatnonzero((m[:, c] == ARROW) & (m[c] == TAIL)).tolist()
            starts = [b for b in self._onward(a) if b != c]
            firsts = {p: [s for s in starts if s == p or self._leads(a, s, p, avoid=c)] for p in parents if p != a}
            if any(
                self._apart(one, other)
                for k, b in enumerate(firsts)
                for d in list(firsts)[k + 1 :]
                for one in firsts[b]
                for other in firsts[d]
            ):
                found |= self._set(c, a, TAIL)
        return found

    def _onward(self, a: int) -> Iterator[int]:
        """Where an edge that may be directed leads from a node."""
        m = self.marks
        return (b for b in self._near[a] if m[a, b] != TAIL and m[b, a] != ARROW)

    def _leads(self, a: int, b: int, target: int, *, avoid: int = -1) -> bool:
        """Whether an uncovered potentially directed path begins with a, b and ends in the target."""
        waiting, seen = [(a, b)], {(a, b)}
        while waiting:
            x, y = waiting.pop()
            for z in self._onward(y):
                if z in (a, avoid) or not self._apart(x, z) or (y, z) in seen:
                    continue
                if z == target:
                    return True
                seen.add((y, z))
                waiting.append((y, z))
        return False
