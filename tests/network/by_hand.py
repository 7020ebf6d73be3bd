"""A coordinator of one run whose rounds a test opens by hand, on real gRPC over loopback, and sessions with it."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel
from fedbnsl.protocol.messages import (
    Finished,
    JoinRequest,
    LocalUpdate,
    RoundTask,
    SiteState,
    run_tag,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_client import session as session_module
from fedbnsl_client.session import Session
from fedbnsl_server.grpc_api.incoming import IncomingCalls
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.site_ledgers import SiteLedgers

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


WEIGHTS = matrix((1, 0.1), (2, 0.2), (3, -0.3), (5, 0.5), (6, 5e-324))


def joined_round(coordinator: Coordinator, session: Session) -> "Future[Mapping[str, LocalUpdate]]":
    """The site has joined, and has the first task."""
    session.join(request())
    closing = coordinator.open_round(1, WEIGHTS)
    assert session.pull(0) == RoundTask(1, admm_rounds.Task(WEIGHTS), contributed=False)
    return closing


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that says soon, and often, that it lives."""
    monkeypatch.setattr(session_module, "ALIVE_EVERY_S", 0.05)
    monkeypatch.setattr(session_module, "_LOOK_S", 0.01)
