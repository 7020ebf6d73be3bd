"""Steepest descent over DAGs: add, drop or turn the edge that lowers the score most, until none lowers it."""

from collections.abc import Callable, Sequence, Set

import numpy as np

from fedbnsl.sparse import Index, Mask, Matrix
from fedbnsl_server.search.families import Families

Loss = Callable[[Matrix], Matrix]
"""Maps residual variances (P, ...) to (...): what a column of a child adds to the score, apart from its edges."""

# A move must lower the score by more than this share of an edge's penalty.
_LEAST_GAIN = 1e-6


def descend(families: Families, dag: Mask, loss: Loss, *, required: Mask, penalty: float) -> Mask:
    """A DAG of candidates that no single move improves.

    Parameters
    ----------
    dag
        (d, d) start: candidates alone, all required edges among them.
    loss
        What the residual variances add to the score.
    required
        (d, d) edges that stay as they are.
    penalty
        What an edge adds to the score, for each pair of a column of one end and one of the other.

    Returns
    -------
    dag
        (d, d) new array; its score is at most that of the start.
    """
    dag = dag.copy()
    children: list[set[int]] = [set(np.flatnonzero(row).tolist()) for row in dag]
    moves = _Moves(families, dag, loss, required, penalty)
    sizes = families.sizes
    share = loss(families.residual_variances(dag)) * sizes  # (V,)
    least = _LEAST_GAIN * penalty
    while True:
        toggle, turn = moves.changes(dag)
        change = np.concatenate([toggle, turn])
        for move in np.argsort(change):
            if change[move] > -least:
                return dag
            is_turn, k = divmod(int(move), len(toggle))
            i, j = int(moves.source[k]), int(moves.child[k])
            before = dag[i, j], dag[j, i]
            if not _make(children, i, j, turn=bool(is_turn)):
                continue
            dag[i, j], dag[j, i] = j in children[i], i in children[j]
            changed = [j, i] if is_turn else [j]
            after = [float(loss(families.residual_variance(c, np.flatnonzero(dag[:, c]))) * sizes[c]) for c in changed]
            edges = penalty * int(sizes[i] * sizes[j]) * (int(dag[i, j]) + int(dag[j, i]) - sum(before))
            # For a variance near rounding error the predicted gain may not be real. Check the actual gain of every
            # move, so that the search terminates.
            if sum(after) - share[changed].sum() + edges > -least:
                dag[i, j], dag[j, i] = before
                _set(children, i, j, edge=bool(before[0]))
                _set(children, j, i, edge=bool(before[1]))
                continue
            share[changed] = after
            for c in changed:
                moves.renew(c, dag)
            break
        else:
            return dag


def _set(children: list[set[int]], i: int, j: int, *, edge: bool) -> None:
    if edge:
        children[i].add(j)
    else:
        children[i].discard(j)


def _make(children: list[set[int]], i: int, j: int, *, turn: bool) -> bool:
    """Change the edge i -> j, unless that closes a cycle; returns whether it did."""
    if j not in children[i]:
        legal = not leads(children, j, i)
        if legal:
            children[i].add(j)
        return legal
    children[i].remove(j)
    if turn and leads(children, i, j):
        children[i].add(j)
        return False
    if turn:
        children[j].add(i)
    return True


class _Moves:
    """What adding or dropping each candidate edge would change.

    Attributes
    ----------
    source, child
        (m,) ends of the candidate edges.
    """

    def __init__(self, families: Families, dag: Mask, loss: Loss, required: Mask, penalty: float) -> None:
        d = len(dag)
        self._families, self._loss, self._penalty = families, loss, penalty
        sizes = [len(parents) for parents in families.candidates]
        self._end = np.cumsum([0, *sizes])
        self.source: Index = np.concatenate(families.candidates)
        self.child: Index = np.repeat(np.arange(d), sizes)
        self._fixed = required[self.source, self.child]
        # Where j -> i stands among the candidates, for each i -> j; -1 where it is none.
        place = {edge: k for k, edge in enumerate(zip(self.source.tolist(), self.child.tolist(), strict=True))}
        self._turned = np.array([place.get((j, i), -1) for i, j in place], dtype=np.int64)
        self._change: Matrix = np.empty(len(self.source))
        for j in range(d):
            self.renew(j, dag)

    def renew(self, j: int, dag: Mask) -> None:
        """Recompute what concerns a child, after its parents changed."""
        parents = np.flatnonzero(dag[:, j])
        before, after = self._families.toggled(j, parents)
        candidates, sizes = self._families.candidates[j], self._families.sizes
        edge = np.where(dag[candidates, j], -self._penalty, self._penalty) * sizes[candidates] * sizes[j]
        self._change[self._end[j] : self._end[j + 1]] = (self._loss(after) - self._loss(before)) * sizes[j] + edge

    def changes(self, dag: Mask) -> tuple[Matrix, Matrix]:
        """(m,) change of the score by adding or dropping each candidate edge, and (m,) by turning it.

        Infinite where there is no such move; the only cycle checked here is that of an edge and its reverse.
        """
        present, turnable = dag[self.source, self.child], self._turned >= 0
        closes = turnable & present[self._turned]
        toggle = np.where(self._fixed | closes, np.inf, self._change)
        turn = np.where(turnable & present & ~self._fixed, self._change + self._change[self._turned], np.inf)
        return toggle, turn


def leads(children: Sequence[Set[int]], i: int, j: int) -> bool:
    """Whether there is a directed path from i to j."""
    seen, ahead = {i}, [i]
    while ahead:
        k = ahead.pop()
        if k == j:
            return True
        new = children[k] - seen
        seen |= new
        ahead += new
    return False
