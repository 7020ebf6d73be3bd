"""Strangers at the port, with a certificate that has been revoked or none: the coordinator stays up, and small."""

import os
import re
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fedbnsl.identity.certificates import Credentials
from fedbnsl.protocol.channel import CALLS_AT_ONCE, split_address
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc
from fedbnsl_server.grpc_api.connections import (
    MOST_OF_A_SITE,
    MOST_WATCHERS,
    OTHER_FILES,
    ConnectionLimit,
    most_connections,
)
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.observe.status_client import Observer
from federation_folder import enrol, make_federation

KNOCKS = 1500  # by each of
KNOCKERS = 8
HUGE_BYTES = 15 * 2**20
PUSHES = 30
IDLE = 1300
LONG_S = 60.0
N_SITES = 3  # the default of a plan


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    make_federation(tmp_path / "federation")
    (tmp_path / "plan.toml").write_text("variables = ['age', 'dose']")
    serve = [sys.executable, "-m", "fedbnsl", "coordinator", "serve", tmp_path / "plan.toml"]
    options = [f"--federation={tmp_path / 'federation'}", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}"]
    process = subprocess.Popen([*serve, *options, f"--address-file={tmp_path / 'address'}"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "address").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process, (tmp_path / "address").read_text()
    finally:
        process.kill()
        process.wait()


def test_a_coordinator_outlives_handshakes_that_break_off_all_at_once(
    coordinator: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, address = coordinator
    host, port = split_address(address)
    distrustful = ssl.create_default_context()  # it knows no authority of the federation's

    def knock(how: int) -> None:
        for _ in range(KNOCKS):
            with suppress(OSError), socket.create_connection((host, port), timeout=5) as stranger:
                if how % 2:
                    distrustful.wrap_socket(stranger, server_hostname=host)

    knockers = [threading.Thread(target=knock, args=(how,)) for how in range(KNOCKERS)]
    for knocker in knockers:
        knocker.start()
    for knocker in knockers:
        knocker.join()
    assert process.poll() is None
    observer = Observer(address, Federation.open(tmp_path / "federation").credentials())
    status = observer.status()
    observer.close()
    assert status is not None, observer.silence
    assert status.state == "waiting for sites"


def status_of(address: str, folder: Path) -> str:
    """The state of the run, as the coordinator's own operator sees it, asked until it is told."""
    until = time.monotonic() + LONG_S
    while True:
        observer = Observer(address, Federation.open(folder).credentials())
        try:
            status = observer.status()
        finally:
            observer.close()
        if status is not None:
            return status.state
        assert time.monotonic() < until, observer.silence


def peak_bytes(process: subprocess.Popen[bytes]) -> int:
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(kib) * 1024


def channel_of(address: str, credentials: Credentials) -> grpc.Channel:
    secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
    own = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address, secure, own)


def test_nothing_is_read_of_the_messages_of_a_site_that_has_been_revoked(
    coordinator: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, address = coordinator
    members = Federation.open(tmp_path / "federation")
    credentials = enrol(members, tmp_path / "rogue", "rogue").credentials()
    members.revoke("rogue")
    status_of(address, tmp_path / "federation")
    before, huge = peak_bytes(process), bytes(HUGE_BYTES)

    def push(_: int) -> grpc.StatusCode:
        with channel_of(address, credentials) as channel:
            call = channel.unary_unary("/fedbnsl.wire.Federation/PushUpdate")
            with pytest.raises(grpc.RpcError) as caught:
                call(huge, timeout=LONG_S)
            return caught.value.code()

    with ThreadPoolExecutor(PUSHES) as threads:
        codes = Counter(threads.map(push, range(PUSHES)))
    assert codes == {grpc.StatusCode.UNAUTHENTICATED: PUSHES}
    assert peak_bytes(process) - before < PUSHES * HUGE_BYTES / 4
    assert status_of(address, tmp_path / "federation") == "waiting for sites"


def test_a_site_has_a_few_calls_at_once_and_no_streams(
    coordinator: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    _, address = coordinator
    members = Federation.open(tmp_path / "federation")
    north, south = (enrol(members, tmp_path / site, site).credentials() for site in ("north", "south"))

    with ExitStack() as opened:
        channels = [opened.enter_context(channel_of(address, north)) for _ in range(2)]
        joins = [one.stream_unary("/fedbnsl.wire.Federation/Join") for one in channels]
        silent = joins * CALLS_AT_ONCE  # a message that never comes
        release = threading.Event()
        opened.callback(release.set)

        def never() -> Iterator[bytes]:
            release.wait(LONG_S)
            yield from ()

        waiting = [call.future(never(), timeout=LONG_S) for call in silent]
        until = time.monotonic() + LONG_S
        while sum(call.done() for call in waiting) < CALLS_AT_ONCE and time.monotonic() < until:
            time.sleep(0.05)
        refused = [call for call in waiting if call.done()]
        assert len(refused) == CALLS_AT_ONCE
        assert {call.code() for call in refused} == {grpc.StatusCode.UNAVAILABLE}
        assert {call.details() for call in refused} == {f"more than {CALLS_AT_ONCE} calls at once"}
        other = opened.enter_context(channel_of(address, south))
        answer = federation_grpc.FederationStub(other).Status(federation.StatusRequest(), timeout=LONG_S)
        assert answer.site == "south"
        watching = health_pb2_grpc.HealthStub(other).Watch(health_pb2.HealthCheckRequest(), timeout=LONG_S)
        with pytest.raises(grpc.RpcError) as caught:
            next(watching)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_idle_connections_leave_room_for_files_and_for_sites_and_are_closed(
    coordinator: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, address = coordinator
    host, port = split_address(address)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * IDLE)), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        idle: list[socket.socket] = []
        for _ in range(IDLE):
            with suppress(OSError):
                idle.append(opened.enter_context(socket.create_connection((host, port), timeout=5)))
        assert len(idle) > IDLE / 2
        assert len(os.listdir(f"/proc/{process.pid}/fd")) <= most_connections(N_SITES) + OTHER_FILES
        assert status_of(address, tmp_path / "federation") == "waiting for sites"
        until = time.monotonic() + LONG_S
        for stranger in idle:
            stranger.settimeout(max(0.1, until - time.monotonic()))
            with suppress(ConnectionError):
                while stranger.recv(1024):  # what an HTTP/2 server says first
                    pass
    assert process.poll() is None


def test_the_limit_by_address_spares_connections_with_a_valid_call() -> None:
    with ExitStack() as opened:
        listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listening.getsockname()[1]
        limit = ConnectionLimit(port, 3)
        callers, accepted = [], []
        for _ in range(6):
            callers.append(opened.enter_context(socket.create_connection(("127.0.0.1", port))))
            accepted.append(opened.enter_context(listening.accept()[0]))
            limit.sweep()  # so that their ages differ
            if len(callers) == 1:
                limit.admitted(f"ipv4:127.0.0.1:{callers[0].getsockname()[1]}", None)
        assert [is_open(caller) for caller in callers] == [True, True, True, True, False, False]


def is_open(caller: socket.socket) -> bool:
    caller.setblocking(False)
    try:
        return caller.recv(1) != b""
    except BlockingIOError:
        return True


@pytest.mark.parametrize(
    ("site", "stay"),
    [("north", MOST_OF_A_SITE), ("", MOST_WATCHERS), (None, 20)],
    ids=["site", "watchers", "plaintext"],
)
def test_of_a_site_the_newest_connections_stay(site: str | None, stay: int) -> None:
    closed: Counter[str] = Counter()
    with ExitStack() as opened:
        listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listening.getsockname()[1]
        limit = ConnectionLimit(port, 3, on_closed=lambda address, site, n: closed.update({site: n}))

        def calling(site: str | None) -> socket.socket:
            caller = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            opened.enter_context(listening.accept()[0])
            limit.admitted(f"ipv4:127.0.0.1:{caller.getsockname()[1]}", site)
            return caller

        other = calling("south")
        callers = [calling(site) for _ in range(20)]
        limit.admitted(f"ipv4:127.0.0.1:{callers[0].getsockname()[1]}", site)  # another call makes it no newer
        limit.sweep()
        assert [is_open(caller) for caller in callers] == [False] * (20 - stay) + [True] * stay
        assert is_open(other)
        assert closed == ({} if stay == 20 else {site or "(coordinator)": 20 - stay})


def test_an_enrolled_site_cannot_hold_every_connection(
    coordinator: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    _, address = coordinator
    members = Federation.open(tmp_path / "federation")
    greedy, south = (enrol(members, tmp_path / site, site).credentials() for site in ("greedy", "south"))

    def status(channel: grpc.Channel, timeout: float, *, wait: bool) -> str:
        stub = federation_grpc.FederationStub(channel)
        return stub.Status(federation.StatusRequest(), timeout=timeout, wait_for_ready=wait).site

    with ExitStack() as opened:
        for _ in range(most_connections(N_SITES) + 8):
            with suppress(grpc.RpcError):  # the port is full
                status(opened.enter_context(channel_of(address, greedy)), LONG_S, wait=False)
        other = opened.enter_context(channel_of(address, south))
        assert status(other, LONG_S / 2, wait=True) == "south"
