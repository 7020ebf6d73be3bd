"""A DAG of small score by a search over orders of the variables (BOSS: Andrews et al. 2023).

Given an order, each variable gets parents among those before it: one after the other the parent is added that lowers
its score most, and parents are dropped again where that lowers it (grow and shrink). An order is improved by taking out
one variable and putting it where the sum of all scores is least, until no variable has a better place. Where descents
over DAGs end in graphs that no single edge improves, such a move turns many edges at once.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedbnsl.sparse import Index, Mask
from fedbnsl_server.search.families import Families
from fedbnsl_server.search.hill_climb import Loss

# A move must lower the score by more than this share of an edge's penalty.
_LEAST_GAIN = 1e-6

_Family = tuple[float, tuple[int, ...]]
"""What a child adds to the score, and its parents."""


class _Parents:
    """The best parents of each child among those that come before it; each question is answered once."""

    def __init__(self, families: Families, loss: Loss, required: Mask, penalty: float) -> None:
        self._families, self._loss, self._penalty = families, loss, penalty
        self._required = [frozenset(np.flatnonzero(column).tolist()) for column in required.T]
        self.candidates = [frozenset(column.tolist()) for column in families.candidates]
        self._known: dict[tuple[int, frozenset[int]], _Family] = {}

    def among(self, j: int, before: frozenset[int]) -> _Family:
        """Grow and shrink; infinite where a required parent does not come before."""
        before = before & self.candidates[j]
        found = self._known.get((j, before))
        if found is None:
            self._known[j, before] = found = self._grow_and_shrink(j, before)
        return found

    def _grow_and_shrink(self, j: int, before: frozenset[int]) -> _Family:
        required = self._required[j]
        if not required <= before:
            return math.inf, ()
        candidates, size = self._families.candidates[j], int(self._families.sizes[j])
        costs = self._penalty * self._families.sizes[candidates] * size
        movable = np.array([int(k) in before and int(k) not in required for k in candidates], dtype=bool)
        parents = np.array(sorted(required), dtype=np.int64)
        while True:
            now, toggled = self._families.toggled(j, parents)
            score = float(self._loss(now)) * size
            if not movable.any():
                break
            present = np.isin(candidates, parents)
            change = self._loss(toggled) * size - score + np.where(present, -costs, costs)
            k = int(np.argmin(np.where(movable, change, np.inf)))
            if not change[k] < -_LEAST_GAIN * self._penalty:
                break
            parents = np.array(sorted({*parents.tolist()} ^ {int(candidates[k])}), dtype=np.int64)
        cost = self._penalty * size * int(self._families.sizes[parents].sum())
        return score + cost, tuple(parents.tolist())


def best_orders(
    families: Families, loss: Loss, starts: Sequence[Sequence[int]], *, required: Mask, penalty: float
) -> list[Mask]:
    """A DAG of candidates for each start, from the best order that moves of single variables lead to.

    Parameters
    ----------
    loss
        What residual variances add to the score, for each column of a child.
    starts
        Orders of the V variables to start from; each may lead to another best one.
    required
        (V, V) edges that the DAG must have.
    penalty
        What an edge adds to the score, for each pair of a column of one end and one of the other.
    """
    parents = _Parents(families, loss, required, penalty)
    return [_improved(parents, _obeying(start, required), _LEAST_GAIN * penalty) for start in starts]


def _obeying(order: Sequence[int], required: Mask) -> list[int]:
    """The order, with each variable behind its required parents."""
    left, found = list(order), list[int]()
    while left:
        first = next(j for j in left if not required[left, j].any())
        left.remove(first)
        found.append(first)
    return found


def _improved(parents: _Parents, order: list[int], least: float) -> Mask:
    """The DAG of the best order that moves lead to from this one."""
    improved = True
    while improved:
        improved = False
        for v in range(len(order)):
            moved = _with_best_place(parents, order, v, least)
            improved = improved or moved != order
            order = moved
    dag = np.zeros((len(order), len(order)), dtype=bool)
    for place, j in enumerate(order):
        found: Index = np.array(parents.among(j, frozenset(order[:place]))[1], dtype=np.int64)
        dag[found, j] = True
    return dag


def _with_best_place(parents: _Parents, order: list[int], v: int, least: float) -> list[int]:
    """The order with v where the sum of the scores is least; as it was unless another place is better."""
    others = [u for u in order if u != v]
    # What each other variable adds if v does not come before it, and if it does; v itself, at each place.
    without, after, own = list[float](), list[float](), list[float]()
    before: frozenset[int] = frozenset()
    for u in others:
        own.append(parents.among(v, before)[0])
        without.append(parents.among(u, before)[0])
        after.append(parents.among(u, before | {v})[0] if v in parents.candidates[u] else without[-1])
        before = before | {u}
    own.append(parents.among(v, before)[0])
    totals = np.array(own) + np.cumsum([0.0, *without]) + np.cumsum([0.0, *after[::-1]])[::-1]
    present, best = order.index(v), int(np.argmin(totals))
    if not totals[best] < totals[present] - least:
        return order
    return [*others[:best], v, *others[best:]]
