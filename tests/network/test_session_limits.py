"""Limits of messages, addresses and times between a site and its coordinator."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest

from fedbnsl.errors import (
    ProtocolError,
    SetupError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import channel
from fedbnsl.protocol.messages import (
    LeaveReason,
)
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.session import Session
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_server.run import serve as run_coordinator
from fedbnsl_server.run.settings import ServerSettings
from network.by_hand import (
    CALLS,
    LONG_S,
    NAMES,
    Call,
    Joined,
    Start,
    connect,
    joined,
    lively,
    refused,
    request,
    start,
    update,
)

__all__ = ["connect", "joined", "lively", "start"]  # fixtures


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


def test_a_plan_without_its_variables_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="the plan does not name its variables"):
        run_coordinator.serve(Plan(), tmp_path / "run", ServerSettings("127.0.0.1:0", lambda address: None))
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
