"""From the last W to the learned DAG: threshold, acyclic extraction, and the support of a refit round.

A plan's graph class says what the DAG stands for: itself, or all DAGs of its Markov equivalence class that keep what is
known beforehand.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbnsl.graphs.cpdag import class_of, cpdag
from fedbnsl.graphs.directed_by import DirectedBy
from fedbnsl.graphs.graph import Edge, extract_dag, threshold
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.largest_changes import largest_changes, withheld
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.settings import GraphClass
from fedbnsl.protocol.messages import EdgeDraws, Units
from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.inference.directions import Directed, Direction, directed
from fedbnsl_server.inference.draws import undecided
from fedbnsl_server.inference.relations import functions


@dataclass(frozen=True, eq=False)
class ConsensusGraph:
    """The learned graph of a run, between its columns; an edge of two variables is one between all their columns."""

    dag: Mask  # (d, d) edges i -> j
    weights: Matrix  # (d, d) consensus weights on the edges, in units of the tables, zero elsewhere
    # edges between variables that were left out to break cycles, in the order they were dropped
    dropped: tuple[Edge, ...]
    mask: EdgeMask  # what is known of the edges
    graph_class: GraphClass  # what the DAG stands for
    units: Units | None = None  # in which the run's columns are measured; None: in those of the tables
    drawn: EdgeDraws | None = None  # what the bootstrap has on the edges of the DAG between variables; None: no draws
    functions: Mask | None = None  # (V, V) which variables are functions of each other; None: not known
    unknown: Mask | None = None  # (V, V) pairs that no row has a value of both of; None: no such pair
    is_tested: bool = True  # False: it is cut from W, and the search that tells directions is still to come
    largest: Matrix | None = None  # (d, d) sizes beyond which weights are withheld; None: there are none
    directions: tuple[Direction, ...] = ()  # of edges that the class leaves open; the DAG has them

    @property
    def withheld(self) -> Mask:
        """(d, d) weights that no result tells: noise took them beyond what is possible."""
        return withheld(self.weights, self.largest)

    @cached_property
    def told(self) -> Matrix:
        """(d, d) the weights as a result tells them: NaN where one is withheld."""
        return np.where(self.withheld, np.nan, self.weights)

    @cached_property
    def between_variables(self) -> Mask:
        """(V, V) the DAG between variables."""
        return self.mask.columns.joined(self.dag)

    @cached_property
    def _class_with_knowledge(self) -> Mask:
        known = self.mask.of_variables
        return class_of(self.between_variables, known.allowed, known.required, self.unknown)

    @property
    def found_class(self) -> Mask:
        """(V, V) the class as the search and knowledge have it."""
        return self._class_with_knowledge if self.graph_class == "cpdag" else self.between_variables

    @cached_property
    def directed(self) -> Directed:
        """The class with what else tells directions."""
        return directed(self.found_class, self.mask.columns.variables, self.directions)

    @property
    def class_marks(self) -> Mask:
        """(V, V) the class, closed under Meek's rules: both [i, j] and [j, i] for an edge that it leaves open."""
        return self.directed.marks

    @cached_property
    def undecided(self) -> Mask:
        """(V, V) arrows of the class that too few bootstrap draws agree with, or between functions of each other."""
        return undecided(self.between_variables, self.found_class, self._given, self.drawn, self.functions)

    @property
    def withdrawn(self) -> Mask:
        """(V, V) arrows of the class that the DAG and knowledge alone give, which are shown without a direction."""
        if self.unknown is None:
            return self.undecided
        known, dag = self.mask.of_variables, self.between_variables
        whole = class_of(dag, known.allowed, known.required) if self.graph_class == "cpdag" else dag
        return whole & ~whole.T & self.marks.T

    @property
    def _given(self) -> Mask:
        """(V, V) edges whose direction the plan's knowledge fixes by itself."""
        known = self.mask.of_variables
        return known.required | ~known.allowed.T

    @property
    def marks(self) -> Mask:
        """(V, V) as the graph is shown: [i, j] for i -> j, both [i, j] and [j, i] for an edge without a direction."""
        return self.class_marks | self.undecided.T

    @cached_property
    def directed_by(self) -> dict[Edge, DirectedBy]:
        """Who says so for each edge of the DAG between variables.

        The data, where all equivalent DAGs agree, with required edges and without them, even if the data show these;
        knowledge, where all of these that keep it agree; interventions, sites or noise, as `directions` has it;
        otherwise the assumption of equal variances or, in a CPDAG, nobody. Undecided is an arrow of the class as
        `undecided` says. Where a search is still to come, an arrow that knowledge does not fix is untested.
        """
        dag, with_knowledge = self.between_variables, self._class_with_knowledge
        last: DirectedBy = "nobody" if self.graph_class == "cpdag" else "assumption"
        found = dag & ~self.mask.of_variables.required
        by_data = found & ~cpdag(dag, self.unknown).T & ~cpdag(found, self.unknown).T
        by_knowledge = dag & ~with_knowledge.T
        pairs: list[list[int]] = np.argwhere(dag).tolist()

        def who(i: int, j: int) -> DirectedBy:
            if self.undecided[i, j]:
                return "undecided"
            if not self.is_tested and not self.marks[j, i]:
                return "knowledge" if self._given[i, j] else "untested"
            if by_data[i, j] or by_knowledge[i, j]:
                return "data" if by_data[i, j] else "knowledge"
            return self.directed.by.get((i, j), last)

        return {(i, j): who(i, j) for i, j in pairs}

    def as_sparse(self) -> SparseMatrix:
        """The weights of the edges, also of edges with weight zero."""
        return SparseMatrix.on_support(self.weights, self.dag)


def _acyclic_part(
    W: Matrix, tau: float, plan: Plan, mask: EdgeMask, units: Units | None, known: Mask | None = None
) -> ConsensusGraph:
    """The graph of weights between the run's columns, which have no units where the plan scales them.

    `known`: (d, d) edges that counts have given, whatever their weights; None: those of weights beyond tau.
    """
    columns, between = mask.columns, mask.of_variables
    found = threshold(W, tau) if known is None else known
    edges = columns.joined((found | mask.required) & mask.allowed)
    dag, dropped = extract_dag(edges, columns.largest(W), required=between.required)
    if columns.has_blocks:
        dag = columns.spread(dag)
    of_tables = W if units is None else units.weights_of_tables(W)
    return ConsensusGraph(dag, of_tables * dag, tuple(dropped), mask, plan.graph_class, units)


def raw_weights(state: AdmmState, plan: Plan) -> SparseMatrix:
    """W before thresholding, in units of the tables; in a plan without ADMM rounds, the weights of the last graph."""
    if state.refitted is not None and not plan.rounds:
        return state.refitted
    W, units = state.global_weights, state.units
    return W if units is None else SparseMatrix.from_dense(units.weights_of_tables(W.to_dense()))


def present_weights(state: AdmmState) -> Matrix:
    """(d, d) refitted weights, or W before a refit, between the run's columns."""
    if state.refitted is None:
        return state.global_weights.to_dense()
    weights = state.refitted.to_dense()
    return weights if state.units is None else state.units.weights_of_columns(weights)


def graph_to_refit(state: AdmmState, plan: Plan, mask: EdgeMask) -> ConsensusGraph:
    """The graph that the sites fit: the support of W at `refit_threshold`; later, the graph of the last refit."""
    if state.refitted is None:
        return graph_to_search(state, plan, mask)
    return consensus_graph(state, plan, mask)


def graph_to_search(state: AdmmState, plan: Plan, mask: EdgeMask) -> ConsensusGraph:
    """Start graph of a search: the acyclic part of W, cut at `refit_threshold`."""
    return _acyclic_part(state.global_weights.to_dense(), plan.refit_threshold, plan, mask, state.units)


def graphs_at(state: AdmmState, thresholds: Iterable[float], plan: Plan, mask: EdgeMask) -> list[ConsensusGraph]:
    """The acyclic part of W at each of these thresholds."""
    W = state.global_weights.to_dense()
    return [_acyclic_part(W, tau, plan, mask, state.units) for tau in thresholds]


def never_together(state: AdmmState, columns: Columns) -> Mask | None:
    """(V, V) pairs of variables that no row has a value of both of; None: no such pair, or not known."""
    if state.completion is None or not state.completion.n_pairs:
        return None
    found = columns.joined(state.completion.never_together)
    return found if found.any() else None


def consensus_graph(state: AdmmState, plan: Plan, mask: EdgeMask) -> ConsensusGraph:
    """The learned DAG: refitted weights (or W, without a refit) beyond the threshold, and required edges."""
    beyond_lines = state.counts_follow(plan) or (state.curves is not None and state.curves.columns.size > 0)
    told = beyond_lines and state.confidence is not None and state.refitted is not None
    edges = state.refitted.support() if told and state.refitted is not None else None
    graph = _acyclic_part(present_weights(state), plan.threshold, plan, mask, state.units, edges)
    graph = replace(graph, largest=largest_changes(plan, mask.columns), unknown=never_together(state, mask.columns))
    if state.confidence is None:
        return replace(graph, is_tested=state.refitted is not None or not plan.moments_rounds)
    known, used = state.confidence, mask.columns.over(state.unused.kept(mask.columns))
    tied = functions(known.related, known.exact, used) if known.exact.any() else None
    drawn = known.of_edges(graph.between_variables)
    return replace(graph, drawn=drawn, functions=tied, directions=state.directions)
