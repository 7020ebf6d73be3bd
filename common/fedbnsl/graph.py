"""From weights to a graph: thresholding, and the largest-weight acyclic part.

A graph is a boolean (d, d) array `edges`, edges[i, j] for i -> j, beside the weights W that rank its edges.
"""

import numpy as np
from scipy.sparse.csgraph import connected_components

from fedbnsl.sparse import Mask, Matrix

Edge = tuple[int, int]


def threshold(W: Matrix, tau: float) -> Mask:
    """Edges with |W_ij| > tau."""
    return np.abs(W) > tau


def cyclic_edges(edges: Mask) -> Mask:
    """Edges that lie on at least one directed cycle: both ends in one strongly connected component."""
    _, component = connected_components(edges.astype(np.int8), directed=True, connection="strong")
    same: Mask = component[:, None] == component[None, :]
    return edges & same


def is_acyclic(edges: Mask) -> bool:
    """Whether the graph has no directed cycle (a self-loop is one)."""
    return not cyclic_edges(edges).any()


def extract_dag(edges: Mask, W: Matrix, *, required: Mask | None = None) -> tuple[Mask, list[Edge]]:
    """Drop the weakest edge that lies on a cycle until no cycle is left.

    Parameters
    ----------
    edges
        (d, d) graph.
    W
        (d, d) weights; |W| ranks the edges, equal weights by flat index.
    required
        (d, d) edges that are never dropped; must be acyclic by themselves.

    Returns
    -------
    dag
        (d, d) acyclic subset of `edges`.
    dropped
        The dropped edges (i, j), in the order they were dropped.
    """
    dag = edges.copy()
    dropped: list[Edge] = []
    while True:
        candidates = cyclic_edges(dag)
        if not candidates.any():
            return dag, dropped
        if required is not None:
            candidates &= ~required
        flat = np.flatnonzero(candidates)
        weakest = int(flat[np.argmin(np.abs(W).flat[flat])])
        i, j = divmod(weakest, dag.shape[0])
        dag[i, j] = False
        dropped.append((i, j))


def topological_order(dag: Mask) -> list[int]:
    """Nodes so that every edge points forward.

    Raises
    ------
    ValueError
        If the graph has a cycle.
    """
    parents_left = dag.sum(axis=0)
    order: list[int] = []
    ready = [int(i) for i in np.flatnonzero(parents_left == 0)]
    while ready:
        i = ready.pop(0)
        order.append(i)
        for j in np.flatnonzero(dag[i]):
            parents_left[j] -= 1
            if parents_left[j] == 0:
                ready.append(int(j))
    if len(order) != dag.shape[0]:
        raise ValueError("a graph with a cycle has no topological order")
    return order
