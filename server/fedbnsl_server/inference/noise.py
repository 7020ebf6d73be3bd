"""Directions of edges by the shape of noise, which second moments cannot tell (Shimizu et al. 2006, Hyvarinen 2013).

If x -> y is right, what the parents of y leave of it is independent of x; if y -> x is right, it is not, unless noise
is normal (Darmois and Skitovich). Which parents y has the class may leave open: a direction is possible if one of these
sets makes the residual independent. An edge gets a direction only where the test rejects the other one alone. Where it
rejects both, no straight line with independent noise describes the edge: an effect bends, or both have a hidden cause.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import parent_sets
from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.graphs.graph import Edge
from fedbnsl.graphs.meek import PartlyDirected
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.inference.directions import Direction
from fedbnsl_server.inference.heterogeneity import chi_square_tails, holm, statistic_of_sums

REJECTED, POSSIBLE = 0.001, 0.05
"""A direction is rejected with a smaller p value than the first, and possible with a larger one than the second."""
# Chance that a run rejects both directions of any edge that has one.
_LEVEL = 0.01
LEAST_SHARE = 0.5
"""Of the rows of all sites: of an edge of which sites with fewer tell, nothing is said."""


class NoiseTest(NamedTuple):
    """An edge without a direction, and how likely its sums are if it has one or the other."""

    source: str
    target: str
    p: float  # of source -> target: the largest of all sets of parents that the target may have
    p_reversed: float  # of target -> source, likewise
    share: float = 1.0  # of the rows of all sites, those of sites that tell of it, whatever the set of parents

    @property
    def direction(self) -> Direction | None:
        """The one that alone is possible; None: nothing is told."""
        ways = (
            (self.source, self.target, self.p, self.p_reversed),
            (self.target, self.source, self.p_reversed, self.p),
        )
        for source, target, p, p_reversed in ways:
            if p > POSSIBLE and p_reversed < REJECTED:
                return Direction(source, target, "noise")
        return None


@dataclass(frozen=True)
class Noise:
    """What was looked at, and what it says."""

    n_open: int  # edges that the class leaves without a direction
    tests: tuple[NoiseTest, ...]  # of those of which sites tell something, in the order of the variables
    # what other sources said of edges that it fits in neither direction: it counts for nothing there
    denied: tuple[Direction, ...] = ()

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What it says of edges."""
        return tuple(one.direction for one in self.tests if one.direction is not None)

    @property
    def neither(self) -> tuple[NoiseTest, ...]:
        """Those that reject both directions, by Holm."""
        p = np.array([max(one.p, one.p_reversed) for one in self.tests])
        rejected = (p < REJECTED) & (holm(p) < _LEVEL)
        return tuple(one for one, is_rejected in zip(self.tests, rejected.tolist(), strict=True) if is_rejected)

    def denying(self, told: Sequence[Direction]) -> "Noise":
        """With what of this it denies."""
        neither = {frozenset((one.source, one.target)) for one in self.neither}
        return replace(self, denied=tuple(one for one in told if frozenset((one.source, one.target)) in neither))


def pairs_of(marks: Mask, columns: Columns, numbers: Mask, *, most: int, most_sets: int) -> tuple[DirectedPair, ...]:
    """Both directions of edges of a class that have none, each with all sets of other parents that its target may have.

    Parameters
    ----------
    marks
        (V, V) the class, closed under Meek's rules.
    columns
        Of these variables.
    numbers
        (d,) columns whose edges are looked at, each a variable by itself.
    most
        Pairs, counted with each set: the first edges that have no more.
    most_sets
        Of parents that are tried for a direction: an edge with more is not looked at.
    """
    members = columns.members()
    of_variable = numbers[np.array([own[0] for own in members])]
    found: list[DirectedPair] = []
    for i, j in np.argwhere(np.triu(marks & marks.T)).tolist():
        if not (of_variable[i] and of_variable[j]):
            continue
        of_edge = [*_pairs(marks, i, j, columns, most_sets), *_pairs(marks, j, i, columns, most_sets)]
        if len({pair.target for pair in of_edge}) == 2 and len(found) + len(of_edge) <= most:
            found += of_edge
    return tuple(found)


def _pairs(marks: Mask, source: int, target: int, columns: Columns, most_sets: int) -> Iterator[DirectedPair]:
    members, graph = columns.members(), PartlyDirected(marks)
    graph.direct([(source, target)])
    for parents in parent_sets(graph.marks(), target, most=most_sets) or ():
        others = sorted(c for v in parents if v != source for c in members[v].tolist())
        yield DirectedPair(int(members[source][0]), int(members[target][0]), tuple(others))


def noise_of(sums: Matrix, shares: Matrix, pairs: Sequence[DirectedPair], marks: Mask, columns: Columns) -> Noise:
    """Test the edges of a class.

    Parameters
    ----------
    sums, shares
        (k, 21) of these pairs over all sites, and (k,) of the rows of all sites, those of sites that tell of a pair.
    """
    p, share = dict[Edge, float](), dict[Edge, float]()
    for pair, one, of_rows in zip(pairs, sums, shares.tolist(), strict=True):
        statistic, degrees = statistic_of_sums(one)
        edge = int(columns.variable_of[pair.source]), int(columns.variable_of[pair.target])
        # Of a set of parents that too few tell of, nothing can be rejected, nor shown to be possible.
        is_told = degrees and of_rows >= LEAST_SHARE
        own = float(chi_square_tails(np.array([statistic]), np.array([degrees]))[0]) if is_told else np.nan
        p[edge] = float(np.maximum(p.get(edge, 0.0), own))
        share[edge] = min(share.get(edge, 1.0), of_rows)
    names = columns.variables
    tests = tuple(
        NoiseTest(names[i], names[j], one, p[j, i], min(share[i, j], share[j, i]))
        for (i, j), one in p.items()
        if i < j and not np.isnan(one + p[j, i])
    )
    return Noise(int(np.triu(marks & marks.T).sum()), tests)
