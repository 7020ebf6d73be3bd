"""The coordinator's door: what is encoded for many sites at once is what would be encoded for each."""

import asyncio

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Member, Roster
from fedbnsl_server.store.site_ledgers import SiteLedgers


@pytest.fixture
def servicer(tmp_path):
    plan = Plan()
    loop = asyncio.new_event_loop()
    yield Servicer(plan, 1, Roster(plan), Mailbox(plan, loop), SiteLedgers(tmp_path / "ledgers.json"))
    loop.close()


def tasks(n_sites, rounds):
    """Every round has other weights, every site has copies of its own, and every third missed the round before."""
    for t in range(1, rounds + 1):
        for site in range(n_sites):
            weights = SparseMatrix(3, np.array([1, 5]), np.array([0.5, float(t)]))
            yield RoundTask(t, admm_rounds.Task(weights), site % 3 != 0)


def test_every_site_is_sent_the_bytes_of_its_own_task(servicer):
    for task in tasks(6, 3):
        wire = codec.encode_task(task, value_type="float64", dense=False)
        reply, rest = servicer._task_reply(task)
        assert (reply.task.SerializeToString(), rest) == (wire.SerializeToString(), None)


def test_a_task_is_encoded_once_a_round_for_all_that_contributed_and_once_for_the_others(servicer, monkeypatch):
    encoded = []
    encode = codec.encode_task
    monkeypatch.setattr(codec, "encode_task", lambda task, **how: encoded.append(task) or encode(task, **how))
    for task in tasks(30, 4):
        servicer._task_reply(task)
    assert [(task.round, task.contributed) for task in encoded] == [(t, c) for t in range(1, 5) for c in (False, True)]


class Refusing:
    """The context of a call that is refused."""

    async def abort(self, status, text):
        raise ConnectionAbortedError(text)


def test_rounds_that_the_plan_does_not_have_are_not_counted(servicer):
    zero = SparseMatrix.zeros(2)
    servicer.roster.variables, servicer.roster.members["a"] = ("x", "y"), Member(("x", "y"), 10, has_ledger=False)
    servicer.mailbox.take_over("a")
    last = servicer.plan.rounds + servicer.plan.refit_rounds
    for t in (last, last + 1, 2**31):
        wire = codec.encode_update(
            LocalUpdate("a", t, admm_rounds.Answer(zero)), run=1, value_type="float64", dense=False
        )
        with pytest.raises(ConnectionAbortedError, match=f"update for round {t} arrived"):
            asyncio.run(servicer.PushUpdate(wire, Refusing()))
    assert list(servicer.mailbox.traffic.up["a"]) == [last]
