"""One run at a site: join, answer every task, keep the result and the personalised weights."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl import durable
from fedbnsl.errors import (
    BudgetExhaustedError,
    EjectedError,
    FedbnslError,
    InterruptedRunError,
    LedgerError,
    PlanMismatchError,
    PolicyRefusal,
    RemoteProtocolError,
    RunAbandonedError,
    SchemaMismatchError,
    SeatLostError,
    StaleRoundError,
)
from fedbnsl.graphs import files as graph_files
from fedbnsl.graphs.cpdag import class_of
from fedbnsl.graphs.formats import LearnedGraph, edges_csv
from fedbnsl.messages import Finished, JoinReply, JoinRequest, LeaveReason, LocalUpdate, RoundTask
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.security_log import Record, unrecorded
from fedbnsl.shown import shown
from fedbnsl.sparse import Mask, SparseMatrix
from fedbnsl.versions import own_versions
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import fit_of, site_lines
from fedbnsl_client.data.preparation import has_intercept
from fedbnsl_client.participant import Participant
from fedbnsl_client.refit import personalise
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import Admission
from fedbnsl_client.solvers.local_solver import warm_up

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

# In a row, without a task between: a coordinator may be killed after each join.
_MOST_SEATS_LOST = 3


def take_part(
    admission: Admission,
    *,
    address: str,
    credentials: "Credentials | None" = None,
    patience_s: float,
    notice: Callable[[str], None],
    out: Path | None,
    record: Record = unrecorded,
) -> SparseMatrix:
    """Take part in one run until its end and return the learned graph with its consensus weights.

    Parameters
    ----------
    admission
        The site's table, and what watches over it.
    address
        host:port of the coordinator.
    credentials
        For TLS; None: plaintext, on loopback only.
    patience_s
        How long to call a coordinator that does not answer, before the run's own plan is known.
    notice
        Told what a person at the site may want to know.
    out
        Folder for the graph and the site's own refit of it; None keeps nothing.
    record
        Told what the site's security log should hold.

    Raises
    ------
    FedbnslError
        If the coordinator or the site's policy refuses, the coordinator stays away, or ends the run without a result.
    """
    if out is not None:
        graph_files.new_graph_folder(out)
    warm_up()
    record("calls", coordinator=address, tls=credentials is not None)
    outcome = "finished"
    session = Session(address, credentials, patience_s=patience_s, notice=notice)
    try:
        reply = _joined(session, admission)
        record("joined", coordinator=address, run=f"{reply.run:016x}", plan_digest=reply.plan_digest.hex())
        reason: LeaveReason | None = None
        try:
            plan = Plan.from_toml(reply.plan_toml, origin="the coordinator's plan")
            if plan.digest() != reply.plan_digest:
                raise PlanMismatchError("the plan that was received does not have the digest that came with it")
            if sorted(reply.variables) != sorted(admission.variables):
                raise SchemaMismatchError("the coordinator runs with other variables than this site offered")
            session.settle(plan)
            try:
                table, journal = admission.admit(plan, reply.run, reply.variables)
            except FedbnslError as error:
                reason = LeaveReason.POLICY  # one class for every refusal: its cause stays at the site
                record("run refused", run=f"{reply.run:016x}", why=type(error).__name__)
                raise
            notice(
                f"joined as {admission.site}: {table.n_samples} rows, {len(table.columns.variables)} variables, "
                f"{n_rounds(plan)} rounds"
            )
            # At the site alone, and before a private run pays for anything: Ctrl-C now costs nothing. A run without
            # privacy is in the ledger already.
            for line in site_lines(table, plan, fit_of(table, plan)):
                notice(line)

            first = (reply.run, reply.plan_digest, reply.variables)

            def restore(reply: JoinReply) -> Participant:
                if (reply.run, reply.plan_digest, reply.variables) != first:
                    raise PlanMismatchError("the coordinator went on with another run; join anew")
                return Participant(
                    admission.site,
                    table,
                    plan,
                    reply.snapshot,
                    journal=journal,
                    run=reply.run,
                    vouching=admission.vouching(credentials),
                )

            end = _answer_tasks(session, admission, reply, restore, record)
        except EjectedError:  # the coordinator takes no more calls of this site, nor a farewell
            raise
        except BaseException as error:
            session.leave(reason or _reason(error))
            raise
        if end.graph is None:
            outcome = "without a result"
    except BaseException as error:
        outcome = type(error).__name__  # the class alone: a text may quote the table
        raise
    finally:
        session.close()
        record("run ended", coordinator=address, outcome=outcome)
    if end.graph is None:
        raise RunAbandonedError(f"the run ended without a result: {shown(end.stopped_because)}")
    marks = _class_of(end.graph.support(), table.columns, plan)
    if n := _undirected(marks, table.columns):
        notice(f"{n} of the edges {'have' if n > 1 else 'has'} no direction: the data tell none")
    if out is not None:
        _keep(out, table.complete_cases(), end.graph, plan, marks)
    return end.graph


def _joined(session: Session, admission: Admission) -> JoinReply:
    """What the coordinator answers to a site that joins."""
    try:
        return session.join(_request(admission))
    except SchemaMismatchError as error:
        own = admission.dictionary
        has = f"has one ({own.digest()[:8]})" if own else "has none"
        raise SchemaMismatchError(
            str(error),
            remedy=f"{error.remedy} A nominal variable has a column for each level but the first: both sides need the "
            f"same data dictionary. This site {has}; get the consortium's dictionary.toml.",
        ) from None


def _request(admission: Admission) -> JoinRequest:
    return JoinRequest(
        admission.site,
        admission.variables,
        admission.n_samples,
        ledger=admission.ledger_head,
        versions=own_versions(),
    )


def _answer_tasks(
    session: Session,
    admission: Admission,
    reply: JoinReply,
    restore: Callable[[JoinReply], Participant],
    record: Record,
) -> Finished:
    participant, last_round = restore(reply), reply.round
    answered: RoundTask | None = None
    seats_lost = 0
    while True:
        try:
            task = session.pull(last_round)
            if isinstance(task, Finished):
                return task
            # A coordinator that crashed before it counted the last answer sends the same task again.
            if task.round == last_round + 1 or task == answered:
                with suppress(StaleRoundError):  # the round closed without this site: the next task says so
                    session.push(_answer(participant, task, record))
                answered, last_round, seats_lost = task, task.round, 0
                continue
        except SeatLostError:
            if seats_lost == _MOST_SEATS_LOST:
                raise
            seats_lost += 1
        # Take over the coordinator's state: this site missed a round, and with it a W that the dual may depend on, or
        # the coordinator went back to an earlier round or lost this site's seat.
        reply = session.join(_request(admission))
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
    if isinstance(error, InterruptedRunError):
        return LeaveReason.OPERATOR
    if isinstance(error, PolicyRefusal | BudgetExhaustedError | LedgerError):
        return LeaveReason.POLICY
    return LeaveReason.LOCAL_ERROR


def _keep(out: Path, table: Dataset, graph: SparseMatrix, plan: Plan, marks: Mask | None) -> None:
    dag, columns = graph.support(), table.columns
    consensus = LearnedGraph(table.variables, dag, graph.to_dense(), marks=marks)
    own = replace(personalise(table, dag, intercept=has_intercept(plan.preparation)), marks=marks)
    durable.write_text(out / "personalised-edges.csv", edges_csv(own.joined(columns)), mode=durable.OWNER_ONLY)
    # Last: a folder with it is whole, and is kept.
    durable.write_text(out / "edges.csv", edges_csv(consensus.joined(columns)))


def _undirected(marks: Mask | None, columns: Columns) -> int:
    """Edges between variables that the class of the graph leaves open; `marks` between columns."""
    if marks is None:
        return 0
    between = columns.joined(marks)
    return int((between & between.T).sum()) // 2


def _class_of(dag: Mask, columns: Columns, plan: Plan) -> Mask | None:
    """Which of the DAG's edges are directed: the class is not sent, as the DAG and the plan tell it."""
    if plan.graph_class != "cpdag":
        return None
    known = plan.edge_mask(columns.names).of_variables
    try:
        return columns.spread(class_of(columns.joined(dag), known.allowed, known.required))
    except ValueError:
        raise RemoteProtocolError("the graph at the end of the run does not keep the knowledge of its plan") from None
