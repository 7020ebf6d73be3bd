"""From a DAG to its Markov equivalence class: which edges have the same direction in every DAG of the class.

Two DAGs are equivalent if they have the same adjacent pairs and the same v-structures a -> c <- b with a and b not
adjacent (Verma and Pearl 1990). A class is written as a CPDAG: a boolean (d, d) array, with both [i, j] and [j, i] true
where some DAGs of the class have i -> j and others j -> i.
"""

import numpy as np

from fedbnsl.sparse import Mask


def cpdag(dag: Mask) -> Mask:
    """(d, d) CPDAG of a (d, d) DAG: its skeleton, its v-structures, and what Meek's rules 1 to 3 direct from them."""
    return closed_under_meek(_pattern(dag))


def _pattern(dag: Mask) -> Mask:
    """The skeleton, directed only where an edge is part of a v-structure."""
    adjacent = dag | dag.T
    pattern = adjacent.copy()
    for c in range(len(dag)):
        parents = np.flatnonzero(dag[:, c])
        apart = ~adjacent[np.ix_(parents, parents)]
        np.fill_diagonal(apart, False)
        pattern[c, parents[apart.any(axis=1)]] = False
    return pattern


def closed_under_meek(graph: Mask) -> Mask:
    """Direct every edge of a (d, d) pattern whose other direction would give a cycle or a new v-structure.

    Meek's rules 1 to 3 (1995), until none applies. With background knowledge his rule 4 would be needed as well.
    """
    graph = graph.copy()
    while True:
        directed, adjacent = graph & ~graph.T, graph | graph.T
        undirected = graph & graph.T
        apart = ~adjacent
        np.fill_diagonal(apart, False)
        # Rule 1: a -> b - c, a and c not adjacent, gives b -> c.
        found = undirected & _product(directed.T, apart)
        # Rule 2: a -> b -> c and a - c gives a -> c.
        found |= undirected & _product(directed, directed)
        # Rule 3: a - b -> d, a - c -> d, b and c not adjacent, and a - d gives a -> d.
        for a, d in np.argwhere(undirected & ~found):
            between = np.flatnonzero(undirected[a] & directed[:, d])
            found[a, d] = apart[np.ix_(between, between)].any()
        if not found.any():
            return graph
        graph &= ~found.T


def _product(A: Mask, B: Mask) -> Mask:
    """(A B)[i, j]: whether any k has A[i, k] and B[k, j]."""
    return np.asarray(A.astype(np.float32) @ B.astype(np.float32) > 0)


def class_distance(one: Mask, other: Mask) -> int:
    """Pairs of variables whose mark differs between two CPDAGs: not adjacent, undirected, or one of two directions."""
    different = (one != other) | (one.T != other.T)
    return int(np.count_nonzero(np.triu(different, k=1)))
