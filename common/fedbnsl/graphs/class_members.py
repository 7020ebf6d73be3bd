"""The DAGs of a class: one of them, all of them, and the parents that a variable has in some of them.

A class is given by its marks, as `cpdag` writes them. Where these are closed under Meek's rules 1 to 4, as all marks of
`cpdag.class_of` are, either direction of an undirected edge is that of some member (Meek 1995). So members are found by
directing one edge after the other, with what follows from each, and no branch ends without a member.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.graph import is_acyclic, topological_order
from fedbnsl.graphs.meek import PartlyDirected, bits, numbers_of, rows_of
from fedbnsl.protocol.sparse import Mask


def consistent_extension(marks: Mask) -> Mask:
    """(d, d) a DAG with the directed edges, the adjacent pairs and the v-structures of the (d, d) marks, no others.

    The algorithm of Dor and Tarsi (1992): take a node off that can be the last one, again and again. The marks need not
    be closed under Meek's rules. Of several such nodes the last one is taken, so that the result is determined. Raises
    ValueError if there is no such DAG.
    """
    graph = PartlyDirected(marks)
    adjacent, left = graph.adjacent.copy(), (1 << len(marks)) - 1
    dag = marks & ~marks.T
    while left:
        for x in reversed(list(bits(left))):
            near = adjacent[x] & left
            # x can be last if no edge leaves it, and if directing y -> x for its undirected y makes no v-structure.
            if not graph.children[x] & left and all(
                not near & ~(adjacent[y] | 1 << y) for y in bits(graph.undirected[x] & left)
            ):
                dag[list(bits(graph.undirected[x] & left)), x] = True
                left &= ~(1 << x)
                break
        else:
            raise ValueError("no directed acyclic graph has these directed edges and no other v-structures")
    return dag


def as_named(named: Mask, marks: Mask) -> Mask:
    """(d, d) `named` if it is one of the DAGs that the marks stand for, otherwise their `consistent_extension`."""
    other = consistent_extension(marks)
    return named if is_acyclic(named) and (cpdag(named) == cpdag(other)).all() else other


def directed_at(marks: Mask, nodes: Sequence[int]) -> Iterator[Mask]:
    """(d, d) marks of all ways to direct the edges at some nodes, with what follows: together all of the class.

    At all nodes these are the DAGs of the class, each once; there may be more than anybody can wait for.
    """
    for graph in _directions(PartlyDirected(marks), nodes):
        yield graph.marks()


def parent_sets(marks: Mask, node: int, *, most: int) -> list[list[int]] | None:
    """The sets of parents that a node has in the members of a class, each ascending, the smallest sets first.

    None if there are more than `most`: a node in a large undirected clique has very many.
    """
    ways = _directions(PartlyDirected(marks), [node])
    sets = [graph.parents[node] for graph in islice(ways, most + 1)]
    if len(sets) > most:
        return None
    return sorted((list(bits(parents)) for parents in sets), key=lambda found: (len(found), found))


def _directions(graph: PartlyDirected, nodes: Sequence[int]) -> Iterator[PartlyDirected]:
    """All ways to direct the edges at these nodes, each with what follows."""
    open_edge = next(((i, j) for i in nodes for j in bits(graph.undirected[i])), None)
    if open_edge is None:
        yield graph
        return
    i, j = open_edge
    for edge in ((i, j), (j, i)):
        further = graph.copy()
        further.direct([edge])
        yield from _directions(further, nodes)


def arrows_lead(marks: Mask) -> Mask:
    """(d, d) [i, j]: a path of directed edges leads from i to j; in every DAG of a class with these marks, then."""
    arrows = marks & ~marks.T
    reached = numbers_of(arrows)
    for i in reversed(topological_order(arrows)):
        for j in bits(reached[i]):
            reached[i] |= reached[j]
    return rows_of(reached)


def descendants(dag: Mask, node: int) -> Mask:
    """(d,) nodes that a directed path leads to from this one; not the node itself."""
    reached = np.zeros(len(dag), dtype=bool)
    waiting = [node]
    while waiting:
        new = dag[waiting.pop()] & ~reached
        reached |= new
        waiting += np.flatnonzero(new).tolist()
    return reached
