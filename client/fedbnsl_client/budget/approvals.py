"""What a site's owner has approved: plans, and on which terms an agent may take part in their runs unattended.

The ledger holds `approve`, `withdraw` and `agent` entries, in their order. The last `approve` or `withdraw` of a plan
counts. An agent enters each run that it takes part in, before it does, and these runs are counted from the approval on.
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
    authority: str = ""  # fingerprint of that of the federation; empty: the first one of the site's folder

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
    """A plan that is approved."""

    digest: str  # of the plan, in hexadecimal digits
    name: str
    terms: Terms | None  # None: agents take no part
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

    def current(self) -> dict[str, Approval]:
        """What is approved, by the plans' digests in hexadecimal digits."""
        found: dict[str, Approval] = {}
        with self._file.transaction():
            entries = [Entry.read(number, text) for number, text in self._file.texts(APPROVE, WITHDRAW, AGENT)]
        for entry in entries:
            content = entry.content
            if entry.kind == APPROVE:
                told: dict[str, Any] | None = content.get("terms")
                terms = None if told is None else Terms.from_plain(told)
                found[content["digest"]] = Approval(content["digest"], content["name"], terms, entry.number)
            elif entry.kind == WITHDRAW:
                found.pop(content["digest"], None)
            elif content["digest"] in found:
                known = found[content["digest"]]
                found[known.digest] = replace(known, taken=(*known.taken, content["run"]))
        return found

    def approve(self, digest: bytes, name: str, terms: Terms | None = None) -> None:
        """Record that the site's owner approved the plan with this digest, for agents on these terms; None: for none.

        Repeating this changes nothing, but with terms: the runs of an agent are then counted from zero.
        """
        with self._file.transaction():
            if terms is not None:
                self._file.append(APPROVE, digest=digest.hex(), name=name, terms=terms.to_plain())
            elif (known := self.current().get(digest.hex())) is None or known.terms is not None:
                self._file.append(APPROVE, digest=digest.hex(), name=name)

    def withdraw(self, digest: bytes) -> None:
        """Take the approval of a plan back, if there is one."""
        with self._file.transaction():
            if digest.hex() in self.current():
                self._file.append(WITHDRAW, digest=digest.hex())
                self._file.refuse_older()

    def note_agent(self, run: int, digest: bytes, *, most: int | None) -> None:
        """Record that an agent is about to take part in a run; once for each run.

        Raises PolicyRefusal if it has taken part in `most` runs of the plan since the approval (None: in any number),
        or the approval was taken back since it was looked at.
        """
        with self._file.transaction():
            if self.agent_was_in(run, digest):
                return
            known = self.current().get(digest.hex())
            if most is not None and (known is None or len(known.taken) >= most):
                raise PolicyRefusal("the plan was approved for fewer runs of an agent, or is approved no more")
            self._file.append(AGENT, run=run_text(run), digest=digest.hex())

    def agent_was_in(self, run: int, digest: bytes) -> bool:
        """Whether an agent has ever taken part in a run of the plan with this digest."""
        noted = run_text(run), digest.hex()
        with self._file.transaction():
            return any((entry["run"], entry["digest"]) == noted for entry in self._file.contents(AGENT))
