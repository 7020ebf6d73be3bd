"""The best graph between categories by the tables that are known, and the tables that could make it better.

The search starts at the graph that moments have given and at the required edges alone. From the better end it sets
variables free: it takes away the edges of one to five variables that are connected, and climbs again. This leaves local
optima; setting single variables free does not leave those in which three variables have to change together. Each
variable in turn is the first of such a group. Candidates for an edge are pairs within two steps in the graph of
moments, and for each variable the eight others of the largest pairwise gain; of few variables, all pairs.

Pairs are asked for first, then sets of three that have two pairs with a gain, and from then on the families that one
move of the best graph would make, and do not follow from what is known.

Everything is done in an order of the variables that the counts give (`_canonical`), the draws of the bootstrap too. So
nothing depends on the order of columns, levels or sites, unless two variables have the same counts in all pairs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead, consistent_extension
from fedbnsl.graphs.contingency import MOST_CELLS_A_ROUND, VariableSet, cells_of, is_too_large
from fedbnsl.graphs.cpdag import class_of
from fedbnsl.graphs.family_moments import within_two_steps
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.counts.climb import BETTER, Moves, climb, parents_of
from fedbnsl_server.search.counts.redrawn import Redrawn
from fedbnsl_server.search.counts.score import Gains
from fedbnsl_server.search.counts.tables import TableSource
from fedbnsl_server.search.progress import UNWATCHED, Progress

# Others with the largest pairwise gain that are candidates of a variable.
_NEAREST = 8
# Moves without a better graph after which a climb ends: from a start, and after a variable was set free.
_PATIENCE, _PATIENCE_OF_FREE = 15, 3
# Variables that are set free together, at most.
_MOST_FREED = 5
# Of scores: a graph this much lower is no rival.
_CERTAIN = 50.0
# So many variables may all be adjacent.
_FEW_VARIABLES = 40
# Sets of a round, and cells of all sets of three together up to which they are asked for with the pairs.
_MOST_SETS, _FEW_CELLS = 1200, 20_000


def first_sets(levels: Index, start: Mask, required: Mask) -> tuple[VariableSet, ...]:
    """What is asked for first: single variables, families with required edges, and pairs, near ones in a graph first.

    `start`: the (V, V) graph.
    """
    V = len(levels)
    families: list[VariableSet] = [tuple(sorted((x, *parents_of(required, x)))) for x in range(V)]
    joined, near = start | start.T, within_two_steps(start)
    pairs: list[VariableSet] = sorted(combinations(range(V), 2), key=lambda one: (not joined[one], not near[one]))
    triples: list[VariableSet] = list(combinations(range(V), 3))
    few = triples if sum(cells_of(one, levels) for one in triples) <= _FEW_CELLS else []
    alone: list[VariableSet] = [(v,) for v in range(V)]
    return _within_limits([*alone, *families, *pairs, *few], levels)


@dataclass(frozen=True, eq=False)
class Rivals:
    """Of each arrow of a class, the best graph in which the edge has the other direction; by canonical numbers.

    A search in draws of the learned network starts at it, and does not come to graphs as good that are far from it.
    The draws would direct an edge each time, and the tables hardly tell how.
    """

    lower: Matrix  # (V, V) by how much its score is lower; inf where there is none
    leaves_open: Mask  # (V, V) whether its class does not tell the direction

    def instead(self, marks: Mask, rng: np.random.Generator) -> Mask:
        """The (V, V) marks of a draw, each arrow as its rival has it as often as scores, as likelihoods, tell."""
        chance = 1.0 / (1.0 + np.exp(np.minimum(self.lower, _CERTAIN)))
        taken = marks & ~marks.T & (self.lower < _CERTAIN) & (rng.random(marks.shape) < chance)
        found = np.asarray((marks & ~(taken & ~self.leaves_open)) | taken.T)
        # Several rivals may fit together in no graph.
        return found if is_acyclic(found & ~found.T) else marks | taken.T


@dataclass(frozen=True, eq=False)
class CountSearch:
    """A question to tables.

    Attributes
    ----------
    source
        What is known of them.
    levels
        (V,) of the variables.
    near
        (V, V) graph that moments have given.
    allowed, required
        (V, V) edges that a graph may have, and must have.
    """

    source: TableSource
    levels: Index
    near: Mask
    allowed: Mask
    required: Mask

    def best(self, start: Mask, rng: np.random.Generator, *, passes: int = 3, progress: Progress = UNWATCHED) -> Mask:
        """(V, V) DAG of the largest score among those that were tried, from a start.

        `passes`: how often all variables are set free without a better graph, before the search ends.
        """
        starts = (self._start(start), self._start(self.required))
        dag, _ = self._best(self._moves, starts, range(len(self.levels)), rng, passes=passes, progress=progress)
        return np.asarray(dag[self.back])

    def rivals(self, dag: Mask, rng: np.random.Generator, *, progress: Progress = UNWATCHED) -> tuple[Mask, Rivals]:
        """The best graphs with an arrow of this one's class reversed; if one is better, it takes its place.

        Graphs with tables that are not known are none of them.

        Parameters
        ----------
        dag
            (V, V) DAG whose tables are known.
        """
        moves, best, V = self._moves, dag[self.ordered], len(dag)
        while True:
            marks = class_of(best, moves.allowed | best, moves.required)
            score, lower, leaves_open = moves.score(best), np.full((V, V), np.inf), np.zeros((V, V), dtype=bool)
            for source, target in np.argwhere(marks & ~marks.T & moves.allowed.T & ~moves.required).tolist():
                turned = moves.with_reversed(source, target)
                near = np.flatnonzero(within_two_steps(best)[[source, target]].any(axis=0)).tolist()
                starts = (_reversed(best, source, target, moves.required), turned.required)
                found, reached = self._best(turned, starts, near, rng, passes=1, progress=progress)
                if reached > score + BETTER:
                    best = found
                    break
                lower[source, target] = score - reached
                marks_there = class_of(found, moves.allowed | found, moves.required)
                leaves_open[source, target] = marks_there[source, target]
            else:
                return np.asarray(best[self.back]), Rivals(lower, leaves_open)

    def _best(
        self,
        moves: Moves,
        starts: Iterable[Mask],
        free: Sequence[int],
        rng: np.random.Generator,
        *,
        passes: int,
        progress: Progress,
    ) -> tuple[Mask, float]:
        """The best canonical DAG from these starts, and its score; -inf if no start has known tables.

        `free`: the variables that are set free in turn.
        """
        dag, score, vain = moves.required, -math.inf, 0

        def climbed(start: Mask, patience: int) -> bool:
            nonlocal dag, score
            if not np.isfinite(moves.score(start)):
                return False
            found, gained = climb(moves, start, patience=patience, enough=lambda: progress.is_enough)
            is_better = gained > score + BETTER
            if is_better:
                dag, score = found, gained
            return is_better

        for start in starts:
            climbed(start, _PATIENCE)
        while vain < passes * len(free) and np.isfinite(score) and not progress.is_enough:
            progress.at(vain / (passes * len(free)))
            group = _connected(dag, free[vain % len(free)], int(rng.integers(1, _MOST_FREED, endpoint=True)), rng)
            freed = dag.copy()
            freed[group] &= moves.required[group]
            freed[:, group] &= moves.required[:, group]
            vain = 0 if climbed(freed, _PATIENCE_OF_FREE) else vain + 1
        return dag, score

    def wanted(self, dag: Mask) -> tuple[VariableSet, ...]:
        """Sets whose tables could lead to a better graph than this one, the most promising ones."""
        order = self._canonical
        canonical = dag[self.ordered]
        found: dict[VariableSet, float] = {}
        for one, promise in self._unknown(canonical):
            found[one] = max(found.get(one, -math.inf), promise)
        sets = sorted(found, key=lambda one: -found[one])
        return _within_limits([tuple(sorted(int(order[v]) for v in one)) for one in sets], self.levels)

    def _unknown(self, dag: Mask) -> Iterator[tuple[VariableSet, float]]:
        """Sets that are not known, of canonical numbers, and what they promise."""
        P, V, gains, allowed = self._pairs, len(dag), self._gains, self._moves.allowed
        near, before = allowed | allowed.T, self.near[self.ordered]
        for x in range(V):
            yield from _if_unknown(gains, x, parents_of(before, x), math.inf)
            parents = parents_of(dag, x)
            for y in (y for y in range(V) if near[y, x] and y not in parents):
                yield from _if_unknown(gains, x, (*parents, y), P[x, y])
            for y in parents:
                yield from _if_unknown(gains, x, tuple(p for p in parents if p != y), math.inf)
        for x in range(V):
            for y, z in combinations([v for v in range(V) if near[v, x]], 2):
                yield from _if_unknown(gains, x, (y, z), sorted((P[x, y], P[x, z], P[y, z]))[1])

    @property
    def ordered(self) -> tuple[Index, ...]:
        """The places of a matrix, as given, in the canonical order of the variables."""
        return np.ix_(self._canonical, self._canonical)

    @property
    def back(self) -> tuple[Index, ...]:
        """The places of a canonical matrix in the order of the variables as given."""
        back = np.argsort(self._canonical)
        return np.ix_(back, back)

    def redrawn(self, dag: Mask) -> Redrawn:
        """The network of a (V, V) DAG whose tables are known, by canonical numbers."""
        at = self.ordered
        source, levels = _Renumbered(self.source, self._canonical), self.levels[self._canonical]
        return Redrawn(source, levels, dag[at], self.allowed[at], self._required)

    @cached_property
    def _moves(self) -> Moves:
        ordered, P = self.ordered, self._pairs
        nearest = np.zeros(P.shape, dtype=bool)
        for x in range(len(P)):
            nearest[np.argsort(-P[:, x], kind="stable")[:_NEAREST], x] = True
        candidates = nearest | nearest.T | within_two_steps(self.near)[ordered] | (len(P) <= _FEW_VARIABLES)
        allowed = (candidates & self.allowed[ordered]) | self._required
        return Moves(self._gains, allowed, self._required)

    @property
    def _required(self) -> Mask:
        return self.required[self.ordered]

    def _start(self, dag: Mask) -> Mask:
        """A DAG of the class of this one, by canonical numbers, without edges whose tables are not known."""
        marks = class_of(dag, self.allowed | dag, self.required)
        found, moves = consistent_extension(marks[self.ordered]), self._moves
        found &= moves.allowed
        for x in range(len(found)):
            parents = sorted(parents_of(found, x), key=lambda y: self._pairs[y, x])
            while not np.isfinite(moves.gain(x, tuple(sorted(parents)))):
                least = next((y for y in parents if not moves.required[y, x]), None)
                if least is None:
                    break
                parents.remove(least)
                found[least, x] = False
        return found

    @cached_property
    def _gains(self) -> Gains:
        return Gains(_Renumbered(self.source, self._canonical), self.levels[self._canonical])

    @cached_property
    def _pairs(self) -> Matrix:
        """(V, V) what canonical pairs gain, -inf where it is not known."""
        return self._pairs_as_given[self.ordered]

    @cached_property
    def _pairs_as_given(self) -> Matrix:
        gains, V = Gains(self.source, self.levels), len(self.levels)
        found = np.full((V, V), -np.inf)
        for x, y in combinations(range(V), 2):
            gain = gains(x, (y,))
            found[x, y] = found[y, x] = -np.inf if np.isnan(gain) else gain
        return found

    @cached_property
    def _canonical(self) -> Index:
        """(V,) variables in an order that the counts alone give: by entropy, then by what they gain from others."""
        gains, P = Gains(self.source, self.levels), self._pairs_as_given
        keys = [(gains.entropy(v), *np.sort(P[v])[::-1].tolist()) for v in range(len(P))]
        return np.array(sorted(range(len(P)), key=lambda v: keys[v]), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Renumbered:
    """Tables by other numbers of the variables: number k is variable order[k]."""

    source: TableSource
    order: Index

    @property
    def n_samples(self) -> float:
        """See `TableSource`."""
        return self.source.n_samples

    def is_withheld(self, variables: VariableSet) -> bool:
        """See `TableSource.is_withheld`."""
        return self.source.is_withheld(tuple(sorted(int(self.order[v]) for v in variables)))

    def table(self, variables: VariableSet) -> Matrix | None:
        """See `TableSource.table`."""
        there = [int(self.order[v]) for v in variables]
        found = self.source.table(tuple(sorted(there)))
        return None if found is None else found.transpose([sorted(there).index(v) for v in there])


def _if_unknown(gains: Gains, x: int, parents: Iterable[int], promise: float) -> Iterator[tuple[VariableSet, float]]:
    parents = tuple(sorted(parents))
    if np.isnan(gains(x, parents)):
        yield tuple(sorted((x, *parents))), promise


def _reversed(dag: Mask, source: int, target: int, required: Mask) -> Mask:
    """A DAG with one edge reversed, without edges that would close a cycle then, if none of them is required."""
    turned = dag.copy()
    turned[source, target] = False
    turned[arrows_lead(turned)[source], target] &= required[arrows_lead(turned)[source], target]
    turned[target, source] = True
    return turned if is_acyclic(turned) else required


def _connected(dag: Mask, first: int, size: int, rng: np.random.Generator) -> list[int]:
    """A variable and others that edges connect with it, `size` in all if there are so many."""
    group = [first]
    while len(group) < size:
        joined = np.logical_or(dag[group].any(axis=0), dag[:, group].any(axis=1))
        joined[group] = False
        if not joined.any():
            break
        group.append(int(rng.choice(np.flatnonzero(joined))))
    return group


def _within_limits(sets: Iterable[VariableSet], levels: Index) -> tuple[VariableSet, ...]:
    """The first of these sets that one round takes."""
    found, cells = list[VariableSet](), 0
    for one in dict.fromkeys(sets):
        size = cells_of(one, levels)
        if not is_too_large(one, levels) and cells + size <= MOST_CELLS_A_ROUND and len(found) < _MOST_SETS:
            found.append(one)
            cells += size
    return tuple(found)
