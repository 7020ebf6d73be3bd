"""How near the class of a learned graph is to the class of a reference graph.

With unequal noise variances the data tell a DAG's Markov equivalence class, not the DAG, so the classes are compared:
pairs of variables whose mark (no edge, undirected, one of two directions) differs, and adjacent pairs. Both classes
have the directions that the run's knowledge gives. The SID is an interval, its least and its largest value over the
members of the learned class.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from fedbnsl.graphs.class_members import directed_at, parent_sets
from fedbnsl.graphs.cpdag import class_distance, class_of
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.protocol.sparse import Mask
from fedbnsl_workbench.scoring.metrics import random_dag, score
from fedbnsl_workbench.scoring.structural_intervention import wrong_effects

# Ways to direct a connected part of the class that are looked at, before the interval of the SID is bounded instead;
# and sets of parents of one variable, before there is no interval.
_MOST_DIRECTIONS = 2_000


@dataclass(frozen=True)
class ClassScores:
    """The class of a graph against the class of a reference; ratios are in [0, 1], None without a denominator."""

    shd: int  # pairs of variables whose mark differs
    # Edges of the graph's class, and of the reference's.
    n_directed: int
    n_undirected: int
    n_reference_directed: int
    n_reference_undirected: int
    # Of adjacent pairs.
    skeleton_precision: float | None
    skeleton_recall: float | None
    skeleton_f1: float | None

    def as_dict(self) -> dict[str, float | None]:
        """Every score by name; ready for JSON."""
        return asdict(self)


def class_scores(estimate: Mask, reference: Mask) -> ClassScores:
    """Compare two (d, d) classes over the same variables."""
    # A pair counts once in these ratios, whatever its mark: each is given the direction of the upper triangle.
    skeletons = score(np.triu(estimate | estimate.T), np.triu(reference | reference.T))
    directed, undirected = _counted(estimate)
    reference_directed, reference_undirected = _counted(reference)
    return ClassScores(
        shd=class_distance(estimate, reference),
        n_directed=directed,
        n_undirected=undirected,
        n_reference_directed=reference_directed,
        n_reference_undirected=reference_undirected,
        skeleton_precision=skeletons.skeleton_precision,
        skeleton_recall=skeletons.skeleton_recall,
        skeleton_f1=skeletons.skeleton_f1,
    )


def _counted(marks: Mask) -> tuple[int, int]:
    undirected = int(np.count_nonzero(marks & marks.T)) // 2
    return int(np.count_nonzero(marks)) - 2 * undirected, undirected


@dataclass(frozen=True, eq=False)
class Known:
    """What a run knew of the edges between the variables that are scored: (d, d) allowed and required edges."""

    allowed: Mask
    required: Mask

    @classmethod
    def nothing(cls, n_variables: int) -> Self:
        """Every edge is allowed, none is required."""
        return cls(~np.eye(n_variables, dtype=bool), np.zeros((n_variables, n_variables), dtype=bool))

    def of_common(self, places: Sequence[int]) -> Self:
        """What was known of the edges between some of the variables."""
        return type(self)(self.allowed[np.ix_(places, places)], self.required[np.ix_(places, places)])

    def class_of(self, dag: Mask, directed: Mask | None = None) -> Mask:
        """(d, d) class of a (d, d) DAG with this knowledge, as far as the DAG keeps it: a reference need not.

        Edges of the DAG that are `directed` are known to have their direction anyway; None: no others.
        """
        required = self.required & dag if directed is None else (self.required & dag) | directed
        return class_of(dag, self.allowed | dag, required)


def random_class_shd(reference: Mask, n_edges: int, known: Known, *, n_draws: int) -> dict[str, float]:
    """Mean and standard deviation of the distance between the reference's class and those of random DAGs."""
    rng = np.random.default_rng(0)
    draws = [
        class_distance(known.class_of(random_dag(len(reference), n_edges, rng)), reference) for _ in range(n_draws)
    ]
    return {"mean": float(np.mean(draws)), "std": float(np.std(draws, ddof=1))}


def sid_interval(marks: Mask, reference: Mask) -> tuple[int, int, bool] | None:
    """Least and largest SID of the members of a (d, d) class, and whether both are reached by some member.

    None if the reference DAG has a cycle, or a variable too many sets of parents in the class.

    The SID adds up what each variable's parents get wrong, and edges that no undirected path connects are directed
    independently of each other. So the members of each connected part are looked at by themselves. Where a part has
    too many, each variable takes its best and worst parents, and the interval may be wider than that of the SIDs.
    """
    if not is_acyclic(reference):
        return None
    d = len(marks)
    sets: list[list[list[int]]] = []
    for node in range(d):
        of_node = parent_sets(marks, node, most=_MOST_DIRECTIONS)
        if of_node is None:
            return None
        sets.append(of_node)
    wrong: list[dict[tuple[int, ...], int]] = [{} for _ in range(d)]
    for k in range(max(map(len, sets))):
        # Row i is about the parents of node i alone: one graph of all nodes' k-th sets counts them all at once.
        rows = [k if k < len(of_node) else 0 for of_node in sets]
        parents = np.zeros((d, d), dtype=bool)
        for node, row in enumerate(rows):
            parents[node, sets[node][row]] = True
        for node, count in enumerate(wrong_effects(parents, reference).tolist()):
            wrong[node][tuple(sets[node][rows[node]])] = count
    least = most = 0
    exact = True
    for part in _undirected_parts(marks):
        found = _of_members(marks, part, wrong)
        if found is None:
            exact = False
            found = sum(min(wrong[node].values()) for node in part), sum(max(wrong[node].values()) for node in part)
        least, most = least + found[0], most + found[1]
    return least, most, exact


def _of_members(marks: Mask, part: list[int], wrong: list[dict[tuple[int, ...], int]]) -> tuple[int, int] | None:
    totals: list[int] = []
    for graph in directed_at(marks, part):
        if len(totals) == _MOST_DIRECTIONS:
            return None
        parents = [tuple(np.flatnonzero(graph[:, node]).tolist()) for node in part]
        totals.append(sum(wrong[node][of_node] for node, of_node in zip(part, parents, strict=True)))
    return min(totals), max(totals)


def _undirected_parts(marks: Mask) -> list[list[int]]:
    """Nodes that undirected paths connect; a node without an undirected edge is a part by itself."""
    from scipy.sparse.csgraph import connected_components  # here: it takes longer to load than a report to print

    n_parts, part = connected_components(marks & marks.T, directed=False)
    return [np.flatnonzero(part == k).tolist() for k in range(n_parts)]
