"""Directions of edges that a class leaves open, told by something other than which variables are independent.

All members of a class explain pooled moments equally well. Where sites differ in some mechanisms, or noise is not
Gaussian, they do not explain the rest equally well, and an edge that the class leaves open gets a direction. Each
source gives a list of `Direction`; `directed` puts them together by one rule:

    An arrow is given to an open edge alone, and what follows from it by Meek's rules is told by the same source.
    Between edges that undirected paths join, sources must agree, in what they say and in what follows from it. Where
    they do not, none of them directs any of these edges: a hidden cause or a curve is then as likely as either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from fedbnsl.graphs.directed_by import Source
from fedbnsl.graphs.graph import Edge
from fedbnsl.graphs.meek import ContradictionError, PartlyDirected, bits
from fedbnsl.protocol.sparse import Mask


@dataclass(frozen=True, eq=False)
class Direction:
    """That one variable acts on another, as one source says."""

    source: str
    target: str
    by: Source
    # Numbers and names, as result.json tells them: `log_likelihood`, `sites`, ...; see `result_schema.Evidence`.
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, eq=False)
class Directed:
    """A class with the directions that sources have told."""

    marks: Mask  # (V, V) closed under Meek's rules
    by: Mapping[Edge, Source]  # of each edge that was open before and has a direction now, as i -> j
    evidence: Mapping[Edge, Mapping[str, Any]]  # of those that a source names itself; others follow from them
    contradicted: tuple[tuple[Direction, ...], ...]  # what sources say of edges that they do not agree about


def directed(marks: Mask, variables: Sequence[str], told: Sequence[Direction]) -> Directed:
    """The class with the (V, V) marks, and the directions that are told of its open edges.

    Parameters
    ----------
    marks
        Closed under Meek's rules.
    told
        What is said of edges that are not open there, or between variables that are not there, counts for nothing.
    """
    place = {name: k for k, name in enumerate(variables)}
    component = components(marks & marks.T)
    by_component: dict[int, list[tuple[Edge, Direction]]] = {}
    for source in get_args(Source):
        for one in told:
            i, j = place.get(one.source, -1), place.get(one.target, -1)
            if one.by == source and min(i, j) >= 0 and marks[i, j] and marks[j, i]:
                by_component.setdefault(component[i], []).append(((i, j), one))
    graph, by = PartlyDirected(marks), dict[Edge, Source]()
    evidence: dict[Edge, Mapping[str, Any]] = {}
    contradicted: list[tuple[Direction, ...]] = []
    for said in by_component.values():
        found = graph.copy()
        follows: dict[Edge, Source] = {}
        try:
            for edge, one in said:
                before = found.marks()
                # One by one: given together, two arrows would be taken for a v-structure that the class has not.
                found.direct([edge])
                new = np.argwhere(before & before.T & ~found.marks().T)
                follows |= {(int(i), int(j)): one.by for i, j in new}
        except ContradictionError:
            contradicted.append(tuple(one for _, one in said))
            continue
        graph = found
        by |= follows
        for edge, one in said:
            evidence.setdefault(edge, one.evidence)
    return Directed(graph.marks(), by, evidence, tuple(contradicted))


def components(undirected: Mask) -> list[int]:
    """By node, the first of those that undirected paths join it to."""
    near, found = PartlyDirected(undirected).undirected, [-1] * len(undirected)
    for start in range(len(undirected)):
        waiting = [start] if found[start] < 0 else []
        while waiting:
            node = waiting.pop()
            if found[node] < 0:
                found[node] = start
                waiting += bits(near[node])
    return found
