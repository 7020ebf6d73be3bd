"""Maximal ancestral graphs (MAGs) of a partial ancestral graph: marks without circles, tail and arrowhead alone.

A PAG that was learned need not be that of any graph. It is, if the MAG that follows from it by turning circles into
tails has the same PAG (Zhang 2008, theorem 2).
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead, consistent_extension
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Known, Marks, PartialAncestralGraph, Triple
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.inference.hidden_causes import Mixed


def of_dag(dag: Mask, n_observed: int) -> Marks:
    """(k, k) the MAG of a DAG of which the first k nodes are observed, and the others hidden.

    Two nodes are linked if no observed ones separate them; else their observed ancestors do (Richardson and Spirtes
    2002, theorem 4.2).
    """
    leads, of_all = arrows_lead(dag), np.full(dag.shape, NONE, dtype=np.int8)
    of_all[dag], of_all[dag.T] = ARROW, TAIL
    graph, observed = Mixed.of_marks(of_all), (1 << n_observed) - 1
    found = np.full((n_observed, n_observed), NONE, dtype=np.int8)
    for a, b in combinations(range(n_observed), 2):
        ends = 1 << a | 1 << b
        if graph.reached(a, graph.ancestors(ends) & observed & ~ends) >> b & 1:
            found[a, b] = TAIL if leads[b, a] else ARROW
            found[b, a] = TAIL if leads[a, b] else ARROW
    return found


def mag_of(marks: Marks) -> Marks | None:
    """(V, V) marks of one MAG that a PAG stands for: o-> becomes -->, and o-o those of a DAG without new v-structures.

    None if there is no such DAG.
    """
    found, circles = marks.copy(), marks == CIRCLE
    try:
        dag = consistent_extension(circles & circles.T)
    except ValueError:
        return None
    found[circles & (marks.T == ARROW)] = TAIL
    found[dag], found[dag.T] = ARROW, TAIL
    return found


def is_mag(marks: Marks) -> bool:
    """Whether marks without circles are those of a maximal ancestral graph."""
    graph = Mixed.of_marks(marks)
    if not is_acyclic((marks == ARROW) & (marks.T == TAIL)):
        return False
    if any(graph.ancestors(1 << i) & ~(1 << i) & graph.spouses[i] for i in range(len(marks))):
        return False
    # Only a path of two-headed edges in its middle can join two nodes whatever is given.
    near = np.flatnonzero((np.array(graph.spouses, dtype=object) != 0) | _next_to_spouses(marks, graph)).tolist()
    return all(
        marks[a, c] or not graph.reached(a, graph.ancestors(1 << a | 1 << c) & ~(1 << a | 1 << c)) >> c & 1
        for a, c in combinations(near, 2)
    )


def _next_to_spouses(marks: Marks, graph: Mixed) -> np.ndarray:
    headed = np.array([bool(one) for one in graph.spouses], dtype=bool)
    return np.asarray(((marks == ARROW) & headed).any(axis=1))


def pag_of(mag: Marks, known: Known) -> Marks:
    """(V, V) the PAG of a MAG, with what is known of causes beforehand."""
    graph = Mixed.of_marks(mag)

    def separates(a: int, b: int, c: int) -> bool:
        return bool(graph.ancestors(1 << a | 1 << c) >> b & 1)

    def colliders() -> Iterator[Triple]:
        for b in range(len(mag)):
            for a, c in combinations(np.flatnonzero(mag[:, b] == ARROW).tolist(), 2):
                if mag[a, c] == NONE:
                    yield a, b, c

    return PartialAncestralGraph(mag != NONE, colliders(), separates, known).with_tails()


def is_legal(marks: Marks, known: Known) -> bool:
    """Whether marks are the PAG of some MAG, with what is known of causes beforehand."""
    mag = mag_of(marks)
    return mag is not None and is_mag(mag) and bool((pag_of(mag, known) == marks).all())
