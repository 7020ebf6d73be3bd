"""From the last W to the learned DAG: threshold, acyclic extraction, and the support of a refit round."""

from dataclasses import dataclass

from fedbnsl.graphs.graph import Edge, extract_dag, threshold
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import n_rounds, stage
from fedbnsl.sparse import Mask, Matrix, SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState


@dataclass(frozen=True, eq=False)
class ConsensusGraph:
    """The learned graph of a run.

    Attributes
    ----------
    dag
        (d, d) edges i -> j.
    weights
        (d, d) consensus weights on the edges, zero elsewhere.
    dropped
        Edges that were left out to break cycles, in the order they were dropped.
    """

    dag: Mask
    weights: Matrix
    dropped: tuple[Edge, ...]

    def as_sparse(self) -> SparseMatrix:
        """The weights of the edges, also of edges with weight zero."""
        return SparseMatrix.on_support(self.weights, self.dag)


def _acyclic_part(W: Matrix, tau: float, mask: EdgeMask) -> ConsensusGraph:
    edges = (threshold(W, tau) | mask.required) & mask.allowed
    dag, dropped = extract_dag(edges, W, required=mask.required)
    return ConsensusGraph(dag, W * dag, tuple(dropped))


def raw_weights(state: AdmmState, plan: Plan) -> SparseMatrix:
    """W before thresholding; in a plan without ADMM rounds, the weights of the last searched graph."""
    return state.global_weights if plan.rounds or state.refitted is None else state.refitted


def graph_to_refit(state: AdmmState, plan: Plan, mask: EdgeMask) -> ConsensusGraph:
    """The graph that the sites fit: the support of W at `refit_threshold`; later, the graph of the last refit."""
    if state.refitted is None:
        return _acyclic_part(state.global_weights.to_dense(), plan.refit_threshold, mask)
    return consensus_graph(state, plan, mask)


def graphs_to_search(state: AdmmState, plan: Plan, mask: EdgeMask) -> list[ConsensusGraph]:
    """Start graphs of a search: the acyclic part of W after each start, cut at `refit_threshold`."""
    return [_acyclic_part(W.to_dense(), plan.refit_threshold, mask) for W in (*state.found, state.global_weights)]


def consensus_graph(state: AdmmState, plan: Plan, mask: EdgeMask) -> ConsensusGraph:
    """The learned DAG: refitted weights (or W, without a refit) beyond the threshold, and required edges."""
    weights = state.global_weights
    if state.refitted is not None:
        weights = state.refitted
    elif state.found and state.round < n_rounds(plan) and stage(plan, state.round + 1).kind == "admm":
        weights = state.found[-1]  # a new start is under way: use the last complete one
    return _acyclic_part(weights.to_dense(), plan.threshold, mask)
