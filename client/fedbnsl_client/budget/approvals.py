"""What a site's owner has approved: plans, and on which terms an agent may take part in their runs unattended.

The ledger holds `approve`, `withdraw` and `agent` entries, in their order. The last `approve` or `withdraw` of a plan
counts. An agent enters each run that it takes part in, before it does, and these runs are counted from the approval on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.budget.ledger_chain import Entry

APPROVE, WITHDRAW, AGENT = "approve", "withdraw", "agent"


@dataclass(frozen=True)
class Terms:
    """On which an agent may take part.

    Attributes
    ----------
    dataset
        Which table it brings.
    sites
        All sites of the run, as the plan names them, in the order of their names.
    units, units_against_all
        The price of a run for this site, in units of 1e-12 zCDP; the latter if the coordinator and all others collude.
    runs
        How many runs.
    """

    dataset: str
    sites: tuple[str, ...]
    units: int
    units_against_all: int
    runs: int

    @classmethod
    def of(cls, plan: Plan, dataset: str, *, n_samples: int, n_variables: int, runs: int) -> Self:
        """Those of a plan for a registered table."""
        units = against_all = 0
        if plan.privacy is not None:
            price = price_of(plan, n_samples=n_samples, n_variables=n_variables)
            units, against_all = price.units, price.share_units
        return cls(dataset, tuple(sorted(plan.sites)), units, against_all, runs)

    def to_plain(self) -> dict[str, Any]:
        """For an entry of the ledger."""
        return asdict(self) | {"sites": list(self.sites)}

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Self:
        """From an entry of the ledger."""
        return cls(
            dataset=told["dataset"],
            sites=tuple(told["sites"]),
            units=told["units"],
            units_against_all=told["units_against_all"],
            runs=told["runs"],
        )

    def why_other(self, other: Self) -> str:
        """How the terms of a run differ from these; empty: they do not, but for the number of runs."""
        if set(self.sites) != set(other.sites):
            return f"its sites are {', '.join(other.sites) or 'not named'}, not {', '.join(self.sites) or 'named'}"
        if (self.units, self.units_against_all) != (other.units, other.units_against_all):
            return f"it costs {other.units} units of 1e-12 zCDP here, not {self.units}"
        return "" if self.dataset == other.dataset else f"it is for dataset {other.dataset!r}, not {self.dataset!r}"


@dataclass(frozen=True)
class Approval:
    """A plan that is approved.

    Attributes
    ----------
    digest
        Of the plan, in hexadecimal digits.
    terms
        None: agents take no part.
    number
        Of its entry: another one after it was approved again.
    taken
        The runs that an agent has taken part in since, by their numbers.
    """

    digest: str
    name: str
    terms: Terms | None
    number: int = 0
    taken: tuple[str, ...] = ()


def current(entries: Iterable[Entry]) -> dict[str, Approval]:
    """The approvals that count, by digest, from all entries of a ledger."""
    found: dict[str, Approval] = {}
    for entry in entries:
        content = entry.content
        if entry.kind == APPROVE:
            told: dict[str, Any] | None = content.get("terms")
            terms = None if told is None else Terms.from_plain(told)
            found[content["digest"]] = Approval(content["digest"], content["name"], terms, entry.number)
        elif entry.kind == WITHDRAW:
            found.pop(content["digest"], None)
        elif entry.kind == AGENT and content["digest"] in found:
            known = found[content["digest"]]
            found[known.digest] = replace(known, taken=(*known.taken, content["run"]))
    return found
