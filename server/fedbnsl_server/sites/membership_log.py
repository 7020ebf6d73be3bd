"""The members of a run, kept in events.jsonl: one line whenever a site joins, leaves or is ejected."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedbnsl.errors import ResultError
from fedbnsl.events.logs import EventLog
from fedbnsl_server.sites.ejection import Ejected
from fedbnsl_server.sites.roster import Member

_TAKEN, _FREED, EJECTED = "seated", "membership freed", "ejected"
_FREED_BEFORE = "seat freed"  # as earlier versions wrote it


@dataclass(frozen=True)
class Membership:
    """The memberships of a continued run."""

    # By site, in the order in which they joined.
    members: Mapping[str, Member] = field(default_factory=dict[str, Member])
    ejected: tuple[Ejected, ...] = ()  # in the order in which they were taken out


def note(log: EventLog, site: str, member: Member | None) -> None:
    """Write down one membership, taken or (None) freed; it is on the disk when this returns.

    Raises ResultError if it cannot be written.
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
            versions=dict(member.versions),
            **({"certificate": member.certificate.hex()} if member.certificate else {}),
        )
    log.sync()


def note_ejected(log: EventLog, ejected: Ejected) -> None:
    """Write down that a site is out; from then on it is, whatever else was written. On the disk when this returns.

    Raises ResultError if it cannot be written.
    """
    log.write(EJECTED, **{key: value for key, value in asdict(ejected).items() if key != "time"})
    log.sync()


def replay(events: Iterable[Mapping[str, Any]]) -> Membership:
    """The memberships after these events; other kinds of events are skipped.

    Raises ResultError if a line is not one that `note` writes.
    """
    members: dict[str, Member] = {}
    ejected: list[Ejected] = []
    try:
        for event in events:
            if event.get("event") in (_FREED, _FREED_BEFORE):
                del members[event["site"]]
            elif event.get("event") == EJECTED:
                one = Ejected(**{key: value for key, value in event.items() if key != "event"})
                ejected = [*(earlier.set_back(one.after_round) for earlier in ejected if earlier.site != one.site), one]
                members.pop(one.site, None)
            elif event.get("event") == _TAKEN:
                versions = {str(name): str(text) for name, text in event.get("versions", {}).items()}
                members[event["site"]] = Member(
                    tuple(event["variables"]),
                    int(event["n_samples"]),
                    bool(event["has_ledger"]),
                    versions,
                    bytes.fromhex(event.get("certificate", "")),
                )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"the memberships of the run cannot be read from events.jsonl: {error!r}") from None
    return Membership(members, tuple(ejected))
