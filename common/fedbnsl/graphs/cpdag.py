"""From a DAG to its Markov equivalence class: which edges have the same direction in every DAG of the class.

Two DAGs are equivalent if they have the same adjacent pairs and the same v-structures a -> c <- b with a and b not
adjacent (Verma and Pearl 1990). A class is written as its marks: a boolean (d, d) array, with both [i, j] and [j, i]
true where some DAGs of the class have i -> j and others j -> i. Of all equivalent DAGs this is the CPDAG. Of those that
also keep what is known beforehand (edges that are required or not allowed) it is a maximally directed PDAG, MPDAG.
"""

import numpy as np

from fedbnsl.graphs.meek import PartlyDirected, bits
from fedbnsl.protocol.sparse import Mask


def cpdag(dag: Mask, unknown: Mask | None = None) -> Mask:
    """(d, d) CPDAG of a (d, d) DAG: its skeleton, its v-structures, and what Meek's rules 1 to 3 direct from them.

    `unknown`: (d, d) symmetric, pairs of which nobody knows whether they are adjacent: no direction rests on them.
    """
    return _class(dag, unknown).marks()


def class_of(dag: Mask, allowed: Mask, required: Mask, unknown: Mask | None = None) -> Mask:
    """(d, d) class of a DAG among those that keep knowledge: the CPDAG, what knowledge directs, and what follows.

    A DAG of the class must have the (d, d) required edges, and may have the (d, d) allowed ones; ValueError otherwise.
    """
    if (dag & ~allowed).any() or (required & ~dag).any():
        raise ValueError("the DAG does not keep the knowledge of its class: an edge is not allowed, or lacks")
    found = _class(dag, unknown)
    undirected = dag & found.marks().T
    directed: list[list[int]] = np.argwhere(undirected & (required | ~allowed.T)).tolist()
    found.direct((i, j) for i, j in directed)
    return found.marks()


def _class(dag: Mask, unknown: Mask | None) -> PartlyDirected:
    """The CPDAG of a DAG, as a graph that can get further directions."""
    found = PartlyDirected(dag | dag.T, unknown)
    parents = PartlyDirected(dag).parents
    of_v_structures = [
        (a, c) for c, all_of_c in enumerate(parents) for a in bits(all_of_c)
        if all_of_c & ~found.perhaps[a] & ~(1 << a)
    ]  # fmt: skip
    found.direct(of_v_structures)
    return found


def class_distance(one: Mask, other: Mask) -> int:
    """Pairs of variables whose mark differs between two CPDAGs: not adjacent, undirected, or one of two directions."""
    different = (one != other) | (one.T != other.T)
    return int(np.count_nonzero(np.triu(different, k=1)))
