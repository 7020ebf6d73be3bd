"""The loop over all rounds of a run: ask the sites through an `Exchange`, advance the state, record the round.

A run in one process and a run over a network use this same loop.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from fedbnsl.errors import DivergenceError, RemoteProtocolError, StaleRoundError
from fedbnsl.graphs.graph import threshold
from fedbnsl.plan.interventions import refuse_other_names
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Content, LocalUpdate, RoundTask, Units, Yields
from fedbnsl.rounds.kinds import KINDS, n_rounds, stage
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.algorithm.consensus_graph import consensus_graph, present_weights
from fedbnsl_server.algorithm.influence import FEWEST_SITES, Influence, influences
from fedbnsl_server.results.data_quality import QualityWarning, quality_warnings
from fedbnsl_server.rounds import regressions
from fedbnsl_server.rounds.kinds import Run, kind_of, left_out
from fedbnsl_server.run import secure_aggregation as secure_aggregation
from fedbnsl_server.run.secure_aggregation import NO_SECURE_SITES, SecureSites
from fedbnsl_server.search.progress import Each, Progress, in_turn
from fedbnsl_server.sites.mailbox import Exchange


@dataclass(frozen=True)
class RoundRecord:
    """What is recorded of a round."""

    round: int
    kind: str
    contributed: tuple[str, ...]
    entries_up: Mapping[str, int]  # numbers that were sent, by contributing site
    entries_down: int  # numbers that were sent to every site alike
    acyclicity: float  # h(W) after the round
    edges: int  # edges beyond the plan's threshold after the round; those without a direction count once
    # Seconds until the last update was in, and seconds of the coordinator's own work.
    local_s: float
    global_s: float
    # Whether each of them had an index.
    indexed_up: bool = True
    indexed_down: bool = True
    findings: tuple[QualityWarning, ...] = ()  # what the answers show about the tables
    # How far each contributing site's numbers lie from the others'; empty for fewer than three sites.
    influence: Mapping[str, Influence] = field(default_factory=dict[str, Influence])
    left_out: tuple[str, ...] = ()  # contributing sites that a robust rule left out of the result whole
    undirected: int = 0  # edges without a direction, once a search has found a class of graphs
    rounds: int = 0  # of the whole run, as far as known: EM goes on until nothing changes
    ended_in: str = ""  # the part of its search in which the operator asked for its end; empty: it is complete


@dataclass(frozen=True)
class Searching:
    """How the searches of a run are followed and how their parts are gone through."""

    # Given, before the answers of a round are worked on, what tells how far a search is; None once that is done.
    follow: Callable[[Progress | None], None] = lambda progress: None
    each: Each = in_turn  # goes through the parts of a search; with threads, several at a time


IN_TURN = Searching()


def run(
    plan: Plan,
    variables: Sequence[str],
    n_samples: Mapping[str, int],
    exchange: Exchange,
    *,
    on_round: Callable[[AdmmState, RoundRecord], None],
    state: AdmmState | None = None,
    secure: SecureSites = NO_SECURE_SITES,
    search: Searching = IN_TURN,
    network: Callable[[], str] = lambda: "",
) -> AdmmState:
    """Play all rounds of a run from `state`, or from zero; the d variables are in the order of the matrices.

    `on_round` gets the new state after each round, before the next one is handed out: the place to save it. Raises
    QuorumLostError or InterruptedRunError from the exchange, DivergenceError if an iterate is not finite, and PlanError
    for interventions at other sites or in other variables. `network` gives the learned network of the rounds that
    `on_round` has got, as JSON, to a round that scores it.
    """
    context = Run(plan, plan.edge_mask(variables), n_samples, secure.certificates, tuple(secure.lost), network=network)
    if state is None:
        refuse_other_names(plan.interventions, n_samples, context.mask.columns.variables)
        state = initial_state(len(variables), list(n_samples), sends_changes=plan.sends_changes)
    while state.round < n_rounds(plan, state.iterations_with_next):
        started = time.perf_counter()
        context = replace(context, n_samples={**n_samples, **state.complete_rows}, whole_rows=state.whole_rows)
        kind = stage(plan, state.round + 1, state.iterations_with_next).kind
        state, content = kind_of(kind).ask(state, context)
        new = KINDS[stage(plan, state.round, state.iterations).kind].Task.passes_on if state.round else ()
        told: dict[str, Any] = {"lost": context.lost, **{name: getattr(state, name) for name in new}}
        tasks = {site: RoundTask(state.round + 1, content, site in state.contributed, **told) for site in state.sites}
        check = partial(_check, asked=content, units=state.units, run=context)
        updates = exchange.exchange(tasks, state.sites, check)
        received = time.perf_counter()
        progress = Progress(search.each)
        search.follow(progress)
        try:
            state = advance(state, updates, content, replace(context, progress=progress))
        finally:
            search.follow(None)
        known, seen = _known(state, updates, content, context)
        entries_down, indexed_down = content.entries(dense=plan.dense_messages)
        entries_up = {site: updates[site].content.entries(dense=plan.dense_messages) for site in sorted(updates)}
        edges, undirected = _counted(state, context)
        record = RoundRecord(
            round=state.round,
            kind=kind,
            contributed=tuple(sorted(updates)),
            entries_up={site: entries for site, (entries, _) in entries_up.items()},
            entries_down=entries_down,
            acyclicity=state.acyclicity,
            edges=edges,
            undirected=undirected,
            local_s=received - started,
            global_s=time.perf_counter() - received,
            indexed_up=all(indexed for _, indexed in entries_up.values()),
            indexed_down=indexed_down,
            findings=quality_warnings(content, known, seen),
            influence=influence_of(state, known, content, seen),
            left_out=left_out(state, _answers(known), content, seen),
            ended_in=progress.ended_in,
            rounds=n_rounds(plan, state.iterations_with_next),
        )
        on_round(state, record)
    return state


def advance(state: AdmmState, updates: Mapping[str, LocalUpdate], asked: Content, run: Run) -> AdmmState:
    """The state after a round in which these updates came in."""
    known, seen = _known(state, updates, asked, run)
    after = kind_of(asked.kind).advance(state, _answers(known), asked, seen)
    if after.refitted is not None and not np.isfinite(after.refitted.value).all():
        raise DivergenceError("the refitted weights are not finite")
    after = replace(after, round=state.round + 1, contributed=frozenset(updates))
    iterations = after.iterations_with_next
    left = (stage(run.plan, t, iterations) for t in range(after.round + 1, n_rounds(run.plan, iterations) + 1))
    if all(one.yields is Yields.SCORES for one in left) and not after.regressions:
        return regressions.begin(after, run)  # the graph has been found
    return after


def _counted(state: AdmmState, run: Run) -> tuple[int, int]:
    """Edges of the present graph, and how many of them have no direction."""
    if run.plan.graph_class != "cpdag" or state.refitted is None:
        return int(run.mask.columns.joined(threshold(present_weights(state), run.plan.threshold)).sum()), 0
    marks = consensus_graph(state, run.plan, run.mask).marks
    undirected = int((marks & marks.T).sum()) // 2
    return int(marks.sum()) - undirected, undirected


def influence_of(after: AdmmState, known: Mapping[str, LocalUpdate], asked: Content, run: Run) -> dict[str, Influence]:
    """How far each site's numbers lie from the others', after the round in which these updates came in."""
    if len(known) < FEWEST_SITES:
        return {}
    found = influences(kind_of(asked.kind).compared(after, _answers(known), asked, run))
    return dict(zip(known, found, strict=True)) if found else {}


def _known(
    state: AdmmState, updates: Mapping[str, LocalUpdate], asked: Content, run: Run
) -> tuple[dict[str, LocalUpdate], Run]:
    """The updates in the order of the sites, and their run; after secure aggregation all sites are one."""
    if secure_aggregation.is_summed(asked, run):
        together = secure_aggregation.TOGETHER
        total = secure_aggregation.total(updates, asked, run)
        return {together: LocalUpdate(together, state.round, total)}, run.as_one(together)
    return {site: updates[site] for site in state.sites if site in updates}, run


def _answers(known: Mapping[str, LocalUpdate]) -> dict[str, Content]:
    return {site: update.content for site, update in known.items()}


def _check(update: LocalUpdate, *, asked: Content, units: Units | None, run: Run) -> None:
    """Refuse an update that does not fit its task."""
    if secure_aggregation.is_given_up(update.content, asked, units, run):
        raise StaleRoundError(f"round {update.round} was given up since a site was lost; pull the current task")
    if update.content.kind != asked.kind:
        fault = f"is of the kind {update.content.kind}; the task is of the kind {asked.kind}"
    elif update.findings and run.plan.privacy is not None:
        fault = "has findings about a private table, which must not leave its site"
    elif secure_aggregation.is_summed(asked, run):
        fault = secure_aggregation.fault(update.content, asked, units, run)
    else:
        fault = kind_of(asked.kind).fault(update.content, asked, run.of_site(update.site))
    if fault:
        raise RemoteProtocolError(f"{update.site}: update {update.round} {fault}")
