"""How many connections the port takes: in all, from one address and of one site, so that nobody takes all the room.

A connection costs an open file, also one that never says anything. gRPC ends those that do not finish the handshake
within 10 s and takes no more than a number in all (`fedbnsl.protocol.channel.server_options`); here are the limits by
address and by site.
"""

import asyncio
import ipaddress
import logging
import os
import re
import resource
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress

from fedbnsl.errors import SetupError

# For the run folder, the libraries, and connections that are being closed.
OTHER_FILES = 128
# A site that works has one connection, and two for a while when it reconnects.
MOST_OF_A_SITE = 8
# With the coordinator's own certificate: everybody who watches the run.
MOST_WATCHERS = 16
_OPEN_FILES = "/dev/fd"
_SWEEP_S = 0.5
_LOG_EVERY_S = 10.0

_log = logging.getLogger(__name__)

# A remote host and port, as gRPC writes them and as this module does.
_PEER = re.compile(r"ipv[46]:(.+):([0-9]+)")


def most_connections(n_sites: int) -> int:
    """How many connections are taken in all: a site that reconnects has two for a while, and operators look."""
    return 4 * n_sites + 64


def most_strangers(n_sites: int) -> int:
    """How many connections without a valid call one address may have: all sites may be behind one."""
    return max(32, 2 * n_sites)


def make_room(n_connections: int) -> None:
    """Raise this process's limit of open files to what the system allows.

    Raises SetupError if they do not fit in it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SetupError(
            f"{n_connections} connections need {needed} open files, and this system allows {hard}; raise the limit "
            "(ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of docker)"
        )
    if hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


class ConnectionLimit:
    """Closes connections where there are too many of one address without a valid call, or too many of one site.

    Of an address the youngest are closed, so that a flood does not push out who came before it. Of a site the oldest
    are: a site that reconnects speaks on its newest one.

    gRPC has no such limit and does not give its connections away, so they are looked up among this process's open
    files twice a second. `on_closed` is called with whose connections were closed, an address or a site (the other is
    empty), and how many.
    """

    def __init__(
        self, port: int, most: int, *, on_closed: Callable[[str, str, int], None] = lambda address, site, n: None
    ) -> None:
        self._port, self._most, self._on_closed = port, most, on_closed
        self._since: dict[tuple[str, int], float] = {}
        self._admitted: dict[tuple[str, int], str | None] = {}  # in the order of their first valid calls
        self._closed = 0
        self._closed_of: set[str] = set()
        self._logged = float("-inf")

    def admitted(self, peer: str, site: str | None) -> None:
        """A valid call came from a peer, under a site's certificate; empty: the coordinator's; None: in plaintext."""
        found = split_peer(peer)
        if found is not None:
            self._admitted[found] = site

    async def keep(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                self.sweep()
            except OSError as error:  # no open file is left to look with: the next sweep may have one
                _log.warning("connections cannot be counted: %s", error)
            await asyncio.sleep(_SWEEP_S)

    def sweep(self) -> None:
        """Close what is too many now."""
        now = time.monotonic()
        with _connections(self._port) as connections:
            self._since = {peer: self._since.get(peer, now) for peer in connections}
            self._admitted = {peer: site for peer, site in self._admitted.items() if peer in connections}
            by_address: dict[str, list[socket.socket]] = defaultdict(list)
            for peer in sorted(connections, key=lambda peer: (self._since[peer], peer[1])):
                if peer not in self._admitted:
                    by_address[peer[0]].append(connections[peer])
            by_site: dict[str, list[socket.socket]] = defaultdict(list)
            for peer, site in self._admitted.items():
                if site is not None:
                    by_site[site].append(connections[peer])
            for host, oldest_first in by_address.items():
                self._close(oldest_first[self._most :], address=host)
            for site, oldest_first in by_site.items():
                most = MOST_OF_A_SITE if site else MOST_WATCHERS
                self._close(oldest_first[:-most], site=site or "(coordinator)")
        if self._closed and now - self._logged > _LOG_EVERY_S:
            crowded = ", ".join(sorted(self._closed_of))
            _log.warning("closed %d connections above the limit of an address or a site: %s", self._closed, crowded)
            self._closed, self._closed_of, self._logged = 0, set(), now

    def _close(self, too_many: list[socket.socket], *, address: str = "", site: str = "") -> None:
        for connection in too_many:
            with suppress(OSError):  # closed by the other side meanwhile
                connection.shutdown(socket.SHUT_RDWR)
        if too_many:
            self._closed += len(too_many)
            self._closed_of.add(address or site)
            self._on_closed(address, site, len(too_many))


@contextmanager
def _connections(port: int) -> Generator[dict[tuple[str, int], socket.socket]]:
    """The connections of a local port, by remote host and port: duplicates of the files, closed at the end."""
    with ExitStack() as opened:
        found: dict[tuple[str, int], socket.socket] = {}
        for name in os.listdir(_OPEN_FILES):
            with suppress(OSError):  # closed meanwhile, or no connection, as is the port itself
                if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    continue
                one = opened.enter_context(socket.socket(fileno=os.dup(int(name))))
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == port:
                    host, remote, *_ = one.getpeername()
                    found[_host(host), remote] = one
        yield found


def split_peer(peer: str) -> tuple[str, int] | None:
    """Address and port of a peer as gRPC writes it; None if it is no address."""
    found = _PEER.fullmatch(peer)
    if found is None:
        return None
    return _host(found[1].replace("%5B", "").replace("%5D", "").strip("[]")), int(found[2])


def _host(text: str) -> str:
    """An address in one form: an IPv4 address that came through an IPv6 port is itself."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
