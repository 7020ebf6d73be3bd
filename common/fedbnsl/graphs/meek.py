"""Edges that follow from others in a partly directed graph, by Meek's rules 1 to 4 (1995).

A rule directs an edge whose other direction would give a directed cycle or a new v-structure. Started from the
v-structures of a DAG, rules 1 to 3 give its CPDAG; rule 4 is needed as well where knowledge directs further edges.

A node's neighbours are one whole number, bit k for node k, so that a rule is a few operations on numbers however many
neighbours there are, and each edge is looked at once: when it gets its direction.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedbnsl.graphs.graph import Edge
from fedbnsl.protocol.sparse import Mask


class ContradictionError(ValueError):
    """An edge is to be directed against the direction that it has, or follows, already."""


class PartlyDirected:
    """A graph whose edges get their directions one by one, with all that follows from each.

    Parameters
    ----------
    marks
        (d, d) array, [i, j] and not [j, i] for i -> j, both for i - j. What follows from the directions that it has is
        not looked for: give those to `direct`.
    unknown
        (d, d) symmetric, pairs of which nobody knows whether they are adjacent; None: no such pair. No rule takes them
        for pairs without an edge.
    """

    def __init__(self, marks: Mask, unknown: Mask | None = None) -> None:
        undirected = marks & marks.T
        self.undirected = numbers_of(undirected)
        self.children = numbers_of(marks & ~undirected)
        self.parents = numbers_of(marks.T & ~undirected)
        self.adjacent = numbers_of(marks | marks.T)
        self.perhaps = self.adjacent if unknown is None else numbers_of(marks | marks.T | unknown)

    def copy(self) -> "PartlyDirected":
        """Another graph with the same marks."""
        other = object.__new__(PartlyDirected)
        other.undirected, other.children = self.undirected.copy(), self.children.copy()
        other.parents = self.parents.copy()
        other.adjacent, other.perhaps = self.adjacent, self.perhaps  # which pairs are adjacent never changes
        return other

    def marks(self) -> Mask:
        """(d, d) as the constructor takes them."""
        return rows_of([u | c for u, c in zip(self.undirected, self.children, strict=True)])

    def direct(self, edges: Iterable[Edge]) -> None:
        """Direct edges i -> j, and whatever follows; raises ContradictionError if one has the other direction."""
        # All given directions come first: until both edges of a v-structure have theirs, rule 1 would reverse one.
        waiting = [edge for edge in edges if self._turn(*edge)]
        while waiting:
            waiting += [edge for edge in self._following(*waiting.pop()) if self._turn(*edge)]

    def _turn(self, a: int, b: int) -> bool:
        """Give an edge the direction a -> b; whether it had none."""
        if self.undirected[a] >> b & 1:
            self.undirected[a] &= ~(1 << b)
            self.undirected[b] &= ~(1 << a)
            self.children[a] |= 1 << b
            self.parents[b] |= 1 << a
            return True
        if not self.children[a] >> b & 1:
            raise ContradictionError(f"the edge between nodes {a} and {b} is directed the other way")
        return False

    def _following(self, a: int, b: int) -> Iterator[Edge]:
        """What a -> b, just directed, implies together with the marks that are there."""
        undirected, perhaps, children, parents = self.undirected, self.perhaps, self.children, self.parents
        # Rule 1: a -> b - c, a and c not adjacent, gives b -> c.
        for c in bits(undirected[b] & ~perhaps[a]):
            yield b, c
        # Rule 2: x -> y -> z and x - z gives x -> z; a -> b is the first or the second edge.
        for z in bits(children[b] & undirected[a]):
            yield a, z
        for x in bits(parents[a] & undirected[b]):
            yield x, b
        # Rule 3: x - a -> b, x - c -> b, a and c not adjacent, and x - b gives x -> b.
        others = parents[b] & ~perhaps[a] & ~(1 << a)
        for x in bits(undirected[a] & undirected[b]):
            if undirected[x] & others:
                yield x, b
        # Rule 4: x - y, x adjacent to b, x - a, a -> b -> y, a and y not adjacent, gives x -> y. Rule 1 has directed
        # all b -> y by now. Where x - b has a direction, the other rules direct x - y.
        for y in bits(children[b] & ~perhaps[a] & ~(1 << a)):
            for x in bits(undirected[y] & undirected[a] & self.adjacent[b]):
                yield x, y


def bits(number: int) -> Iterator[int]:
    """Positions of the ones of a whole number, ascending."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def rows_of(numbers: Sequence[int]) -> Mask:
    """(d, d) rows whose ones are the bits of d whole numbers."""
    d = len(numbers)
    size = (d + 7) // 8
    packed = np.frombuffer(b"".join(number.to_bytes(size, "little") for number in numbers), dtype=np.uint8)
    return np.unpackbits(packed.reshape(d, size), axis=1, count=d, bitorder="little").astype(bool)


def numbers_of(rows: Mask) -> list[int]:
    """A whole number for each row of a (d, d) array, bit k for column k."""
    packed = np.packbits(rows, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]
