"""Who may join a run, who has joined, and when each was last heard of."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedbnsl.console.wording import first_few
from fedbnsl.errors import (
    EjectedError,
    MembershipLostError,
    MembershipRefusedError,
    QuorumLostError,
    RemoteProtocolError,
    SchemaMismatchError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.channel import AWAY_S
from fedbnsl.protocol.messages import (
    NOT_JOINED,
    PROTOCOL_VERSION,
    SITE_NAME_RULE,
    TAKEN_OUT,
    JoinRequest,
    is_site_name,
)


@dataclass
class Member:
    """A site that has joined."""

    variables: tuple[str, ...]  # its columns, in the order of its table
    n_samples: int  # its rows (public)
    has_ledger: bool  # whether it counts what it releases
    # What it computes with; it may come back with others.
    versions: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    # Under which it joined, DER; empty in plaintext. It may come back with another.
    certificate: bytes = field(default=b"", compare=False)
    # last_seen, online_since: seconds of the monotonic clock: of its last call, and of when it joined or came back
    last_seen: float = field(default_factory=time.monotonic, compare=False)
    online_since: float = field(default_factory=time.monotonic, compare=False)


class Roster:
    """The sites of one run; touched on one event loop only."""

    def __init__(
        self,
        plan: Plan,  # it names the variables
        *,
        members: Mapping[str, Member] | None = None,  # of a continued run; None: nobody
        ejected: Iterable[str] = (),  # sites that were taken out of the run for good
        # Called with the member before a membership is taken, or kept with other versions, with None before it is
        # freed; if it raises, nothing changes.
        on_change: Callable[[str, Member | None], None] = lambda site, member: None,
    ) -> None:
        self.variables = plan.column_names
        self.members: dict[str, Member] = dict(members or {})
        self.ejected = set(ejected)
        self._plan = plan
        self._on_change = on_change
        self._complete = asyncio.Event()
        self._check_complete()

    @property
    def memberships(self) -> int:
        """Sites that the run has when all have joined."""
        return self._plan.n_participants - len(self.ejected)

    def _check_complete(self) -> None:
        if len(self.members) == self.memberships:
            self._complete.set()

    @property
    def is_complete(self) -> bool:
        """Whether every membership is taken; after that no membership is freed."""
        return self._complete.is_set()

    def join(self, request: JoinRequest, certificate: bytes = b"") -> None:
        """Give a site a membership, or welcome it back.

        Raises RemoteProtocolError for another protocol version; SchemaMismatchError if its variables are not those of
        the run; EjectedError if it was ejected; MembershipRefusedError for an unusable site name or one that the plan
        does not have, more rows than the plan allows, if no membership is free, or it had joined with another table.
        """
        if request.protocol_version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"the site speaks protocol {request.protocol_version}, the coordinator {PROTOCOL_VERSION}; "
                "install the same version of fedbnsl"
            )
        if not is_site_name(request.site):
            raise MembershipRefusedError(f"site name {request.site!r}: use {SITE_NAME_RULE}")
        if self._plan.sites and request.site not in self._plan.sites:
            raise MembershipRefusedError(f"site {request.site!r} is not among the sites that may take part in this run")
        self._refuse_ejected(request.site)
        check_rows(self._plan, request.site, request.n_samples)
        joining = Member(
            request.variables, request.n_samples, request.ledger is not None, request.versions, certificate
        )
        known = self.members.get(request.site)
        if known is not None:
            if joining != known:
                raise MembershipRefusedError(f"site {request.site!r} has already joined, with another table")
            if (joining.versions, certificate) != (known.versions, known.certificate):
                self._on_change(request.site, joining)
            self.members[request.site] = joining
            return
        if len(self.members) >= self.memberships:
            raise MembershipRefusedError(f"all {self.memberships} memberships of this run are taken")
        compare_variables(self.variables, request.variables)
        self._on_change(request.site, joining)  # first: a membership that cannot be written down is not taken
        self.members[request.site] = joining
        self._check_complete()

    def leave(self, site: str) -> None:
        """Free a membership if the run has not begun: the site may come back with another table."""
        if not self.is_complete:
            self._on_change(site, None)
            del self.members[site]

    def eject(self, site: str) -> None:
        """Take a site and its membership out of the run; it is refused from its next call on."""
        self.members.pop(site, None)
        self.ejected.add(site)
        self._check_complete()

    def _refuse_ejected(self, site: str) -> None:
        if site in self.ejected:
            raise EjectedError(f"site {site!r} {TAKEN_OUT}")

    def heard(self, site: str, *, came_back: bool = False) -> None:
        """Note a call of a site; `came_back`: the first call since it had left.

        Raises MembershipLostError if the site has not joined; EjectedError if it was ejected.
        """
        self._refuse_ejected(site)
        if site not in self.members:
            raise MembershipLostError(f"site {site!r} {NOT_JOINED}")
        member, back = self.members[site], came_back or self.is_away(site)
        member.last_seen = time.monotonic()
        if back:
            member.online_since = member.last_seen

    def is_away(self, site: str) -> bool:
        """Whether a site has been silent for so long that it is not there, or cannot reach the coordinator."""
        return site in self.members and time.monotonic() - self.members[site].last_seen > AWAY_S

    async def wait_until_complete(self) -> None:
        """Return when every membership is taken.

        Raises QuorumLostError if that takes longer than the plan's join_deadline_s.
        """
        try:
            await asyncio.wait_for(self._complete.wait(), self._plan.join_deadline_s)
        except TimeoutError:
            joined = ", ".join(sorted(self.members)) or "none"
            raise QuorumLostError(
                f"{len(self.members)} of {self.memberships} sites joined within join_deadline_s = "
                f"{self._plan.join_deadline_s:g} s ({joined})"
            ) from None


def check_rows(plan: Plan, site: str, n_samples: int) -> None:
    """Refuse a row count that the plan does not allow: rows weigh in results, and nobody can count them at the site.

    Raises MembershipRefusedError if the site says that it has more.
    """
    if n_samples > plan.max_rows:
        raise MembershipRefusedError(
            f"site {site!r} says that it has {n_samples} rows; the plan allows {plan.max_rows} at most (max_rows)"
        )


def compare_variables(expected: tuple[str, ...], got: tuple[str, ...]) -> None:
    """Refuse a site whose variables are not those of the run; the order does not matter.

    Raises SchemaMismatchError, naming what is missing and what is too many.
    """
    known, given = set(expected), set(got)
    missing = [name for name in expected if name not in given]
    surplus = [name for name in got if name not in known]
    if missing or surplus:
        parts = [
            f"{title}: {first_few(names)}"
            for title, names in (("missing", missing), ("not in the run", surplus))
            if names
        ]
        raise SchemaMismatchError(f"the site's variables are not those of the run ({'; '.join(parts)})")
