"""Ledger: one file with the privacy spending of a site's datasets and the answers that were paid for.

Spending is counted in units of 1e-12 zCDP. For each request the order is: `reserve`, which is on the disk before it
returns; then the data is touched and the noise drawn; then `store`; then the payload is sent. So a crash may waste
budget, but never overspend it. No request is answered with two draws of noise: their mean would reveal more than one.

Every decision reads the file inside the transaction that writes it. Nothing is cached between transactions, so the
budget follows the file even if another program has written to it.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from fedbnsl.errors import BudgetExhaustedError, LedgerError, PolicyRefusal
from fedbnsl.privacy.zcdp import UNITS_PER_ZCDP
from fedbnsl.protocol.messages import LedgerHead
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget import approvals, registrations
from fedbnsl_client.budget.approvals import AGENT, APPROVE, WITHDRAW, Approval, Terms
from fedbnsl_client.budget.high_water_mark import Mark
from fedbnsl_client.budget.ledger_chain import Entry, canonical
from fedbnsl_client.budget.ledger_file import LedgerFile, Origin
from fedbnsl_client.budget.registrations import RegisterEntry
from fedbnsl_client.budget.spending import Cap, Spending
from fedbnsl_client.data.fingerprint import column_fingerprints, fingerprint

LARGEST_CAP_UNITS = 10**18  # a million zCDP, which protects nobody; sums stay far from the end of 64 bits


@dataclass(frozen=True)
class Request:
    """The request that one payload answers. Its key is (run, round, site); the dataset pays for it."""

    dataset: str
    run: int
    round: int
    site: str

    def __str__(self) -> str:
        return f"round {self.round} of run {_run(self.run)} for site {self.site!r}"


@dataclass(frozen=True)
class Registration:
    """A dataset as it was last registered."""

    dataset: str
    variables: tuple[str, ...]
    n_samples: int


class Ledger:
    """An open ledger, for one thread; others may have it open, too: each method is a transaction of its own.

    Every method raises LedgerError, with the system's message, if the file cannot be read or written. The new entry is
    then missing from the file; after a failure in the very last step it may be there, but always complete.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a ledger without entries, readable by its owner alone, and open it.

        Raises
        ------
        LedgerError
            If there is a file already, or the place cannot hold a ledger.
        """
        origin = Origin(secrets.token_bytes(16), secrets.token_bytes(32), secrets.token_bytes(32))
        LedgerFile.create(path, origin)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, accept_backup: bool = False) -> Self:
        """Open a ledger that exists, and verify it; see `LedgerFile.open`."""
        return cls(LedgerFile.open(path, accept_backup=accept_backup))

    def close(self) -> None:
        """Close the file, and let others answer its runs."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- datasets and plans -----------------------------------------------------------------------------------------

    def register(
        self,
        dataset: str,
        variables: Sequence[str],
        X: Matrix,
        *,
        file: Sequence[str] = (),
        supersedes: bool = False,
    ) -> None:
        """Enter a dataset under its id. Repeating this with the same table changes nothing.

        Parameters
        ----------
        variables
            d names.
        X
            (n, d) finite values; the orders of rows and columns do not matter.
        file
            Identity of the table's file (`file_identity`); empty for a table without a file.
        supersedes
            Accept new content for this id, or content that is known under another id; the two ids then share one
            budget. What was spent stays spent.

        Raises
        ------
        LedgerError
            If the id was registered with another content, or the content or file under another id.
        """
        entry = self._entry(dataset, variables, X, file)
        with self._file.transaction():
            entries = self._registered()
            known = registrations.latest(entries).get(dataset, {})
            if known and not supersedes and known["fingerprint"] != entry["fingerprint"]:
                raise _changed(dataset, self._folder)
            others = registrations.known_as(entry, entries)
            if others and not supersedes:
                raise registrations.known_already(self._folder, dataset, *next(iter(others.items())))
            # An older fedbnsl recorded no file, and a file may have moved.
            if others or any(known.get(part) != entry[part] for part in ("fingerprint", "file")):
                self._file.append("register", **entry, supersedes=bool(known), same_budget=sorted(others))

    def known_as(self, variables: Sequence[str], X: Matrix, file: Sequence[str] = ()) -> tuple[str, ...]:
        """Datasets that hold, or ever held, records of a table that is not registered itself."""
        entry = self._entry("", variables, X, file)
        with self._file.transaction():
            return tuple(registrations.known_as(entry, self._registered()))

    def _entry(self, dataset: str, variables: Sequence[str], X: Matrix, file: Sequence[str]) -> dict[str, Any]:
        """What is noted of a table; made outside transactions, as it takes long for a large one and others wait."""
        key = self._key()
        return {
            "dataset": dataset,
            "fingerprint": fingerprint(key, variables, X).hex(),
            "column_fingerprints": column_fingerprints(key, X),
            "file": list(file),
            "variables": list(variables),
            "n_samples": X.shape[0],
        }

    def check_table(self, dataset: str, variables: Sequence[str], X: Matrix) -> None:
        """Refuse a table that is not the one registered.

        Raises
        ------
        LedgerError
            If the id is unknown or has another content.
        """
        found = fingerprint(self._key(), variables, X).hex()
        with self._file.transaction():
            if self._registration(dataset)["fingerprint"] != found:
                raise _changed(dataset, self._folder)

    def registered(self, dataset: str) -> Registration | None:
        """A dataset as last registered; None for an unknown id."""
        return {known.dataset: known for known in self.datasets()}.get(dataset)

    def datasets(self) -> tuple[Registration, ...]:
        """All datasets as last registered, in the order in which they first came."""
        with self._file.transaction():
            return tuple(
                Registration(dataset, tuple(entry["variables"]), entry["n_samples"])
                for dataset, entry in registrations.latest(self._registered()).items()
            )

    def account(self, dataset: str) -> frozenset[str]:
        """The datasets that share one budget with a dataset, itself among them."""
        with self._file.transaction():
            return registrations.account_of(dataset, self._registered())

    def approve(self, digest: bytes, name: str, terms: Terms | None = None) -> None:
        """Record that the site's owner approved the plan with this digest.

        Repeating this changes nothing, but with terms: an agent's runs are then counted anew.

        Parameters
        ----------
        terms
            On which an agent may take part; None: none may.
        """
        with self._file.transaction():
            if terms is not None:
                self._file.append(APPROVE, digest=digest.hex(), name=name, terms=terms.to_plain())
            elif (known := self._approvals().get(digest.hex())) is None or known.terms is not None:
                self._file.append(APPROVE, digest=digest.hex(), name=name)

    def withdraw(self, digest: bytes) -> bool:
        """Take the approval of a plan back; whether there was one."""
        with self._file.transaction():
            if found := digest.hex() in self._approvals():
                self._file.append(WITHDRAW, digest=digest.hex())
                self._file.refuse_older()
            return found

    def approvals(self) -> dict[str, Approval]:
        """What is approved, by the plans' digests in hexadecimal digits."""
        with self._file.transaction():
            return self._approvals()

    def note_agent(self, run: int, digest: bytes, *, most: int | None) -> None:
        """Record that an agent is about to take part in a run; once for each run.

        Parameters
        ----------
        most
            In how many runs of the plan it may since the approval; None: in any number.

        Raises
        ------
        PolicyRefusal
            If it has taken part in so many already, or the approval was taken back since it was looked at.
        """
        with self._file.transaction():
            if self._agent_was_in(run, digest):
                return
            known = self._approvals().get(digest.hex())
            if most is not None and (known is None or len(known.taken) >= most):
                raise PolicyRefusal("the plan was approved for fewer runs of an agent, or is approved no more")
            self._file.append(AGENT, run=_run(run), digest=digest.hex())

    def agent_was_in(self, run: int, digest: bytes) -> bool:
        """Whether an agent has ever taken part in a run of the plan with this digest."""
        with self._file.transaction():
            return self._agent_was_in(run, digest)

    def note_unprotected(self, dataset: str, run: int, digest: bytes) -> None:
        """Record that a dataset is about to be used in a run without privacy, which ends its guarantee."""
        with self._file.transaction():
            self._registration(dataset)
            self._file.append("unprotected", dataset=dataset, run=_run(run), digest=digest.hex())

    def unprotected(self, dataset: str) -> bool:
        """Whether a dataset, or one of the same budget, was ever used without privacy."""
        with self._file.transaction():
            account = registrations.account_of(dataset, self._registered())
            return any(entry["dataset"] in account for entry in self._file.contents("unprotected"))

    def require_protected(self, dataset: str) -> None:
        """Refuse a dataset whose guarantee is gone.

        Raises
        ------
        PolicyRefusal
            If it was ever used without privacy.
        """
        if self.unprotected(dataset):
            raise PolicyRefusal(
                f"dataset {dataset!r} was used in a run without privacy: no guarantee can be given now",
                remedy="No plan or policy brings it back: a private run needs a table of other records.",
            )

    def approved(self, digest: bytes) -> bool:
        """Whether the plan with this digest was approved."""
        with self._file.transaction():
            return digest.hex() in self._approvals()

    def undivided(self) -> AbstractContextManager[None]:
        """Let no other process read or write the ledger until the end: for a decision that takes several methods."""
        return self._file.locked()

    def take_run(self, run: int) -> None:
        """Answer a run from here alone, until this ledger is closed: two that answer it would both pay.

        Raises
        ------
        LedgerBusyError
            If another process, or another part of this one, does.
        """
        with self._file.locked():  # nobody looks at the locks of runs meanwhile
            self._file.take_run(run)

    def promise(self, run: int, dataset: str, whole: Spending, against_all: Spending) -> None:
        """Tell others what all rounds of a run that was taken will have cost in the end; see `promised`."""
        content = {"run": _run(run), "dataset": dataset, "units": whole.units, "gaussian": whole.gaussian}
        with self._file.locked():
            self._file.promise(run, {**content, "units_against_all": against_all.units})

    def promised(self, dataset: str, *, but: int) -> tuple[Spending, Spending]:
        """What the runs that go on, but one, are still to pay for a dataset and those of the same budget.

        As `spending` and `spending_against_all`.
        """
        with self._file.transaction():
            account = registrations.account_of(dataset, self._registered())
            units = against_all = Spending()
            for one in self._file.promises(but=but):
                if one["dataset"] not in account:
                    continue
                paid, in_all = (
                    sum(self._file.spending(one["run"], against_all=in_all).get(name, 0) for name in account)
                    for in_all in (False, True)
                )
                units += Spending(max(one["units"] - paid, 0), one["gaussian"])
                against_all += Spending(max(one["units_against_all"] - in_all, 0), one["gaussian"])
            return units, against_all

    # ---- spending ---------------------------------------------------------------------------------------------------

    def spent(self, dataset: str) -> int:
        """Units ever reserved for a dataset and those of the same budget, over all their runs and contents."""
        with self._file.transaction():
            return self._spending(dataset).units

    def spending(self, dataset: str, run: int | None = None) -> Spending:
        """`spent`, in all or the part that was reserved in one run, and whether all was priced by Gaussian DP."""
        with self._file.transaction():
            return self._spending(dataset, None if run is None else _run(run))

    def spending_against_all(self, dataset: str, run: int | None = None) -> Spending:
        """`spending` as it is if the coordinator and all other sites of secure aggregation collude."""
        with self._file.transaction():
            return self._spending(dataset, None if run is None else _run(run), against_all=True)

    def begun_with(self, run: int, site: str) -> Mapping[str, Any] | None:
        """The recipe with which a site began to pay in a run; None if it has not."""
        with self._file.transaction():
            return self._file.begun_with(_run(run), site)

    def reserve(
        self,
        request: Request,
        units: int,
        *,
        cap_units: int,
        recipe: Mapping[str, object],
        gaussian: bool = False,
        gaussian_cap_units: int = 0,
        against_all: tuple[int, Cap | None] | None = None,
        authority: str = "",
    ) -> None:
        """Pay for a payload. The payment is on the disk when this returns; only then may the data be touched.

        A request that was reserved but not stored (after a crash) is paid for again: its noise may have been drawn.

        Parameters
        ----------
        units
            The price, rounded up.
        cap_units
            What the site's policy lets the dataset spend in all; at most LARGEST_CAP_UNITS.
        recipe
            The plain values that the price is computed from.
        gaussian
            Whether the payload belongs to a run that is priced by Gaussian DP.
        gaussian_cap_units
            What the policy lets the dataset spend in all, if this and all before it is priced so.
        against_all
            The price against the coordinator and all other sites together, which is more than `units` for secure
            aggregation, and its cap, which those need; None: it is `units`.
        authority
            Fingerprint of the authority of the run's federation; empty: none, the wire is plaintext.

        Raises
        ------
        BudgetExhaustedError
            If a cap does not pay for it.
        LedgerError
            If its payload is stored already, or another dataset paid for it, or this one is not registered.
        ValueError
            If price or cap is not a whole number in its range.
        """
        for number in (units, cap_units, gaussian_cap_units):
            if type(number) is not int or number < 0:  # a bool is an int, and no price
                raise ValueError(f"units are whole numbers from 0 on; got {number!r}")
        if max(cap_units, gaussian_cap_units) > LARGEST_CAP_UNITS:
            raise ValueError(f"a cap is at most {LARGEST_CAP_UNITS} units; got {max(cap_units, gaussian_cap_units)}")
        if type(gaussian) is not bool:
            raise ValueError(f"a run is priced by Gaussian DP or is not; got {gaussian!r}")
        cap = Cap(cap_units, gaussian_cap_units)
        with self._file.transaction():
            self._registration(request.dataset)
            self._refuse_another_payer(request)
            if self._file.stored_as(*_key(request)) is not None:
                raise LedgerError(f"{request} is answered already; send the stored payload again, never draw another")
            spent = self._spending(request.dataset)
            after = spent + Spending(units, gaussian)
            if not cap.allows(after):
                largest = max(cap_units, gaussian_cap_units) if after.gaussian else cap_units
                raise BudgetExhaustedError(
                    f"dataset {request.dataset!r}: spent {_zcdp(spent.units)} zCDP, asked {_zcdp(units)} more, "
                    f"cap {_zcdp(largest)}"
                )
            paid = {"units": units, "gaussian": gaussian, "recipe": dict(recipe), "authority": authority}
            if against_all is not None:
                in_all, most = against_all
                if type(in_all) is not int or in_all < units:
                    raise ValueError(f"the price against all others is at least {units} units; got {in_all!r}")
                spent = self._spending(request.dataset, against_all=True)
                if most is None and in_all > units:
                    raise BudgetExhaustedError(f"dataset {request.dataset!r} has no cap for secure aggregation")
                if most is not None and not most.allows(spent + Spending(in_all, gaussian)):
                    raise BudgetExhaustedError(
                        f"dataset {request.dataset!r}: against all other sites together, spent {_zcdp(spent.units)} "
                        f"zCDP, asked {_zcdp(in_all)} more, cap {_zcdp(most.gaussian_units)}"
                    )
                if in_all != units:
                    paid["units_against_all"] = in_all
            self._file.append("reserve", **_fields(request), **paid)

    def store(self, request: Request, payload: bytes) -> None:
        """Keep the answer to a reserved request; on the disk when this returns, and only then may it be sent.

        Repeating this with the same answer changes nothing.

        Raises
        ------
        LedgerError
            If nothing was reserved for it, or it has another answer already.
        """
        with self._file.transaction():
            self._refuse_another_payer(request)
            entry = self._file.stored_as(*_key(request))
            if entry is None:
                # No reservation follows the first store, so a reservation without a payload is still open.
                if self._file.payer(*_key(request)) is None:
                    raise LedgerError(f"nothing was reserved for {request}; reserve before the data is touched")
                self._file.append_with_payload("store", payload, **_fields(request))
            elif self._file.payload(entry) != payload:
                raise LedgerError(f"{request} has another answer already; send the stored payload again")

    def stored(self, request: Request) -> bytes | None:
        """The answer to a request, bit for bit as it was stored; None if there is none yet.

        Raises
        ------
        LedgerError
            If another dataset paid for it, or its bytes are damaged.
        """
        with self._file.transaction():
            self._refuse_another_payer(request)
            entry = self._file.stored_as(*_key(request))
            return None if entry is None else self._file.payload(entry)

    # ---- the whole --------------------------------------------------------------------------------------------------

    def head(self, dataset: str, authority: str = "") -> LedgerHead:
        """The state that one federation may know; other datasets and other federations do not affect it."""
        with self._file.transaction():
            origin = self._file.origin()
            number, units, digest = self._file.spent_at(dataset, authority)
            name = canonical({"dataset": dataset, "authority": authority}).encode()
            return LedgerHead(origin.ledger_id, hmac.digest(origin.key, name, "sha256")[:16], number, digest, units)

    @property
    def mark(self) -> Mark:
        """The state of the whole ledger; stays at the site."""
        with self._file.transaction():
            return self._file.state()

    @property
    def ledger_id(self) -> bytes:
        """16 bytes, drawn at random when the ledger was made."""
        with self._file.transaction():
            return self._file.origin().ledger_id

    def entries(self) -> list[Entry]:
        """All entries, for display."""
        with self._file.transaction():
            return [Entry.read(number, text) for number, text, _ in self._file.rows()]

    def verify(self) -> None:
        """Recompute the chain, the hashes of payloads and the sums; the LedgerError names the first wrong entry."""
        self._file.verify()

    def _key(self) -> bytes:
        with self._file.transaction():
            return self._file.origin().key

    # ---- inside a transaction ---------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self._file.path.parent

    def _registered(self) -> list[RegisterEntry]:
        return list(self._file.contents("register"))

    def _registration(self, dataset: str) -> RegisterEntry:
        known = registrations.latest(self._registered()).get(dataset)
        if known is None:
            raise LedgerError(
                f"dataset {dataset!r} is not registered in ledger {self._file.path}",
                remedy=f"Register its table: {registrations.command(self._folder, dataset)}",
            )
        return known

    def _spending(self, dataset: str, run: str | None = None, *, against_all: bool = False) -> Spending:
        units = self._file.spending(run, against_all=against_all)
        account = registrations.account_of(dataset, self._registered())
        parts = (Spending(units.get(one, 0), self._file.only_gaussian(one, run)) for one in account)
        return sum(parts, Spending())

    def _approvals(self) -> dict[str, Approval]:
        return approvals.current(self._entries_of(APPROVE, WITHDRAW, AGENT))

    def _agent_was_in(self, run: int, digest: bytes) -> bool:
        noted = _run(run), digest.hex()
        return any((entry["run"], entry["digest"]) == noted for entry in self._file.contents(AGENT))

    def _entries_of(self, *kinds: str) -> list[Entry]:
        return [Entry.read(number, text) for number, text in self._file.texts(*kinds)]

    def _refuse_another_payer(self, request: Request) -> None:
        payer = self._file.payer(*_key(request))
        if payer not in (None, request.dataset):
            raise LedgerError(f"{request} was reserved for dataset {payer!r}, not {request.dataset!r}")


def _key(request: Request) -> tuple[str, int, str]:
    return _run(request.run), request.round, request.site


def _fields(request: Request) -> dict[str, object]:
    run, round_, site = _key(request)
    return {"dataset": request.dataset, "run": run, "round": round_, "site": site}


def _run(run: int) -> str:
    return f"{run:016x}"


def _zcdp(units: int) -> str:
    """Units as zCDP, without rounding."""
    return f"{(Decimal(units) / UNITS_PER_ZCDP).normalize():f}"


def _changed(dataset: str, folder: Path) -> LedgerError:
    return LedgerError(
        f"the table of dataset {dataset!r} is not the one registered under this id",
        remedy="Bring the registered table back. Or, if the new one is meant, register it, where what was spent stays "
        "spent: "
        f"{registrations.command(folder, dataset)} --supersedes",
    )
