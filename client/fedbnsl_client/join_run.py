"""One run at a site: join, answer every task, keep the result and the personalised weights."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from fedbnsl.console.interrupt import Interruption, outcome_of
from fedbnsl.console.shown import shown
from fedbnsl.console.wording import counted
from fedbnsl.errors import (
    BudgetExhaustedError,
    EjectedError,
    FedbnslError,
    InterruptedRunError,
    LedgerError,
    MembershipLostError,
    NotApprovedError,
    PeerRefusedError,
    PlanMismatchError,
    PolicyRefusal,
    RemoteProtocolError,
    RunAbandonedError,
    SchemaMismatchError,
    StaleRoundError,
)
from fedbnsl.events.emitter import Emit, silent
from fedbnsl.events.security_log import Record, unrecorded
from fedbnsl.files import durable
from fedbnsl.files.shortage import shortage
from fedbnsl.graphs import files as graph_files
from fedbnsl.graphs.cpdag import class_of
from fedbnsl.graphs.directed_by import Source
from fedbnsl.graphs.formats import LearnedGraph, edges_csv
from fedbnsl.graphs.pag import NONE, Marks
from fedbnsl.plan import largest_changes
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.plan_table import shown_settings
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.protocol.messages import (
    Finished,
    JoinReply,
    JoinRequest,
    LeaveReason,
    LinkMarks,
    LocalUpdate,
    RoundTask,
    RunOffer,
    Units,
    run_tag,
)
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.protocol.versions import own_versions
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.cancellation import Leaving
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import fit_of, site_lines
from fedbnsl_client.data.preparation import has_intercept
from fedbnsl_client.participant import Participant
from fedbnsl_client.refit import known_values, personalise, unknown_in_words
from fedbnsl_client.scores import VALIDATION, keep_scores
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import Admission
from fedbnsl_client.site.identity import Link
from fedbnsl_client.solvers.local_solver import warm_up

# In a row, without a task between: a coordinator may be killed after each join.
_MOST_MEMBERSHIPS_LOST = 3
# Share of a budget from which on people are told.
_LOW = 0.8
_REFUSALS: Mapping[type[FedbnslError], LeaveReason] = {
    NotApprovedError: LeaveReason.NOT_APPROVED,
    PeerRefusedError: LeaveReason.PEERS,
    BudgetExhaustedError: LeaveReason.BUDGET,
    SchemaMismatchError: LeaveReason.SCHEMA,
}


@dataclass(frozen=True)
class Told:
    """Who is told what of a run at a site."""

    notice: Callable[[str], None] = lambda text: None  # what a person at the site may want to know
    # aside: exact numbers of the table, for the person at the keyboard, not for a log or a page; None: `notice` is
    aside: Callable[[str], None] | None = None
    record: Record = unrecorded  # what the site's security log should hold
    emit: Emit = silent  # what happens, under the name of the offer; see `fedbnsl.events.emitter`


_NOBODY = Told()


def take_part(
    admission: Admission,
    link: Link,
    *,
    patience_s: float,
    told: Told = _NOBODY,
    out: Path | None = None,
    offer: RunOffer | None = None,
    leaving: Leaving | None = None,
) -> LearnedGraph:
    """Take part in one run until its end and return the learned graph with its consensus weights.

    The coordinator is called for `patience_s` if it does not answer, before the run's own plan is known. `out` is the
    folder for the graph and the site's own refit of it; None keeps nothing. With an offer, the run is that one, as the
    coordinator offered it, and no other; None: the only one that it can mean. Raises FedbnslError if the coordinator or
    the site's policy refuses, the coordinator stays away, or ends the run without a result.
    """
    notice, record, emit = told.notice, told.record, told.emit
    address, credentials = link.address, link.credentials
    if out is not None:
        graph_files.new_graph_folder(out)
    warm_up()
    record("calls", coordinator=address, tls=credentials is not None)
    outcome = "finished"
    is_heard = emit is not silent
    emit = partial(emit, run="" if offer is None else offer.name)
    meanwhile = None if leaving is None else leaving.leave_if_asked
    session = Session(
        address,
        credentials,
        patience_s=patience_s,
        notice=notice,
        meanwhile=meanwhile,
        is_there=lambda answers: emit("coordinator back" if answers else "coordinator away"),
    )
    try:
        request = partial(_request, admission, 0 if offer is None else run_tag(offer.run))
        try:
            reply = _joined(session, admission, request())
        except LedgerError:  # another run of this site may have paid between this head and the coordinator's look
            reply = _joined(session, admission, request())
        record("joined", coordinator=address, run=f"{reply.run:016x}", plan_digest=reply.plan_digest.hex())
        reason: LeaveReason | None = None
        try:
            plan = Plan.from_toml(reply.plan_toml, origin="the coordinator's plan")
            if plan.digest() != reply.plan_digest:
                raise PlanMismatchError("the plan that was received does not have the digest that came with it")
            if offer is not None and (offer.run, offer.plan_digest) != (reply.run, reply.plan_digest):
                raise PlanMismatchError("the coordinator serves another run or plan than it had offered")
            if sorted(reply.variables) != sorted(admission.variables):
                raise SchemaMismatchError("the coordinator runs with other variables than this site offered")
            session.settle(plan)
            try:
                table, journal = admission.admit(plan, reply.run, reply.variables)
            except FedbnslError as error:
                reason = _refused_because(error)
                record("run refused", run=f"{reply.run:016x}", why=type(error).__name__)
                emit("not taken part", why=type(error).__name__)
                raise
            emit(
                "run joined",
                plan=reply.plan_digest.hex(),
                plan_name=plan.name,
                rounds=n_rounds(plan),
                dataset=admission.dataset_id,
                n_samples=table.n_samples,
                price=admission.price(plan) if is_heard else None,
                paid_zcdp=zcdp_of(admission.paid_units(reply.run) or 0) if is_heard else 0.0,
                settings={one.name: one.value for one in shown_settings(plan, {}) if one.differs} if is_heard else {},
            )
            notice(
                f"joined as {admission.site}: {table.n_samples} rows, {len(table.columns.variables)} variables, "
                f"{counted(n_rounds(plan), 'round')}"
            )
            # At the site alone, and before a private run pays for anything: Ctrl-C now costs nothing. A run without
            # privacy is in the ledger already.
            for line in site_lines(table, plan, fit_of(table, plan)):
                (told.aside or notice)(line)

            first = (reply.run, reply.plan_digest, reply.variables)

            def restore(reply: JoinReply) -> Participant:
                if (reply.run, reply.plan_digest, reply.variables) != first:
                    raise PlanMismatchError("the coordinator went on with another run; join again")
                return Participant(
                    admission.site,
                    table,
                    plan,
                    reply.snapshot,
                    journal=journal,
                    run=reply.run,
                    attestation=admission.attestation(credentials),
                    least_cell=admission.least_cell,
                )

            releases = _Releases(admission, reply.run, emit, is_heard=is_heard)
            end, units = _answer_tasks(session, request, reply, restore, record, releases, leaving or Leaving())
        except EjectedError:  # the coordinator takes no more calls of this site, nor a farewell
            raise
        except BaseException as error:
            session.leave(reason or _reason(error))
            raise
        if end.graph is None:
            outcome = "without a result"
    except BaseException as error:
        outcome = outcome_of(error)  # the class alone: a text may quote the table
        raise
    finally:
        session.close()
        record("run ended", coordinator=address, outcome=outcome)
        emit("run over", outcome=outcome, reason="")
    if end.graph is None:
        raise RunAbandonedError(f"the run ended without a result: {shown(end.stopped_because)}")
    learned = _learned(end.graph, end, table, plan, units)
    if n := int(learned.joined(table.columns).undirected.sum()):
        notice(
            f"{n} of the edges {'have' if n > 1 else 'has'} no direction: the data tell none, or too few draws agree"
        )
    if end.search_ended_early:
        notice("the coordinator's operator ended a search early: its result says which one, and what it lacks")
    if units is not None and units.limits.size:
        table, lines = known_values(table, units.limits)
        for line in lines:
            (told.aside or notice)(line)
    if out is not None:
        if end.network and plan.validation != "none":
            (told.aside or notice)(keep_scores(out, end.network, table.X, table.columns, plan))
            notice(f"how well the network describes the rows here is in {out / VALIDATION}, which stays here")
        if lacking := _keep(out, table, learned, plan):
            (told.aside or notice)(f"{lacking}; they are blank in {out / 'personalised-edges.csv'}")
    return learned


class _Releases:
    """Tells what has left the site, and what it cost; where nobody listens, the ledger is not asked."""

    def __init__(self, admission: Admission, run: int, emit: Emit, *, is_heard: bool) -> None:
        self._admission, self._run, self._emit, self._is_heard = admission, run, emit, is_heard
        self._paid = admission.paid_units(run)
        self._is_low = False
        if is_heard:
            self._tell_budget()

    def asked(self, task: RoundTask) -> None:
        """The coordinator has sent a task."""
        self._emit("round asked", round=task.round, stage=task.content.kind)

    def sent(self, task: RoundTask, n_bytes: int) -> None:
        """The answer has left the site, in time or not."""
        if not self._is_heard:
            return
        before, self._paid = self._paid, self._admission.paid_units(self._run)
        zcdp = None if self._paid is None else zcdp_of(self._paid - (before or 0))
        self._emit("released", round=task.round, stage=task.content.kind, n_bytes=n_bytes, zcdp=zcdp, again=zcdp == 0)
        self._tell_budget()

    def _tell_budget(self) -> None:
        budget = self._admission.budget()
        if budget is None:
            return
        self._emit("budget", **asdict(budget))
        if not self._is_low and budget.spent_epsilon > _LOW * budget.max_epsilon:
            self._is_low = True
            self._emit(
                "budget low",
                dataset=budget.dataset,
                spent_epsilon=budget.spent_epsilon,
                max_epsilon=budget.max_epsilon,
            )


def _joined(session: Session, admission: Admission, request: JoinRequest) -> JoinReply:
    """What the coordinator answers to a site that joins."""
    try:
        return session.join(request)
    except SchemaMismatchError as error:
        own = admission.dictionary
        has = f"has one ({own.digest()[:8]})" if own else "has none"
        raise SchemaMismatchError(
            str(error),
            remedy=f"{error.remedy} A nominal variable has a column for each level but the first: both sides need the "
            f"same data dictionary. This site {has}; get the consortium's dictionary.toml.",
        ) from None


def _request(admission: Admission, run: int) -> JoinRequest:
    return JoinRequest(
        admission.site,
        admission.variables,
        admission.n_samples,
        ledger=admission.ledger_head,
        versions=own_versions(),
        run=run,
    )


def _answer_tasks(
    session: Session,
    request: Callable[[], JoinRequest],
    reply: JoinReply,
    restore: Callable[[JoinReply], Participant],
    record: Record,
    told: _Releases,
    leaving: Leaving,
) -> tuple[Finished, Units | None]:
    """Answer until the run is over; its end, and the units of its columns."""
    participant, last_round = restore(reply), reply.round
    answered: RoundTask | None = None
    memberships_lost = 0
    while True:
        try:
            task = session.pull(last_round)
            if isinstance(task, Finished):
                return task, participant.units
            # A coordinator that crashed before it counted the last answer sends the same task again.
            if task.round == last_round + 1 or task == answered:
                leaving.leave_if_asked()
                told.asked(task)
                with suppress(StaleRoundError):  # the round closed without this site: the next task says so
                    session.push(_answer(participant, task, record))
                told.sent(task, session.pushed_bytes)
                answered, last_round, memberships_lost = task, task.round, 0
                continue
        except MembershipLostError:
            if memberships_lost == _MOST_MEMBERSHIPS_LOST:
                raise
            memberships_lost += 1
        # Take over the coordinator's state: this site missed a round, and with it a W that the dual may depend on, or
        # the coordinator went back to an earlier round or lost this site's membership.
        reply = session.join(request())
        participant, last_round, answered = restore(reply), reply.round, None


def _answer(participant: Participant, task: RoundTask, record: Record) -> LocalUpdate:
    try:
        update = participant.handle(task)
    except FedbnslError as error:
        record("task refused", round=task.round, kind=task.content.kind, why=type(error).__name__)
        raise
    if update.ledger is None:  # else its payment says so, with a digest; that of exact values would tell of the table
        record("answered uncounted", round=task.round, kind=task.content.kind)
    return update


def _reason(error: BaseException) -> LeaveReason:
    """Why the site goes, as a class: no text of the site's crosses the wire."""
    if isinstance(error, Interruption | InterruptedRunError):
        return LeaveReason.OPERATOR
    if isinstance(error, PolicyRefusal | BudgetExhaustedError | LedgerError):
        return _refused_because(error)
    return LeaveReason.LOCAL_ERROR


def _refused_because(error: FedbnslError) -> LeaveReason:
    """The class of a refusal; whatever may depend on the table is in one class with what the policy does not allow.

    A shortage counts where the ledger is written alone: how much memory or room a table takes depends on its content.
    """
    if isinstance(error, LedgerError) and shortage(error):
        return LeaveReason.SHORTAGE
    for kind, reason in _REFUSALS.items():
        if isinstance(error, kind):
            return reason
    return LeaveReason.POLICY


def _keep(out: Path, table: Dataset, learned: LearnedGraph, plan: Plan) -> str:
    """Keep the graph, and the site's own weights; which of these are not known, and why."""
    fitted = personalise(table, learned.dag, intercept=has_intercept(plan.preparation))
    own = replace(learned, weights=fitted.weights, residual_variance=fitted.residual_variance)
    durable.write_text(out / "personalised-edges.csv", edges_csv(own.joined(table.columns)), mode=durable.OWNER_ONLY)
    # Last: a folder with it is whole, and is kept.
    durable.write_text(out / "edges.csv", edges_csv(learned.joined(table.columns)))
    return unknown_in_words(own, table)


def _learned(graph: SparseMatrix, end: Finished, table: Dataset, plan: Plan, units: Units | None) -> LearnedGraph:
    """The graph with its class as the DAG, the plan and who directs edges tell it, and with what else the end says."""
    columns, known, support = table.columns, plan.edge_mask(table.columns.names).of_variables, graph.support()
    dag = columns.joined(support)
    marks = dag
    if plan.graph_class == "cpdag":
        try:
            marks = class_of(dag, known.allowed, known.required)
        except ValueError:
            raise RemoteProtocolError(
                "the graph at the end of the run does not keep the knowledge of its plan"
            ) from None
    drawn, edges = end.draws, np.argwhere(dag)
    if drawn is not None and len(drawn.counts) != len(edges):
        raise RemoteProtocolError(
            f"the end of the run tells the draws of {len(drawn.counts)} edges; its graph has {len(edges)}"
        )
    arrows = (marks & ~marks.T)[dag]
    if not all(k < len(edges) and arrows[k] for k in end.undecided):
        raise RemoteProtocolError("the end of the run leaves edges undecided that are no arrows of its graph's class")
    if end.directed_by and len(end.directed_by) != len(edges):
        raise RemoteProtocolError(
            f"the end of the run tells who directed {len(end.directed_by)} edges; its graph has {len(edges)}"
        )
    by = dict(zip(map(tuple, edges.tolist()), end.directed_by, strict=False))
    beyond = [edge for edge, who in by.items() if who in get_args(Source)]
    marks = marks.copy()
    marks[tuple(np.array(beyond, dtype=np.int64).reshape(-1, 2).T[::-1])] = False
    undecided = np.zeros_like(dag)
    undecided[tuple(edges[list(end.undecided)].T)] = True
    pag, pag_shares = _marks_of(end.marks, len(columns.variables))
    weights = largest_changes.told(graph.to_dense(), largest_changes.largest_changes(plan, columns))
    return LearnedGraph(
        table.variables,
        support,
        weights,
        marks=columns.spread(marks),
        undecided=columns.spread(undecided),
        shares={} if drawn is None else drawn.shares(dag, columns.variables),
        directed_by={(columns.variables[i], columns.variables[j]): who for (i, j), who in by.items()},
        pag=pag,
        pag_shares=pag_shares,
        sizes=None if units is None else np.abs(units.weights_of_columns(weights)),
    )


def _marks_of(told: LinkMarks | None, n_variables: int) -> tuple[Marks | None, Matrix | None]:
    """(V, V) marks, and shares of the draws that have the same; shares of pairs without a link are not told."""
    if told is None:
        return None, None
    marks = np.full((n_variables, n_variables), NONE, dtype=np.int8)
    shares = np.full((n_variables, n_variables), np.nan)
    if any(j >= n_variables for _, j, _, _ in told.links):
        raise RemoteProtocolError(f"the end of the run has links of other variables than the {n_variables} of the run")
    for i, j, at_i, at_j in told.links:
        marks[j, i], marks[i, j] = at_i, at_j
    for (i, j, *_), (same_i, same_j) in zip(told.links, told.counts, strict=False):
        shares[j, i], shares[i, j] = same_i / told.draws, same_j / told.draws
    return marks, shares if told.draws else None
