"""The figures of hidden common causes, against what is known of small graphs."""

import numpy as np
import pytest

from fedbnsl.graphs.pag import NONE
from fedbnsl_research.bench import hidden as bench
from fedbnsl_server.inference.ancestral_graphs import of_dag


def dag(n, *edges):
    found = np.zeros((n, n), dtype=bool)
    for i, j in edges:
        found[i, j] = True
    return found


@pytest.mark.parametrize(
    ("graph", "observed", "linked"),
    [
        (dag(3, (0, 1), (1, 2)), 3, [(0, 1), (1, 2)]),
        (dag(3, (2, 0), (2, 1)), 2, [(0, 1)]),  # a hidden cause
        (dag(3, (0, 2), (2, 1)), 2, [(0, 1)]),  # on the way
        (dag(5, (0, 1), (3, 2), (4, 1), (4, 2)), 4, [(0, 1), (1, 2), (2, 3)]),
        # 1 is a collider that acts on 2: no set separates 0 and 2
        (dag(4, (0, 1), (3, 1), (3, 2), (1, 2)), 3, [(0, 1), (0, 2), (1, 2)]),
    ],
)
def test_linked_is_what_no_set_of_observed_variables_separates(graph, observed, linked):
    found = of_dag(graph, observed) != NONE
    assert [tuple(one) for one in np.argwhere(np.triu(found)).tolist()] == linked
    assert (found == found.T).all()


def test_a_row_says_what_is_right():
    row = bench._row(bench._Case(6, 1, rows=200), range(2))
    assert 0.5 < float(row["skeleton F1"]) <= 1.0
    right, _, of = row["arrowheads right"].partition(" of ")
    assert 0 < int(right) <= int(of)
