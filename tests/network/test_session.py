"""A participant's session against a real gRPC server on loopback: what goes through, also where messages are lost."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from fedbnsl import __version__
from fedbnsl.errors import (
    LocalProtocolError,
    RunAbandonedError,
    StaleRoundError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel, codec
from fedbnsl.protocol.messages import (
    PROTOCOL_VERSION,
    Finished,
    JoinReply,
    LeaveReason,
    LedgerHead,
    RoundTask,
    SiteProgress,
    SiteState,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_client import join_run
from fedbnsl_client import session as session_module
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.grpc_api import servicer as servicer_module
from fedbnsl_server.observe.status_client import Observer
from free_port import free_port
from network.by_hand import (
    LONG_S,
    NAMES,
    Call,
    Coordinator,
    Joined,
    Start,
    connect,
    joined,
    joined_round,
    lively,
    matrix,
    request,
    start,
    update,
)

__all__ = ["connect", "joined", "lively", "start"]  # fixtures


def test_a_site_joins_pulls_and_pushes_until_the_end(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=1, rounds=2, name="größer"))
    session = connect(coordinator)
    reply = session.join(request())
    assert Plan.from_toml(reply.plan_toml) == coordinator.plan
    assert (reply.run, reply.plan_digest) == (coordinator.run, coordinator.plan.digest())
    assert (reply.variables, reply.round) == (NAMES, 0)
    assert reply.snapshot == SiteState(SparseMatrix.zeros(3), SparseMatrix.zeros(3))
    for t in (1, 2):
        weights = matrix((2, t / 7), (3, 5e-324))
        closing = coordinator.open_round(t, weights, contributed=t > 1)
        task = session.pull(t - 1)
        assert task == RoundTask(t, admm_rounds.Task(weights), contributed=t > 1)
        session.push(update(t))
        taken = closing.result(LONG_S)
        assert list(taken) == ["north"]
        assert taken["north"] == update(t)
    coordinator.finish(Finished(matrix((1, 0.5))))
    assert session.pull(2) == Finished(matrix((1, 0.5)))
    session.leave(LeaveReason.OPERATOR)
    assert coordinator.mailbox.left == {"north"}


def test_weights_are_rounded_to_float32_if_the_plan_says_so(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=1, value_type="float32"))
    session = connect(coordinator)
    session.join(request())
    session.settle(Plan(rpc_timeout_s=LONG_S, join_deadline_s=LONG_S, value_type="float32"))
    closing = coordinator.open_round(1)
    session.push(update(1))
    sent = closing.result(LONG_S)["north"].content.weights.value.tolist()
    assert sent == [float(np.float32(0.1 + 0.2)), float(np.float32(-1 / 3))]


def test_a_site_that_joins_again_gets_the_coordinators_snapshot_bit_for_bit(start: Start, connect: Call) -> None:
    coordinator = start()
    connect(coordinator).join(request())
    kept = SiteState(matrix((1, 0.1 + 0.2)), matrix((5, -1e-300), (6, -0.0)))
    coordinator.open_round(4, snapshots={"north": kept})
    session = connect(coordinator)
    reply = session.join(request())
    while reply.round == 0:  # the round opens on another thread
        reply = session.join(request())
    assert reply.round == 3
    for got, expected in ((reply.snapshot.local_weights, kept.local_weights),
                          (reply.snapshot.consensus_dual, kept.consensus_dual)):  # fmt: skip
        assert got.index.tolist() == expected.index.tolist()
        assert [v.hex() for v in got.value.tolist()] == [v.hex() for v in expected.value.tolist()]
    task = session.pull(reply.round)
    assert isinstance(task, RoundTask)
    assert task.round == 4


def test_a_pull_goes_on_asking_until_there_is_something(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer_module, "LONG_POLL_S", 0.02)
    coordinator, session = joined
    asked = threading.Event()

    async def count(context: Any) -> None:
        if coordinator.servicer.count(federation.PullRequest) == 3:
            asked.set()

    coordinator.servicer.after["PullTask"] = count
    with ThreadPoolExecutor(1) as site:
        pulling = site.submit(session.pull, 0)
        assert asked.wait(LONG_S)
        assert not pulling.done()
        coordinator.open_round(1)
        task = pulling.result(LONG_S)
    assert isinstance(task, RoundTask)
    assert task.round == 1


def test_an_observer_sees_where_the_run_stands(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=2, quorum=1))
    for site in ("south", "north"):
        connect(coordinator).join(request(site))
    coordinator.open_round(1)
    session = connect(coordinator)
    session.join(request("north"))
    session.pull(0)
    session.push(update(1))
    observer = Observer(coordinator.address)
    status = observer.status()
    observer.close()
    assert status is not None
    assert (status.state, status.round, status.rounds) == ("waiting for sites", 1, coordinator.plan.rounds + 1)
    assert [(site.site, site.answered, site.left) for site in status.sites] == [
        ("north", True, False),
        ("south", False, False),
    ]
    update_bytes = codec.update_bytes(update(1), run=coordinator.run, value_type="float64")
    assert [site.bytes_up for site in status.sites] == [update_bytes, 0]
    assert status.sites[0].bytes_down > 0 == status.sites[1].bytes_down
    assert [(site.last_round, site.spent_units) for site in status.sites] == [(1, None), (0, None)]
    assert (status.run, status.protocol_version, status.version) == (coordinator.tag, PROTOCOL_VERSION, __version__)
    assert abs(status.time_unix_s - time.time()) < LONG_S
    assert status.site == ""
    nobody = Observer(f"127.0.0.1:{free_port()}")
    assert nobody.status() is None
    nobody.close()


def test_what_a_site_has_spent_is_by_the_last_head_of_its_ledger(start: Start, connect: Call) -> None:
    coordinator = start()
    head = LedgerHead(b"i" * 16, b"a" * 16, 3, b"d" * 32, 500)
    session = connect(coordinator)
    session.join(replace(request(), ledger=head))
    assert look(coordinator).spent_units == 500
    coordinator.open_round(1)
    session.pull(0)
    session.push(replace(update(1), ledger=replace(head, n_entries=4, spent_units=800)))
    assert look(coordinator).spent_units == 800


def test_a_site_is_online_while_it_is_heard_of(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=1, rpc_timeout_s=5.0))
    session = connect(coordinator)
    session.join(request())
    member = coordinator.roster.members["north"]

    def go_back(seconds: float) -> None:
        member.last_seen -= seconds
        member.online_since -= seconds

    coordinator.on_loop(go_back, channel.LONG_POLL_S)
    assert channel.LONG_POLL_S < look(coordinator).online_s < channel.LONG_POLL_S + LONG_S
    coordinator.open_round(1)
    coordinator.on_loop(go_back, channel.AWAY_S - channel.LONG_POLL_S)
    assert look(coordinator).online_s == 0
    session.pull(0)
    assert 0 < look(coordinator).online_s < LONG_S, "it came back with that call"
    coordinator.on_loop(go_back, channel.AWAY_S)
    assert look(coordinator).online_s == 0, "it has a task, and yet it may be gone"
    session.push(update(1))
    assert 0 < look(coordinator).online_s < LONG_S


@pytest.mark.usefixtures("lively")
def test_a_site_that_computes_says_that_it_lives_and_one_that_waits_or_left_says_nothing(
    start: Start, connect: Call
) -> None:
    coordinator = start(Plan(n_participants=1))
    session = connect(coordinator)
    session.join(request())
    alive = threading.Semaphore(0)

    async def note(context: Any) -> None:
        alive.release()

    coordinator.servicer.after["Alive"] = note

    def silent() -> bool:
        while alive.acquire(timeout=0.1):  # those that were under way
            pass
        return not alive.acquire(timeout=0.5)

    coordinator.open_round(1)
    session.pull(0)
    member = coordinator.roster.members["north"]
    bytes_before = coordinator.mailbox.traffic.control["north"]
    coordinator.on_loop(lambda: setattr(member, "last_seen", member.last_seen - 3600))
    assert all(alive.acquire(timeout=LONG_S) for _ in range(3))
    assert look(coordinator).online_s > 0
    assert coordinator.mailbox.traffic.control["north"] > bytes_before
    session.push(update(1))
    with ThreadPoolExecutor(1) as site:
        pulling = site.submit(session.pull, 1)
        while coordinator.servicer.count(federation.PullRequest) < 2:
            time.sleep(0.01)
        assert silent()
        coordinator.finish(Finished(None, "over"))
        pulling.result(LONG_S)
    session.leave(LeaveReason.OPERATOR)
    assert silent()
    assert coordinator.mailbox.left == {"north"}


def test_a_sign_of_life_that_comes_late_does_not_bring_back_a_site_that_left(joined: Joined) -> None:
    coordinator, session = joined
    session.leave(LeaveReason.OPERATOR)
    coordinator.stub().Alive(federation.AliveRequest(run=coordinator.tag, site="north"), timeout=LONG_S)
    assert coordinator.mailbox.left == {"north"}


# ---- a coordinator that lets the run get nowhere -------------------------------------------------------------------


class Broken(federation_grpc.FederationServicer):
    """Answers every call at once, and after so many of them says that the run is over."""

    def __init__(self, plan: Plan, rounds: Callable[[int], int], n_calls: int) -> None:
        self._plan, self._rounds, self._n_calls = plan, rounds, n_calls
        self.calls: list[str] = []

    def Join(self, request: Any, context: Any) -> federation.JoinReply:
        self.calls.append("join")
        zero = SparseMatrix.zeros(3)
        plan = self._plan
        return codec.encode_join_reply(JoinReply(7, plan.to_toml(), plan.digest(), NAMES, SiteState(zero, zero), 0))

    def PullTask(self, request: Any, context: Any) -> federation.PullReply:
        self.calls.append("pull")
        if len(self.calls) >= self._n_calls:
            end = codec.encode_finished(Finished(None, "broken"), value_type="float64")
            return federation.PullReply(finished=end)
        t = self._rounds(self.calls.count("pull"))
        if not t:
            return federation.PullReply(wait=federation.Wait())
        task = RoundTask(t, admm_rounds.Task(SparseMatrix.zeros(3)), contributed=False)
        return federation.PullReply(task=codec.encode_task(task, value_type="float64"))

    def PushUpdate(self, request: Any, context: Any) -> federation.PushReply:
        self.calls.append("push")
        return federation.PushReply()

    def Leave(self, request: Any, context: Any) -> federation.LeaveReply:
        return federation.LeaveReply()


@pytest.mark.parametrize(
    "rounds",
    [lambda n: 0, lambda n: 1, lambda n: 2, lambda n: n + 1, lambda n: 1 + n % 2],
    ids=["wait at once", "the same round", "a round that does not follow", "rounds without end", "to and fro"],
)
def test_a_broken_coordinator_cannot_spin_a_site(rounds: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=slept.append))
    broken = Broken(Plan(n_participants=1, rounds=2, refit_rounds=0), rounds, n_calls=60)
    server = grpc.server(ThreadPoolExecutor(4))
    federation_grpc.add_FederationServicer_to_server(broken, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        table = PublicTable("north", Dataset(NAMES, np.random.default_rng(1).normal(size=(50, 3))))
        with pytest.raises(RunAbandonedError):
            join_run.take_part(table, Link(f"127.0.0.1:{port}"), patience_s=1.0)
    finally:
        server.stop(None)
    assert len(slept) > len(broken.calls) / 6, "it pauses again and again"
    assert min(slept[-5:]) > 2.0, "longer and longer"
    assert max(slept) < 10.0


def test_a_site_that_left_is_away_until_it_calls_again(joined: Joined) -> None:
    coordinator, session = joined
    coordinator.open_round(1)
    coordinator.on_loop(coordinator.mailbox.leave, "north")
    assert (look(coordinator).left, look(coordinator).online_s) == (True, 0.0)
    session.pull(0)
    assert not look(coordinator).left
    assert look(coordinator).online_s > 0


def look(coordinator: Coordinator) -> SiteProgress:
    """The one site, as an observer sees it."""
    observer = Observer(coordinator.address)
    status = observer.status()
    observer.close()
    assert status is not None
    (site,) = status.sites
    return site


# ---- lost messages -------------------------------------------------------------------------------------------------


def test_an_update_that_is_pushed_twice_counts_once(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=2))
    session = connect(coordinator)
    session.join(request())
    connect(coordinator).join(request("south"))
    closing = coordinator.open_round(1)
    session.pull(0)
    session.push(update(1))
    session.push(update(1))
    assert coordinator.mailbox.answered == {"north"}
    assert not closing.done()
    session.push(update(1, site="south"))
    assert sorted(closing.result(LONG_S)) == ["north", "south"]
    session.push(update(1))
    assert coordinator.servicer.count(federation.Update) == 4


def aborted(code: grpc.StatusCode) -> Callable[[Any], Any]:
    async def abort(context: Any) -> None:
        await context.abort(code, "the line was cut")

    return abort


async def hang(context: Any) -> None:
    await asyncio.sleep(LONG_S)


@pytest.mark.parametrize(
    ("fault", "n_lost", "is_told"),
    [
        (aborted(grpc.StatusCode.UNAVAILABLE), 1, False),
        (aborted(grpc.StatusCode.UNAVAILABLE), 6, True),
        (aborted(grpc.StatusCode.CANCELLED), 1, True),
        (hang, 1, True),
    ],
    ids=["a blip", "more than gRPC itself repeats", "the coordinator goes down", "no answer in time"],
)
def test_a_push_whose_reply_is_lost_is_repeated_and_counts_once(
    fault: Callable[[Any], Any], n_lost: int, is_told: bool, start: Start, connect: Call
) -> None:
    notices: list[str] = []
    coordinator = start()
    session = connect(coordinator, notice=notices.append)
    closing = joined_round(coordinator, session)
    if fault is hang:
        session.settle(Plan(rpc_timeout_s=0.3, join_deadline_s=LONG_S))

    async def lost(context: Any) -> None:
        if coordinator.servicer.count(federation.Update) <= n_lost:
            await fault(context)

    coordinator.servicer.after["PushUpdate"] = lost
    session.push(update(1))
    assert closing.result(LONG_S)["north"] == update(1)
    assert coordinator.servicer.count(federation.Update) == n_lost + 1
    assert len(notices) == is_told, "once"


def test_a_late_push_is_told_apart_from_other_refusals(joined: Joined) -> None:
    coordinator, session = joined
    for t in (1, 2):
        closing = coordinator.open_round(t)
        session.pull(t - 1)
        session.push(update(t))
        closing.result(LONG_S)
    with pytest.raises(StaleRoundError, match="update for round 1 arrived in round 2; pull the current task"):
        session.push(update(1))
    with pytest.raises(LocalProtocolError, match="a second, different update of 'north' for round 2"):
        session.push(update(2, 0.25))
