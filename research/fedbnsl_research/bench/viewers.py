"""Browsers that look at a coordinator's page, as far as the coordinator can tell: sockets on one thread."""

import selectors
import socket
import threading
from contextlib import suppress
from typing import Self

_LOOK_S = 0.1
_SMALL_BUFFER_BYTES = 4096
_READ_BYTES = 65_536


class Viewers:
    """So many open streams of news; one that is cut off comes again.

    Parameters
    ----------
    address
        host and port of the page.
    path
        Of the stream.
    hang
        Read nothing, over connections that hold little: what a browser on a sleeping machine does.
    """

    def __init__(self, address: tuple[str, int], path: str, n: int, *, hang: bool = False) -> None:
        self._address, self._path, self._n, self._hang = address, path, n, hang
        self._selector = selectors.DefaultSelector()
        self._open: set[socket.socket] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.n_bytes = 0
        self.n_cut = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self._open:
            one.close()
        self._selector.close()

    def _look(self) -> None:
        while not self._over.is_set():
            while len(self._open) < self._n and not self._over.is_set():
                if not self._come():
                    break
            if self._hang:
                self._notice_who_was_cut_off()
                self._over.wait(_LOOK_S)
                continue
            for key, _ in self._selector.select(_LOOK_S):
                self._read(key.fileobj)

    def _come(self) -> bool:
        one = socket.socket()
        try:
            if self._hang:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
            one.settimeout(5.0)
            one.connect(self._address)
            one.sendall(f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        except OSError:
            one.close()
            return False
        one.setblocking(False)
        self._open.add(one)
        if not self._hang:
            self._selector.register(one, selectors.EVENT_READ)
        return True

    def _read(self, one: object) -> None:
        if not isinstance(one, socket.socket):
            return
        part = b""
        with suppress(OSError):
            part = one.recv(_READ_BYTES)
        self.n_bytes += len(part)
        if not part:
            self._selector.unregister(one)
            self._gone(one)

    def _notice_who_was_cut_off(self) -> None:
        for one in list(self._open):
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._gone(one)

    def _gone(self, one: socket.socket) -> None:
        self._open.discard(one)
        one.close()
        self.n_cut += 1
