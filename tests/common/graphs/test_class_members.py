"""Members of a class: one, all, and the parents of a node in them, against trying every direction of every edge."""

import numpy as np
import pytest

from all_members import all_members, random_dag, random_knowledge, v_structures
from fedbnsl.graphs.class_members import consistent_extension, descendants, directed_at, parent_sets
from fedbnsl.graphs.cpdag import class_of
from fedbnsl.graphs.meek import PartlyDirected

CASES = [(d, seed) for d, n in ((3, 15), (4, 25), (5, 25), (6, 15)) for seed in range(n)]


def drawn(d: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The marks of a random class with knowledge, and all its members by brute force."""
    rng = np.random.default_rng([d, seed])
    dag = random_dag(d, 0.6, rng)
    allowed, required = random_knowledge(dag, rng)
    return class_of(dag, allowed, required), list(all_members(dag, allowed, required))


@pytest.mark.parametrize(("d", "seed"), CASES)
def test_a_class_with_knowledge_has_the_edges_that_all_its_members_have_and_all_members_are_found(
    d: int, seed: int
) -> None:
    marks, expected = drawn(d, seed)
    np.testing.assert_array_equal(marks, np.logical_or.reduce(expected))
    found = [member.tobytes() for member in directed_at(marks, range(d))]
    assert set(found) == {member.tobytes() for member in expected}
    assert len(found) == len(expected)


@pytest.mark.parametrize(("d", "seed"), CASES)
def test_the_parents_of_a_node_are_those_that_it_has_in_some_member(d: int, seed: int) -> None:
    marks, expected = drawn(d, seed)
    for node in range(d):
        sets = {tuple(np.flatnonzero(member[:, node]).tolist()) for member in expected}
        found = [tuple(parents) for parents in parent_sets(marks, node, most=len(sets))]
        assert set(found) == sets
        assert len(found) == len(sets)
        assert parent_sets(marks, node, most=len(sets) - 1) is None
    both = [0, d - 1]
    together = {tuple(member[:, both].ravel()) for member in expected}
    assert {tuple(graph[:, both].ravel()) for graph in directed_at(marks, both)} == together


@pytest.mark.parametrize(("d", "seed"), CASES)
def test_a_consistent_extension_is_a_member(d: int, seed: int) -> None:
    marks, expected = drawn(d, seed)
    found = consistent_extension(marks)
    assert found.tobytes() in {member.tobytes() for member in expected}


def test_marks_that_are_not_closed_are_extended_without_another_v_structure() -> None:
    """a -> b - c: only b -> c adds no v-structure."""
    marks = np.zeros((3, 3), dtype=bool)
    marks[[0, 1, 2], [1, 2, 1]] = True
    dag = consistent_extension(marks)
    assert dag[1, 2]
    assert v_structures(dag) == set()


def test_a_square_without_diagonal_has_no_extension_and_neither_has_a_cycle() -> None:
    square = np.zeros((4, 4), dtype=bool)
    square[[0, 1, 2, 3], [1, 2, 3, 0]] = True
    for marks in (square, square | square.T):
        with pytest.raises(ValueError, match="no directed acyclic graph"):
            consistent_extension(marks)


def test_an_edge_gets_one_direction_only() -> None:
    with pytest.raises(ValueError, match="directed the other way"):
        PartlyDirected(np.ones((2, 2), dtype=bool) ^ np.eye(2, dtype=bool)).direct([(0, 1), (1, 0)])


def test_descendants_are_all_that_a_path_leads_to() -> None:
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 1, 3], [1, 2, 2]] = True
    assert descendants(dag, 0).tolist() == [False, True, True, False]
    assert descendants(dag, 2).tolist() == [False] * 4
