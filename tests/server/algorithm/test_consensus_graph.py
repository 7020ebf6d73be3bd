"""From W to a DAG: threshold, required edges, cycles, and what the sites are asked to refit."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph, graph_to_refit

NAMES = ("p", "q", "r", "s")
D = len(NAMES)
Weights = dict[tuple[str, str], float]


def dense(weights: Weights) -> Matrix:
    W = np.zeros((D, D))
    for (source, target), weight in weights.items():
        W[NAMES.index(source), NAMES.index(target)] = weight
    return W


def state(weights: Weights, refitted: Weights | None = None) -> AdmmState:
    W = SparseMatrix.from_dense(dense(weights))
    refit = None if refitted is None else SparseMatrix.from_dense(dense(refitted))
    return AdmmState(9, W, 0.0, 0.0, frozenset(), {}, refit, np.empty(0))


def mask(plan: Plan) -> EdgeMask:
    return EdgeMask(plan.knowledge, NAMES)


def plan_with(**settings: object) -> Plan:
    return Plan(threshold=0.3, refit_threshold=0.05).with_settings(**settings)


def named(graph: ConsensusGraph) -> Weights:
    """The edges of a graph with their weights; all other weights must be zero."""
    edges = {(NAMES[i], NAMES[j]): float(graph.weights[i, j]) for i in range(D) for j in range(D) if graph.dag[i, j]}
    assert np.array_equal(graph.weights, dense(edges))
    sparse = graph.as_sparse()
    assert sparse.index.tolist() == [i * D + j for i in range(D) for j in range(D) if graph.dag[i, j]]
    assert sparse.value.tolist() == [float(graph.weights.flat[k]) for k in sparse.index]
    return edges


def learned(weights: Weights, plan: Plan, refitted: Weights | None = None) -> ConsensusGraph:
    return consensus_graph(state(weights, refitted), plan, mask(plan))


# ---- threshold -----------------------------------------------------------------------------------------------------


def test_an_edge_is_kept_if_its_absolute_weight_exceeds_the_threshold() -> None:
    weights = {("p", "q"): 0.5, ("q", "r"): -0.31, ("r", "s"): 0.3, ("p", "s"): -0.3, ("p", "r"): 0.29}
    graph = learned(weights, plan_with())
    assert named(graph) == {("p", "q"): 0.5, ("q", "r"): -0.31}
    assert graph.dropped == ()


def test_at_threshold_zero_every_entry_is_an_edge() -> None:
    weights = {("p", "q"): 1e-300, ("q", "r"): -1.0}
    assert named(learned(weights, plan_with(threshold=0.0, refit_threshold=0.0))) == weights


def test_nothing_above_the_threshold_is_an_empty_graph() -> None:
    assert named(learned({("p", "q"): 0.2}, plan_with())) == {}
    assert named(learned({}, plan_with())) == {}


# ---- knowledge -----------------------------------------------------------------------------------------------------


def test_a_required_edge_is_kept_whatever_its_weight_and_even_without_an_entry() -> None:
    plan = plan_with(knowledge={"required": [["p", "q"], ["s", "r"]]})
    graph = learned({("p", "q"): 0.01, ("q", "s"): 0.7}, plan)
    assert named(graph) == {("p", "q"): 0.01, ("q", "s"): 0.7, ("s", "r"): 0.0}
    assert graph.as_sparse().nnz == 3, "a zero weight is no missing edge"


def test_an_excluded_edge_is_left_out_whatever_its_weight() -> None:
    plan = plan_with(knowledge={"forbidden": [["p", "q"]], "tiers": [["q", "r"], ["s"]]})
    weights = {("p", "q"): 9.0, ("s", "r"): 9.0, ("q", "p"): 0.4, ("r", "s"): 0.5}
    assert named(learned(weights, plan)) == {("q", "p"): 0.4, ("r", "s"): 0.5}


def test_a_cycle_through_a_required_edge_loses_another_edge_even_a_stronger_one() -> None:
    plan = plan_with(knowledge={"required": [["p", "q"]]})
    graph = learned({("p", "q"): 0.01, ("q", "r"): 0.9, ("r", "p"): 0.8}, plan)
    assert named(graph) == {("p", "q"): 0.01, ("q", "r"): 0.9}
    assert graph.dropped == ((2, 0),)


# ---- cycles --------------------------------------------------------------------------------------------------------


def test_cycles_lose_their_weakest_edge_first_and_the_dropped_ones_are_told_in_that_order() -> None:
    weights = {
        ("p", "q"): 0.9,
        ("q", "r"): -0.8,
        ("r", "p"): 0.7,  # closes p q r: the weakest of that cycle
        ("r", "s"): 1.5,
        ("s", "r"): -0.6,  # the weakest of the cycle r s, and of all
        ("p", "s"): 0.35,  # weaker still, but on no cycle once the others are gone
    }
    graph = learned(weights, plan_with())
    # p -> s is on the cycle p s r p while s -> r is there: it goes first.
    assert graph.dropped == ((0, 3), (3, 2), (2, 0))
    assert named(graph) == {("p", "q"): 0.9, ("q", "r"): -0.8, ("r", "s"): 1.5}


def test_an_edge_on_no_cycle_is_never_dropped_however_weak() -> None:
    graph = learned({("p", "q"): 2.0, ("q", "p"): 1.0, ("q", "r"): 0.31}, plan_with())
    assert named(graph) == {("p", "q"): 2.0, ("q", "r"): 0.31}
    assert graph.dropped == ((1, 0),)


weights_of_all_sizes = hnp.arrays(
    np.float64, (D, D), elements=st.sampled_from([0.0, 0.04, -0.1, 0.3, -0.31, 0.5, -0.5, 1.0, 2.0])
)


@settings(max_examples=150, deadline=None)
@given(weights_of_all_sizes, st.booleans())
def test_any_weights_give_a_dag_and_every_edge_is_kept_dropped_or_excluded(W: Matrix, knowing: bool) -> None:
    np.fill_diagonal(W, 0.0)
    plan = plan_with(knowledge={"required": [["s", "p"]], "forbidden": [["q", "r"]]} if knowing else {})
    weights = {(NAMES[i], NAMES[j]): W[i, j] for i in range(D) for j in range(D) if W[i, j]}
    graph = learned(weights, plan)
    kept = nx.DiGraph(list(named(graph)))
    assert nx.is_directed_acyclic_graph(kept)
    dropped = {(NAMES[i], NAMES[j]) for i, j in graph.dropped}
    must = {("s", "p")} if knowing else set()
    never = {("q", "r"), ("p", "s")} if knowing else set()
    above = {edge for edge, weight in weights.items() if abs(weight) > 0.3}
    assert set(kept.edges) | dropped == (above | must) - never
    assert not set(kept.edges) & dropped
    assert must <= set(kept.edges)


# ---- the refit -----------------------------------------------------------------------------------------------------

FOR_REFIT: Weights = {("p", "q"): 0.9, ("q", "r"): 0.06, ("r", "s"): 0.05, ("q", "p"): -0.2, ("p", "s"): -0.07}


def test_the_first_refit_asks_for_a_dag_at_the_lower_threshold() -> None:
    plan = plan_with()
    graph = graph_to_refit(state(FOR_REFIT), plan, mask(plan))
    assert named(graph) == {("p", "q"): 0.9, ("q", "r"): 0.06, ("p", "s"): -0.07}
    assert graph.dropped == ((1, 0),)


def test_a_later_refit_asks_for_the_graph_of_the_one_before() -> None:
    plan = plan_with()
    before = state(FOR_REFIT, refitted={("p", "q"): 1.1, ("q", "r"): 0.31, ("p", "s"): -0.2})
    graph = graph_to_refit(before, plan, mask(plan))
    assert named(graph) == {("p", "q"): 1.1, ("q", "r"): 0.31}


def test_required_edges_are_refitted() -> None:
    plan = plan_with(knowledge={"required": [["s", "q"]]})
    for refitted in (None, {("p", "q"): 1.1}):
        graph = graph_to_refit(state(FOR_REFIT, refitted), plan, mask(plan))
        assert ("s", "q") in named(graph)


@pytest.mark.parametrize("refit", [None, {("p", "q"): 1.2, ("q", "r"): -0.4, ("p", "s"): 0.1}])
def test_the_learned_weights_are_those_of_the_refit_if_there_was_one(refit: Weights | None) -> None:
    graph = learned(FOR_REFIT, plan_with(), refit)
    assert named(graph) == ({("p", "q"): 0.9} if refit is None else {("p", "q"): 1.2, ("q", "r"): -0.4})
