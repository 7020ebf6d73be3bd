"""What both ends of the wire must agree on; sizes, keepalive and loopback: tests/network/test_session_limits.py."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.identity.certificates import Credentials
from fedbnsl.protocol import channel
from fedbnsl_client import session
from federation_folder import make_federation


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("coordinator.example.org:1", "coordinator.example.org", 1),
        ("[::1]:50051", "::1", 50051),
        ("[2001:db8::1]:0", "2001:db8::1", 0),
        ("bücher.example:65535", "bücher.example", 65535),
    ],
)
def test_an_address_is_split_into_host_and_port(address: str, host: str, port: int) -> None:
    assert channel.split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        *("::1:50051", "2001:db8::1:50051", "[::1]", "[]:1", "[::1:1", "::1]:1"),
        *("unix:/tmp/socket:1", "dns:host:1", "ipv4:127.0.0.1:1", "http://host:1", "host/path:1"),
        *("host:٣", "host:1 ", " host:1", "ho st:1", "host:1\n", "host:" + "1" * 5000, "host:+1"),
    ],
)
def test_what_grpc_would_read_as_another_target_is_no_address(address: str) -> None:
    with pytest.raises(SetupError, match="expected host:port"):
        channel.split_address(address)
    with pytest.raises(SetupError, match="expected host:port"):
        channel.open_channel(address, Credentials(b"", b"", b""))


def test_plaintext_goes_to_loopback_itself_whatever_proxy_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as coordinator:
        for side in (proxy, coordinator):
            side.settimeout(10)
        for variable in ("grpc_proxy", "http_proxy", "https_proxy"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for variable in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        with channel.open_channel(f"127.0.0.1:{coordinator.getsockname()[1]}") as plain:
            call = plain.unary_unary("/any/call").future(b"", timeout=10)
            accepted, _ = coordinator.accept()
            with accepted:
                accepted.settimeout(10)
                assert accepted.recv(3) == b"PRI"
            call.cancel()


def test_a_server_that_cannot_load_its_certificate_is_not_started() -> None:
    def missing() -> Credentials:
        raise IdentityError("server.pem cannot be read")

    with pytest.raises(IdentityError, match=r"server\.pem"):
        channel.server_credentials(missing)


def test_a_certificate_is_handed_to_grpc_only_if_it_is_another_one_and_good(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Credentials(name, b"key", b"ca") for name in (b"first", b"second"))
    loaded: list[Credentials | Exception] = [first, first, second, second, IdentityError("expired")]
    fetches: list[Callable[[], object]] = []

    def load() -> Credentials:
        now = loaded.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    monkeypatch.setattr(
        channel.grpc, "dynamic_ssl_server_credentials", lambda initial, fetch, **others: fetches.append(fetch)
    )
    monkeypatch.setattr(channel.grpc, "ssl_server_certificate_configuration", lambda pairs, ca: pairs)
    channel.server_credentials(load)
    assert [fetches[0]() for _ in range(4)] == [None, [(b"key", b"second")], None, None]


def test_a_caller_without_a_certificate_is_never_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, object] = {}
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda first, fetch, **rest: options.update(rest))
    channel.server_credentials(make_federation(tmp_path).credentials)
    assert options == {"require_client_authentication": True}


def test_nobody_who_lives_is_silent_for_so_long_that_it_counts_as_away():
    look_s = session._LOOK_S
    lost_s = channel.ALIVE_TIMEOUT_S + look_s  # a sign of life that is lost, until the next one
    assert channel.LONG_POLL_S + look_s + lost_s < channel.AWAY_S, "after a pull that took all its time"
    assert channel.ALIVE_EVERY_S + look_s + 2 * lost_s < channel.AWAY_S, "while it computes"
    ping = dict(channel._KEEPALIVE)
    answer_ms = max(ping["grpc.http2.ping_timeout_ms"], ping["grpc.keepalive_timeout_ms"])
    assert (ping["grpc.keepalive_time_ms"] + answer_ms) / 1000 < channel.AWAY_S, "until a dead connection is replaced"


@pytest.mark.long
def test_a_connection_without_calls_is_closed_and_comes_back_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert channel._IDLE_S > 2 * channel.AWAY_S, "a site of a run is never idle"
    monkeypatch.setattr(channel, "_IDLE_S", 1)
    server = grpc.server(ThreadPoolExecutor(1), options=channel.server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    idle = threading.Event()
    with channel.open_channel(f"127.0.0.1:{port}") as opened:
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                opened.unary_unary("/any/call")(b"", timeout=30)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            if not idle.is_set():
                opened.subscribe(lambda state: idle.set() if state is grpc.ChannelConnectivity.IDLE else None)
                assert idle.wait(30)
    server.stop(None)


@pytest.mark.parametrize(("connections", "pending"), [(76, 1000), (8064, 8064)])
def test_as_many_calls_may_wait_as_there_are_connections(connections: int, pending: int) -> None:
    """By default gRPC cancels some from 1000 on: of 2000 sites that pushed at once, 833 calls were."""
    options = dict(channel.server_options(connections=connections))
    assert options["grpc.server.max_pending_requests"] == pending
    assert options["grpc.server.max_pending_requests_hard_limit"] == pending
