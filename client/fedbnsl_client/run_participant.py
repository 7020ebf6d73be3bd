"""One run at a site: join, answer every task, keep the result and the personalised weights."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedbnsl import graph_files
from fedbnsl.errors import InterruptedRunError, PlanMismatchError, RunAbandonedError, StaleRoundError
from fedbnsl.graph_formats import LearnedGraph, edges_csv
from fedbnsl.messages import Finished, JoinReply, JoinRequest, SiteState
from fedbnsl.plan import Plan
from fedbnsl.sparse import SparseMatrix
from fedbnsl_client.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.refit import personalise
from fedbnsl_client.session import Session
from fedbnsl_client.solvers import pgcd


def take_part(
    site: str,
    dataset: Dataset,
    *,
    address: str,
    patience_s: float,
    notice: Callable[[str], None],
    out: Path | None,
) -> SparseMatrix:
    """Take part in one run until its end and return the learned graph with its consensus weights.

    Parameters
    ----------
    address
        host:port of the coordinator.
    patience_s
        How long to call a coordinator that does not answer, before the run's own plan is known.
    notice
        Told what a person at the site may want to know.
    out
        Folder for the graph and the site's own refit of it; None keeps nothing.

    Raises
    ------
    FedbnslError
        If the coordinator refuses, stays away, or ends the run without a result.
    """
    if out is not None:
        graph_files.new_graph_folder(out)
    pgcd.warm_up()
    session = Session(address, patience_s=patience_s, notice=notice)
    try:
        request = JoinRequest(site, dataset.variables, dataset.n_samples)
        reply = session.join(request)
        plan = Plan.from_toml(reply.plan_toml, origin="the coordinator's plan")
        if plan.digest() != reply.plan_digest:
            raise PlanMismatchError("the plan that was received does not have the digest that came with it")
        session.settle(
            rpc_timeout_s=plan.rpc_timeout_s,
            patience_s=plan.join_deadline_s,
            value_type=plan.value_type,
            dense=plan.dense_messages,
        )
        table = dataset.reordered(reply.variables)
        notice(f"joined as {site}: {table.n_samples} rows, {len(table.variables)} variables, {plan.rounds} rounds")
        try:
            end = _answer_tasks(session, request, reply, lambda snapshot: Participant(site, table, plan, snapshot))
        except BaseException as error:
            session.leave(because_of_error=not isinstance(error, InterruptedRunError))
            raise
    finally:
        session.close()
    if end.graph is None:
        raise RunAbandonedError(f"the run ended without a result: {end.stopped_because}")
    if out is not None:
        _keep(out, table, end.graph)
    return end.graph


def _answer_tasks(
    session: Session, request: JoinRequest, reply: JoinReply, restore: Callable[[SiteState], Participant]
) -> Finished:
    participant, last_round = restore(reply.snapshot), reply.round
    while True:
        task = session.pull(last_round)
        if isinstance(task, Finished):
            return task
        if task.round != last_round + 1:
            # A round was missed, and with it a W that the dual may have to follow: take over the coordinator's state.
            reply = session.join(request)
            participant, last_round = restore(reply.snapshot), reply.round
            continue
        with suppress(StaleRoundError):  # the round closed without this site: the next task's `contributed` says so
            session.push(participant.handle(task))
        last_round = task.round


def _keep(out: Path, table: Dataset, graph: SparseMatrix) -> None:
    consensus = LearnedGraph(table.variables, graph.support(), graph.to_dense(), None)
    graph_files.write_text(out / "edges.csv", edges_csv(consensus))
    graph_files.write_text(out / "personalised-edges.csv", edges_csv(personalise(table, consensus.dag)))
