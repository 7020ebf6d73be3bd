"""Who has a seat in a run, as events.jsonl tells it: one line whenever a seat was taken or freed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbnsl.errors import ResultError
from fedbnsl.logs import EventLog
from fedbnsl_server.sites.roster import Member

_TAKEN, _FREED = "seated", "seat freed"


@dataclass(frozen=True)
class Membership:
    """The seats of a run that is taken up again.

    Attributes
    ----------
    variables
        d names, in the order of the matrices; empty while nobody has a seat.
    members
        By site, in the order in which they joined.
    """

    variables: tuple[str, ...] = ()
    members: Mapping[str, Member] = field(default_factory=dict[str, Member])


def note(log: EventLog, site: str, member: Member | None) -> None:
    """Write down one seat, taken or (None) freed; it is on the disk when this returns.

    Raises
    ------
    ResultError
        If it cannot be written.
    """
    if member is None:
        log.write(_FREED, site=site)
    else:
        log.write(
            _TAKEN,
            site=site,
            variables=list(member.variables),
            n_samples=member.n_samples,
            has_ledger=member.has_ledger,
        )
    log.sync()


def replay(events: Iterable[Mapping[str, Any]]) -> Membership:
    """The seats after all these events, others among them.

    Raises
    ------
    ResultError
        If a line is not one that `note` writes.
    """
    variables: tuple[str, ...] = ()
    members: dict[str, Member] = {}
    try:
        for event in events:
            if event.get("event") == _FREED:
                del members[event["site"]]
            elif event.get("event") == _TAKEN:
                member = Member(tuple(event["variables"]), int(event["n_samples"]), bool(event["has_ledger"]))
                variables = variables if members else member.variables
                members[event["site"]] = member
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"the seats of the run cannot be read from its events: {error!r}") from None
    return Membership(variables if members else (), members)
