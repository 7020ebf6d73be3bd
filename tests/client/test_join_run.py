"""A site's whole run, where it can be seen without a coordinator."""

import pytest

from fedbnsl.errors import PlanMismatchError, ResultError, SchemaMismatchError, UnreachableError
from fedbnsl.messages import JoinReply, SiteState
from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import take_part
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_experiments.tables.synthetic import synthesise

NOWHERE = "127.0.0.1:1"  # nobody listens on the first port


@pytest.fixture
def dataset() -> Dataset:
    federation = synthesise(4, 4, 1, 100, 1)
    return Dataset(federation.variables, federation.tables[0])


def part(dataset, **settings):
    given = {"address": NOWHERE, "patience_s": 0.0, "notice": lambda text: None, "out": None}
    return take_part(PublicTable("site-1", dataset), **{**given, **settings})


def test_a_plan_that_is_not_the_one_of_its_digest_is_refused(dataset, monkeypatch):
    zero = SiteState(SparseMatrix.zeros(4), SparseMatrix.zeros(4))
    plan = Plan()
    reply = JoinReply(1, plan.to_toml(), plan.with_settings(rounds=7).digest(), dataset.variables, zero, 0)
    monkeypatch.setattr(Session, "join", lambda self, request: reply)
    with pytest.raises(PlanMismatchError, match="digest"):
        part(dataset)


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
