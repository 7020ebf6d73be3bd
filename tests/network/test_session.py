"""A participant's session against a real gRPC server on loopback: what goes through and what is refused."""

import asyncio
import errno
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar
from unittest import mock

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from fedbnsl import __version__
from fedbnsl.errors import (
    DataError,
    DivergenceError,
    FedbnslError,
    LocalProtocolError,
    MalformedMessageError,
    MembershipRefusedError,
    PlanError,
    PlanMismatchError,
    ProtocolError,
    QuorumLostError,
    RemoteProtocolError,
    ResultError,
    RunAbandonedError,
    SchemaMismatchError,
    SetupError,
    StaleRoundError,
    UnreachableError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel, codec
from fedbnsl.protocol import chunks as chunks
from fedbnsl.protocol.messages import (
    PROTOCOL_VERSION,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveReason,
    LedgerHead,
    LocalUpdate,
    RoundTask,
    SiteProgress,
    SiteState,
    run_tag,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl.wire import values_pb2 as values
from fedbnsl_client import join_run
from fedbnsl_client import session as session_module
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import Told
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.grpc_api import servicer as servicer_module
from fedbnsl_server.grpc_api.incoming import IncomingCalls
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_server.run import serve as run_coordinator
from fedbnsl_server.run.settings import ServerSettings
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.site_ledgers import SiteLedgers
from free_port import free_port

LONG_S = 30.0
NAMES = ("age", "dose", "mass")
CALLS = ("Join", "PullTask", "PushUpdate", "Alive", "Leave", "Status")
OTHERWISE = "the coordinator could not handle this call"
RUN_IDS = itertools.count(7_000_000_000_000_000_001)

T = TypeVar("T")


class Tapped(Servicer):
    """Notes every request as it came, and lets a test put something in the way of an answer."""

    def __init__(self, plan: Plan, run: int, roster: Roster, mailbox: Mailbox) -> None:
        super().__init__(plan, run, roster, mailbox, SiteLedgers(Path("never-saved.json")))
        self.requests: list[Message] = []
        self.after: dict[str, Callable[[Any], Any]] = {}  # awaited with the context once a call is handled

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(request, kind) for request in self.requests)


def _tap(name: str) -> Callable[..., Any]:
    async def tapped(self: Tapped, request: Message, context: Any) -> Message:
        self.requests.append(request)
        reply: Message = await getattr(Servicer, name)(self, request, context)
        if name in self.after:
            await self.after[name](context)
        return reply

    return tapped


for call in CALLS:
    setattr(Tapped, call, _tap(call))


class Coordinator:
    """A coordinator's server on an event loop of its own thread; rounds are opened by hand."""

    def __init__(self, plan: Plan, *, port: int = 0) -> None:
        self.plan = plan if plan.variables else plan.with_settings(variables=NAMES)
        self.run = next(RUN_IDS)
        self.tag = run_tag(self.run)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._engine = ThreadPoolExecutor(1)
        self.roster, self.mailbox, self.servicer, self._server, self.port = self._await(self._start(port))
        self.address = f"127.0.0.1:{self.port}"

    async def _start(self, port: int) -> tuple[Roster, Mailbox, Tapped, grpc.aio.Server, int]:
        roster, mailbox = Roster(self.plan), Mailbox(self.plan, asyncio.get_running_loop())
        servicer = Tapped(self.plan, self.run, roster, mailbox)
        server = grpc.aio.server(interceptors=[IncomingCalls(None)], options=channel.server_options())
        door = Listener()
        door.open(servicer)
        federation_grpc.add_FederationServicer_to_server(door, server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        return roster, mailbox, servicer, server, port

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG_S)

    def on_loop(self, work: Callable[..., T], *arguments: object) -> T:
        async def there() -> T:
            return work(*arguments)

        return self._await(there())

    def open_round(
        self,
        t: int,
        weights: SparseMatrix | None = None,
        *,
        contributed: bool = False,
        snapshots: Mapping[str, SiteState] | None = None,
    ) -> "Future[Mapping[str, LocalUpdate]]":
        """Hand out one task to all members; the future holds what `exchange` returns."""
        matrix = SparseMatrix.zeros(len(self.roster.variables)) if weights is None else weights
        tasks = {site: RoundTask(t, admm_rounds.Task(matrix), contributed) for site in self.roster.members}
        return self._engine.submit(self.mailbox.exchange, tasks, snapshots or {}, lambda update: None)

    def finish(self, finished: Finished) -> None:
        self._await(self.mailbox.finish(finished, set(), 0.0))

    def stub(self, *options: tuple[str, int]) -> federation_grpc.FederationStub:
        """Calls without a participant's care."""
        self._raw = grpc.insecure_channel(self.address, options=list(options))
        return federation_grpc.FederationStub(self._raw)

    def close(self) -> None:
        if hasattr(self, "_raw"):
            self._raw.close()
        self._loop.call_soon_threadsafe(self.mailbox.stop)
        self._await(self._server.stop(None))
        self._engine.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


Start = Callable[..., Coordinator]
Call = Callable[..., Session]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Coordinator] = []

    def starting(plan: Plan | None = None, *, port: int = 0) -> Coordinator:
        started.append(Coordinator(plan or Plan(n_participants=1, rounds=2), port=port))
        return started[-1]

    yield starting
    for coordinator in started:
        coordinator.close()


@pytest.fixture
def connect() -> Iterator[Call]:
    sessions: list[Session] = []

    def connecting(
        to: Coordinator | str,
        *,
        patience_s: float = LONG_S,
        notice: Callable[[str], None] = lambda text: None,
        is_there: Callable[[bool], None] = lambda answers: None,
    ) -> Session:
        address = to if isinstance(to, str) else to.address
        sessions.append(Session(address, patience_s=patience_s, notice=notice, is_there=is_there))
        return sessions[-1]

    yield connecting
    for session in sessions:
        session.close()


def request(site: str = "north", variables: tuple[str, ...] = NAMES, n_samples: int = 50) -> JoinRequest:
    return JoinRequest(site, variables, n_samples)


Joined = tuple[Coordinator, Session]


@pytest.fixture
def joined(start: Start, connect: Call) -> Joined:
    """A run of one site, which has joined it."""
    coordinator = start()
    session = connect(coordinator)
    session.join(request())
    return coordinator, session


def matrix(*entries: tuple[int, float], d: int = 3) -> SparseMatrix:
    return SparseMatrix(d, np.array([k for k, _ in entries], dtype=np.int64), np.array([v for _, v in entries]))


def update(t: int, value: float = 0.1 + 0.2, site: str = "north") -> LocalUpdate:
    return LocalUpdate(site, t, admm_rounds.Answer(matrix((1, value), (6, -1 / 3))))


def refused(call: Callable[..., object], *arguments: object, **options: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=LONG_S, **options)
    return caught.value.code(), caught.value.details()  # type: ignore[attr-defined]


# ---- what goes through ---------------------------------------------------------------------------------------------


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


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that says soon, and often, that it lives."""
    monkeypatch.setattr(session_module, "ALIVE_EVERY_S", 0.05)
    monkeypatch.setattr(session_module, "_LOOK_S", 0.01)


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


# ---- refusals ------------------------------------------------------------------------------------------------------

MALFORMED = {
    "more indices than values": values.SparseMatrix(n_variables=3, index_gap=[1, 1], value=[0.5]),
    "not a number": values.SparseMatrix(n_variables=3, index_gap=[1], value=[float("nan")]),
}


def test_a_malformed_matrix_is_refused_as_an_invalid_argument_and_the_server_goes_on(joined: Joined) -> None:
    coordinator, session = joined
    closing = coordinator.open_round(1)
    session.pull(0)
    stub = coordinator.stub()
    for name, wire in MALFORMED.items():
        message = federation.Update(run=coordinator.tag, site="north", round=1, admm=wire)
        code, details = refused(stub.PushUpdate, message)
        assert code is grpc.StatusCode.INVALID_ARGUMENT, name
        assert details.startswith(("matrix ", "numbers ", "a number ")), name
    assert coordinator.mailbox.answered == frozenset()
    with pytest.raises(LocalProtocolError, match="the coordinator refused: matrix with an entry on the diagonal"):
        session.push(LocalUpdate("north", 1, admm_rounds.Answer(matrix((4, 0.5)))))
    session.push(update(1))
    assert closing.result(LONG_S)["north"] == update(1)


def test_bytes_that_are_no_message_are_refused_and_the_server_goes_on(start: Start, connect: Call) -> None:
    coordinator = start()
    coordinator.stub()
    for call in CALLS:
        code, details = refused(coordinator._raw.unary_unary(f"/fedbnsl.wire.Federation/{call}"), b"\xff\xff\xff")
        assert (code, details) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the request cannot be parsed; install the same version of fedbnsl at both ends",
        )
    assert coordinator.servicer.requests == []
    connect(coordinator).join(request())


def test_after_a_damaged_stream_or_a_stopping_server_a_site_calls_again_and_the_coordinators_own_error_is_not(
    start: Start, connect: Call
) -> None:
    coordinator = start()
    said = [
        (grpc.StatusCode.INTERNAL, "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.INTERNAL, OTHERWISE),
    ]

    async def damage(context: Any) -> None:
        if said:
            await context.abort(*said.pop(0))

    coordinator.servicer.after["Join"] = damage
    with pytest.raises(ProtocolError, match=f"the coordinator refused: {OTHERWISE}$"):
        connect(coordinator).join(request())
    assert coordinator.servicer.count(federation.JoinRequest) == 3


def calls_of(tag: int, site: str) -> dict[str, Message]:
    zero = values.SparseMatrix(n_variables=3)
    return {
        "PullTask": federation.PullRequest(run=tag, site=site),
        "PushUpdate": federation.Update(run=tag, site=site, round=1, admm=zero),
        "Alive": federation.AliveRequest(run=tag, site=site),
        "Leave": federation.LeaveRequest(run=tag, site=site),
    }


@pytest.mark.parametrize("call", ["PullTask", "PushUpdate", "Alive", "Leave"])
def test_calls_of_another_run_and_of_a_site_that_has_not_joined_are_refused(
    call: str, start: Start, connect: Call
) -> None:
    coordinator = start()
    connect(coordinator).join(request())
    stub = coordinator.stub()
    assert refused(getattr(stub, call), calls_of(coordinator.tag + 1, "north")[call]) == (
        grpc.StatusCode.NOT_FOUND,
        "this call belongs to another run; join again",
    )
    assert refused(getattr(stub, call), calls_of(coordinator.tag, "south")[call]) == (
        grpc.StatusCode.NOT_FOUND,
        "site 'south' has not joined this run",
    )
    assert coordinator.mailbox.left == frozenset()


def test_a_site_whose_coordinator_was_replaced_by_another_run_learns_it(start: Start, connect: Call) -> None:
    first = start()
    session = connect(first)
    session.join(request())
    first.close()
    first.close = lambda: None  # type: ignore[method-assign]
    second = start(port=first.port)
    connect(second).join(request())
    with pytest.raises(PlanMismatchError, match="this call belongs to another run; join again"):
        session.pull(0)


REFUSED_JOINS: dict[str, tuple[Plan, list[JoinRequest], JoinRequest, type[FedbnslError], str]] = {
    "another version": (
        Plan(), [], JoinRequest("north", NAMES, 5, protocol_version=99), LocalProtocolError,
        f"the site speaks protocol 99, the coordinator {PROTOCOL_VERSION}; install the same version of fedbnsl",
    ),
    "a bad name": (
        Plan(), [], request("a/b"), MembershipRefusedError,
        "site name 'a/b': use 1 to 64 letters, digits, '.', '-' or '_'",
    ),
    "other variables": (
        Plan(variables=("größe", "IL 6", "mass")), [], request(), SchemaMismatchError,
        "the site's variables are not those of the run (missing: größe, IL 6; not in the run: age, dose)",
    ),
    "no membership left": (
        Plan(n_participants=1), [request("south")], request(), MembershipRefusedError,
        "all 1 memberships of this run are taken",
    ),
    "another table than before": (
        Plan(), [request(n_samples=9)], request(n_samples=8), MembershipRefusedError,
        "site 'north' has already joined, with another table",
    ),
    "a repeated variable": (
        Plan(), [], request(variables=("age", "age")), LocalProtocolError,
        "a table with a repeated variable name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_JOINS)
def test_every_refusal_of_a_join_reaches_the_site_with_its_text(case: str, start: Start, connect: Call) -> None:
    plan, before, refused_one, kind, text = REFUSED_JOINS[case]
    coordinator = start(plan)
    for earlier in before:
        connect(coordinator).join(earlier)
    with pytest.raises(FedbnslError) as caught:
        connect(coordinator).join(refused_one)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(f"the coordinator refused: {text}")


@pytest.mark.parametrize(
    "names",
    [
        tuple(f"gene_{k:04d}" for k in range(2000)),
        tuple(f"{k}" + "x" * 190 for k in range(100)),
        tuple(f"{k}" + "漢" * 190 for k in range(100)),
    ],
    ids=["2000 names", "long names", "long names of 3 bytes a letter"],
)
def test_a_refusal_that_would_name_too_much_is_cut_and_still_arrives(
    names: tuple[str, ...], start: Start, connect: Call
) -> None:
    """Beyond 8 KiB of trailing metadata gRPC would deliver only "received metadata size exceeds limit"."""
    coordinator = start(Plan(variables=names))
    with pytest.raises(SchemaMismatchError, match="the site's variables are not those of the run") as caught:
        connect(coordinator).join(request(variables=tuple(f"o {name}" for name in names)))
    assert f"missing: {names[0][:100]}" in str(caught.value)


STATUS_OF = {
    StaleRoundError: (grpc.StatusCode.ABORTED, StaleRoundError),
    MalformedMessageError: (grpc.StatusCode.INVALID_ARGUMENT, LocalProtocolError),
    SchemaMismatchError: (grpc.StatusCode.FAILED_PRECONDITION, SchemaMismatchError),
    MembershipRefusedError: (grpc.StatusCode.ALREADY_EXISTS, MembershipRefusedError),
    PlanMismatchError: (grpc.StatusCode.NOT_FOUND, PlanMismatchError),
    PlanError: (grpc.StatusCode.FAILED_PRECONDITION, SchemaMismatchError),
    RemoteProtocolError: (grpc.StatusCode.PERMISSION_DENIED, LocalProtocolError),
}


@pytest.mark.parametrize("kind", STATUS_OF)
def test_each_public_error_has_its_status_and_arrives_as_the_error_of_the_other_side(
    kind: type[FedbnslError], start: Start, connect: Call
) -> None:
    coordinator = start()

    def refuse(request: JoinRequest, certificate: bytes) -> NoReturn:
        raise kind("what, and what to do")

    coordinator.roster.join = refuse  # type: ignore[method-assign]
    status, expected = STATUS_OF[kind]
    wire = codec.encode_join(request())
    assert refused(coordinator.stub().Join, wire) == (status, "what, and what to do")
    with pytest.raises(FedbnslError, match="the coordinator refused: what, and what to do") as caught:
        connect(coordinator).join(request())
    assert type(caught.value) is expected


# ---- nothing leaks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret 42"),
        KeyError("secret 42"),
        DataError("column 'secret': 42 rows"),
        DivergenceError("secret 42"),
        QuorumLostError("secret 42"),
        FedbnslError("secret 42"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_leaves_as_one_constant_sentence_and_the_server_goes_on(
    error: Exception, start: Start, connect: Call, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    connect(coordinator).join(request())

    def fail(*arguments: object) -> NoReturn:
        raise error

    stub = coordinator.stub()
    messages = {
        "Join": codec.encode_join(request()),
        **calls_of(coordinator.tag, "north"),
        "Status": federation.StatusRequest(),
    }
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
        broken.setattr(coordinator.roster, "join", fail)
        for name in ("welcome", "pull", "push", "leave"):
            broken.setattr(coordinator.mailbox, name, fail)
        broken.setattr(type(coordinator.mailbox), "answered", property(fail))
        for call in CALLS:
            caplog.clear()
            with pytest.raises(grpc.RpcError) as caught:
                getattr(stub, call)(messages[call], timeout=LONG_S)
            raised: Any = caught.value
            assert (raised.code(), raised.details()) == (grpc.StatusCode.INTERNAL, OTHERWISE), call
            assert "secret" not in repr(raised.trailing_metadata()) + repr(raised.initial_metadata())
            assert "secret" not in str(raised)
            assert "secret" in caplog.text, "the coordinator's own operator reads what happened"
        with pytest.raises(ProtocolError, match=f"the coordinator refused: {OTHERWISE}$"):
            connect(coordinator).join(request())
    connect(coordinator).join(request())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_site_tries_again_while_the_coordinator_lacks_something(
    number: int, start: Start, connect: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    genuine, left = coordinator.roster.join, 10  # more than gRPC repeats by itself

    def join(request: JoinRequest, certificate: bytes) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ResultError("/secret/events.jsonl cannot be written") from OSError(number, os.strerror(number))
        genuine(request, certificate)

    monkeypatch.setattr(coordinator.roster, "join", join)
    refusal = refused(coordinator.stub().Join, codec.encode_join(request()))
    assert refusal == (grpc.StatusCode.UNAVAILABLE, f"the coordinator has to wait: {os.strerror(number)}")
    assert connect(coordinator).join(request()).round == 0
    assert left < 0


@pytest.mark.parametrize("error", [DataError("column 'secret': 42 rows"), ValueError("secret 42")])
def test_what_goes_wrong_at_a_site_stays_there(
    error: Exception, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Failing(join_run.Participant):
        def handle(self, task: RoundTask) -> NoReturn:
            raise error

    monkeypatch.setattr(join_run, "Participant", Failing)
    coordinator = start()
    table = Dataset(NAMES, np.random.default_rng(1).standard_normal((50, 3)))

    async def open_round(context: Any) -> None:
        coordinator.open_round(1)

    coordinator.servicer.after["Join"] = open_round
    notices: list[str] = []
    with pytest.raises(type(error)):
        join_run.take_part(
            PublicTable("north", table), Link(coordinator.address), patience_s=LONG_S, told=Told(notices.append)
        )
    sent = coordinator.servicer.requests
    assert [type(message) for message in sent] == [
        federation.JoinRequest,
        federation.PullRequest,
        federation.LeaveRequest,
    ]
    assert sent[-1] == federation.LeaveRequest(
        run=coordinator.tag, site="north", reason=federation.LEAVE_REASON_LOCAL_ERROR
    )
    assert not any(b"secret" in message.SerializeToString() for message in sent)
    assert coordinator.mailbox.left == {"north"}


# ---- a coordinator that is away ------------------------------------------------------------------------------------


def test_a_coordinator_that_is_not_there_is_called_until_patience_is_over(connect: Call) -> None:
    notices: list[str] = []
    port = free_port()
    session = connect(f"127.0.0.1:{port}", patience_s=0.5, notice=notices.append)
    with pytest.raises(UnreachableError, match=rf"127\.0\.0\.1:{port} did not answer for 0\.5 s") as caught:
        session.join(request())
    assert caught.value.exit_code == 6
    assert notices == [f"the coordinator at 127.0.0.1:{port} does not answer; trying again for up to 0.5 s"]


def test_a_coordinator_that_appears_late_is_joined(start: Start, connect: Call) -> None:
    late: list[Coordinator] = []
    port = free_port()

    def appear(text: str) -> None:
        late.append(start(port=port))

    told: list[bool] = []
    session = connect(f"127.0.0.1:{port}", notice=appear, is_there=told.append)
    assert session.join(request()).run == late[0].run
    assert told == [False, True], "away, and back"
    assert len(late) == 1
    assert list(late[0].roster.members) == ["north"]


def test_an_end_notice_that_nobody_hears_is_no_error(start: Start, connect: Call) -> None:
    notices: list[str] = []
    coordinator = start()
    session = connect(coordinator, notice=notices.append)
    session.join(request())
    coordinator.close()
    coordinator.close = lambda: None  # type: ignore[method-assign]
    session.leave(LeaveReason.LOCAL_ERROR)
    assert notices == ["the coordinator could not be told that this site leaves"]


# ---- limits and addresses ------------------------------------------------------------------------------------------


def test_a_message_over_16_mib_is_refused_with_both_sizes_and_the_server_goes_on(start: Start, connect: Call) -> None:
    coordinator = start()
    coordinator.stub(("grpc.max_send_message_length", -1))
    push = coordinator._raw.unary_unary("/fedbnsl.wire.Federation/PushUpdate")
    code, details = refused(push, bytes(16 * 2**20 + 1))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "16777217 vs. 16777216" in details
    assert coordinator.servicer.requests == []
    connect(coordinator).join(request())


def test_a_site_does_not_even_send_a_message_over_16_mib(start: Start, connect: Call) -> None:
    coordinator = start()
    wide = tuple(f"{k:05d}" + "x" * 900 for k in range(19_000))
    with pytest.raises(ProtocolError, match=r"larger than max \(\d+ vs. 16777216\)"):
        connect(coordinator).join(request(variables=wide))
    assert coordinator.servicer.requests == []


def test_a_task_over_16_mib_ends_the_call_with_both_sizes(joined: Joined) -> None:
    coordinator, session = joined
    n = 2_000_000
    coordinator.open_round(1, SparseMatrix(3, np.arange(1, n + 1), np.sqrt(np.arange(1, n + 1))))
    with pytest.raises(ProtocolError, match=r"the coordinator refused: .*larger than max \(\d+ vs. 16777216\)"):
        session.pull(0)


def test_a_message_just_under_16_mib_reaches_the_coordinator(start: Start, connect: Call) -> None:
    coordinator = start()
    connect(coordinator).join(request())
    stub = coordinator.stub(("grpc.max_send_message_length", -1))
    wide = federation.Update(run=coordinator.tag, site="north", round=1)
    wide.refit.weights.n_variables = 3
    wide.refit.residual_variance.extend([0.5] * 2_097_100)
    assert 16 * 2**20 - 1000 < wide.ByteSize() < 16 * 2**20
    assert refused(stub.PushUpdate, wide) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "2097100 residual variances, or one below 0; expected 3, all at least 0",
    )


def test_a_second_coordinator_on_the_same_port_fails_loudly(start: Start, connect: Call, tmp_path: Path) -> None:
    first = start()
    listening: list[str] = []
    with pytest.raises(SetupError, match=rf"cannot listen on {first.address}: the port is in use"):
        run_coordinator.serve(Plan(variables=NAMES), tmp_path / "run", ServerSettings(first.address, listening.append))
    assert listening == []
    assert not (tmp_path / "run").exists(), "another try, on another port, can have the folder"
    assert connect(first).join(request()).run == first.run


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("192.0.2.1:50051", "not on this machine"),
        ("0.0.0.0:50051", "not on this machine"),
        ("[::]:50051", "not on this machine"),
        ("[2001:db8::1]:50051", "not on this machine"),
        ("127.0.0.1", "expected host:port"),
        ("127.0.0.1:", "expected host:port"),
        (":50051", "expected host:port"),
        ("127.0.0.1:65536", "expected host:port"),
        ("127.0.0.1:-1", "expected host:port"),
        ("127.0.0.1:http", "expected host:port"),
        ("", "expected host:port"),
    ],
)
def test_plaintext_beyond_this_machine_is_refused_on_both_sides(address: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=text):
        Session(address, patience_s=0.0, notice=lambda text: None)
    with pytest.raises(SetupError, match=text):
        Observer(address)
    with pytest.raises(SetupError, match=text):
        run_coordinator.serve(Plan(variables=NAMES), tmp_path / "run", ServerSettings(address, lambda address: None))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({}, SetupError, "the plan does not name its variables"),
        (
            {"variables": NAMES, "knowledge": {"required": [["age", "größe"]]}}, PlanError,
            "knowledge.required names 'größe', which is not a variable of this run",
        ),
    ],
)  # fmt: skip
def test_a_plan_without_its_variables_is_not_served(
    settings: dict[str, Any], error: type[FedbnslError], text: str, tmp_path: Path
) -> None:
    plan = Plan().with_settings(**settings)
    with pytest.raises(error, match=text):
        run_coordinator.serve(plan, tmp_path / "run", ServerSettings("127.0.0.1:0", lambda address: None))
    assert not (tmp_path / "run").exists()


def test_a_host_that_also_has_an_address_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*hosts: str) -> Callable[..., list[tuple[object, ...]]]:
        return lambda *arguments, **options: [(0, 0, 0, "", (host, 50051)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.0.1", "::1"))
    channel.require_loopback("both:50051")
    monkeypatch.setattr(socket, "getaddrinfo", found("127.0.0.1", "192.0.2.7"))
    with pytest.raises(SetupError, match="not on this machine"):
        channel.require_loopback("both:50051")

    def unknown(*arguments: object, **options: object) -> NoReturn:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SetupError, match=r"the host is unknown \(.*Name or service not known\)"):
        channel.require_loopback("nowhere:50051")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.9.9:50051", "localhost:50051", "[::1]:50051"])
def test_loopback_addresses_are_accepted(address: str) -> None:
    channel.require_loopback(address)


def test_a_site_pings_less_often_than_the_coordinator_allows() -> None:
    server, client = dict(channel.server_options()), dict(channel.client_options())
    allowed_ms = int(server["grpc.http2.min_recv_ping_interval_without_data_ms"])
    assert int(client["grpc.keepalive_time_ms"]) > allowed_ms > 0
    assert channel.CLIENT_PING_INTERVAL_S > channel.SERVER_MIN_PING_INTERVAL_S


def test_both_sides_have_the_same_size_limits() -> None:
    for side in (dict(channel.server_options()), dict(channel.client_options())):
        for direction in ("receive", "send"):
            assert side[f"grpc.max_{direction}_message_length"] == 16 * 2**20


@pytest.mark.usefixtures("lively")
def test_no_call_waits_forever(start: Start, connect: Call) -> None:
    """Whatever a site calls, the coordinator sees a deadline."""
    coordinator = start()
    left_s: dict[str, float | None] = {}

    def note(call: str) -> Callable[[Any], Any]:
        async def noting(context: Any) -> None:
            left_s[call] = context.time_remaining()

        return noting

    coordinator.servicer.after.update({call: note(call) for call in CALLS})
    session = connect(coordinator)
    session.join(request())
    session.settle(Plan(rpc_timeout_s=7.0, join_deadline_s=LONG_S))
    coordinator.open_round(1)
    session.pull(0)
    while "Alive" not in left_s:
        time.sleep(0.01)
    session.push(update(1))
    session.leave(LeaveReason.OPERATOR)
    observer = Observer(coordinator.address)
    observer.status()
    observer.close()
    at_most_s = {"Join": 10.0, "PullTask": 7.0 + channel.LONG_POLL_S, "PushUpdate": 7.0, "Leave": 0.5, "Status": 2.0}
    at_most_s["Alive"] = channel.ALIVE_TIMEOUT_S
    assert set(left_s) == set(CALLS)
    for call, seconds in left_s.items():
        assert seconds is not None, call
        assert seconds < at_most_s[call] + 0.5, call  # gRPC rounds them up a little
    assert left_s["PullTask"] > channel.LONG_POLL_S  # type: ignore[operator]


# ---- messages in chunks --------------------------------------------------------------------------------------------

SMALL = 15
WEIGHTS = matrix((1, 0.1), (2, 0.2), (3, -0.3), (5, 0.5), (6, 5e-324))
UPDATED = LocalUpdate("north", 1, admm_rounds.Answer(matrix((1, 0.1), (3, -1 / 3), (5, 5.5), (7, 1e-9))))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few bytes, of which every message but the smallest takes several."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", SMALL)


def sent_chunks(coordinator: Coordinator) -> list[federation.Update]:
    return [one for one in coordinator.servicer.requests if isinstance(one, federation.Update)]


def in_chunks(update: LocalUpdate, coordinator: Coordinator) -> list[federation.Update]:
    """The calls that bring an update, without a session's care."""
    wire = codec.encode_update(update, run=coordinator.run, value_type="float64")
    whole = chunks.cut(wire.SerializeToString())
    assert whole is not None
    return [codec.update_chunk(wire, chunk) for chunk in whole.chunks()]


def joined_round(coordinator: Coordinator, session: Session) -> "Future[Mapping[str, LocalUpdate]]":
    """The site has joined, and has the first task."""
    session.join(request())
    closing = coordinator.open_round(1, WEIGHTS)
    assert session.pull(0) == RoundTask(1, admm_rounds.Task(WEIGHTS), contributed=False)
    return closing


@pytest.mark.usefixtures("small")
def test_every_message_can_come_in_chunks_and_their_bytes_are_counted(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)
    session.push(UPDATED)
    assert closing.result(LONG_S) == {"north": UPDATED}
    traffic, sent = coordinator.mailbox.traffic, sent_chunks(coordinator)
    assert len(sent) > 3
    assert traffic.up["north"] == {1: sum(chunk.ByteSize() for chunk in sent)}
    assert traffic.up["north"][1] == codec.update_bytes(UPDATED, run=coordinator.run, value_type="float64")
    task = RoundTask(1, admm_rounds.Task(WEIGHTS), contributed=False)
    assert traffic.down["north"] == {1: codec.task_bytes(task, value_type="float64")}
    coordinator.finish(Finished(matrix((1, 0.5), (2, 0.25))))
    assert session.pull(1) == Finished(matrix((1, 0.5), (2, 0.25)))


@pytest.mark.usefixtures("small")
def test_the_end_is_told_once_its_last_chunk_is_sent(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    session.join(request())
    telling = asyncio.run_coroutine_threadsafe(
        coordinator.mailbox.finish(Finished(matrix((1, 0.1), (2, 0.2), (5, 0.5))), {"north"}, LONG_S), coordinator._loop
    )
    ask = federation.PullRequest(run=coordinator.tag, site="north")
    stub = coordinator.stub()
    first = stub.PullTask(ask, timeout=LONG_S).chunk
    assert first.n_bytes > len(first.data)
    ask.chunk.digest = first.digest
    for start_at in range(len(first.data), first.n_bytes, len(first.data)):
        assert not telling.done()
        ask.chunk.start = start_at
        stub.PullTask(ask, timeout=LONG_S)
    telling.result(LONG_S / 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("lost", range(1, 5))
def test_a_chunk_whose_reply_is_lost_is_sent_again_with_the_same_bytes(
    lost: int, start: Start, connect: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)
    encoded: list[LocalUpdate] = []
    encode = codec.encode_update
    monkeypatch.setattr(codec, "encode_update", lambda one, **how: encoded.append(one) or encode(one, **how))

    async def lose(context: Any) -> None:
        if coordinator.servicer.count(federation.Update) == lost:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "lost")

    coordinator.servicer.after["PushUpdate"] = lose
    session.push(UPDATED)
    assert closing.result(LONG_S) == {"north": UPDATED}
    sent = sent_chunks(coordinator)
    assert sent[lost - 1] == sent[lost]
    assert len({chunk.chunk.start for chunk in sent}) == len(sent) - 1
    assert encoded == [UPDATED], "what was cut is kept"


@pytest.mark.usefixtures("small")
def test_a_coordinator_that_forgot_the_chunks_is_sent_all_of_the_same_again(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)

    async def forget(context: Any) -> None:
        if coordinator.servicer.count(federation.Update) == 3:
            coordinator.servicer._forget_chunks("north")

    coordinator.servicer.after["PushUpdate"] = forget
    session.push(UPDATED)
    assert closing.result(LONG_S) == {"north": UPDATED}
    sent = [(chunk.chunk.start, chunk.SerializeToString()) for chunk in sent_chunks(coordinator)]
    assert [start for start, _ in sent[:5]] == [0, 15, 30, 45, 0]
    assert len({data for _, data in sent}) == len({start for start, _ in sent}), "the same bytes"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("call", ["Join", "PullTask"])
def test_a_reply_that_the_coordinator_forgot_is_asked_for_anew(call: str, start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    forgotten = threading.Event()

    async def forget(context: Any) -> None:
        if "north" in coordinator.servicer._outgoing and not forgotten.is_set():
            coordinator.servicer._forget_chunks("north")
            forgotten.set()

    if call == "Join":
        coordinator.servicer.after["Join"] = forget
    else:
        session.join(request())
        coordinator.servicer.after["PullTask"] = forget
    if call == "Join":
        assert session.join(request()).variables == NAMES
    coordinator.open_round(1, WEIGHTS)
    assert session.pull(0) == RoundTask(1, admm_rounds.Task(WEIGHTS), contributed=False)
    assert forgotten.is_set()


@pytest.mark.usefixtures("small")
def test_a_chunk_of_a_reply_that_is_not_kept_is_refused(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    closing = joined_round(coordinator, session)
    kept = coordinator.servicer._outgoing["north"][1].digest
    session.push(UPDATED)
    closing.result(LONG_S)
    coordinator.open_round(2, WEIGHTS, contributed=True)
    stub = coordinator.stub()
    first = stub.PullTask(federation.PullRequest(run=coordinator.tag, site="north", last_round=1), timeout=LONG_S)
    for digest in (kept, bytes(32)):
        wanted = federation.Chunk(digest=digest, start=SMALL)
        asked = federation.PullRequest(run=coordinator.tag, site="north", chunk=wanted)
        assert refused(stub.PullTask, asked) == (
            grpc.StatusCode.ABORTED,
            "the message that this chunk is of is not kept any more; ask for its beginning again",
        )  # fmt: skip
    asked.chunk.digest = first.chunk.digest
    assert stub.PullTask(asked, timeout=LONG_S).chunk.start == SMALL


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("end", ["pull", "leave", "join"])
def test_what_is_held_of_chunks_is_dropped_once_it_is_not_needed(end: str, start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=2, rounds=2))
    session = connect(coordinator)
    connect(coordinator).join(request("south"))
    joined_round(coordinator, session)
    servicer, stub = coordinator.servicer, coordinator.stub()
    assert "north" in servicer._outgoing
    stub.PushUpdate(in_chunks(UPDATED, coordinator)[0], timeout=LONG_S)
    assert ("north" in servicer._incoming, "north" in servicer._outgoing) == (True, False)
    if end == "pull":
        stub.PullTask(federation.PullRequest(run=coordinator.tag, site="north"), timeout=LONG_S)
    elif end == "join":
        session.join(request())
    else:
        session.leave(LeaveReason.OPERATOR)
    assert "north" not in servicer._incoming


@pytest.mark.usefixtures("small")
def test_the_ledger_of_an_update_in_chunks_that_comes_too_late_is_noted(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=1, rounds=2))
    session = connect(coordinator)
    joined_round(coordinator, session)
    head = LedgerHead(bytes(16), bytes(16), 3, bytes(32), 7)
    late = in_chunks(replace(UPDATED, round=2, ledger=head), coordinator)[0]
    with mock.patch.object(coordinator.servicer.ledgers, "note") as note:
        assert refused(coordinator.stub().PushUpdate, late)[0] is grpc.StatusCode.ABORTED
    note.assert_called_once_with("north", head)


@pytest.mark.usefixtures("small")
def test_chunks_that_do_not_follow_are_not_taken_and_others_are_refused(start: Start, connect: Call) -> None:
    coordinator = start(Plan(n_participants=2, rounds=2))
    session = connect(coordinator)
    connect(coordinator).join(request("south"))
    closing = joined_round(coordinator, session)
    stub = coordinator.stub()

    def held(chunk: federation.Update) -> int:
        return stub.PushUpdate(chunk, timeout=LONG_S).n_held

    def altered(chunk: federation.Update, **fields: int | bytes) -> federation.Update:
        other = federation.Update.FromString(chunk.SerializeToString())
        for name, value in fields.items():
            setattr(other.chunk if name in ("digest", "n_bytes", "data") else other, name, value)
        return other

    first, second, third, *rest = in_chunks(UPDATED, coordinator)
    assert held(second) == 0, "not the beginning"
    assert [held(chunk) for chunk in (first, third, second, second, altered(third, digest=bytes(32)))] == [
        15, 15, 30, 30, 0,
    ]  # fmt: skip
    most = codec.largest_update_bytes(3)
    invalid, late = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED
    for chunk, expected in [
        (altered(first, n_bytes=most + 1), (invalid, f"a message of {most + 1} bytes in chunks; in this run it has at "
                                            f"most {most}")),
        (altered(first, data=bytes(most)), (invalid, f"a chunk of {most} bytes where 1 to {first.chunk.n_bytes} are "
                                            "left")),
        (altered(first, data=b""), (invalid, f"a chunk of 0 bytes where 1 to {first.chunk.n_bytes} are left")),
        (altered(first, round=2), (late, "update for round 2 arrived in round 1; pull the current task")),
        (altered(first, run=coordinator.tag ^ 1), (grpc.StatusCode.NOT_FOUND, "this call belongs to another run; "
                                                   "join again")),
    ]:  # fmt: skip
        assert refused(stub.PushUpdate, chunk) == expected
    assert coordinator.servicer._incoming["north"].n_held == 0
    damaged = [first, altered(second, data=bytes(SMALL)), third, *rest]
    assert [held(chunk) for chunk in damaged[:-1]] == [SMALL * k for k in range(1, len(damaged))]
    assert refused(stub.PushUpdate, damaged[-1]) == (
        invalid,
        "the chunks of a message do not have its SHA-256 together",
    )
    foreign = [altered(chunk, site="south") for chunk in (first, second, third, *rest)]
    for chunk in foreign[:-1]:
        held(chunk)
    assert refused(stub.PushUpdate, foreign[-1]) == (
        invalid, "the chunks of an update hold one of another run, site or round",
    )  # fmt: skip
    session.push(UPDATED)
    session.push(UPDATED)  # a repeat is a success
    with mock.patch.object(codec, "decode_update", side_effect=AssertionError("looked at again")):
        again = stub.PushUpdate(altered(second, data=b""), timeout=LONG_S)
    assert (again.duplicate, again.n_held) == (True, first.chunk.n_bytes)
    stub.PushUpdate(codec.encode_update(replace(UPDATED, site="south"), run=coordinator.run, value_type="float64"))
    assert set(closing.result(LONG_S)) == {"north", "south"}
    assert refused(stub.PushUpdate, in_chunks(replace(UPDATED, round=2), coordinator)[0])[0] is late


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"start": 1}, "a chunk that begins at byte 1; expected 15"),
        ({"digest": bytes(32)}, "a chunk of another message than the one before it"),
        ({"data": bytes(SMALL)}, "the chunks of a message do not have its SHA-256 together"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_site_takes_no_other_chunk_than_the_next(
    wrong: dict[str, Any], text: str, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, session = joined
    coordinator.open_round(1, WEIGHTS)
    genuine = chunks.CutMessage.chunk

    def chunk(self: chunks.CutMessage, at: int) -> federation.Chunk:
        found = genuine(self, at)
        for name, value in wrong.items() if at == SMALL else ():
            setattr(found, name, value)
        return found

    monkeypatch.setattr(chunks.CutMessage, "chunk", chunk)
    with pytest.raises(MalformedMessageError, match=text):
        session.pull(0)


@pytest.mark.usefixtures("small")
def test_a_site_takes_no_larger_message_than_its_run_can_have(
    start: Start, connect: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = start()
    session = connect(coordinator)
    session.join(request())
    coordinator.open_round(1, WEIGHTS)
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 40)
    monkeypatch.setattr(codec, "largest_update_bytes", lambda n_variables, n_steps=0: 10)
    with pytest.raises(ProtocolError, match=r"the coordinator refused: a message larger than max \(\d+ vs. 40\)"):
        session.pull(0)
    monkeypatch.setattr(Servicer, "_cut", lambda self, reply: chunks.cut(reply.SerializeToString()))
    coordinator.servicer._task_replies.clear()
    with pytest.raises(MalformedMessageError, match=r"a message of \d+ bytes in chunks; in this run it has at most 40"):
        connect(coordinator).join(request())
    with pytest.raises(MalformedMessageError, match=r"a message larger than max \(\d+ vs. 10\)"):
        session.push(UPDATED)


def test_a_message_that_fits_into_one_call_is_sent_as_it_is(start: Start, connect: Call) -> None:
    coordinator = start()
    session = connect(coordinator)
    joined_round(coordinator, session)
    session.push(UPDATED)
    joined, pulled, pushed = coordinator.servicer.requests
    assert (pulled, pushed) == (
        federation.PullRequest(run=coordinator.tag, site="north"),
        codec.encode_update(UPDATED, run=coordinator.run, value_type="float64"),
    )
    assert joined == codec.encode_join(request())
