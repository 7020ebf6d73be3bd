"""What a ledger's datasets have spent, and the answers that were paid for.

Spending is counted in units of 1e-12 zCDP. For each request the order is: `reserve`, which is on the disk before it
returns; then the data is touched and the noise drawn; then `store`; then the payload is sent. So a crash may waste
budget, but never overspend it. No request is answered with two draws of noise: their mean would reveal more than one.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from fedbnsl.errors import BudgetExhaustedError, LedgerError, PolicyRefusal
from fedbnsl.privacy.zcdp import UNITS_PER_ZCDP
from fedbnsl.protocol.messages import LedgerHead
from fedbnsl_client.budget.ledger_chain import canonical
from fedbnsl_client.budget.ledger_file import LOST, RESTORED, LedgerFile, Measure, run_text
from fedbnsl_client.budget.registrations import Block, Registrations
from fedbnsl_client.budget.spending import LARGEST_CAP_UNITS, Cap, Spending, units_at_sites


@dataclass(frozen=True)
class Request:
    """The request that one payload answers. Its key is (run, round, site); these blocks of the dataset pay for it."""

    dataset: str
    run: int
    round: int
    site: str
    blocks: tuple[int, ...] = ()  # by their numbers; empty: all that there are

    def __str__(self) -> str:
        return f"round {self.round} of run {run_text(self.run)} for site {self.site!r}"

    @property
    def key(self) -> tuple[str, int, str]:
        """As the ledger's file has it."""
        return run_text(self.run), self.round, self.site

    def to_plain(self) -> dict[str, object]:
        """For an entry of the ledger."""
        some = {"blocks": list(self.blocks)} if self.blocks else {}
        return {"dataset": self.dataset, "run": run_text(self.run), "round": self.round, "site": self.site, **some}


@dataclass(frozen=True)
class Payment:
    """What a payload costs, rounded up."""

    units: int
    recipe: Mapping[str, object]  # the plain values that the cost is computed from
    gaussian: bool = False  # whether the payload belongs to a run whose cost is counted by Gaussian DP
    # units_against_all: the cost against the coordinator and all other sites together, which is more than `units` for
    # secure aggregation; None: it is `units`
    units_against_all: int | None = None
    authority: str = ""  # fingerprint of the authority of the run's federation; empty: none, the wire is plaintext
    units_in_sums: int = 0  # the part of `units` for noise in a sum over sites
    sites_per_person: int = 1  # at how many sites the plan says that a person may have a record

    def __post_init__(self) -> None:
        if type(self.units) is not int or self.units < 0:  # a bool is an int, and no cost
            raise ValueError(f"units are whole numbers from 0 on; got {self.units!r}")
        if type(self.in_all) is not int or self.in_all < self.units:
            raise ValueError(f"the cost against all others is at least {self.units} units; got {self.in_all!r}")
        if not 0 <= self.units_in_sums <= self.units or self.sites_per_person < 1:
            raise ValueError(f"{self.units_in_sums!r} of {self.units} units, {self.sites_per_person!r} sites")
        if type(self.gaussian) is not bool:  # caps and ledger would read anything else each in its own way
            raise ValueError(f"a run is counted by Gaussian DP or is not; got {self.gaussian!r}")

    @property
    def in_all(self) -> int:
        """The cost against all others together."""
        return self.units if self.units_against_all is None else self.units_against_all

    def to_plain(self) -> dict[str, object]:
        """For an entry of the ledger."""
        more = {"sites_per_person": self.sites_per_person} if self.sites_per_person > 1 else {}
        if self.in_all != self.units:
            more |= {"units_against_all": self.in_all, "units_in_sums": self.units_in_sums}
        paid = {"units": self.units, "gaussian": self.gaussian, "recipe": dict(self.recipe)}
        return {**paid, "authority": self.authority, **more}


@dataclass(frozen=True)
class Promised:
    """What runs that go on are still to pay."""

    spending: Spending = field(default_factory=Spending)
    against_all: Spending = field(default_factory=Spending)
    in_sums: int = 0  # the part of `spending` for noise in sums over sites, in its units
    sites_per_person: int = 1  # the most that one of their plans says

    def at_sites(self, k: int) -> Spending:
        """What it costs somebody with a record at each of k sites."""
        return Spending(units_at_sites(k, self.spending.units, self.in_sums), self.spending.gaussian)


class Payments:
    """The entries of a ledger about spending, and the payloads that were paid for."""

    def __init__(self, file: LedgerFile, registrations: Registrations) -> None:
        self._file = file
        self._registrations = registrations

    # ---- runs --------------------------------------------------------------------------------------------------------

    def undivided(self) -> AbstractContextManager[None]:
        """Let no other process read or write the ledger until the end: for a decision that takes several methods."""
        return self._file.locked()

    def take_run(self, run: int) -> None:
        """Answer a run from here alone, until this ledger is closed: two that answer it would both pay.

        Raises LedgerBusyError if another process, or another part of this one, does.
        """
        with self._file.locked():  # nobody looks at the locks of runs meanwhile
            self._file.take_run(run)

    def promise(self, run: int, dataset: str, whole: Promised, *, blocks: Sequence[int] = ()) -> None:
        """Tell others what all rounds of a run that was taken will have cost in the end; see `promised`."""
        content = {
            "run": run_text(run),
            "dataset": dataset,
            "blocks": list(blocks),
            "gaussian": whole.spending.gaussian,
            "units": whole.spending.units,
            "against_all": whole.against_all.units,
            "in_sums": whole.in_sums,
            "sites_per_person": whole.sites_per_person,
        }
        with self._file.locked():
            self._file.promise(run, content)

    def promised(self, dataset: str, *, but: int, blocks: Sequence[int] = ()) -> Promised:
        """What the runs that go on, but one, are still to pay for a dataset and those of the same budget.

        Runs over other blocks than these do not count.
        """
        units = against_all = Spending()
        in_sums, sites = 0, 1
        with self._file.transaction():
            account = self._registrations.account(dataset)
            for one in self._file.promises(but=but):
                theirs = one.get("blocks", ())
                is_apart = one["dataset"] == dataset and blocks and theirs and not set(theirs) & set(blocks)
                if one["dataset"] not in account or is_apart:
                    continue

                def left(measure: Measure, one: Mapping[str, Any] = one) -> int:
                    paid = self._file.spending(one["run"], measure=measure)
                    promised: int = one[measure]
                    return max(promised - sum(paid.get(name, 0) for name in account), 0)

                units += Spending(left("units"), one["gaussian"])
                against_all += Spending(left("against_all"), one["gaussian"])
                in_sums += left("in_sums")
                sites = max(sites, one["sites_per_person"])
        return Promised(units, against_all, in_sums, sites)

    def begun_with(self, run: int, site: str) -> tuple[Mapping[str, Any], str] | None:
        """With which recipe, and under which authority (empty: in plaintext), a site began to pay; None: it has not."""
        sql = "SELECT content FROM entries WHERE kind = 'reserve' AND run = ? AND site = ? ORDER BY number LIMIT 1"
        with self._file.transaction():
            first: str | None = self._file.one(sql, run_text(run), site)
        if first is None:
            return None
        content = json.loads(first)
        return content["recipe"], content.get("authority", "")

    # ---- use without privacy -----------------------------------------------------------------------------------------

    def note_unprotected(self, dataset: str, run: int, digest: bytes) -> None:
        """Record that a dataset is about to be used in a run without privacy, which ends its guarantee.

        That of records that come later is not ended.
        """
        with self._file.transaction():
            self._registrations.required(dataset)
            self._file.append("unprotected", dataset=dataset, run=run_text(run), digest=digest.hex())

    def unprotected(self, dataset: str, *, blocks: Sequence[int] = ()) -> bool:
        """Whether a dataset, or one of the same budget, was ever used without privacy; or one of some blocks of it."""
        with self._file.transaction():
            account = self._registrations.account(dataset)
            chosen = self._blocks(dataset, blocks)
            return any(
                used in account and (used != dataset or not chosen or any(one.counts(number) for one in chosen))
                for number, text in self._file.texts("unprotected")
                for used in [json.loads(text)["dataset"]]
            )

    def require_protected(self, dataset: str, *, blocks: Sequence[int] = ()) -> None:
        """Refuse a dataset whose guarantee is gone. Raises PolicyRefusal if it was ever used without privacy."""
        if self.unprotected(dataset, blocks=blocks):
            raise PolicyRefusal(
                f"dataset {dataset!r} was used in a run without privacy: no guarantee can be given now",
                remedy="No plan or policy brings it back: a private run needs a table of other records.",
            )

    # ---- spending ----------------------------------------------------------------------------------------------------

    def spending(
        self,
        dataset: str,
        run: int | None = None,
        *,
        against_all: bool = False,
        at_sites: int = 1,
        blocks: Sequence[int] = (),
        with_lost: bool = True,
    ) -> Spending:
        """What was reserved for a dataset and those of the same budget, over all their contents, in one run or all.

        With `against_all` as it is if the coordinator and all other sites of secure aggregation collude; otherwise as
        it is for somebody with a record at so many sites, which have all spent the same. It is that of the block, of
        those named or of all, that has spent most: no record has lost more. What a restored ledger was charged for its
        lost entries counts in every run, unless `with_lost` is false.
        """
        name = None if run is None else run_text(run)
        measures: tuple[Measure, ...] = ("against_all",) if against_all else ("units", "in_sums")

        def weighed(units: int, in_sums: int = 0) -> int:
            return units_at_sites(at_sites, units, in_sums)

        with self._file.transaction():
            of_all = [self._file.spending(name, measure=measure, with_lost=with_lost) for measure in measures]
            units = {one: weighed(*(of.get(one, 0) for of in of_all)) for one in of_all[0]}
            if chosen := self._blocks(dataset, blocks):
                units[dataset] = max(
                    weighed(
                        *(
                            self._file.spending_of_block(
                                dataset,
                                one.number,
                                made=one.entry,
                                inherits=one.inherits,
                                run=name,
                                measure=measure,
                                with_lost=with_lost,
                            )
                            for measure in measures
                        )
                    )
                    for one in chosen
                )
            account = self._registrations.account(dataset)
            parts = [Spending(units.get(one, 0), self.only_gaussian(one, name)) for one in account]
        return sum(parts, Spending())

    def charge_all(self, caps: Mapping[str, tuple[Cap, Cap | None]]) -> None:
        """Charge each dataset with all that is left of what it may spend, and against all others together.

        For a ledger that was restored where nothing is noted of the lost one: it may have spent as much. A dataset that
        is registered and has no cap is charged with more than any cap. Those that are registered later are refused
        until somebody states that they were never used; see `Registrations.register`.
        """
        with self._file.transaction():
            self._file.append(RESTORED, entries=None)
            most = Cap(LARGEST_CAP_UNITS, LARGEST_CAP_UNITS)
            all_caps = {known.dataset: (most, most) for known in self._registrations.all()} | dict(caps)
            for dataset, (cap, cap_against_all) in all_caps.items():
                known = self._registrations.find(dataset)
                # Of the block that has spent least: what is lost counts for all of them.
                blocks: list[tuple[int, ...]] = [(number,) for number in (known.numbers if known else ())] or [()]
                spent, in_all = (
                    min(self.spending(dataset, blocks=one, against_all=of_all).units for one in blocks)
                    for of_all in (False, True)
                )
                lost = max(cap.gaussian_units - spent, 0)
                more = max((cap_against_all or cap).gaussian_units - in_all, lost)
                self._file.append(LOST, dataset=dataset, units=lost, units_against_all=more)
            self._file.forget_blocks()

    def sites_per_person(self, dataset: str) -> int:
        """See `LedgerFile.sites_per_person`; of all datasets of the same budget."""
        with self._file.transaction():
            return max(map(self._file.sites_per_person, self._registrations.account(dataset)))

    def _blocks(self, dataset: str, numbers: Sequence[int]) -> tuple[Block, ...]:
        """Those of a dataset that are named; none named: all; none at all if it is not known by blocks."""
        known = self._registrations.find(dataset)
        return () if known is None else known.of_blocks(numbers).blocks

    def only_gaussian(self, dataset: str, run: str | None = None) -> bool:
        """Whether all that counts for a dataset alone was counted by Gaussian DP; lost units count as not.

        An older fedbnsl did not say what it reserved for, and added discrete noise.
        """
        sql = (
            "SELECT EXISTS (SELECT 1 FROM entries WHERE dataset = ? AND (units > 0 OR "
            "json_extract(content, '$.units_against_all') > 0) AND (kind = 'lost' "
            "OR kind = 'reserve' AND (? IS NULL OR run = ?) AND json_extract(content, '$.gaussian') IS NOT TRUE))"
        )
        return not self._file.one(sql, dataset, run, run)

    def head(self, dataset: str, authority: str = "") -> LedgerHead:
        """The state that one federation may know; other datasets and other federations do not affect it."""
        sql = (
            "SELECT json_array(COUNT(*), COALESCE(SUM(units), 0), MAX(number)) FROM entries "
            "WHERE kind = 'reserve' AND dataset = ? AND json_extract(content, '$.authority') = ?"
        )
        name = canonical({"dataset": dataset, "authority": authority}).encode()
        with self._file.transaction():
            origin = self._file.origin()
            number, units, last = json.loads(self._file.one(sql, dataset, authority))
            digest = self._file.link_of(last or 0)
        return LedgerHead(origin.ledger_id, hmac.digest(origin.key, name, "sha256")[:16], number, digest, units)

    def reserve(
        self,
        request: Request,
        payment: Payment,
        cap: Cap,
        cap_against_all: Cap | None = None,
        cap_per_person: Cap | None = None,
    ) -> None:
        """Pay for a payload. The payment is on the disk when this returns; only then may the data be touched.

        A request that was reserved but not stored (after a crash) is paid for again: its noise may have been drawn.
        Raises BudgetExhaustedError if what the policy lets the dataset spend in all does not pay for it, or what it
        lets somebody at several sites lose (by default as much), or there is no cap against all others, which secure
        aggregation needs; LedgerError if its payload is stored already, or another
        dataset paid for it, or this one is not registered.
        """
        dataset, units, in_all = request.dataset, payment.units, payment.in_all
        with self._file.transaction():
            self._registrations.required(dataset)
            self._refuse_another_payer(request)
            if self._stored_as(request) is not None:
                raise LedgerError(f"{request} is answered already; send the stored payload again, never draw another")
            spent = self.spending(dataset, blocks=request.blocks)
            after = spent + Spending(units, payment.gaussian)
            if not cap.allows(after):
                raise _exhausted(dataset, cap, spent=spent, after=after)
            k = max(payment.sites_per_person, self.sites_per_person(dataset))
            spent = self.spending(dataset, at_sites=k, blocks=request.blocks)
            after = spent + Spending(units_at_sites(k, units, payment.units_in_sums), payment.gaussian)
            per_person = cap_per_person or cap
            if not per_person.allows(after):
                who = f"somebody with a record at {k} sites"
                raise _exhausted(dataset, per_person, spent=spent, after=after, against=f"for {who}, ")
            if cap_against_all is None and in_all > units:
                raise BudgetExhaustedError(f"dataset {dataset!r} has no cap for secure aggregation")
            spent = self.spending(dataset, against_all=True, blocks=request.blocks)
            after = spent + Spending(in_all, payment.gaussian)
            if cap_against_all is not None and not cap_against_all.allows(after):
                who = "against all other sites together, "
                raise _exhausted(dataset, cap_against_all, spent=spent, after=after, against=who)
            self._file.append("reserve", **request.to_plain(), **payment.to_plain())

    # ---- payloads ----------------------------------------------------------------------------------------------------

    def store(self, request: Request, payload: bytes) -> None:
        """Keep the answer to a reserved request; on the disk when this returns, and only then may it be sent.

        Repeating this with the same answer changes nothing. Raises LedgerError if nothing was reserved for it, or it
        has another answer already.
        """
        with self._file.transaction():
            payer = self._refuse_another_payer(request)
            entry = self._stored_as(request)
            if entry is None:
                # No reservation follows the first store, so a reservation without a payload is still open.
                if payer is None:
                    raise LedgerError(f"nothing was reserved for {request}; reserve before the data is touched")
                self._file.append_with_payload("store", payload, **request.to_plain())
            elif self._file.payload(entry) != payload:
                raise LedgerError(f"{request} has another answer already; send the stored payload again")

    def stored(self, request: Request) -> bytes | None:
        """The answer to a request, bit for bit as it was stored; None if there is none yet.

        Raises LedgerError if another dataset paid for it, or its bytes are damaged.
        """
        with self._file.transaction():
            self._refuse_another_payer(request)
            entry = self._stored_as(request)
            return None if entry is None else self._file.payload(entry)

    def _stored_as(self, request: Request) -> int | None:
        """Number of the entry that a request's payload belongs to."""
        sql = "SELECT number FROM entries WHERE kind = 'store' AND run = ? AND round = ? AND site = ?"
        number: int | None = self._file.one(sql, *request.key)
        return number

    def _refuse_another_payer(self, request: Request) -> str | None:
        """The dataset that a request was reserved for, which is its own or None."""
        sql = "SELECT dataset FROM entries WHERE kind = 'reserve' AND run = ? AND round = ? AND site = ? LIMIT 1"
        payer: str | None = self._file.one(sql, *request.key)
        if payer not in (None, request.dataset):
            raise LedgerError(f"{request} was reserved for dataset {payer!r}, not {request.dataset!r}")
        return payer


def _exhausted(dataset: str, cap: Cap, *, spent: Spending, after: Spending, against: str = "") -> BudgetExhaustedError:
    largest = max(cap.units, cap.gaussian_units) if after.gaussian else cap.units
    return BudgetExhaustedError(
        f"dataset {dataset!r}: {against}spent {_zcdp(spent.units)} zCDP, asked {_zcdp(after.units - spent.units)} "
        f"more, cap {_zcdp(largest)}"
    )


def _zcdp(units: int) -> str:
    """Units as zCDP, without rounding."""
    return f"{(Decimal(units) / UNITS_PER_ZCDP).normalize():f}"
