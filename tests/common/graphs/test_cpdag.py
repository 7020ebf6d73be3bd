"""The class of a DAG, against all DAGs of up to four variables and the definition of equivalence."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest

from fedbnsl.graphs.cpdag import class_distance, class_of, cpdag
from fedbnsl.graphs.meek import PartlyDirected


def all_dags(d: int) -> Iterator[np.ndarray]:
    pairs = list(combinations(range(d), 2))
    for marks in product((None, False, True), repeat=len(pairs)):
        dag = np.zeros((d, d), dtype=bool)
        for (i, j), mark in zip(pairs, marks, strict=True):
            if mark is not None:
                dag[(i, j) if mark else (j, i)] = True
        if nx.is_directed_acyclic_graph(nx.from_numpy_array(dag, create_using=nx.DiGraph)):
            yield dag


def independences(dag: np.ndarray) -> frozenset:
    """What d-separation says: the equivalence of two DAGs by its definition."""
    graph, nodes = nx.from_numpy_array(dag, create_using=nx.DiGraph), range(len(dag))
    return frozenset(
        (i, j, given)
        for i, j in combinations(nodes, 2)
        for size in range(len(dag) - 1)
        for given in combinations([k for k in nodes if k not in (i, j)], size)
        if nx.is_d_separator(graph, {i}, {j}, set(given))
    )


@pytest.mark.parametrize(("d", "n_dags", "n_classes"), [(2, 3, 2), (3, 25, 11), (4, 543, 185)])
def test_a_cpdag_is_the_union_of_all_dags_with_the_same_independences(d: int, n_dags: int, n_classes: int) -> None:
    classes = defaultdict(list)
    for dag in all_dags(d):
        classes[independences(dag)].append(dag)
    assert sum(map(len, classes.values())) == n_dags
    assert len(classes) == n_classes
    for members in classes.values():
        union = np.logical_or.reduce(members)
        for dag in members:
            np.testing.assert_array_equal(cpdag(dag), union)


def test_the_third_rule_is_needed() -> None:
    """a - b -> d <- c - a and a - d: the smallest graph in which rules 1 and 2 are not enough."""
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 0, 0, 1, 2], [1, 2, 3, 3, 3]] = True
    found = cpdag(dag)
    assert found[0, 3]
    assert not found[3, 0]
    assert found[1, 0]
    assert found[0, 1]


def test_the_fourth_rule_is_needed() -> None:
    """d -> c -> b, a adjacent to all of them, b and d not adjacent: knowledge of d -> c and c -> b gives a -> b."""
    a, b, c, d = range(4)
    dag, known = np.zeros((2, 4, 4), dtype=bool)
    dag[[a, a, a, d, c], [b, c, d, c, b]] = True
    known[[d, c], [c, b]] = True
    found = class_of(dag, ~np.eye(4, dtype=bool), known)
    assert found[a, b]
    assert not found[b, a]
    assert found[d, a]
    assert found[a, d]
    for learned in ([(d, c), (c, b)], [(c, b), (d, c)]):
        one_by_one = PartlyDirected(cpdag(dag))
        for edge in learned:
            one_by_one.direct([edge])
        np.testing.assert_array_equal(one_by_one.marks(), found)


def test_knowledge_that_the_dag_does_not_keep_is_refused() -> None:
    dag = np.zeros((2, 2), dtype=bool)
    dag[0, 1] = True
    free, nothing = ~np.eye(2, dtype=bool), np.zeros((2, 2), dtype=bool)
    for allowed, required in ((free & ~dag, nothing), (free, dag.T)):
        with pytest.raises(ValueError, match="does not keep the knowledge"):
            class_of(dag, allowed, required)


def test_one_required_edge_directs_a_whole_path() -> None:
    """A path of 300 nodes: no direction without knowledge, all of them from one required edge."""
    path, known = np.zeros((2, 300, 300), dtype=bool)
    path[np.arange(299), np.arange(1, 300)] = True
    np.testing.assert_array_equal(cpdag(path), path | path.T)
    known[0, 1] = True
    np.testing.assert_array_equal(class_of(path, ~np.eye(300, dtype=bool), known), path)


def test_the_distance_counts_a_pair_once_whatever_its_marks() -> None:
    marks = {"none": (0, 0), "forward": (1, 0), "back": (0, 1), "both": (1, 1)}
    for one, other in product(marks, marks):
        graphs = [np.array([[0, marks[name][0]], [marks[name][1], 0]], dtype=bool) for name in (one, other)]
        assert class_distance(*graphs) == (one != other)
    chain, collider = np.zeros((2, 3, 3), dtype=bool)
    chain[[0, 1], [1, 2]] = collider[[0, 2], [1, 1]] = True
    assert class_distance(cpdag(chain), cpdag(collider)) == 2


def test_no_direction_rests_on_a_pair_of_which_nobody_knows_whether_it_is_adjacent() -> None:
    """a -> c <- b, c -> d: neither the v-structure nor what follows from it, if a and b may be adjacent."""
    a, b, c, d = range(4)
    dag = np.zeros((4, 4), dtype=bool)
    dag[[a, b, c], [c, c, d]] = True
    unknown = np.zeros_like(dag)
    unknown[a, b] = unknown[b, a] = True
    assert np.array_equal(cpdag(dag), dag)
    assert np.array_equal(cpdag(dag, unknown), dag | dag.T)
    # Rule 1: with a known collider a -> c <- b, c -> d follows unless a and b are both perhaps adjacent to d.
    unknown[:] = False
    unknown[[a, d, b, d], [d, a, d, b]] = True
    found = cpdag(dag, unknown)
    assert found[a, c]
    assert not found[c, a]
    assert found[c, d]
    assert found[d, c]
