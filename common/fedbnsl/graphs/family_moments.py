"""Which families (a child and some parents) a search considers, and which second moments it needs for them.

Both sides compute this from the same graph of neighbours, so the moments are sent without an index.
"""

import numpy as np

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.sparse import Mask, Matrix


def parent_candidates(neighbours: Mask, mask: EdgeMask) -> Mask:
    """(d, d) edges that a search may use: either direction of every neighbour, as far as knowledge allows."""
    return ((neighbours | neighbours.T) & mask.allowed) | mask.required


def needed_moments(candidates: Mask) -> Mask:
    """(d, d) upper triangle, diagonal included: pairs of a child and a candidate parent, or of two candidates."""
    families = (candidates | np.eye(len(candidates), dtype=bool)).astype(np.float32)
    return np.triu(families @ families.T > 0.0)


def chosen_moments(S: Matrix, neighbours: Mask, mask: EdgeMask) -> Matrix:
    """What a site sends of its (d, d) second moments, row by row."""
    return S[needed_moments(parent_candidates(neighbours, mask))]


def symmetric(values: Matrix, needed: Mask) -> Matrix:
    """(d, d) symmetric matrix of `chosen_moments`; NaN where a moment is not needed."""
    moments = np.full(needed.shape, np.nan)
    moments[needed] = values
    return np.where(needed, moments, moments.T)
