"""A round of counts at the coordinator: ask for the tables that could make the graph better, and search with them.

Rounds follow until the plan's last one; once no table could make the graph better, they ask for none. The last one
fits the weights of the graph, by the moments of the rounds before, and draws the bootstrap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.contingency import VariableSet, cells_of, levels_of
from fedbnsl.graphs.pag import Known
from fedbnsl.protocol.sparse import Mask
from fedbnsl.rounds.counts import Answer, Task
from fedbnsl.rounds.kinds import stage
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.inference.bootstrap import shares_of
from fedbnsl_server.inference.counted_dependence import CountedDependence
from fedbnsl_server.inference.hidden_causes import MOST_VARIABLES, found_by
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import FoundElsewhere, fitted_by_moments, found_by_moments, saved_by_lines
from fedbnsl_server.search.counts.climb import parents_of
from fedbnsl_server.search.counts.search import CountSearch, Rivals, first_sets
from fedbnsl_server.search.counts.straight import Descriptions
from fedbnsl_server.search.counts.tables import Choice, Counted, PooledTables, SiteTables

# Passes over all variables without a better graph, after which a search ends: between rounds, and after the last.
_PASSES, _PASSES_AT_LAST = 1, 3


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """First pairs; then what the last search wants to know. Nothing where counts cannot decide: see `advance`."""
    if not state.counts_follow(run.plan):
        return state, Task.of(())
    if state.counted is None:
        near, known = _of_moments(state, run), run.mask.of_variables
        wanted = first_sets(levels_of(run.mask.columns, run.plan.dictionary), near, known.required)
        state = replace(state, counted=Counted(near, wanted=wanted))
    return state, Task.of(() if state.counted is None else state.counted.wanted)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report tables that were not asked for, or that no records can have."""
    levels = levels_of(run.mask.columns, run.plan.dictionary)
    sizes = np.array([cells_of(one, levels) for one in task.sets], dtype=np.int64)
    if answer.task_digest != task.digest or answer.n_cells.size != sizes.size:
        return f"has {answer.n_cells.size} tables of counts; {sizes.size} others were asked for"
    of_set = np.repeat(np.arange(sizes.size), answer.n_cells)
    ascending = (np.diff(answer.cells) > 0) | (np.diff(of_set) > 0)
    if (answer.cells >= sizes[of_set]).any() or not ascending.all():
        return "has counts of cells that its tables do not have"
    totals = np.bincount(of_set, answer.counts, sizes.size)
    told = totals[answer.n_cells > 0]
    if (told != told[:1]).any():
        return "has tables of different numbers of records"
    if (told > max(run.n_samples.values())).any():
        return "has tables of more records than the site has"
    whole = next(iter(run.whole_rows.values()), None)
    if told.size and whole is not None and told[0] != whole:
        return f"has tables of {told[0]:.0f} records; the site has told that {whole} rows lack no value"
    return ""


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The best graph by all tables so far, and what to ask for next; in the last round also confidence in it.

    Records with a gap are in no table: completed by straight lines between levels they give false edges, and so do
    tables of other records than each other's. Where those without a gap cannot stand for all, the graph of the moments
    stays. It also stays where sites withhold tables of its families: nothing else could stand for an edge of theirs;
    and where some variables are ordinal, and it describes the tables better, with straight effects (`straight`).
    """
    if not state.counts_follow(run.plan):
        return state
    before = state.counted or Counted(_of_moments(state, run))
    last = stage(run.plan, state.round + 1, state.iterations).step == run.plan.counts_rounds
    if task.sets:
        rows = state.without_gaps(run.n_samples)
        told = {
            site: SiteTables(one.n_cells, one.cells, one.counts)
            for site, one in answers.items()
            if rows[site]  # else its tables are empty, and not withheld
        }
        before = before.with_answers(task.sets, told)
    elif not last:
        return replace(state, counted=before)
    if _withheld(tables_of(replace(state, counted=before), run), _of_moments(state, run)):
        return found_by_moments(replace(state, counted=replace(before, wanted=(), given_up=True)), run)
    search = _search(replace(state, counted=before), run)
    run.progress.begin("searching by counts")
    rng = np.random.default_rng(run.plan.search_seed)
    dag = search.best(before.dag, rng, passes=_PASSES_AT_LAST if last else _PASSES, progress=run.progress)
    if last:
        _require_tables(search, dag)
        if not before.told.keys() & state.moments.keys():
            raise RemoteProtocolError(
                "no site has answered all rounds of moments and of counts",
                remedy="Resume the run when all sites are there.",
            )
        if run.plan.grades:
            choice = _choice(search, dag, state, run)
            before = replace(before, dag=dag, wanted=(), choice=choice)
            if not choice.counts:
                return found_by_moments(replace(state, counted=before), run)
        run.progress.begin("searching with arrows reversed")
        dag, rivals = search.rivals(dag, rng, progress=run.progress)
        return _with_confidence(replace(state, counted=replace(before, dag=dag, wanted=())), search, rivals, run)
    return replace(state, counted=replace(before, dag=dag, wanted=search.wanted(dag)))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Sites are compared by their moments."""
    return []


def tables_of(state: AdmmState, run: Run) -> PooledTables:
    """The tables so far, of all sites together."""
    return PooledTables(
        state.counted or Counted(_of_moments(state, run)), levels_of(run.mask.columns, run.plan.dictionary)
    )


def _of_moments(state: AdmmState, run: Run) -> Mask:
    """(V, V) the graph that the moments have given, with the required edges."""
    required = run.mask.of_variables.required
    return required if state.refitted is None else run.mask.columns.joined(state.refitted.support()) | required


def _search(state: AdmmState, run: Run) -> CountSearch:
    levels, known = levels_of(run.mask.columns, run.plan.dictionary), run.mask.of_variables
    allowed = known.allowed | known.required
    return CountSearch(tables_of(state, run), levels, _of_moments(state, run), allowed, known.required)


def _choice(search: CountSearch, dag: Mask, state: AdmmState, run: Run) -> Choice:
    """Between the graph of counts and that of moments, which also knows families whose tables are too large."""
    kinds = [run.plan.dictionary[name].kind for name in run.mask.columns.variables]
    of, moments = Descriptions(search.source, search.levels, np.array(kinds) == "nominal"), _of_moments(state, run)
    known = of.known(moments)
    further = 0.0 if (known == moments).all() else saved_by_lines(state, known, moments, search.source.n_samples, run)
    return of.choice(dag, known, further)


def _families(dag: Mask) -> Iterator[VariableSet]:
    for x in range(len(dag)):
        yield tuple(sorted((x, *parents_of(dag, x))))


def _withheld(tables: PooledTables, dag: Mask) -> bool:
    """Whether a site keeps the table of a family to itself."""
    return any(map(tables.is_withheld, _families(dag)))


def _require_tables(search: CountSearch, dag: Mask) -> None:
    """Raise RemoteProtocolError if the table of a family is not known, as each site missed a round."""
    if any(search.source.table(one) is None for one in _families(dag)):
        raise RemoteProtocolError(
            "each site has missed a round of counts, so that tables of the same records lack",
            remedy="Resume the run when all sites are there.",
        )


def _with_confidence(state: AdmmState, search: CountSearch, rivals: Rivals, run: Run) -> AdmmState:
    dag = search.required if state.counted is None else state.counted.dag
    draws, redrawn, ordered, back = run.plan.bootstrap, search.redrawn(dag), search.ordered, search.back
    generators = np.random.default_rng(run.plan.search_seed).spawn(draws)
    run.progress.begin("bootstrap")

    def marks(k: int) -> tuple[Mask, None] | None:
        if run.progress.is_enough:
            return None
        found = run.class_of(redrawn.best(generators[k], run.progress)[back])
        found = rivals.instead(found[ordered], generators[k])[back]
        run.progress.at(k / draws)
        return None if run.progress.is_enough else (found, None)

    shares = shares_of(run.progress.each(marks, range(draws)), len(dag), [dag])
    state = fitted_by_moments(state, FoundElsewhere(dag, shares), run)
    if state.confidence is None or not run.plan.tells_hidden_causes or len(dag) > MOST_VARIABLES:
        return state
    known = Known.of(run.mask)
    found = found_by(dag, CountedDependence(search.source), known)
    return replace(state, confidence=state.confidence.with_pag(found, known))
