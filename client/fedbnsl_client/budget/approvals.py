"""What a site's owner has approved: plans, and on which terms an agent may take part in their runs unattended.

The ledger holds `approve`, `withdraw` and `agent` entries, in their order. The last `approve` or `withdraw` of a plan
counts, for each federation by itself; one that names no federation is about all of them. An agent enters each run that
it takes part in, before it does, and these runs are counted from the approval on.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from fedbnsl.errors import PolicyRefusal
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.budget.ledger_chain import Entry
from fedbnsl_client.budget.ledger_file import LedgerFile, run_text

APPROVE, WITHDRAW, AGENT = "approve", "withdraw", "agent"


@dataclass(frozen=True)
class Terms:
    """On which an agent may take part."""

    dataset: str  # which table it brings
    sites: tuple[str, ...]  # all sites of the run, as the plan names them, in the order of their names
    # units, units_against_all: the privacy cost of a run here, in units of 1e-12 zCDP; the latter if the coordinator
    # and all others collude
    units: int
    units_against_all: int
    runs: int  # how many runs
    blocks: tuple[int, ...] = ()  # of the table, which a run reads; empty: it is not known by blocks

    @classmethod
    def of(
        cls, plan: Plan, dataset: str, *, n_samples: int, n_variables: int, runs: int, blocks: tuple[int, ...] = ()
    ) -> Self:
        """Those of a plan for a registered table, or some blocks of it."""
        units = against_all = 0
        if plan.privacy is not None:
            price = price_of(plan, n_samples=n_samples, n_variables=n_variables)
            units, against_all = price.units, price.share_units
        return cls(dataset, tuple(sorted(plan.sites)), units, against_all, runs, blocks)

    def to_plain(self) -> dict[str, Any]:
        """For an entry of the ledger."""
        return asdict(self) | {"sites": list(self.sites), "blocks": list(self.blocks)}

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Self:
        """From an entry of the ledger."""
        terms: dict[str, Any] = {**told, "sites": tuple(told["sites"]), "blocks": tuple(told.get("blocks", ()))}
        terms.pop("authority", None)  # of the approval
        return cls(**terms)

    def why_other(self, other: Self) -> str:
        """How the terms of a run differ from these; empty: they do not, but for the number of runs."""
        if set(self.sites) != set(other.sites):
            return f"its sites are {', '.join(other.sites) or 'not named'}, not {', '.join(self.sites) or 'named'}"
        if (self.units, self.units_against_all) != (other.units, other.units_against_all):
            return f"it costs {other.units} units of 1e-12 zCDP here, not {self.units}"
        return "" if self.dataset == other.dataset else f"it is for dataset {other.dataset!r}, not {self.dataset!r}"


@dataclass(frozen=True)
class Approval:
    """A plan that is approved, for one federation."""

    digest: str  # of the plan, in hexadecimal digits
    name: str
    terms: Terms | None  # None: agents take no part
    # authority: fingerprint of that of the federation; empty: any one for a person, the folder's first one for an agent
    authority: str = ""
    number: int = 0  # of its entry: another one after it was approved again
    taken: tuple[str, ...] = ()  # the runs that an agent has taken part in since, by their numbers

    @property
    def runs_left(self) -> int:
        """In how many more runs an agent may take part."""
        return 0 if self.terms is None else max(0, self.terms.runs - len(self.taken))


class Approvals:
    """The entries of a ledger that say which plans may run here."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def current(self) -> dict[str, tuple[Approval, ...]]:
        """What is approved, by the plans' digests in hexadecimal digits: at most once for each federation."""
        found: dict[str, tuple[Approval, ...]] = {}
        with self._file.transaction():
            entries = [Entry.read(number, text) for number, text in self._file.texts(APPROVE, WITHDRAW, AGENT)]
        for entry in entries:
            content, digest = entry.content, entry.content["digest"]
            known = found.pop(digest, ())
            if entry.kind == AGENT:
                # An older fedbnsl did not say in which federation: for all, as it had one approval of a plan.
                authority = content.get("authority", "")
                now = tuple(
                    replace(one, taken=(*one.taken, content["run"]))
                    if not authority or one.authority in ("", authority)
                    else one
                    for one in known
                )
            else:
                now = _without(known, content.get("authority", ""))
                if entry.kind == APPROVE:
                    now = (*now, _approved(entry))
            if now:
                found[digest] = now
        return found

    def approve(self, digest: bytes, name: str, terms: Terms | None = None, *, authority: str = "") -> None:
        """Record that the site's owner approved the plan with this digest, for agents on these terms; None: for none.

        It is for the federation of an authority, and those for others stay; empty: in place of all, see `Approval`.
        Repeating this changes nothing, but with terms: the runs of an agent are then counted from zero.
        """
        told = _of(authority)
        if terms is not None:  # the authority again, where an older fedbnsl looks for it
            told["terms"] = terms.to_plain() | {"authority": authority}
        with self._file.transaction():
            known = self.current().get(digest.hex(), ())
            if terms is not None or not any(one.terms is None and one.authority == authority for one in known):
                self._file.append(APPROVE, digest=digest.hex(), name=name, **told)

    def withdraw(self, digest: bytes, *, authority: str = "") -> None:
        """Take the approval of a plan back, if there is one: that for the federation of an authority; empty: all."""
        with self._file.transaction():
            known = self.current().get(digest.hex(), ())
            if len(_without(known, authority)) < len(known):
                self._file.append(WITHDRAW, digest=digest.hex(), **_of(authority))
                self._file.refuse_older()

    def note_agent(self, run: int, digest: bytes, *, authority: str, approval: Approval | None) -> None:
        """Record that an agent is about to take part in a run of the federation of an authority; once for each run.

        Raises PolicyRefusal if it has taken part in as many runs as the approval allows (None: the policy allows any
        number), or the approval was taken back since it was looked at.
        """
        with self._file.transaction():
            if self.agent_was_in(run, digest, authority=authority):
                return
            if approval is not None:
                now = [one for one in self.current().get(digest.hex(), ()) if one.number == approval.number]
                if not now or not now[0].runs_left:
                    raise PolicyRefusal("the plan was approved for fewer runs of an agent, or is approved no more")
            self._file.append(AGENT, run=run_text(run), digest=digest.hex(), authority=authority)

    def agent_was_in(self, run: int, digest: bytes, *, authority: str) -> bool:
        """Whether an agent has ever taken part in a run of the plan with this digest, in an authority's federation."""
        noted = run_text(run), digest.hex(), authority
        with self._file.transaction():
            return any(
                (one["run"], one["digest"], one.get("authority", authority)) == noted
                for one in self._file.contents(AGENT)
            )


def _of(authority: str) -> dict[str, Any]:
    return {"authority": authority} if authority else {}


def authority_in(approve: Mapping[str, Any]) -> str:
    """For which federation an `approve` entry is, by its authority; an older fedbnsl said so in the terms."""
    terms: Mapping[str, str] = approve.get("terms") or {}
    authority: str = approve.get("authority") or terms.get("authority", "")
    return authority


def _approved(entry: Entry) -> Approval:
    content = entry.content
    told: dict[str, Any] | None = content.get("terms")
    terms = None if told is None else Terms.from_plain(told)
    return Approval(content["digest"], content["name"], terms, authority_in(content), entry.number)


def _without(known: tuple[Approval, ...], authority: str) -> tuple[Approval, ...]:
    """Those that stay once there is another word about the plan in the federation of an authority; empty: in all."""
    return tuple(one for one in known if authority and one.authority not in ("", authority))
