"""Graphs, with networkx as the judge."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.graphs.graph import cyclic_edges, extract_dag, has_cycle, is_acyclic, threshold, topological_order
from fedbnsl.protocol.sparse import Mask, Matrix

QUICK = settings(max_examples=150, deadline=None)


@st.composite
def graphs(draw: st.DrawFn, *, max_variables: int = 7) -> Mask:
    d = draw(st.integers(1, max_variables))
    edges = draw(hnp.arrays(np.bool_, (d, d)))
    np.fill_diagonal(edges, False)
    return edges


@st.composite
def weighted_graphs(draw: st.DrawFn) -> tuple[Mask, Matrix]:
    """Graphs with weights of both signs, some of them equal in size."""
    edges = draw(graphs())
    weights = draw(
        hnp.arrays(np.float64, edges.shape, elements=st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0]))
    )
    return edges, np.where(edges, weights, 0.0)


def as_networkx(edges: Mask) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(edges)))
    graph.add_edges_from((i, j) for i in range(len(edges)) for j in range(len(edges)) if edges[i, j])
    return graph


def edges_on_cycles(edges: Mask) -> list[tuple[int, int]]:
    """An edge lies on a cycle if there is a way back."""
    graph = as_networkx(edges)
    return sorted((i, j) for i, j in graph.edges if nx.has_path(graph, j, i))


def test_an_edge_is_kept_only_above_the_threshold() -> None:
    W = np.array([[0.0, 0.3, -0.31], [np.nextafter(0.3, 1), 0.0, -0.3], [0.0, 1.0, 0.0]])
    assert threshold(W, 0.3).tolist() == [[False, False, True], [True, False, False], [False, True, False]]


def test_a_threshold_of_zero_keeps_all_but_zeros() -> None:
    assert threshold(np.array([[0.0, 1e-300], [-0.0, 0.0]]), 0.0).tolist() == [[False, True], [False, False]]


@QUICK
@given(graphs())
def test_the_edges_on_cycles_are_those_with_a_way_back(edges: Mask) -> None:
    found = cyclic_edges(edges)
    assert found.dtype == np.bool_
    assert [tuple(edge) for edge in np.argwhere(found).tolist()] == edges_on_cycles(edges)


@pytest.mark.parametrize("closed", [False, True])
def test_a_long_path_in_many_edges_is_looked_at_by_its_components(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    monkeypatch.setattr("fedbnsl.graphs.graph._MANY_EDGES", 20)
    path = np.arange(9) * 10 + np.arange(1, 10)
    assert has_cycle(np.append(path, 9 * 10 + 3) if closed else path, 10) == closed


@QUICK
@given(graphs())
def test_a_graph_is_acyclic_exactly_if_networkx_says_so(edges: Mask) -> None:
    assert is_acyclic(edges) == nx.is_directed_acyclic_graph(as_networkx(edges))


def test_a_self_loop_is_a_cycle() -> None:
    assert not is_acyclic(np.array([[True]]))


@QUICK
@given(weighted_graphs())
def test_the_weakest_edge_on_a_cycle_is_dropped_until_none_is_left(case: tuple[Mask, Matrix]) -> None:
    edges, W = case
    before = edges.copy()
    left = edges.copy()
    expected = []
    while on_cycles := edges_on_cycles(left):
        weakest = min(on_cycles, key=lambda edge: (abs(W[edge]), edge))
        left[weakest] = False
        expected.append(weakest)
    dag, dropped = extract_dag(edges, W)
    assert dropped == expected
    assert np.array_equal(dag, left)
    assert np.array_equal(edges, before)


def test_the_sign_of_a_weight_does_not_matter_for_dropping() -> None:
    W = np.array([[0.0, -3.0], [1.0, 0.0]])
    dag, dropped = extract_dag(W != 0, W)
    assert dropped == [(1, 0)]
    assert dag.tolist() == [[False, True], [False, False]]


@QUICK
@given(weighted_graphs(), st.randoms(use_true_random=False))
def test_a_required_edge_is_never_dropped(case: tuple[Mask, Matrix], random: object) -> None:
    edges, W = case
    d = len(edges)
    order = list(range(d))
    random.shuffle(order)  # type: ignore[attr-defined]
    required = np.zeros((d, d), dtype=bool)
    for earlier in range(d):
        for later in range(earlier + 1, d):
            i, j = order[earlier], order[later]
            required[i, j] = bool(edges[i, j]) and (i + j) % 2 == 0  # acyclic: along an order
    dag, dropped = extract_dag(edges, W, required=required)
    assert (dag | ~required).all()
    assert nx.is_directed_acyclic_graph(as_networkx(dag))
    assert np.array_equal(edges & ~dag, np.isin(np.arange(d * d), [i * d + j for i, j in dropped]).reshape(d, d))


def test_a_required_edge_survives_although_it_is_the_weakest() -> None:
    W = np.array([[0.0, 0.1], [5.0, 0.0]])
    dag, dropped = extract_dag(W != 0, W, required=np.array([[False, True], [False, False]]))
    assert dropped == [(1, 0)]
    assert dag[0, 1]


@QUICK
@given(graphs())
def test_a_topological_order_lets_every_edge_point_forward(edges: Mask) -> None:
    if not nx.is_directed_acyclic_graph(as_networkx(edges)):
        with pytest.raises(ValueError, match="cycle"):
            topological_order(edges)
        edges = np.triu(edges)
    order = topological_order(edges)
    assert sorted(order) == list(range(len(edges)))
    place = {node: k for k, node in enumerate(order)}
    assert all(place[i] < place[j] for i, j in as_networkx(edges).edges)
    assert order == topological_order(edges)


def test_a_graph_without_edges_is_ordered_by_index() -> None:
    assert topological_order(np.zeros((4, 4), dtype=bool)) == [0, 1, 2, 3]


def test_asking_for_an_order_leaves_the_graph_alone() -> None:
    edges = np.triu(np.ones((4, 4), dtype=bool), k=1)
    topological_order(edges)
    assert np.array_equal(edges, np.triu(np.ones((4, 4), dtype=bool), k=1))
