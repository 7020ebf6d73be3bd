"""The structural intervention distance (Peters and Buehlmann 2015): how many questions on effects a graph gets wrong.

For every ordered pair (i, j) the estimated DAG says how to get the distribution of j under an intervention on i from
data: adjust for the estimated parents of i, or, where j is one of them, do not expect an effect. SID(estimate,
reference) counts the pairs for which that is wrong in some distribution of the reference DAG. With Z the estimated
parents of i, a pair is wrong if and only if, as the paper shows,

- j is in Z, and a descendant of i in the reference; or
- j is not in Z, and Z holds a descendant of a node other than i on a directed path from i to j; or
- j is not in Z, and Z leaves a path from i to j open, other than the directed ones, all in the reference.

Unlike the SHD it is not symmetric. A complete DAG along an order of the reference, which claims the fewest absent
effects, has distance 0.
"""

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.protocol.sparse import Index, Mask


def sid(estimate: Mask, reference: Mask) -> int | None:
    """Ordered pairs, 0 to d (d - 1), of (d, d) graphs over the same variables; None if either has a cycle."""
    if not is_acyclic(estimate) or not is_acyclic(reference):
        return None
    return int(wrong_effects(estimate.T, reference).sum())


def wrong_effects(Z: Mask, reference: Mask) -> Index:
    """(d,) for how many j the effect of each i is wrong if i is adjusted for Z[i], in a (d, d) reference DAG.

    Row i of (d, d) Z has the estimated parents of i; nothing else of the estimated graph counts.
    """
    itself = np.eye(len(reference), dtype=bool)
    # Row i is about the intervention on i throughout. reaches[i, j]: j is i or a descendant of i.
    reaches = arrows_lead(reference) | itself
    above_Z = _joined(Z, reaches.T)
    on_the_way = reaches & ~itself & above_Z
    misadjusted = _joined(on_the_way, reaches) | _open_paths(reference, Z, above_Z)
    return np.asarray((np.where(Z, reaches, misadjusted) & ~itself).sum(axis=1), dtype=np.int64)


def _joined(first: Mask, second: Mask) -> Mask:
    """Boolean product: [i, j] if some k has first[i, k] and second[k, j]."""
    counts = first.astype(np.float32) @ second.astype(np.float32)  # at most d: exact
    return np.asarray(counts > 0)


def _open_paths(edges: Mask, Z: Mask, above_Z: Mask) -> Mask:
    """(d, d) [i, j] if the set Z[i] leaves a path from i to j open that is not directed from i to j.

    Walks from every i at once, an edge a turn, that do not come back to i. A node is passed unless it is in Z; between
    two of its parents, if it is in Z or above a node of Z. A walk may repeat nodes: where what is left without the
    detour is a directed path, the detour went down to Z from a node on it, and the pair is wrong in any case.
    """
    elsewhere = ~np.eye(len(edges), dtype=bool)
    # Reached by walks that only followed arrows; by other walks, along a last arrow; and against a last arrow.
    directed, along, against = edges, np.zeros_like(edges), edges.T
    while True:
        further = edges | _joined(directed & ~Z, edges)
        next_along = _joined((along | against) & ~Z, edges) & elsewhere
        turned = (against & ~Z) | ((along | directed) & above_Z)
        next_against = edges.T | (_joined(turned, edges.T) & elsewhere)
        if all(map(np.array_equal, (further, next_along, next_against), (directed, along, against))):
            return np.asarray(along | against)
        directed, along, against = further, next_along, next_against
