"""The runs that a ledger's entries are about, and what these tell people of each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbnsl_client.budget.approvals import AGENT, APPROVE
from fedbnsl_client.budget.ledger_chain import Entry


@dataclass(frozen=True)
class KnownRun:
    """A run that a site took part in."""

    number: str  # 16 hexadecimal digits
    since: str  # the day of its first entry, ISO 8601
    digest: str  # of its plan, in hexadecimal digits; empty: it is not known
    plan: str  # name of the plan, if this very one was ever approved here; otherwise empty
    authority: str  # fingerprint of that of its federation; empty: none is known, or the wire was plaintext

    def __str__(self) -> str:
        plan = f" of plan {self.plan!r}" if self.plan else f" of digest {self.digest[:16]}..." if self.digest else ""
        return f"run {self.number}{plan}"


def known_runs(entries: Iterable[Entry]) -> dict[str, KnownRun]:
    """By number, in the order in which they came; several federations may give two runs one number: the first counts.

    Entries of an older fedbnsl may lack all but the number.
    """
    entries = [*entries]
    names = {entry.content["digest"]: entry.content["name"] for entry in entries if entry.kind == APPROVE}
    found: dict[str, KnownRun] = {}
    for entry in entries:
        what = entry.content
        if entry.kind not in ("reserve", "unprotected", AGENT) or not what["run"]:
            continue
        recipe: Mapping[str, Any] = what.get("recipe", {})
        before = found.get(what["run"])
        digest: str = (before.digest if before else "") or what.get("digest", "") or recipe.get("plan", "")
        authority: str = (before.authority if before else "") or what.get("authority", "")
        since = before.since if before else entry.time.date().isoformat()
        found[what["run"]] = KnownRun(what["run"], since, digest, names.get(digest, ""), authority)
    return found
