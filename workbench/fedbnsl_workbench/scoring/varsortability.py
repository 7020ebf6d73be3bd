"""How far the order of the variances of a table gives its graph away (Reisach, Seiler and Weichwald 2021)."""

import numpy as np

from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.protocol.sparse import Matrix

# Variances as near as this, relative to the larger, count as equal: rounding must not order standardised data.
_TIE = 1e-9


def varsortability(S: Matrix, W: Matrix) -> float | None:
    """Share of directed paths of the true graph along which the variance grows.

    For every length k = 1 .. d - 1 each pair (i, j) that paths of k edges join counts once: 1 if the variance of j is
    the larger, 1/2 if the two are equal. 1/2 is what chance reaches, 1 what `sortnregress` needs.

    Parameters
    ----------
    S
        (d, d) second moments of centred data.
    W
        (d, d) true weights.

    Returns
    -------
    share
        In [0, 1]; None without edges, and for a graph with a cycle, along which no variance can grow.
    """
    if not is_acyclic(W != 0):
        return None
    edges = (W != 0).astype(np.float64)
    variance = S.diagonal()
    growth = variance[None, :] - variance[:, None]
    tied = np.abs(growth) <= _TIE * np.maximum(variance[None, :], variance[:, None])
    grows = np.where(tied, 0.5, (growth > 0.0).astype(np.float64))
    joined, counted, growing = edges, 0.0, 0.0
    while joined.any():
        counted += float(joined.sum())
        growing += float((grows * joined).sum())
        joined = (joined @ edges > 0).astype(np.float64)
    return growing / counted if counted else None
