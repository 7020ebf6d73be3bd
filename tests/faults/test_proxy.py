"""The proxy itself: unless told otherwise it changes nothing, and each fault is the one that its name says."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from faults.proxy import Proxy
from waiting import until

SOON_S = 0.2
LONG_S = 10.0


class Echo:
    """A server that answers every chunk with a prefix and the same chunk."""

    def __init__(self, prefix: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard = bytearray()
        self.ends: list[str] = []
        self._prefix = prefix
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(client,), daemon=True))
            self._threads[-1].start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                while chunk := client.recv(65536):
                    self.heard += chunk
                    client.sendall(self._prefix + chunk)
                self.ends.append("closed")
                client.sendall(self._prefix + b"last words")
            except OSError:
                self.ends.append("reset")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LONG_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address) as proxy:
        yield proxy


def dial(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=LONG_S)


def read(client: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n and (chunk := client.recv(n - len(got))):
        got += chunk
    return got


def test_bytes_pass_unchanged_and_are_counted_by_direction(echo: Echo, proxy: Proxy) -> None:
    payload = bytes(range(256)) * 4000
    with dial(proxy) as client:
        threading.Thread(target=client.sendall, args=(payload,)).start()
        assert read(client, len(payload)) == payload
        assert bytes(echo.heard) == payload
        until(lambda: proxy.up.n_bytes == proxy.down.n_bytes == len(payload), "all bytes")


def test_the_end_of_one_direction_is_passed_on_while_the_other_goes_on(echo: Echo, proxy: Proxy) -> None:
    with dial(proxy) as client:
        client.sendall(b"x")
        assert read(client, 1) == b"x"
        client.shutdown(socket.SHUT_WR)
        assert read(client, 100) == b"last words"
    assert echo.ends == ["closed"]


def test_a_delay_and_a_slow_line_hold_bytes_back(proxy: Proxy) -> None:
    proxy.down.delay_s, proxy.up.bytes_per_s = SOON_S, 10.0
    with dial(proxy) as client:
        before = time.monotonic()
        client.sendall(b"xx")
        assert read(client, 2) == b"xx"
    assert time.monotonic() - before >= 2 * SOON_S


def test_a_cut_resets_both_ends(echo: Echo, proxy: Proxy) -> None:
    with dial(proxy) as client:
        client.sendall(b"x")
        read(client, 1)
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    until(lambda: echo.ends == ["reset"], "a reset")
    with dial(proxy) as client:
        client.sendall(b"y")
        assert read(client, 1) == b"y", "the next connection works"


def test_a_half_closed_direction_ends_and_the_other_one_goes_on(echo: Echo, proxy: Proxy) -> None:
    with dial(proxy) as client:
        client.sendall(b"x")
        read(client, 1)
        proxy.half_close(proxy.down)
        assert client.recv(1) == b""
        for letter in b"yz":
            client.sendall(bytes([letter]))
            until(lambda letter=letter: echo.heard[-1] == letter, "the letter")
    assert bytes(echo.heard) == b"xyz"
    until(lambda: proxy.down.n_swallowed >= 2, "swallowed bytes")


def test_a_truncated_stream_brings_the_first_bytes_and_a_reset(echo: Echo, proxy: Proxy) -> None:
    proxy.up.left = 3
    with dial(proxy) as client:
        client.sendall(b"abcdef")
        until(lambda: echo.ends == ["reset"], "a reset")
        assert bytes(echo.heard) == b"abc"
        with pytest.raises(ConnectionResetError):
            read(client, 10)


def test_a_repeated_chunk_arrives_twice_and_only_once_more(echo: Echo, proxy: Proxy) -> None:
    proxy.up.repeats = 1
    with dial(proxy) as client:
        client.sendall(b"ab")
        assert read(client, 4) == b"abab"
        client.sendall(b"c")
        assert read(client, 1) == b"c"
    assert bytes(echo.heard) == b"ababc"


def test_a_black_hole_accepts_everything_and_answers_nothing(echo: Echo, proxy: Proxy) -> None:
    proxy.up.black_hole = True
    with dial(proxy) as client:
        client.sendall(b"x" * 1000)
        until(lambda: proxy.up.n_swallowed == 1000, "swallowed bytes")
        client.settimeout(SOON_S)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert not echo.heard


def test_new_connections_go_to_the_new_upstream_and_without_one_they_are_reset(echo: Echo, proxy: Proxy) -> None:
    other = Echo(b"other:")
    try:
        with dial(proxy) as old:
            old.sendall(b"x")
            assert read(old, 1) == b"x"
            proxy.upstream = other.address
            with dial(proxy) as new:
                new.sendall(b"y")
                assert read(new, 7) == b"other:y"
            old.sendall(b"z")
            assert read(old, 1) == b"z", "the old connection stays where it was"
    finally:
        other.close()
    for nobody in ("", other.address):
        proxy.upstream = nobody
        with pytest.raises(ConnectionResetError), dial(proxy) as client:
            client.recv(1)
