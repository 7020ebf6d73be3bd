"""Who may join a run, who has joined, and when each was last heard of."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedbnsl.errors import (
    QuorumLostError,
    RemoteProtocolError,
    SchemaMismatchError,
    SeatLostError,
    SeatRefusedError,
)
from fedbnsl.messages import NOT_SEATED, PROTOCOL_VERSION, SITE_NAME_RULE, JoinRequest, is_site_name
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan

_NAMES_SHOWN = 8


@dataclass
class Member:
    """A site that has joined.

    Attributes
    ----------
    variables
        Its columns, in the order of its table.
    n_samples
        Its rows (public).
    has_ledger
        Whether it counts what it releases.
    last_seen, online_since
        Seconds of the monotonic clock: of its last call, and of when it joined or came back.
    """

    variables: tuple[str, ...]
    n_samples: int
    has_ledger: bool
    last_seen: float = field(default_factory=time.monotonic, compare=False)
    online_since: float = field(default_factory=time.monotonic, compare=False)


class Roster:
    """The sites of one run; touched on one event loop only.

    Parameters
    ----------
    variables, members
        Those of a run that was taken up again; empty: the plan's, and nobody.
    on_change
        Called with the member when a seat is taken, with None when it is freed, before the site is told.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        variables: tuple[str, ...] = (),
        members: Mapping[str, Member] | None = None,
        on_change: Callable[[str, Member | None], None] = lambda site, member: None,
    ) -> None:
        self.variables: tuple[str, ...] = plan.variables or variables
        self.members: dict[str, Member] = dict(members or {})
        self._plan = plan
        self._on_change = on_change
        self._complete = asyncio.Event()
        if len(self.members) == plan.n_participants:
            self._complete.set()

    @property
    def is_complete(self) -> bool:
        """Whether every seat is taken; from then on none is freed."""
        return self._complete.is_set()

    def join(self, request: JoinRequest) -> None:
        """Seat a site, or welcome it back.

        Raises
        ------
        RemoteProtocolError
            For another protocol version.
        SchemaMismatchError
            If its variables are not those of the run; the text says which are missing and which are too many.
        SeatRefusedError
            For an unusable site name, if all seats are taken, or if the site had joined with another table.
        """
        if request.protocol_version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"the site speaks protocol {request.protocol_version}, the coordinator {PROTOCOL_VERSION}; "
                "install the same version of fedbnsl"
            )
        if not is_site_name(request.site):
            raise SeatRefusedError(f"site name {request.site!r}: use {SITE_NAME_RULE}")
        joining = Member(request.variables, request.n_samples, request.ledger is not None)
        known = self.members.get(request.site)
        if known is not None:
            if joining != known:
                raise SeatRefusedError(f"site {request.site!r} has already joined, with another table")
            self.members[request.site] = joining
            return
        if len(self.members) >= self._plan.n_participants:
            raise SeatRefusedError(f"all {self._plan.n_participants} seats of this run are taken")
        variables = self.variables or request.variables
        compare_variables(variables, request.variables)
        if not self.members:
            EdgeMask(self._plan.knowledge, variables)  # refuses knowledge about variables that the run does not have
        self.variables = variables
        self.members[request.site] = joining
        if len(self.members) == self._plan.n_participants:
            self._complete.set()
        self._on_change(request.site, joining)

    def leave(self, site: str) -> None:
        """Free a seat again, as long as the run has not begun: a site may come back with another table."""
        if not self.is_complete:
            del self.members[site]
            if not self.members:
                self.variables = self._plan.variables
            self._on_change(site, None)

    def heard(self, site: str, *, came_back: bool = False) -> None:
        """Note a call of a site, the first one since it was away or any other.

        Raises
        ------
        SeatLostError
            If the site has not joined.
        """
        if site not in self.members:
            raise SeatLostError(f"site {site!r} {NOT_SEATED}")
        member = self.members[site]
        member.last_seen = time.monotonic()
        if came_back:
            member.online_since = member.last_seen

    async def wait_until_complete(self) -> None:
        """Return when every seat is taken.

        Raises
        ------
        QuorumLostError
            If that takes longer than the plan's join_deadline_s.
        """
        try:
            await asyncio.wait_for(self._complete.wait(), self._plan.join_deadline_s)
        except TimeoutError:
            joined = ", ".join(sorted(self.members)) or "none"
            raise QuorumLostError(
                f"{len(self.members)} of {self._plan.n_participants} sites joined within join_deadline_s = "
                f"{self._plan.join_deadline_s:g} s ({joined})"
            ) from None


def compare_variables(expected: tuple[str, ...], got: tuple[str, ...]) -> None:
    """Refuse a site whose variables are not those of the run; the order does not matter.

    Raises
    ------
    SchemaMismatchError
        Naming what is missing and what is too many.
    """
    known, given = set(expected), set(got)
    missing = [name for name in expected if name not in given]
    surplus = [name for name in got if name not in known]
    if missing or surplus:
        parts = [
            f"{title}: {', '.join(names[:_NAMES_SHOWN])}"
            + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
            for title, names in (("missing", missing), ("not in the run", surplus))
            if names
        ]
        raise SchemaMismatchError(f"the site's variables are not those of the run ({'; '.join(parts)})")
