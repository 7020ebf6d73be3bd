"""The tables that a ledger knows, and which of them hold the same records and so share one budget.

A table enters with keyed fingerprints of its content, its columns and its file, never with its values.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.errors import LedgerError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.ledger_file import LedgerFile
from fedbnsl_client.data.fingerprint import column_fingerprints, fingerprint, of_the_same_rows

RegisterEntry = Mapping[str, Any]


@dataclass(frozen=True)
class Registration:
    """A dataset as it was last registered."""

    dataset: str
    variables: tuple[str, ...]
    n_samples: int

    @property
    def sizes(self) -> dict[str, int]:
        """What a privacy cost depends on, both public; as `price_of` takes them."""
        return {"n_samples": self.n_samples, "n_variables": len(self.variables)}


class Registrations:
    """The `register` entries of a ledger."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

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

        Raises LedgerError if the id was registered with another content, or the content or file under another id.

        Parameters
        ----------
        X
            (n, d) finite values; the orders of rows and columns do not matter.
        file
            Identity of the table's file (`file_identity`); empty for a table without a file.
        supersedes
            Accept new content for this id, or content that is known under another id; the two ids then share one
            budget. What was spent stays spent.
        """
        entry = self._entry(dataset, variables, X, file)
        with self._file.transaction():
            entries = self._entries()
            known = _latest(entries).get(dataset, {})
            if known and not supersedes and known["fingerprint"] != entry["fingerprint"]:
                raise self._changed(dataset)
            others = _known_as(entry, entries)
            if others and not supersedes:
                raise _known_already(self._folder, dataset, *next(iter(others.items())))
            # An older fedbnsl recorded no file, and a file may have moved.
            if others or any(known.get(part) != entry[part] for part in ("fingerprint", "file")):
                self._file.append("register", **entry, supersedes=bool(known), same_budget=sorted(others))

    def known_as(self, variables: Sequence[str], X: Matrix, file: Sequence[str] = ()) -> tuple[str, ...]:
        """Datasets that hold, or ever held, records of a table that is not registered itself."""
        entry = self._entry("", variables, X, file)
        with self._file.transaction():
            return tuple(_known_as(entry, self._entries()))

    def check_table(self, dataset: str, variables: Sequence[str], X: Matrix) -> None:
        """Refuse a table that is not the one registered.

        Raises LedgerError if the id is unknown or has another content.
        """
        found = fingerprint(self._key(), variables, X).hex()
        with self._file.transaction():
            if self.required(dataset)["fingerprint"] != found:
                raise self._changed(dataset)

    def find(self, dataset: str) -> Registration | None:
        """A dataset as last registered; None for an unknown id."""
        return {known.dataset: known for known in self.all()}.get(dataset)

    def all(self) -> tuple[Registration, ...]:
        """All datasets as last registered, in the order in which they first came."""
        return tuple(
            Registration(dataset, tuple(entry["variables"]), entry["n_samples"])
            for dataset, entry in _latest(self._entries()).items()
        )

    def required(self, dataset: str) -> RegisterEntry:
        """The last entry of a dataset. Raises LedgerError if the id is unknown."""
        known = _latest(self._entries()).get(dataset)
        if known is None:
            raise LedgerError(
                f"dataset {dataset!r} is not registered in ledger {self._file.path}",
                remedy=f"Register its table: {command(self._folder, dataset)}",
            )
        return known

    def account(self, dataset: str) -> frozenset[str]:
        """The datasets that share one budget with a dataset, itself among them."""
        return _account(dataset, self._entries())

    def _entries(self) -> list[RegisterEntry]:
        with self._file.transaction():
            return self._file.contents("register")

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

    def _key(self) -> bytes:
        with self._file.transaction():
            return self._file.origin().key

    @property
    def _folder(self) -> Path:
        return self._file.path.parent

    def _changed(self, dataset: str) -> LedgerError:
        return LedgerError(
            f"the table of dataset {dataset!r} is not the one registered under this id",
            remedy="Bring the registered table back. Or, if the new one is meant, register it, where what was spent "
            f"stays spent: {command(self._folder, dataset)} --supersedes",
        )


def _latest(entries: Sequence[RegisterEntry]) -> dict[str, RegisterEntry]:
    """The last entry of each dataset, in the order in which they first came."""
    return {entry["dataset"]: entry for entry in entries}


def _account(dataset: str, entries: Sequence[RegisterEntry]) -> frozenset[str]:
    links = [{entry["dataset"], *entry.get("same_budget", ())} for entry in entries]
    account = frozenset({dataset})
    for _ in links:  # a link may lead to another: one pass for each is enough
        account = account.union(*(link for link in links if link & account))
    return account


def _known_as(new: RegisterEntry, entries: Sequence[RegisterEntry]) -> dict[str, str]:
    """Datasets of other budgets that hold, or ever held, records of a new entry; each with the reason."""
    found: dict[str, str] = {}
    own, last = _account(new["dataset"], entries), _latest(entries)
    again = last.get(new["dataset"], {}).get("fingerprint") == new["fingerprint"]
    for entry in entries:
        other, columns = entry["dataset"], entry.get("column_fingerprints")
        if other in own:
            continue
        if set(new["file"]) & set(entry.get("file", ())):
            found[other] = f"its file is, or was, that of {other!r}"
        elif columns is None:  # registered by an older fedbnsl, without columns
            if entry["fingerprint"] == new["fingerprint"]:
                found[other] = f"it is, or was, the table of {other!r}"
            elif entry is last[other] and not again:
                found[other] = f"an older fedbnsl registered {other!r} without its columns; register that one again"
        elif of_the_same_rows(new["column_fingerprints"], columns):
            mine = zip(new["variables"], new["column_fingerprints"], strict=True)
            shared = [name for name, column in mine if column in columns]
            found[other] = f"the values of {first_few(shared)} are, or were, those of columns of {other!r}"
    return found


def command(folder: Path, dataset: str) -> str:
    """The command line that registers a dataset's table in a site's folder."""
    return shlex.join(["fedbnsl", "participant", "register", str(folder), dataset])


def _known_already(folder: Path, dataset: str, other: str, why: str) -> LedgerError:
    """The error for a second id of known records."""
    return LedgerError(
        f"the table of dataset {dataset!r} is registered as {other!r}, where its spending is counted: {why}",
        remedy=f"If both hold the same records, use {other!r}, or let them share one budget: "
        f"{command(folder, dataset)} --supersedes. If they hold other records, give each table a file of its own, and "
        "leave out columns that are alike by design, such as row numbers (`columns` in policy.toml).",
    )
