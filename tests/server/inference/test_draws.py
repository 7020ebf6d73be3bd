"""When an arrow is undecided: rules counted on paper."""

import numpy as np
import pytest

from fedbnsl.protocol.messages import EdgeDraws
from fedbnsl_server.inference.draws import undecided

COLLIDER = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 0]], dtype=bool)  # a -> c <- b, whose class directs both
NOTHING = np.zeros((3, 3), dtype=bool)


@pytest.mark.parametrize(
    ("of_edge", "is_undecided"),
    [
        ((100, 75, 25), False),
        ((100, 74, 0), True),  # the others have the edge without a direction
        ((40, 30, 10), False),  # of the draws with the edge
        ((100, 10, 90), True),
        ((0, 0, 0), True),
    ],
)
def test_an_arrow_is_undecided_with_less_than_three_quarters_of_the_draws_that_have_its_edge(of_edge, is_undecided):
    found = undecided(COLLIDER, COLLIDER, NOTHING, EdgeDraws(100, ((100, 100, 0), of_edge)))
    assert np.argwhere(found).tolist() == ([[1, 2]] if is_undecided else [])


def test_a_direction_that_is_known_beforehand_is_never_undecided():
    known = NOTHING.copy()
    known[0, 2] = True
    found = undecided(COLLIDER, COLLIDER, known, EdgeDraws(100, ((100, 10, 0), (100, 10, 0))))
    assert np.argwhere(found).tolist() == [[1, 2]]


def test_an_edge_that_the_class_leaves_open_is_not_undecided_and_without_draws_nothing_is():
    dag = np.array([[0, 1], [0, 0]], dtype=bool)
    marks = dag | dag.T
    assert not undecided(dag, marks, np.zeros((2, 2), bool), EdgeDraws(10, ((10, 0, 0),))).any()
    assert not undecided(COLLIDER, COLLIDER, NOTHING, None).any()


@pytest.mark.parametrize("drawn", [None, EdgeDraws(10, ((10, 10, 0), (10, 10, 0)))])
def test_an_arrow_between_functions_of_each_other_is_undecided_unless_it_is_known(drawn):
    functions, known = NOTHING.copy(), NOTHING.copy()
    functions[np.ix_([1, 2], [1, 2])] = True
    found = undecided(COLLIDER, COLLIDER, known, drawn, functions)
    assert np.argwhere(found).tolist() == [[1, 2]]
    known[1, 2] = True
    assert not undecided(COLLIDER, COLLIDER, known, drawn, functions).any()


def test_shares_are_of_all_draws_and_named_as_in_the_graph():
    drawn = EdgeDraws(10, ((8, 5, 2), (10, 10, 0)))
    assert drawn.shares(COLLIDER, "abc") == {("a", "c"): (0.8, 0.5, 0.2), ("b", "c"): (1.0, 1.0, 0.0)}
