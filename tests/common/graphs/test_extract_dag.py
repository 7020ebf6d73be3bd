"""The acyclic part of larger graphs against one search for components per edge, as the rule reads."""

import numpy as np
import pytest

from fedbnsl.graphs.graph import extract_dag, is_acyclic
from oracles import literal_extract_dag


@pytest.mark.parametrize("digits", [1, 12])
@pytest.mark.parametrize(("d", "n_edges"), [(5, 12), (30, 60), (30, 400), (60, 150)])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_edges_are_dropped_in_the_same_order(seed: int, d: int, n_edges: int, digits: int) -> None:
    """Also where many weights are equal in size."""
    rng = np.random.default_rng(seed)
    edges = rng.random((d, d)) < n_edges / d**2  # loops among them
    W = np.round(rng.standard_normal((d, d)), digits)
    dag, dropped = extract_dag(edges, W)
    expected, expected_dropped = literal_extract_dag(edges, W)
    assert dropped == expected_dropped
    assert np.array_equal(dag, expected)


def test_a_thousand_nodes_do_not_take_a_search_per_edge() -> None:
    rng = np.random.default_rng(1)
    edges = rng.random((1000, 1000)) < 0.02
    dag, dropped = extract_dag(edges, rng.standard_normal((1000, 1000)))
    assert is_acyclic(dag)
    assert len(dropped) > 10_000


def test_required_edges_that_form_a_cycle_are_an_error() -> None:
    edges = np.array([[False, True], [True, False]])
    with pytest.raises(ValueError, match="required"):
        extract_dag(edges, np.ones((2, 2)), required=edges)
