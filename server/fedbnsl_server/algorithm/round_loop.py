"""Algorithm 1 as a for-loop over an Exchange, then the refit rounds. The same in every kind of run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.family_moments import needed_moments, parent_candidates, symmetric
from fedbnsl.graphs.graph import threshold
from fedbnsl.messages import LocalUpdate, RoundTask, TaskKind
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import Mask, Matrix, SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState, advance, begin_start, initial_state
from fedbnsl_server.algorithm.consensus_graph import graph_to_refit
from fedbnsl_server.rounds.closing import advance_closing
from fedbnsl_server.rounds.findings import Finding, findings_of
from fedbnsl_server.sites.mailbox import Exchange


@dataclass(frozen=True)
class RoundRecord:
    """What is remembered of a round.

    Attributes
    ----------
    entries_up
        Sent entries of B_p, or moments, by contributing site.
    entries_down
        Sent entries of W (to every site alike).
    acyclicity
        h(W) after the round.
    edges
        Edges beyond the plan's threshold after the round.
    local_s, global_s
        Seconds until the last update was in, and seconds of the coordinator's own work.
    dense_up, dense_down
        Whether the entries were sent without indices.
    findings
        What the answers tell of the tables.
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
    dense_up: bool = False
    dense_down: bool = False
    findings: tuple[Finding, ...] = ()


def run(
    plan: Plan,
    variables: Sequence[str],
    n_samples: Mapping[str, int],
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
    n_samples
        Rows of every participant, by its name.
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
    state = initial_state(d, list(n_samples), sends_changes=plan.sends_changes) if state is None else state
    while state.round < plan.n_rounds:
        started = time.perf_counter()
        t = state.round + 1
        stage = plan.stage(t)
        kind = stage.kind
        if kind is TaskKind.ADMM and stage.start and stage.step == 1:
            state = begin_start(state)
        weights = _to_send(kind, state, plan, mask)
        private_moments = kind is TaskKind.MOMENTS and plan.privacy is not None
        scales = state.scales if private_moments else np.empty(0)
        tasks = {site: RoundTask(t, kind, weights, site in state.contributed, scales) for site in state.sites}
        needed = None
        if kind is TaskKind.MOMENTS and not private_moments:
            needed = needed_moments(parent_candidates(weights.support(), mask))
        expected = _Expected(
            kind,
            weights,
            sendable,
            n_moments=_n_moments(kind, needed, d),
            needed=needed,
            asked=next(iter(tasks.values())).asked if private_moments else b"",
            findings=plan.privacy is None,
        )
        check = partial(_check, expected=expected)
        updates = exchange.exchange(tasks, state.sites, check)
        received = time.perf_counter()
        if kind is TaskKind.ADMM:
            state = advance(state, updates, plan, mask)
        else:
            state = advance_closing(kind, state, updates, plan, mask, weights=weights, n_samples=n_samples)
        current = state.global_weights if state.refitted is None else state.refitted
        dense = plan.dense_messages and kind is TaskKind.ADMM
        record = RoundRecord(
            round=t,
            kind=kind,
            contributed=tuple(sorted(updates)),
            entries_up={
                site: d * d if dense else update.local_weights.nnz + update.moments.size
                for site, update in sorted(updates.items())
            },
            entries_down=d * d if dense else weights.nnz,
            acyclicity=state.acyclicity,
            edges=int(threshold(current.to_dense(), plan.threshold).sum()),
            local_s=received - started,
            global_s=time.perf_counter() - received,
            dense_up=dense or kind in (TaskKind.MOMENTS, TaskKind.SCALES),
            dense_down=dense,
            findings=findings_of(kind, updates, plan, n_samples, weights=weights, scales=scales),
        )
        on_round(state, record)
    return state


def _to_send(kind: TaskKind, state: AdmmState, plan: Plan, mask: EdgeMask) -> SparseMatrix:
    """What a task of this kind carries."""
    if kind is TaskKind.ADMM:
        return state.message
    if kind is TaskKind.REFIT:
        return graph_to_refit(state, plan, mask).as_sparse()
    if kind is TaskKind.SCALES:
        return SparseMatrix.zeros(state.global_weights.n_variables)
    if plan.privacy is not None:
        return state.refitted or graph_to_refit(state, plan, mask).as_sparse()
    return state.neighbours or SparseMatrix.zeros(state.global_weights.n_variables)


@dataclass(frozen=True, eq=False)
class _Expected:
    """What an answer to a round's tasks looks like.

    Attributes
    ----------
    sendable
        (d, d) coordinates that B_p may have.
    needed
        (d, d) pairs whose exact second moments were asked for, i <= j; None in other rounds.
    asked
        `RoundTask.asked` in a private moments round.
    findings
        Whether sites may tell what is odd about their tables.
    """

    kind: TaskKind
    weights: SparseMatrix
    sendable: Mask
    n_moments: int
    needed: Mask | None
    asked: bytes
    findings: bool


def _n_moments(kind: TaskKind, needed: Mask | None, d: int) -> int:
    """How many moments an answer has."""
    if needed is not None:
        return int(needed.sum())
    return {TaskKind.SCALES: d, TaskKind.MOMENTS: d * (d + 1) // 2}.get(kind, 0)


def _check(update: LocalUpdate, *, expected: _Expected) -> None:
    """Refuse an update that does not fit its task: the codec cannot know, and the mathematics trusts."""
    kind, who = expected.kind, f"{update.site}: update {update.round}"
    if update.moments.size != expected.n_moments:
        raise RemoteProtocolError(f"{who} has {update.moments.size} moments; {expected.n_moments} were asked for")
    if update.asked != expected.asked:
        raise RemoteProtocolError(f"{who} is a kept answer to moments of other residuals, which cannot be used")
    if update.findings and not expected.findings:
        raise RemoteProtocolError(f"{who} has findings about a private table, which must not leave its site")
    if expected.needed is not None and not _are_moments(symmetric(update.moments, expected.needed)):
        raise RemoteProtocolError(f"{who} has numbers that are no second moments")
    if kind in (TaskKind.MOMENTS, TaskKind.SCALES):
        if update.local_weights.nnz or update.residual_variance.size:
            raise RemoteProtocolError(f"{who} has more than moments")
    elif kind is TaskKind.ADMM:
        if update.residual_variance.size or not expected.sendable.flat[update.local_weights.index].all():
            raise RemoteProtocolError(f"{who} has entries that the plan excludes")
    elif not np.array_equal(update.local_weights.index, expected.weights.index) or not update.residual_variance.size:
        raise RemoteProtocolError(f"{who} is no refit of the graph that was sent")


def _are_moments(S: Matrix) -> bool:
    """Whether every known entry can be the mean of x_i x_j beside the means of x_i^2 and x_j^2, but for rounding."""
    size = np.sqrt(np.maximum(S.diagonal(), 0.0))
    if np.isinf(S).any() or not (size > 0).all():
        return False
    return not (np.abs(S / size[:, None] / size) > 1.0 + 1e-5).any()
