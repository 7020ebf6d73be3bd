"""Where a coordinator's runs are served and what it keeps of them, and who follows one run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl.events.emitter import Emit, silent
from fedbnsl.events.security_log import NAME, SecurityLog
from fedbnsl.protocol.channel import require_loopback, split_address
from fedbnsl.protocol.messages import Phase
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.grpc_api.connections import make_room, most_connections
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.store.site_ledgers import FILE, SiteLedgers

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.page.runs_page import RunsPage
    from fedbnsl_server.observe.prometheus import MetricsPort


@dataclass(frozen=True)
class ServerSettings:
    """Where a coordinator listens, for whom, and what shows and records it."""

    listen: str  # host:port; port 0 takes a free one
    on_listening: Callable[[str], None]  # called with the real address once sites can call
    # Whose sites may call, over TLS; None: anybody, in plaintext, on loopback only.
    federation: "Federation | None" = None
    # File that remembers the sites' privacy ledgers from run to run; None: beside the run folders.
    site_ledgers: Path | None = None
    # File of who called and who was refused; None: in the federation's folder, without one beside the run folders.
    security_log: Path | None = None
    metrics: "MetricsPort | None" = None  # shows where the runs stand
    page: "RunsPage | None" = None  # shows the runs to browsers

    def check(self) -> None:
        """Fail now, not after the port is open.

        Raises SetupError or IdentityError if the address is wrong, plaintext would leave this machine, or the
        certificate is missing.
        """
        if self.federation is None:
            require_loopback(self.listen)
        else:
            split_address(self.listen)
            self.federation.credentials()

    def make_room(self, n_sites: int) -> None:
        """Allow this process as many open files as the connections of this many sites need."""
        make_room(most_connections(n_sites) + (0 if self.page is None else self.page.most_connections))

    def ledgers(self, runs: Path) -> SiteLedgers:
        """What is remembered of the sites' ledgers; by default in the folder that holds the runs."""
        return SiteLedgers(self.site_ledgers or runs / FILE)

    def open_log(self, runs: Path) -> SecurityLog:
        """The security log; by default in the federation's folder or in the one that holds the runs."""
        return SecurityLog(self.security_log or (runs if self.federation is None else self.federation.folder) / NAME)


@dataclass(frozen=True)
class Follower:
    """Who is told what happens in a run."""

    on_round: Callable[[AdmmState, RoundRecord], None] = lambda state, record: None  # called after each round is saved
    # Told several times a second what takes time; None in the end.
    on_phase: Callable[[Phase | None], None] = lambda phase: None
    # Called with each message for the operator: a site joins or leaves, a round waits for one.
    notice: Callable[[str], None] = lambda text: None
    emit: Emit = silent  # told each event; see `fedbnsl.events.emitter`


SILENT = Follower()
