"""Algorithm 1 as a for-loop over an Exchange, then the refit rounds. The same in every kind of run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graph import threshold
from fedbnsl.knowledge import EdgeMask
from fedbnsl.messages import LocalUpdate, RoundTask, TaskKind
from fedbnsl.plan import Plan
from fedbnsl.sparse import Mask, SparseMatrix
from fedbnsl_server.admm import AdmmState, advance, advance_refit, initial_state
from fedbnsl_server.consensus_graph import graph_to_refit
from fedbnsl_server.exchange import Exchange


@dataclass(frozen=True)
class RoundRecord:
    """What is remembered of a round.

    Attributes
    ----------
    entries_up
        Sent entries of B_p, by contributing site.
    entries_down
        Sent entries of W (to every site alike).
    acyclicity
        h(W) after the round.
    edges
        Edges beyond the plan's threshold after the round.
    local_s, global_s
        Seconds until the last update was in, and seconds of the coordinator's own work.
    dense
        Whether the entries were sent without indices.
    """

    round: int
    kind: TaskKind
    contributed: tuple[str, ...]
    entries_up: Mapping[str, int]
    entries_down: int
    acyclicity: float
    edges: int
    local_s: float
    global_s: float
    dense: bool = False


def run(
    plan: Plan,
    variables: Sequence[str],
    sites: Sequence[str],
    exchange: Exchange,
    *,
    on_round: Callable[[AdmmState, RoundRecord], None],
    state: AdmmState | None = None,
) -> AdmmState:
    """All rounds of a run.

    Parameters
    ----------
    variables
        d names, in the order of the matrices.
    sites
        Names of the participants.
    on_round
        Called with the new state after each round, before the next one is handed out: the place to save it.
    state
        Where to go on; None to start from zero.

    Raises
    ------
    QuorumLostError, InterruptedRunError
        From the exchange.
    DivergenceError
        If an iterate is not finite.
    """
    mask, d = EdgeMask(plan.knowledge, variables), len(variables)
    # The closed form knows no excluded edges: B_p has them, and a diagonal; W never does.
    sendable = np.ones((d, d), dtype=bool) if plan.dense_messages else mask.allowed
    state = initial_state(d, sites, sends_changes=plan.sends_changes) if state is None else state
    while state.round < plan.n_rounds:
        started = time.perf_counter()
        t = state.round + 1
        if t <= plan.rounds:
            kind, weights = TaskKind.ADMM, state.message
        else:
            kind, weights = TaskKind.REFIT, graph_to_refit(state, plan, mask).as_sparse()
        tasks = {site: RoundTask(t, kind, weights, site in state.contributed) for site in state.sites}
        updates = exchange.exchange(tasks, state.sites, partial(_check, kind=kind, weights=weights, sendable=sendable))
        received = time.perf_counter()
        state = advance(state, updates, plan, mask) if kind is TaskKind.ADMM else advance_refit(state, updates, plan)
        current = state.global_weights if state.refitted is None else state.refitted
        dense = plan.dense_messages and kind is TaskKind.ADMM
        record = RoundRecord(
            round=t,
            kind=kind,
            contributed=tuple(sorted(updates)),
            entries_up={site: d * d if dense else updates[site].local_weights.nnz for site in sorted(updates)},
            entries_down=d * d if dense else weights.nnz,
            acyclicity=state.acyclicity,
            edges=int(threshold(current.to_dense(), plan.threshold).sum()),
            local_s=received - started,
            global_s=time.perf_counter() - received,
            dense=dense,
        )
        on_round(state, record)
    return state


def _check(update: LocalUpdate, *, kind: TaskKind, weights: SparseMatrix, sendable: Mask) -> None:
    """Refuse an update that does not fit its task: the codec cannot know, and the mathematics trusts."""
    if kind is TaskKind.ADMM:
        if update.residual_variance.size or not sendable.flat[update.local_weights.index].all():
            raise RemoteProtocolError(f"{update.site}: update {update.round} has entries that the plan excludes")
    elif not np.array_equal(update.local_weights.index, weights.index) or not update.residual_variance.size:
        raise RemoteProtocolError(f"{update.site}: update {update.round} is no refit of the graph that was sent")
