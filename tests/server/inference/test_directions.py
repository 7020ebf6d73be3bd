"""What tells directions beside the class, and what holds where two sources contradict each other."""

import numpy as np

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.directed_by import Source
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.inference.directions import Direction, directed

NAMES = ("a", "b", "c", "d", "e")


def marks(*edges: str) -> Mask:
    """The class of a DAG with these edges, such as "ab" for a -> b."""
    dag = np.zeros((5, 5), dtype=bool)
    for source, target in edges:
        dag[NAMES.index(source), NAMES.index(target)] = True
    return cpdag(dag)


def say(arrow: str, by: Source = "sites") -> Direction:
    return Direction(arrow[0], arrow[1], by, {"log_likelihood": 9.0, "sites": [by]})


def arrows(found: Mask) -> set[str]:
    return {NAMES[i] + NAMES[j] for i, j in np.argwhere(found & ~found.T).tolist()}


def test_an_arrow_directs_what_follows_from_it_and_is_its_only_evidence() -> None:
    found = directed(marks("ab", "bc", "de"), NAMES, [say("ab")])
    assert arrows(found.marks) == {"ab", "bc"}
    assert found.by == {(0, 1): "sites", (1, 2): "sites"}
    assert {edge: told["log_likelihood"] for edge, told in found.evidence.items()} == {(0, 1): 9.0}


def test_sources_that_contradict_each_other_direct_nothing_of_what_they_have_in_common() -> None:
    told = [say("cb"), say("ab", "noise"), say("de", "noise")]  # a - b - c is no collider, so only one can hold
    found = directed(marks("ab", "bc", "de"), NAMES, told)
    assert arrows(found.marks) == {"de"}
    assert [{one.by for one in several} for several in found.contradicted] == [{"sites", "noise"}]


def test_the_first_source_that_suffices_is_named() -> None:
    found = directed(marks("ab", "bc"), NAMES, [say("ab", "noise"), say("bc", "noise"), say("ab", "sites")])
    assert found.by == {(0, 1): "sites", (1, 2): "sites"}
    assert found.evidence[0, 1]["sites"] == ["sites"]


def test_what_is_said_of_an_edge_that_the_class_directs_counts_for_nothing() -> None:
    collider = marks("ab", "cb")
    found = directed(collider, NAMES, [say("ba"), Direction("a", "unused", "sites")])
    assert (found.marks == collider).all()
    assert not found.by
    assert not found.contradicted
