"""A round of hinges at the coordinator: search again with the hinges of those numbers whose effects bend.

Where none bends, the graph of straight lines stays as it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.graphs.pag import Known
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.limits import MOST_HINGE_NUMBERS
from fedbnsl.protocol.sparse import Index, Mask, Matrix, SparseMatrix, symmetric_of
from fedbnsl.rounds.hinges import FEWEST_ROWS, KNOTS, Answer, Task, n_columns, n_moments, with_hinges
from fedbnsl.rounds.moments import Task as Pairs
from fedbnsl_server.algorithm.admm import AdmmState, over_columns
from fedbnsl_server.algorithm.consensus_graph import present_weights
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.inference.confidence import Again, Confidence, Evidence, confidence_of
from fedbnsl_server.inference.curves import Curves, Points, effects_of, totals_of
from fedbnsl_server.inference.degenerate_columns import unused_columns
from fedbnsl_server.inference.directions import directed
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import (
    among_rivals,
    are_covariances,
    are_moments,
    class_search,
    cost_of_knowledge,
    in_units,
    level_variance,
    with_graph,
)
from fedbnsl_server.search.class_search import ClassSearch
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.hinges import HingeMoments
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments, fitted
from fedbnsl_server.search.squared_residuals import SquaredResiduals

# With hinges a search may find an edge along which another number bends, and so on.
_MOST_SEARCHES = 3
# Of the rows without a gap, those of sites that tell their moments: the others may be unlike them.
_LEAST_TOLD = 0.8
# Of eigenvalues of correlations of columns, in single precision.
_ROUNDING = 1e-4


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """Hinges of all numbers that the result is about; none where they are too many, or complete rows are unfit."""
    used = np.zeros(len(run.mask.allowed), dtype=bool)
    used[state.unused.kept(run.mask.columns)] = True
    linear = run.plan.has_shape(run.mask.columns, "linear")
    numbers = np.flatnonzero(used & run.plan.numbers(run.mask.columns) & ~run.indicators & ~linear)
    unfit = state.completion is not None and state.completion.unfit
    few = n_moments(Task(numbers), len(used)) <= MOST_HINGE_NUMBERS
    enough = sum(run.n_samples.values()) >= FEWEST_ROWS
    return state, Task(numbers if few and enough and not unfit else np.empty(0, dtype=np.int64))


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report moments that were not asked for, or that no records have."""
    d = len(run.mask.allowed)
    if answer.moments.size != n_moments(task, d):
        return f"has {answer.moments.size} moments of hinges; {n_moments(task, d)} were asked for"
    if answer.n_rows > max(run.n_samples.values()):
        return "has moments of hinges over more rows than the site has"
    S = symmetric_of(answer.moments, n_columns(task, d))
    possible = are_moments(S, constant_columns=True, least=math.ulp(0.0))
    possible = possible and are_covariances(S, S.diagonal(), rounding=_ROUNDING)  # also all pairs together
    return "" if possible else "has numbers that cannot be second moments of hinges"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The best graph with hinges, if a number bends."""
    rows = {site: answer.n_rows for site, answer in answers.items() if answer.n_rows > 1}
    without_gaps = state.without_gaps(dict(zip(answers, run.rows(answers), strict=True)))
    least = max(FEWEST_ROWS, _LEAST_TOLD * sum(without_gaps.values()))
    if not task.columns.size or sum(rows.values()) < least:
        return replace(state, squares={})
    d, used = len(run.mask.allowed), state.unused.kept(run.mask.columns)
    base = np.append(np.arange(d), np.repeat(task.columns, len(KNOTS)))
    kept = np.flatnonzero(np.isin(base, used))
    told = {site: symmetric_of(answers[site].moments, len(base))[np.ix_(kept, kept)] for site in rows}
    pooled = np.average(list(told.values()), axis=0, weights=list(rows.values()))
    columns, lines = with_hinges(run.mask.columns, task.columns).over(kept), run.mask.columns.over(used)
    if unused_columns(pooled[: len(used), : len(used)], lines).kept(lines).size < len(used):  # of complete rows
        return replace(state, squares={})
    moments = HingeMoments.of(pooled, columns, np.searchsorted(used, base[kept]))
    everything = _Search(moments, {site: moments.of_site(S) for site, S in told.items()}, rows, run)
    of_used = over_columns(state, used)
    curved = run.plan.has_shape(run.mask.columns, "curved")[used]
    bent, search = _bent(everything, lines.joined(present_weights(of_used) != 0.0), curved)
    curves = Curves(sum(rows.values()), used[bent])
    if search is None:
        return replace(state, curves=curves, squares={})
    return _with_graph(state, of_used, (everything, search), curves, used)


@dataclass(frozen=True, eq=False)
class _Search:
    """A search with hinges."""

    moments: HingeMoments
    told: Mapping[str, Matrix]  # (D, D) of the sites, likewise
    rows: Mapping[str, int]  # of the sites, without a missing value
    run: Run

    def over(self, kept: Index) -> "_Search":
        """With some of the columns and parts of hinges."""
        told = {site: S[np.ix_(kept, kept)] for site, S in self.told.items()}
        return replace(self, moments=self.moments.over(kept), told=told)

    @property
    def accuracies(self) -> dict[str, Accuracy]:
        """Of the sites' moments, which are about their own means."""
        return {site: Accuracy(rows - 1.0) for site, rows in self.rows.items()}

    @cached_property
    def accuracy(self) -> Accuracy:
        """Of the pooled moments."""
        return Accuracy(sum(one.n_samples for one in self.accuracies.values()))

    @cached_property
    def here(self) -> Run:
        """The run, between these columns."""
        return replace(self.run, mask=EdgeMask(self.run.plan.knowledge, self.moments.columns))

    @cached_property
    def pairs(self) -> Pairs:
        """All pairs of columns."""
        near = ~self.moments.columns.within()
        return Pairs(SparseMatrix.on_support(near.astype(np.float64), near))

    @cached_property
    def again(self) -> ClassSearch:
        """With the penalty that fits the rows."""
        rows = np.array(list(self.rows.values()), dtype=np.float64)
        found = class_search(self.told, rows, self.accuracy, self.pairs, self.here)
        return replace(found, lines=self.moments.is_column)

    @cached_property
    def found(self) -> FoundGraph:
        """The best graph."""
        return self.again.found(self.moments.S, progress=self.run.progress)

    def confident(self, of_used: AdmmState) -> tuple[FoundGraph, Confidence]:
        """The best graph also among its rivals, and how sure it is, between the columns and parts of hinges."""
        best, rivals, S, plan = self.found, None, self.moments.S, self.run.plan
        if plan.bootstrap:
            best, rivals = among_rivals(best, self.again, S, self.accuracy, self.here)
        again = Again(self.again, self.here.class_of, plan.bootstrap, np.random.default_rng(plan.search_seed), rivals)
        found = confidence_of(
            best.dag,
            self.evidence(of_used),
            self.moments.columns,
            again,
            known=Known.of(self.here.mask) if plan.tells_hidden_causes else None,
            progress=self.run.progress,
        )
        found = replace(found, **cost_of_knowledge(best, self.again, S, self.pairs, self.here))
        marks = self.marks_of(best.dag, of_used)
        if not (best.dag & ~marks).any():
            return best, found
        dag = consistent_extension(marks)
        network = fitted(dag, S, self.moments.columns)
        along = confidence_of(dag, self.evidence(of_used), self.moments.columns, None)
        other = FoundGraph(dag, network.weights, network.residual_variance, best.score)
        return other, found.along_edges_of(along)

    def marks_of(self, dag: Mask, of_used: AdmmState) -> Mask:
        """(V, V) the class of a DAG, with the directions that something else has told."""
        return directed(self.here.class_of(dag), self.moments.columns.variables, of_used.directions).marks

    def evidence(self, of_used: AdmmState) -> Evidence:
        """What the graph was found in."""
        columns, S = self.moments.is_column, self.moments.S
        variance, both = np.full(len(S), np.nan), np.ix_(columns, columns)
        lines = self.here.mask.over(np.flatnonzero(columns))
        variance[columns] = level_variance(S[both], of_used, replace(self.run, mask=lines))
        # Of lines alone they are known.
        squares: Mapping[str, SquaredResiduals] = of_used.squares if columns.all() else dict[str, SquaredResiduals]()
        sites = {site: SiteMoments(one, self.accuracies[site], squares.get(site)) for site, one in self.told.items()}
        weights = [float(rows) for rows in self.rows.values()]
        return Evidence(S, self.accuracy, sites=sites, weights=weights, level_variance=variance, lines=columns)


def _bent(everything: _Search, dag: Mask, curved: Mask) -> tuple[Mask, _Search | None]:
    """Columns that bend, by the graph of straight lines and then by those with hinges; and the last search with these.

    `curved`: (u,) that do at any rate. No search where nothing bends.
    """
    bent, search, known = np.zeros_like(curved), None, everything.run.mask.of_variables
    for _ in range(_MOST_SEARCHES):
        possible = known.allowed | known.allowed.T
        found = everything.moments.bent(dag, bent | curved, possible, everything.accuracy.counted)
        if (found == bent).all() or everything.run.progress.is_enough:
            break
        bent = found
        search = everything.over(everything.moments.with_hinges_of(bent))
        dag = search.found.dag
    return bent, search


def _with_graph(
    state: AdmmState, of_used: AdmmState, searches: tuple[_Search, _Search], curves: Curves, used: Index
) -> AdmmState:
    """The state with what a search with hinges has found: its graph and tests, and straight lines along its edges.

    `searches`: with the hinges of all numbers, and with those of the numbers that bend.
    """
    everything, search = searches
    # Those of sites are of another class, by straight lines.
    directions = () if state.noise is None else state.noise.directions
    of_used = replace(of_used, directions=directions)
    run, columns = search.run, np.arange(len(used))
    best, tests = search.confident(of_used)
    scales = np.ones(len(used)) if of_used.units is None else of_used.units.scales
    marks = search.marks_of(best.dag, of_used)
    left = np.zeros(len(run.mask.allowed))
    left[used] = best.residual_variance[columns] * scales**2
    points = search.accuracy.n_samples, scales, Points.of_hinges(np.array(KNOTS))
    effects = tuple(effects_of(search.moments, best.dag, marks, *points))
    bends = np.zeros(len(marks), dtype=bool)
    bends[search.moments.columns.variable_of[~search.moments.is_column]] = True
    total = tuple(totals_of(everything.moments, marks, bends, *points))
    straight = search.over(columns)
    evidence = _of_all_rows(straight.evidence(of_used), of_used, run)
    network = fitted(best.dag, evidence.moments, straight.moments.columns)
    lines = FoundGraph(best.dag, network.weights, network.residual_variance, best.score)
    errors = confidence_of(best.dag, evidence, straight.moments.columns, None)
    found = with_graph(of_used, in_units(lines, of_used), straight.here)
    variance = np.zeros_like(left)
    variance[used] = found.residual_variance
    return replace(
        state,
        refitted=None if found.refitted is None else found.refitted.among(used, len(variance)),
        residual_variance=variance,
        confidence=tests.over(columns).with_lines_of(_uneven(errors, search.rows)),
        squares={},
        directions=directions,
        experiments=None,
        curves=replace(curves, residual_variance=left, effects=effects, total=total),
    )


def _of_all_rows(lines: Evidence, of_used: AdmmState, run: Run) -> Evidence:
    """Of straight lines, by the moments of all rows where some have gaps; sites are compared by complete rows."""
    gaps = of_used.completion
    if gaps is None or gaps.by is None:
        return lines
    n_samples = sum(run.n_samples.values()) * gaps.known_share
    return replace(lines, moments=gaps.by.S, accuracy=Accuracy(n_samples, widening=gaps.widening), weights=())


def _uneven(lines: Confidence, rows: Mapping[str, int]) -> Confidence:
    """With errors that allow for the uneven scatter about lines through curves, as those of the sites do."""
    shares = np.array([rows[site] for site in lines.sites], dtype=np.float64)[:, None] / sum(rows.values())
    of_sites = np.sqrt(((shares * lines.site_error) ** 2).sum(axis=0)) if lines.sites else 0.0
    return replace(lines, standard_error=np.fmax(lines.standard_error, of_sites))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Nothing: moments of lines were compared before, and those of hinges vary too much with the tails of a column."""
    return []
