"""A coordinator's calls, as `serve` puts them behind TLS, without a run: rounds are never opened."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest

from fedbnsl.identity.certificates import Credentials
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server.grpc_api.authentication import Authentication
from fedbnsl_server.grpc_api.incoming import IncomingCalls
from fedbnsl_server.grpc_api.listener import Listener
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.site_ledgers import SiteLedgers

RUN = 7_000_000_001
VARIABLES = ("age", "dose", "mass")
_LONG_S = 30.0


class Coordinator:
    """On an event loop of its own thread; without members in plaintext, unless there are credentials to load."""

    def __init__(self, members: Federation | None, *, load: Callable[[], Credentials] | None = None) -> None:
        self.noted: list[dict[str, object]] = []  # security events
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server, port = self._await(self._start(members, load))
        self.address = f"127.0.0.1:{port}"

    async def _start(self, members: Federation | None, load: Any) -> tuple[grpc.aio.Server, int]:
        plan = Plan(n_participants=2, variables=VARIABLES)
        self.roster, mailbox = Roster(plan), Mailbox(plan, asyncio.get_running_loop())
        server = grpc.aio.server(
            options=channel.server_options(),
            interceptors=[IncomingCalls(None if members is None else Authentication(members), record=self._note)],
        )
        servicer = Servicer(plan, RUN, self.roster, mailbox, SiteLedgers(Path("never-saved.json")), record=self._note)
        door = Listener()
        door.open(servicer)
        federation_grpc.add_FederationServicer_to_server(door, server)
        load = load or (members.credentials if members else None)
        if load is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", channel.server_credentials(load))
        await server.start()
        return server, port

    def _note(self, event: str, /, **fields: object) -> None:
        self.noted.append({"event": event, **fields})

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LONG_S)

    def close(self) -> None:
        self._await(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LONG_S)
        self._loop.close()


class Start(Protocol):
    """Starts a coordinator that is closed at the end of the test."""

    def __call__(self, members: Federation | None, *, load: Callable[[], Credentials] | None = None) -> Coordinator: ...


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Coordinator] = []

    def starting(members: Federation | None, *, load: Callable[[], Credentials] | None = None) -> Coordinator:
        running.append(Coordinator(members, load=load))
        return running[-1]

    yield starting
    for coordinator in running:
        coordinator.close()
