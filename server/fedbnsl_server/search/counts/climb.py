"""Tabu search over DAGs: the best of all moves that lead to a graph that was not seen, better or not.

A move adds, deletes or reverses an edge. The search ends after some moves without a better graph.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.graphs.contingency import VariableSet
from fedbnsl.protocol.sparse import Mask, Matrix

BETTER = 1e-7
"""A gain of less is rounding."""

# The best moves among which one leads to a graph that was not seen.
_TRIED = 100


@dataclass(frozen=True, eq=False)
class Moves:
    """What a graph may be, and what its families gain."""

    gain: Callable[[int, VariableSet], float]  # of a child by its parents; see `Gains`
    allowed: Mask  # (V, V) edges that may be tried
    required: Mask  # (V, V) edges that stay

    def with_reversed(self, source: int, target: int) -> "Moves":
        """The moves among graphs that have the edge from target to source."""
        allowed, required = self.allowed.copy(), self.required.copy()
        allowed[source, target], required[target, source] = False, True
        return replace(self, allowed=allowed, required=required)

    def score(self, dag: Mask) -> float:
        """Sum of the gains of a DAG; NaN or -inf where one of its tables is not known, or cannot be."""
        return float(sum(self.gain(x, parents_of(dag, x)) for x in range(len(dag))))


def parents_of(dag: Mask, x: int) -> VariableSet:
    """The parents of a variable, ascending."""
    return tuple(np.flatnonzero(dag[:, x]).tolist())


def climb(moves: Moves, start: Mask, *, patience: int, enough: Callable[[], bool]) -> tuple[Mask, float]:
    """The best (V, V) DAG on the way, and its score.

    Parameters
    ----------
    start
        (V, V) DAG with the required edges, whose tables are known.
    patience
        Moves without a better graph after which the search ends.
    enough
        Whether somebody wants its end now.
    """
    dag, V = start.copy(), len(start)
    add, drop = np.full((V, V), -np.inf), np.full((V, V), -np.inf)
    for x in range(V):
        _weigh(moves, dag, x, add, drop)
    score = moves.score(dag)
    best, best_score, seen, worse = dag.copy(), score, {dag.tobytes()}, 0
    while worse <= patience and not enough():
        reached = _descendants(dag)
        may_add = ~(dag | dag.T | reached.T | np.eye(V, dtype=bool))
        may_drop = dag & ~moves.required
        # Reversed, an edge closes a cycle where another path leads the same way.
        may_turn = may_drop & moves.allowed.T & ~((dag.astype(np.float64) @ reached) > 0.0)
        changes = np.stack(
            [
                np.where(may_add, add, -np.inf),
                np.where(may_drop, drop, -np.inf),
                np.where(may_turn, drop + np.where(np.isneginf(add.T), -np.inf, add.T), -np.inf),
            ]
        ).ravel()
        for place in np.argsort(-changes, kind="stable")[:_TRIED].tolist():
            kind, edge = divmod(place, V * V)
            y, x = divmod(edge, V)
            if np.isneginf(changes[place]):
                return best, best_score
            dag[y, x] = kind == 0
            dag[x, y] = kind == 2
            if dag.tobytes() not in seen:
                break
            dag[y, x], dag[x, y] = kind != 0, False
        else:
            return best, best_score
        seen.add(dag.tobytes())
        score += float(changes[place])
        for changed in {x, y} if kind == 2 else {x}:
            _weigh(moves, dag, changed, add, drop)
        worse += 1
        if score > best_score + BETTER:
            best, best_score, worse = dag.copy(), score, 0
    return best, best_score


def _weigh(moves: Moves, dag: Mask, x: int, add: Matrix, drop: Matrix) -> None:
    """What it changes to add or to drop each parent of x."""
    parents = parents_of(dag, x)
    now = moves.gain(x, parents)
    add[:, x], drop[:, x] = -np.inf, -np.inf
    for y in np.flatnonzero(moves.allowed[:, x] & ~dag[:, x]).tolist():
        add[y, x] = _known(moves.gain(x, tuple(sorted((*parents, y)))) - now)
    for y in parents:
        drop[y, x] = _known(moves.gain(x, tuple(p for p in parents if p != y)) - now)


def _known(change: float) -> float:
    return change if np.isfinite(change) else -np.inf


def _descendants(dag: Mask) -> Mask:
    """(V, V) [i, j]: a path leads from i to j."""
    reached = dag
    while True:
        further = reached.astype(np.float64)
        longer = reached | (further @ further > 0.0)
        if (longer == reached).all():
            return reached
        reached = longer
