"""From weights to a graph: thresholding, and the largest-weight acyclic part.

A graph is a boolean (d, d) array `edges`, edges[i, j] for i -> j, beside the weights W that rank its edges.
"""

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix

Edge = tuple[int, int]

_MANY_EDGES = 5_000_000  # looked at one by one, along a long path, scipy is faster although it has to be loaded first


def threshold(W: Matrix, tau: float) -> Mask:
    """Edges with |W_ij| > tau."""
    return np.abs(W) > tau


def strong_components(index: Index, n_variables: int) -> Index:
    """(d,) number of each node's strongly connected component; `index` has the flat indices of the graph's edges."""
    # Imported here: it takes longer to load than the rest of a plan.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    graph = csr_array((np.ones(index.size, np.int8), np.divmod(index, n_variables)), (n_variables, n_variables))
    _, component = connected_components(graph, directed=True, connection="strong")
    return np.asarray(component, dtype=np.int64)


def cyclic_edges(edges: Mask) -> Mask:
    """Edges that lie on at least one directed cycle: both ends in one strongly connected component."""
    cyclic = np.zeros_like(edges)
    index = np.flatnonzero(edges)
    if index.size:
        component = strong_components(index, edges.shape[0])
        i, j = np.divmod(index, edges.shape[0])
        cyclic.flat[index[component[i] == component[j]]] = True
    return cyclic


def has_cycle(index: Index, n_variables: int) -> bool:
    """Whether the graph whose edges have these flat indices has a directed cycle; no (d, d) array is made.

    Takes away edges from nodes that no edge leads to, as long as there are any: without scipy, which takes longer to
    load than a site needs for a small run.
    """
    i, j = np.divmod(index, n_variables)
    looked_at = 0
    while i.size:
        looked_at += i.size
        if looked_at > _MANY_EDGES:
            component = strong_components(i * n_variables + j, n_variables)
            return bool((component[i] == component[j]).any())
        stays = np.bincount(j, minlength=n_variables)[i] > 0
        if stays.all():
            return True
        i, j = i[stays], j[stays]
    return False


def is_acyclic(edges: Mask) -> bool:
    """Whether the graph has no directed cycle (a self-loop is one)."""
    return not has_cycle(np.flatnonzero(edges), edges.shape[0])


def extract_dag(edges: Mask, W: Matrix, *, required: Mask | None = None) -> tuple[Mask, list[Edge]]:
    """Drop the weakest edge that lies on a cycle until no cycle is left: the DAG, and what was dropped, weakest first.

    |W| ranks the edges, equal weights by flat index; required edges are never dropped, and a cycle of them is refused.
    """
    d = edges.shape[0]
    fixed = np.zeros_like(edges) if required is None else edges & required
    dag = edges.copy()
    dropped: list[Edge] = []
    # An edge is dropped exactly if it closes a cycle with stronger or required edges, whether these are dropped or not.
    # So one pass from the strongest edge down is enough; `reaches` holds which nodes have a path to which.
    reaches = np.eye(d, dtype=bool)
    index = np.flatnonzero(edges)
    weakest_first = index[np.lexsort((index, np.abs(W).flat[index], fixed.flat[index]))]
    for flat in weakest_first[::-1].tolist():
        i, j = divmod(flat, d)
        if reaches[j, i]:
            if fixed[i, j]:
                raise ValueError("the required edges form a cycle")
            dag[i, j] = False
            dropped.append((i, j))
        if not reaches[i, j]:
            reaches[reaches[:, i] & ~reaches[:, j]] |= reaches[j]
    return dag, dropped[::-1]


def topological_order(dag: Mask) -> list[int]:
    """Nodes so that every edge points forward; raises ValueError for a graph with a cycle."""
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
