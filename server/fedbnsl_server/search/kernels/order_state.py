"""What a search over orders works on: its problem, an order with its graph, and room for work.

Candidate edges are numbered by child, as in `change`.
"""

from typing import NamedTuple, Self

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.kernels.family import Beside, Blocks, Given, Ints, room_for
from fedbnsl_server.search.score import Score


class Problem(NamedTuple):
    """What a search does not change."""

    R: Matrix  # (d, d) moments in units of each column's size; NaN where unknown
    blocks: Blocks  # the columns of the V variables
    # start, source: (V + 1,) where the candidate edges into each variable begin; (m,) sources, ascending
    start: Ints
    source: Ints
    # at, first_at: columns of the sources, edge by edge; (m + 1,) where those of each edge begin
    at: Ints
    first_at: Ints
    # (V,) least eigenvalue of the moments of each variable's columns, less the sum of their variances
    spread: Matrix
    edge: Ints  # (V, V) number of each candidate edge i -> j; -1: there is none
    # required, binds: (m,) edges that must be, and whether there are any
    required: Mask
    binds: bool
    score: Score  # without a prior: what a family must fall by is known before anything is tried
    least: float  # A smaller gain is none
    most: int  # columns that the parents of a variable may have; required ones may have more

    @classmethod
    def of(
        cls, R: Matrix, blocks: Blocks, *, candidates: Mask, required: Mask, score: Score, least: float, most: int
    ) -> Self:
        """From (V, V) edges, the required ones among the candidates."""
        child, source = map(np.ascontiguousarray, np.nonzero(candidates.T))  # else an array of one is of another kind
        edge = np.full(candidates.shape, -1, dtype=np.int64)
        edge[source, child] = np.arange(len(source))
        ends = np.cumsum([0, *candidates.sum(axis=0)]).astype(np.int64)
        sizes = blocks.sizes[source]
        first_at = np.concatenate(([0], np.cumsum(sizes)))
        at = blocks.columns[np.repeat(blocks.first[source] - first_at[:-1], sizes) + np.arange(first_at[-1])]
        spread = np.zeros(len(blocks.sizes))
        for v in np.flatnonzero(blocks.sizes > 1).tolist():
            block = blocks.columns[blocks.first[v] : blocks.first[v] + blocks.sizes[v]]
            moments = np.nan_to_num(R[np.ix_(block, block)])
            spread[v] = np.linalg.eigvalsh(moments)[0] - np.trace(moments)
        must = required[source, child]
        return cls(
            R, blocks, ends, source, at, first_at, spread, edge, must, bool(must.any()), score, float(least), most
        )


class State(NamedTuple):
    """An order and its graph."""

    # order, place: (V,) variables in their order, and the place of each
    order: Ints
    place: Ints
    # parents, n_parents: (m,), (V,): the first `n_parents[j]` from `start[j]` on are the parents of j
    parents: Ints
    n_parents: Ints
    scores: Matrix  # (V,) of the families
    # (m,) whether each candidate, as one more parent, would lower the score of its child, its cost taken off
    gains: Mask

    @classmethod
    def of(cls, order: Ints, n_edges: int) -> Self:
        """With nothing known but the order."""
        V = len(order)
        return cls(
            order=order,
            place=np.argsort(order),
            parents=np.empty(n_edges, np.int64),
            n_parents=np.zeros(V, np.int64),
            scores=np.zeros(V),
            gains=np.zeros(n_edges, np.bool_),
        )


class Room(NamedTuple):
    """Room for work; all of `chosen` is False between calls.

    `left` has what parents leave of one child. `rank` has the place of each variable, also of one that is on its way.
    `stale` has the variables for which a better place may be found, and `changed` those whose family is not that of the
    best graph. `new` are families that a move would bring, `own` and `best_own` those of the variable that moves.
    """

    given: Given
    beside: Beside
    left: Matrix
    inverse: Matrix
    lone: Matrix
    chosen: Mask
    rank: Matrix
    stale: Mask
    changed: Mask
    new: Ints
    n_new: Ints
    new_scores: Matrix
    new_gains: Mask
    own: Ints
    own_gains: Mask
    best_own: Ints
    best_gains: Mask
    places: Ints
    shuffled: Ints

    @classmethod
    def of(cls, V: int, d: int, n_edges: int) -> Self:
        """Room for V variables with d columns and so many candidate edges."""
        return cls(
            given=room_for(d),
            beside=Beside(np.empty(d), np.empty(d), np.empty((d + 1, d))),
            left=np.empty((1, 1)),
            inverse=np.empty(V),
            lone=np.empty(V),
            chosen=np.zeros(V, np.bool_),
            rank=np.empty(V),
            stale=np.ones(V, np.bool_),
            changed=np.ones(V, np.bool_),
            new=np.empty(n_edges, np.int64),
            n_new=np.empty(V, np.int64),
            new_scores=np.empty(V),
            new_gains=np.empty(n_edges, np.bool_),
            own=np.empty(V, np.int64),
            own_gains=np.empty(V, np.bool_),
            best_own=np.empty(V, np.int64),
            best_gains=np.empty(V, np.bool_),
            places=np.empty(V, np.int64),
            shuffled=np.empty(V, np.int64),
        )
