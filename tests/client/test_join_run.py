"""A site's whole run, where it can be seen without a coordinator."""

import csv
import errno
import os
import signal

import grpc
import numpy as np
import pytest

from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import (
    BudgetExhaustedError,
    DataError,
    EjectedError,
    FedbnslError,
    InterruptedRunError,
    LedgerError,
    MembershipLostError,
    NotApprovedError,
    PeerRefusedError,
    PlanError,
    PlanMismatchError,
    PolicyRefusal,
    RemoteProtocolError,
    ResultError,
    RunAbandonedError,
    SchemaMismatchError,
    UnreachableError,
)
from fedbnsl.graphs.pag import ARROW
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import EdgeDraws, Finished, JoinReply, LeaveReason, LinkMarks, RunOffer, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import Told, take_part
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.run.end_notice import end_of
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

NOWHERE = "127.0.0.1:1"  # nobody listens on the first port


@pytest.fixture
def dataset() -> Dataset:
    federation = synthesise(4, 4, 1, 100, 1)
    return Dataset(federation.variables, federation.tables[0])


def part(dataset, **settings):
    return take_part(PublicTable("site-1", dataset), Link(NOWHERE), **{"patience_s": 0.0, **settings})


def test_a_plan_that_is_not_the_one_of_its_digest_is_refused(dataset, monkeypatch):
    zero = SiteState(SparseMatrix.zeros(4), SparseMatrix.zeros(4))
    plan = Plan()
    reply = JoinReply(1, plan.to_toml(), plan.with_settings(rounds=7).digest(), dataset.variables, zero, 0)
    monkeypatch.setattr(Session, "join", lambda self, request: reply)
    with pytest.raises(PlanMismatchError, match="digest"):
        part(dataset)


@pytest.mark.long
def test_the_patience_of_the_plan_follows_that_of_the_first_call():
    session = Session(NOWHERE, patience_s=600.0, notice=lambda text: None)
    try:
        session.settle(Plan(rpc_timeout_s=5.0, join_deadline_s=1e-9))
        with pytest.raises(UnreachableError, match="did not answer for 1e-09 s"):
            session.pull(0)
    finally:
        session.close()


def test_a_folder_that_holds_a_graph_is_refused_before_anybody_is_called(dataset, tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,weight\n", encoding="utf-8")
    with pytest.raises(ResultError, match="holds a graph already"):
        part(dataset, out=tmp_path)


def test_a_run_with_other_variables_than_were_offered_is_refused_before_anything_is_read_or_paid(dataset, monkeypatch):
    zero = SiteState(SparseMatrix.zeros(3), SparseMatrix.zeros(3))
    plan = Plan()
    reply = JoinReply(1, plan.to_toml(), plan.digest(), dataset.variables[:3], zero, 0)
    monkeypatch.setattr(Session, "join", lambda self, request: reply)
    monkeypatch.setattr(PublicTable, "admit", lambda *_: pytest.fail("admitted"))
    with pytest.raises(SchemaMismatchError, match="other variables than this site offered"):
        part(dataset)


def for_want_of_room(error):
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (DataError("secret"), LeaveReason.POLICY),
        (LedgerError("secret"), LeaveReason.POLICY),
        (PolicyRefusal("secret"), LeaveReason.POLICY),
        (NotApprovedError("secret"), LeaveReason.NOT_APPROVED),
        (BudgetExhaustedError("secret"), LeaveReason.BUDGET),
        (PeerRefusedError("secret"), LeaveReason.PEERS),
        (SchemaMismatchError("secret"), LeaveReason.SCHEMA),
        (for_want_of_room(LedgerError("secret")), LeaveReason.SHORTAGE),
        (for_want_of_room(DataError("secret")), LeaveReason.POLICY),  # what a table takes depends on its content
    ],
)
def test_a_refusal_leaves_with_a_class_that_tells_nothing_of_the_table(refusal, reason, dataset, monkeypatch):
    """A site whose table has changed and one whose owner refuses look alike from outside."""
    zero = SiteState(SparseMatrix.zeros(4), SparseMatrix.zeros(4))
    reply = JoinReply(1, Plan().to_toml(), Plan().digest(), dataset.variables, zero, 0)
    told = []

    def refuse(*_):
        raise refusal

    monkeypatch.setattr(Session, "join", lambda self, request: reply)
    monkeypatch.setattr(Session, "leave", lambda self, reason: told.append(reason))
    monkeypatch.setattr(PublicTable, "admit", refuse)
    with pytest.raises(type(refusal), match="secret"):
        part(dataset)
    assert told == [reason]


def test_a_signal_while_a_site_is_admitted_is_no_refusal_of_the_site(dataset, monkeypatch):
    joined(monkeypatch, dataset)
    told, outcomes, events = [], [], []
    monkeypatch.setattr(Session, "leave", lambda self, reason: told.append(reason))
    monkeypatch.setattr(PublicTable, "admit", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    heard = Told(
        record=lambda kind, **fields: outcomes.append(fields.get("outcome")),
        emit=lambda kind, **fields: events.append(kind),
    )
    with pytest.raises(InterruptedRunError) as interrupted, interruptible():
        part(dataset, told=heard)
    assert interrupted.value.signal_number == signal.SIGTERM
    assert told == [LeaveReason.OPERATOR]
    assert outcomes[-1] == "InterruptedRunError"
    assert events == ["run over"], "and not: not taken part"


STEERING = "\x1b[2J\x9b\u202e\r\n" + "x" * 100_000


def joined(monkeypatch, dataset, plan_toml=None, plan=None):
    zero = SiteState(SparseMatrix.zeros(4), SparseMatrix.zeros(4))
    plan = plan or Plan()
    reply = JoinReply(1, plan_toml or plan.to_toml(), plan.digest(), dataset.variables, zero, 0)

    def join(self, request):
        self._run, self._n_variables = reply.run, 4
        return reply

    monkeypatch.setattr(Session, "join", join)


def assert_fit_for_a_terminal(text):
    assert not set(text) & set("\x1b\x9b\u202e\r\n")
    assert len(text) < 1_000


def test_the_reason_of_an_end_is_shown_without_what_steers_a_terminal(dataset, monkeypatch):
    joined(monkeypatch, dataset)
    monkeypatch.setattr(Session, "pull", lambda *_: Finished(None, STEERING))
    with pytest.raises(RunAbandonedError) as ended:
        part(dataset)
    assert_fit_for_a_terminal(str(ended.value))


class Refusal(grpc.RpcError):
    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code

    def details(self):
        return STEERING


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_refusal_is_shown_without_what_steers_a_terminal(code):
    def refuse():
        raise Refusal(code)

    said = []
    session = Session(NOWHERE, patience_s=0.0, notice=said.append)
    try:
        with pytest.raises(FedbnslError) as refused:
            session._call(refuse)
    finally:
        session.close()
    for text in (*said, str(refused.value)):
        assert_fit_for_a_terminal(text)


def test_a_site_that_was_taken_out_has_no_membership_to_leave(dataset, monkeypatch):
    def pull(*_):
        raise EjectedError("the coordinator's operator has taken site 'site-1' out of this run")

    joined(monkeypatch, dataset)
    monkeypatch.setattr(Session, "pull", pull)
    said = []
    with pytest.raises(EjectedError) as ended:
        part(dataset, told=Told(said.append))
    assert not [text for text in said if "could not be told" in text]
    assert ended.value.remedy.startswith("The operator of this run took your site out")


@pytest.mark.parametrize(("lost", "ends_with"), [(3, RunAbandonedError), (4, MembershipLostError)])
def test_a_site_joins_again_though_its_coordinator_is_killed_after_each_of_a_few_joins(
    dataset, monkeypatch, lost, ends_with
):
    answers = iter([MembershipLostError("it has not joined this run")] * lost)

    def pull(*_):
        for error in answers:
            raise error
        return Finished(None, "it is over")

    joined(monkeypatch, dataset)
    monkeypatch.setattr(Session, "pull", pull)
    with pytest.raises(ends_with):
        part(dataset)


def test_a_plan_that_would_exhaust_its_reader_is_refused_before_anything_is_read_or_paid(dataset, monkeypatch):
    joined(monkeypatch, dataset, plan_toml="x = " + "[" * 100_000)
    monkeypatch.setattr(PublicTable, "admit", lambda *_: pytest.fail("admitted"))
    with pytest.raises(PlanError, match="the coordinator's plan is not valid TOML: it is nested too deeply"):
        part(dataset)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (SparseMatrix(4, np.array([1, 4]), np.ones(2)), "has a cycle; a Bayesian network has none"),
        (SparseMatrix(3, np.array([1]), np.ones(1)), "over 3 variables; this run has 4"),
        (SparseMatrix(4, np.array([1]), np.full(1, np.nan)), "not finite"),
        (SparseMatrix(4, np.array([5]), np.ones(1)), "on the diagonal"),
        (SparseMatrix(4, np.array([16]), np.ones(1)), "the last one is 15"),
    ],
)
def test_a_graph_that_is_none_is_refused_and_not_kept(graph, said, dataset, tmp_path, monkeypatch):
    joined(monkeypatch, dataset)
    end = federation.PullReply(finished=codec.encode_finished(Finished(graph), value_type="float64"))
    monkeypatch.setattr(Session, "_call", lambda self, call: end)
    with pytest.raises(RemoteProtocolError, match=said):
        part(dataset, out=tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def end_with(monkeypatch, dataset, plan, edges, draws=None):
    tell(monkeypatch, dataset, plan, Finished(SparseMatrix(4, np.array(edges), np.full(len(edges), 0.5)), draws=draws))


def tell(monkeypatch, dataset, plan, finished):
    joined(monkeypatch, dataset, plan=plan)
    end = federation.PullReply(finished=codec.encode_finished(finished, value_type="float64"))
    monkeypatch.setattr(Session, "_call", lambda self, call: end)


def test_a_site_keeps_the_class_of_the_graph_that_it_is_told(dataset, tmp_path, monkeypatch):
    """X2 -> X1 alone could be either way; that X3 comes before X4 is known."""
    plan = Plan(graph_class="cpdag", moments_rounds=1, refit_rounds=0)
    end_with(monkeypatch, dataset, plan.with_settings(knowledge={"tiers": [["X3"], ["X4"]]}), [4, 11])
    part(dataset, out=tmp_path / "kept")
    for name in ("edges.csv", "personalised-edges.csv"):
        header, *rows = (tmp_path / "kept" / name).read_text(encoding="utf-8").splitlines()
        assert header.startswith("source,target,weight,directed,")
        cells = [row.split(",") for row in rows]
        assert [(*row[:2], row[3]) for row in cells] == [("X2", "X1", "0"), ("X3", "X4", "1")]


def kept_as_the_coordinator_does(monkeypatch, tmp_path, names, X, plan):
    """edges.csv of a run of two sites, row by row, once a site is seen to keep the same.

    But for the shares of draws in which a pair has no link, which are not sent.
    """
    tables = {"one": Dataset(names, X[: len(X) // 2]), "two": Dataset(names, X[len(X) // 2 :])}
    simulate(plan, tables, tmp_path / "run")
    plan = Plan.from_toml((tmp_path / "run" / "plan.toml").read_text(encoding="utf-8"))
    state = checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=plan.digest())
    tell(monkeypatch, tables["one"], plan, end_of(state, plan, names))
    part(tables["one"], out=tmp_path / "kept")
    kept, consensus = (
        list(csv.reader((tmp_path / folder / "edges.csv").read_text(encoding="utf-8").splitlines()))
        for folder in ("kept", "run")
    )
    assert kept[0] == consensus[0]
    for own, common in zip(kept, consensus, strict=True):
        assert own[:-2] == common[:-2]
        assert own[-2:] == (["", ""] if common[-4:-2] == ["none", "none"] else common[-2:])
    return consensus


def test_a_site_keeps_the_same_edges_as_the_coordinator_with_what_the_draws_say(tmp_path, monkeypatch):
    """a -> c <- b, so faint that about half of the draws with b -> c have it so."""
    names, rng = ("a", "b", "c", "d"), np.random.default_rng(0)
    a, b, e = (x - x.mean() for x in rng.normal(size=(3, 60)))
    X = np.stack([a, b, 0.35 * a + 0.35 * b + e, rng.normal(size=60)], axis=1)
    rows = kept_as_the_coordinator_does(monkeypatch, tmp_path, names, X, Plan.load("standard", ["bootstrap=30"]))
    assert [row[4:6] for row in rows if row[:2] == ["b", "c"]] == [["1", "undecided"]]
    assert {mark for row in rows[1:] for mark in row[9:11]} == {"circle", "arrow"}


def test_a_site_keeps_arrows_between_functions_of_each_other_open_without_draws(tmp_path, monkeypatch):
    """total = a + b, to the last bit: which of the three depends on the others nobody can tell."""
    names, rng = ("a", "b", "total", "d"), np.random.default_rng(0)
    a, b, d = rng.integers(-50, 50, size=(3, 600)).astype(float)
    X = np.stack([a, b, a + b, d + a], axis=1)
    rows = kept_as_the_coordinator_does(monkeypatch, tmp_path, names, X, Plan.load("lean", ["bootstrap=0"]))
    assert "1" in [row[4] for row in rows]


def test_a_site_keeps_directions_by_sites_or_noise_and_marks_as_it_is_told(dataset, tmp_path, monkeypatch):
    """X2 -> X1 alone could be either way, and noise says which; X3 -- X4 stays open."""
    plan = Plan(graph_class="cpdag", moments_rounds=1, refit_rounds=0)
    graph = SparseMatrix(4, np.array([4, 11]), np.ones(2))
    told = LinkMarks(((0, 1, ARROW, ARROW),), 10, ((9, 8),))
    tell(monkeypatch, dataset, plan, Finished(graph, directed_by=("noise", "nobody"), marks=told))
    part(dataset, out=tmp_path / "kept")
    with (tmp_path / "kept" / "edges.csv").open(encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert [first[name] for name in ("source", "target", "directed", "directed_by")] == ["X2", "X1", "1", "noise"]
    assert [second[name] for name in ("source", "target", "directed", "directed_by")] == ["X3", "X4", "0", "nobody"]
    of_marks = ("mark_source", "mark_target", "mark_source_share", "mark_target_share")
    assert [first[name] for name in of_marks] == ["arrow", "arrow", "0.8", "0.9"]
    assert [second[name] for name in of_marks] == ["none", "none", "", ""]


def test_who_directed_other_edges_than_there_are_is_refused(dataset, tmp_path, monkeypatch):
    plan = Plan(graph_class="cpdag", moments_rounds=1, refit_rounds=0)
    tell(monkeypatch, dataset, plan, Finished(SparseMatrix(4, np.array([4]), np.ones(1)), directed_by=("data",) * 2))
    with pytest.raises(RemoteProtocolError, match="who directed 2 edges; its graph has 1"):
        part(dataset, out=tmp_path / "kept")


@pytest.mark.parametrize("undecided", [0, 2], ids=["an edge that the class leaves open", "no edge"])
def test_undecided_edges_that_are_no_arrows_are_refused_and_not_kept(undecided, dataset, tmp_path, monkeypatch):
    plan = Plan(graph_class="cpdag", moments_rounds=1, refit_rounds=0)
    plan = plan.with_settings(knowledge={"tiers": [["X3"], ["X4"]]})
    tell(monkeypatch, dataset, plan, Finished(SparseMatrix(4, np.array([4, 11]), np.ones(2)), undecided=(undecided,)))
    with pytest.raises(RemoteProtocolError, match="no arrows of its graph's class"):
        part(dataset, out=tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_draws_of_another_number_of_edges_are_refused_and_not_kept(dataset, tmp_path, monkeypatch):
    end_with(monkeypatch, dataset, Plan(), [4, 11], EdgeDraws(10, ((10, 10, 0),)))
    with pytest.raises(RemoteProtocolError, match="tells the draws of 1 edges; its graph has 2"):
        part(dataset, out=tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


def test_a_graph_against_the_knowledge_of_its_plan_is_refused_and_not_kept(dataset, tmp_path, monkeypatch):
    plan = Plan(graph_class="cpdag", moments_rounds=1, refit_rounds=0)
    end_with(monkeypatch, dataset, plan.with_settings(knowledge={"tiers": [["X3"], ["X4"]]}), [14])
    with pytest.raises(RemoteProtocolError, match="does not keep the knowledge of its plan"):
        part(dataset, out=tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize(
    "served", [{"run": 2}, {"plan": Plan(rounds=7)}, {"run": 2**40 + 1}], ids=["run", "plan", "high half of the number"]
)
def test_a_run_other_than_the_one_that_was_offered_is_refused_before_anything_is_read(served, dataset, monkeypatch):
    """An agent decides by the offer: a coordinator must not serve anything else."""
    plan, zero = Plan(), SiteState(SparseMatrix.zeros(4), SparseMatrix.zeros(4))
    offer = RunOffer(1, "one", "running", plan.digest(), "plan", (), 0, 5, 2, 0)
    other = served.get("plan", plan)
    reply = JoinReply(served.get("run", 1), other.to_toml(), other.digest(), dataset.variables, zero, 0)
    monkeypatch.setattr(Session, "join", lambda self, request: reply)
    monkeypatch.setattr(PublicTable, "admit", lambda *_: pytest.fail("admitted"))
    with pytest.raises(PlanMismatchError, match="another run or plan than it had offered"):
        part(dataset, offer=offer)


def test_a_request_that_another_run_has_overtaken_is_sent_again_with_the_ledger_as_it_is(dataset, monkeypatch):
    heads = []

    def refuse(self, request):
        heads.append(request.ledger)
        raise LedgerError("the coordinator refused: an older ledger")

    monkeypatch.setattr(Session, "join", refuse)
    with pytest.raises(LedgerError):
        part(dataset)
    assert len(heads) == 2
