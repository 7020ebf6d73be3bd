"""Which families (a child and some parents) a search considers, and which second moments it needs for them.

Both sides compute this from the same graph of neighbours, so the moments are sent without an index.
"""

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix

FEW_COLUMNS = 300
"""So many columns have few moments in all (180 kB in float32): a later search has all of them, and loses no edge that
the rounds before it have not seen."""

# Ordered pairs that knowledge keeps apart; of more, none is asked for.
_MOST_APART = 60 * 59


def parent_candidates(neighbours: Mask, mask: EdgeMask) -> Mask:
    """(V, V) edges between variables that a search may use: either direction of neighbours, where knowledge allows it.

    Two variables are neighbours if any of their columns are, by (d, d) pairs.
    """
    near, between = mask.columns.joined(neighbours | neighbours.T), mask.of_variables
    return (near & between.allowed) | between.required


def within_two_steps(edges: Mask) -> Mask:
    """(d, d) pairs i < j that an edge joins, or a path of two edges, whatever their directions; of few columns all."""
    step = edges | edges.T
    return np.triu(step | _together(step) | (len(edges) <= FEW_COLUMNS), k=1)


def _together(groups: Mask) -> Mask:
    """(d, d) pairs i, j that are both in some group k, [i, k]; the work follows the squares of the groups' sizes."""
    pairs = np.zeros_like(groups)
    for group in np.ascontiguousarray(groups.T):
        members = np.flatnonzero(group)
        pairs[np.ix_(members, members)] = True
    return pairs


def needed_moments(candidates: Mask, columns: Columns | None = None) -> Mask:
    """(d, d) upper triangle, diagonal included: pairs of a child and a candidate parent, or of two candidates.

    The candidates are (V, V) edges; each pair stands for all pairs of the variables' columns (None: one each).
    """
    pairs = _together(candidates | np.eye(len(candidates), dtype=bool))  # a child's family is its parents and itself
    if columns is not None:
        pairs = pairs[np.ix_(columns.variable_of, columns.variable_of)]
    return np.triu(pairs)


def asked_moments(neighbours: Mask, mask: EdgeMask) -> Mask:
    """(d, d) upper triangle: what a search among neighbours needs, also one without what is known beforehand.

    That tells whether the tables contradict the knowledge. No pair is asked for that a run without it would not ask
    for, but those that `forbidden_pairs` adds to the neighbours.
    """
    near = mask.columns.joined(neighbours) | mask.of_variables.required
    near = near | near.T
    return needed_moments(near & ~np.eye(len(near), dtype=bool), mask.columns)


def forbidden_pairs(mask: EdgeMask) -> Mask:
    """(d, d) pairs i < j of columns whose variables knowledge keeps apart; none where these are very many."""
    apart = ~(mask.of_variables.allowed | mask.of_variables.allowed.T)
    np.fill_diagonal(apart, False)
    if apart.sum() > _MOST_APART:
        apart[:] = False
    return np.triu(mask.columns.spread(apart), k=1)


def symmetric(values: Matrix, needed: Mask) -> Matrix:
    """(d, d) symmetric matrix of the needed moments, which come row by row; NaN where one is not needed."""
    moments = np.full(needed.shape, np.nan)
    moments[needed] = values
    return np.where(needed, moments, moments.T)
