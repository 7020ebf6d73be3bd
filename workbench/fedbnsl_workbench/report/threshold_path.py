"""The graphs that lie in one matrix of weights: one for each threshold, all acyclic."""

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix


def acyclic_edges(W: Matrix, tau: float = 0.0) -> Mask:
    """Edges of W above tau that stay when cycles are broken at their weakest edge.

    An edge is dropped if a path of stronger edges leads back from its target to its source. This does not depend on
    the threshold: the edges of this graph above a higher tau are the graph of that tau. It equals
    `extract_dag(threshold(W, tau), W)[0]`, which a test checks.
    """
    d = W.shape[0]
    strength = np.abs(W)
    flat = np.flatnonzero(strength > tau)
    # Of equal weights the one with the lower index is dropped first: it counts as the weaker.
    order = flat[np.lexsort((-flat, -strength.flat[flat]))]
    reach = np.eye(d, dtype=bool)
    kept = np.zeros((d, d), dtype=bool)
    for i, j in zip(*np.divmod(order, d), strict=True):
        kept[i, j] = not reach[j, i]
        if not reach[i, j]:
            reach |= np.outer(reach[:, i], reach[j])
    return kept
