"""Partial ancestral graphs against the marks that all graphs with the same independences share."""

from itertools import combinations, product

import numpy as np
import pytest

from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Known, PartialAncestralGraph
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge

ENDS = [(TAIL, ARROW), (ARROW, TAIL), (ARROW, ARROW)]  # marks at i and at j

# Maximal ancestral graphs of five nodes that take rules 2 and 10: those of four nodes take no more than 1, 3, 4 and 9.
RULES_2_AND_10 = [
    [[0, 0, 2, 2, 3], [0, 0, 0, 2, 0], [2, 0, 0, 3, 0], [2, 3, 2, 0, 3], [2, 0, 0, 2, 0]],
    [[0, 0, 2, 0, 2], [0, 0, 2, 0, 2], [3, 3, 0, 3, 3], [0, 0, 2, 0, 3], [2, 3, 2, 2, 0]],
    [[0, 0, 2, 2, 2], [0, 0, 2, 3, 3], [3, 3, 0, 0, 3], [3, 2, 0, 0, 3], [3, 2, 2, 2, 0]],
    [[0, 0, 2, 2, 2], [0, 0, 2, 3, 3], [3, 3, 0, 3, 0], [3, 2, 2, 0, 3], [3, 2, 0, 2, 0]],
]


def nothing(n):
    return Known(np.zeros((n, n), dtype=bool), np.zeros((n, n), dtype=bool))


def ancestors(marks):
    found = np.eye(len(marks), dtype=bool) | ((marks == ARROW) & (marks.T == TAIL))
    for _ in marks:
        found |= (found.astype(int) @ found.astype(int)) > 0
    return found


def is_ancestral(marks):
    leads = ancestors(marks) & ~np.eye(len(marks), dtype=bool)
    return not (leads & leads.T).any() and not (leads & (marks == ARROW).T).any()


def paths(marks, x, y):
    waiting = [[x]]
    while waiting:
        path = waiting.pop()
        for k in np.flatnonzero(marks[path[-1]]).tolist():
            if k == y:
                yield [*path, k]
            elif k not in path:
                waiting.append([*path, k])


def separations(marks):
    """(x, y, set) of all m-separations, by the definition, path by path."""
    n, leads, found = len(marks), ancestors(marks), []
    for x, y in combinations(range(n), 2):
        triples = [list(zip(path, path[1:], path[2:], strict=False)) for path in paths(marks, x, y)]
        rest = [k for k in range(n) if k not in (x, y)]
        for given in (one for size in range(n - 1) for one in combinations(rest, size)):
            near = leads[:, given].any(axis=1)
            for path in triples:
                heads = [marks[a, b] == ARROW and marks[c, b] == ARROW for a, b, c in path]
                if all(near[b] if head else b not in given for (_, b, _), head in zip(path, heads, strict=True)):
                    break
            else:
                found.append((x, y, given))
    return frozenset(found)


def unshielded_colliders(marks):
    return [
        (a, b, c)
        for b in range(len(marks))
        for a, c in combinations(np.flatnonzero(marks[b]).tolist(), 2)
        if marks[a, c] == NONE and marks[a, b] == ARROW and marks[c, b] == ARROW
    ]


def graphs_on(adjacent):
    """All ancestral graphs with these edges."""
    pairs = np.argwhere(np.triu(adjacent)).tolist()
    for choice in product(ENDS, repeat=len(pairs)):
        marks = np.zeros(adjacent.shape, dtype=np.int8)
        for (i, j), (at_i, at_j) in zip(pairs, choice, strict=True):
            marks[j, i], marks[i, j] = at_i, at_j
        if is_ancestral(marks):
            yield marks


def alike(members):
    """The marks that all of them have, and circles."""
    return np.where(np.all([one == members[0] for one in members], axis=0), members[0], CIRCLE)


def found_from(marks, apart):
    sets = {(x, y): given for x, y, given in sorted(apart, key=lambda s: -len(s[2]))}

    def separates(a, b, c):
        return b in sets[min(a, c), max(a, c)]

    graph = PartialAncestralGraph(marks != NONE, unshielded_colliders(marks), separates, nothing(len(marks)))
    return graph.with_tails()


@pytest.fixture(scope="module")
def classes_of_four():
    """By their independences: all maximal ancestral graphs of four nodes."""
    classes = {}
    for links in product((False, True), repeat=6):
        adjacent = np.zeros((4, 4), dtype=bool)
        adjacent[np.triu_indices(4, 1)] = links
        for marks in graphs_on(adjacent | adjacent.T):
            apart = separations(marks)
            if all(marks[x, y] or any(s[:2] == (x, y) for s in apart) for x, y in combinations(range(4), 2)):  # maximal
                classes.setdefault(apart, []).append(marks)
    assert len(classes) > 100
    return classes


def test_of_four_nodes_the_marks_are_those_that_all_graphs_with_the_same_independences_share(classes_of_four):
    for apart, members in classes_of_four.items():
        assert found_from(members[0], apart).tolist() == alike(members).tolist()


def test_whether_an_unsure_edge_is_one_or_none_all_else_that_is_told_holds(classes_of_four):
    told = 0
    for apart, (marks, *_) in classes_of_four.items():
        right = found_from(marks, apart)
        sets = {(x, y): given for x, y, given in apart}
        for i, j in combinations(range(4), 2):
            unsure = np.zeros((4, 4), dtype=bool)
            unsure[i, j] = unsure[j, i] = True
            colliders = [one for one in unshielded_colliders(marks) if {one[0], one[2]} != {i, j}]

            def separates(a, b, c, sets=sets):
                return b in sets[min(a, c), max(a, c)]

            graph = PartialAncestralGraph((marks != NONE) | unsure, colliders, separates, nothing(4), unsure)
            found = graph.with_tails()
            assert found[i, j] == found[j, i] == CIRCLE
            known = ~unsure & (found != CIRCLE)
            assert (found[known] == right[known]).all()
            told += np.count_nonzero(known & (found != NONE))
    assert told > 100


@pytest.mark.parametrize("marks", RULES_2_AND_10)
def test_of_five_nodes_they_are_too(marks):
    one = np.array(marks, dtype=np.int8)
    apart, colliders = separations(one), unshielded_colliders(one)
    members = [
        other
        for other in graphs_on(one != NONE)
        if unshielded_colliders(other) == colliders and separations(other) == apart
    ]
    assert found_from(one, apart).tolist() == alike(members).tolist()


def test_what_is_known_of_causes_is_in_the_marks_and_in_what_follows():
    names = ("age", "dose", "pulse", "stay")
    knowledge = Knowledge(tiers=(("age",), ("dose", "pulse", "stay")), required=(("dose", "pulse"),))
    known = Known.of(EdgeMask(knowledge, Columns.of(names)))
    adjacent = np.zeros((4, 4), dtype=bool)
    for i, j in ((0, 1), (1, 2), (2, 3)):
        adjacent[i, j] = adjacent[j, i] = True
    found = PartialAncestralGraph(adjacent, [], lambda a, b, c: True, known).with_tails()
    assert found[0, 1] == ARROW, "dose is no cause of age"
    assert found[1, 0] == CIRCLE, "a tier alone is no cause"
    assert (found[1, 2], found[2, 1]) == (ARROW, TAIL)
    assert (found[2, 3], found[3, 2]) == (ARROW, TAIL), "else pulse were a collider"


def test_who_acts_on_somebody_through_another_is_a_cause():
    names = ("dose", "pulse", "stay")
    knowledge = Knowledge(required=(("dose", "pulse"), ("pulse", "stay")))
    known = Known.of(EdgeMask(knowledge, Columns.of(names)))
    found = PartialAncestralGraph(~np.eye(3, dtype=bool), [], lambda a, b, c: True, known).with_tails()
    assert (found[0, 2], found[2, 0]) == (ARROW, TAIL), "rules 2 and 8"
