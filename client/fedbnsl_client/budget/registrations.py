"""The tables that a ledger knows, the blocks of their records, and which of them share one budget.

A table enters with keyed fingerprints of its content, its columns and its file, and a keyed tag of each record; never
with its values. A table that grows keeps its records in blocks, each with what it has spent: block composition (Lecuyer
et al. 2019). A record is in one block for good, so what it has lost is what the runs over its block have cost.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from fedbnsl.console.wording import counted, first_few
from fedbnsl.errors import LedgerError, SetupError
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.budget.ledger_file import LOST, RESTORED, LedgerFile
from fedbnsl_client.data.fingerprint import (
    Recognised,
    columns_before,
    fingerprint,
    fingerprint_before,
    is_of_before,
    of_the_same_rows,
    recognised,
)
from fedbnsl_client.data.mapped_array import RowsElsewhere
from fedbnsl_client.data.person_rows import Persons
from fedbnsl_client.data.record_tags import Tags, blocks_of, overlap, record_tags, share_by_chance

RegisterEntry = Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """Records of a dataset that came together, and share what they have spent."""

    number: int  # within the dataset, from 1
    n_samples: int  # how many of its records the table holds now
    entry: int  # number of the ledger's entry that made it
    inherits: int  # entries of the dataset before this number are about its records, too
    time: str  # when it was made, ISO 8601

    def counts(self, entry: int) -> bool:
        """Whether an entry of its dataset that names no blocks is about its records, too."""
        return entry > self.entry or entry < self.inherits


@dataclass(frozen=True)
class Registration:
    """A dataset as it was last registered; without blocks if an older fedbnsl did, or the ledger was restored."""

    dataset: str
    variables: tuple[str, ...]
    n_samples: int
    blocks: tuple[Block, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """What a privacy cost depends on, both public; as `price_of` takes them."""
        return {"n_samples": self.n_samples, "n_variables": len(self.variables)}

    def of_blocks(self, numbers: Sequence[int]) -> Self:
        """Some of its blocks; none named: all. Raises SetupError if it does not have one."""
        known = {one.number: one for one in self.blocks}
        if unknown := [number for number in numbers if number not in known]:
            raise SetupError(
                f"dataset {self.dataset!r} has no block {unknown[0]}; it has "
                + (", ".join(map(str, known)) or "none: register its table once more"),
                remedy="participant ledger shows its blocks. If another table took their place, approve anew.",
            )
        if not numbers:
            return self
        chosen = tuple(known[number] for number in sorted(set(numbers)))
        return replace(self, n_samples=sum(one.n_samples for one in chosen), blocks=chosen)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Those of its blocks."""
        return tuple(one.number for one in self.blocks)


class Registrations:
    """The `register` entries of a ledger."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def register(
        self,
        dataset: str,
        variables: Sequence[str],
        X: Matrix | RowsElsewhere,
        *,
        persons: Persons | None = None,
        file: Sequence[str] = (),
        supersedes: bool = False,
        grows: bool = False,
        other_records: bool = False,
        never_used: bool = False,
    ) -> float:
        """Enter a dataset under its id. Repeating this with the same table changes nothing.

        Returns the share of records of others that have an equal one by chance, see `share_by_chance`. Raises
        LedgerError if the id was registered with another content, or the content or file under another id; or the
        ledger was restored without a note of the lost one, which may have known this id.

        Parameters
        ----------
        X
            (n, d) finite values; the orders of rows and columns do not matter.
        persons
            Where each record is another person's; see `record_tags`.
        file
            Identity of the table's file (`file_identity`); empty for a table without a file.
        supersedes
            Accept new content for this id, or content that is known under another id; the two ids then share one
            budget. What was spent stays spent.
        grows
            The records that were there keep what they have spent, new ones form a block of their own. Refused if one
            that was there is missing, unless records are known by their persons: it may have been corrected.
        other_records
            Somebody has looked: many records of another id, or of this one before it has grown, are alike, and are not
            the same.
        never_used
            Somebody states that the table was never used in a run.
        """
        seen = recognised(self._key(), variables, X, persons)  # outside transactions: it takes long, and others wait
        entry, before, tags = _entry(dataset, variables, seen, file), self._before(variables, X), seen.tags
        with self._file.transaction():
            entries = self._entries()
            known = _latest(entries).get(dataset, {})
            if not known and not never_used:
                self._refuse_forgotten(dataset)
            there = self._there(dataset, tags)
            is_same = _is_of(known, entry, before, there)
            if is_same and known["fingerprint"] != entry["fingerprint"]:
                entry["known_before"] = True
            if known and not is_same and not (supersedes or grows):
                raise self._changed(dataset, there, by_persons=persons is not None)
            if grows and not is_same:
                self._refuse_growth(dataset, there, by_persons=persons is not None)
            # With the sizes of blocks whose records are gone: they may come back.
            kept = there.sizes if there.n_kept and (is_same or grows) else {}
            new = tags[there.of_each < 0] if kept else tags
            if kept and not other_records:
                self._refuse_copies(dataset, new, there)
            others = _known_as(entry, entries, before)
            alike = self._alike(new, entry, entries, anew=bool(kept))
            if other_records:
                entry["other_records"] = sorted(alike)
            else:
                others = alike | others
            if others and not supersedes:
                raise _known_already(self._folder, dataset, *next(iter(others.items())))
            entry |= {"supersedes": bool(known), "same_budget": sorted(others)}
            if len(new):
                number = 1 + max(
                    (one["made"] for one in entries if one["dataset"] == dataset and "made" in one), default=0
                )
                entry |= {"blocks": [*kept.items(), (number, len(new))], "made": number, "fresh": bool(kept)}
                self._file.append_with_payload("register", new.astype("<u8").tobytes(), **entry)
            # A file may have moved; an older fedbnsl recorded none.
            elif others or other_records or any(known.get(part) != entry[part] for part in ("fingerprint", "file")):
                self._file.append("register", **entry, blocks=[*kept.items()])
        return share_by_chance(tags)

    def known_as(
        self, variables: Sequence[str], X: Matrix | RowsElsewhere, file: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Datasets that hold, or ever held, records of a table that is not registered itself."""
        entry = _entry("", variables, recognised(self._key(), variables, X), file)
        before = self._before(variables, X)
        with self._file.transaction():
            return tuple(_known_as(entry, self._entries(), before))

    def check_table(
        self,
        dataset: str,
        variables: Sequence[str],
        X: Matrix | RowsElsewhere,
        persons: Persons | None = None,
        *,
        in_full: bool = False,
    ) -> None:
        """Refuse a table that is not the one registered.

        With `in_full` the refusal says how many records are new, and how to register them; it takes longer then, and so
        is for what is said to the site's own operator. Raises LedgerError if the id is unknown or has another content;
        also if only an older fedbnsl has registered it, and its rows are elsewhere.
        """
        registered: str = self.required(dataset)["fingerprint"]
        if not is_of_before(registered):
            found = fingerprint(self._key(), variables, X, persons)
        elif isinstance(X, RowsElsewhere):
            raise LedgerError(
                f"an older fedbnsl registered the table of dataset {dataset!r}, by what Dask workers cannot tell",
                remedy=f"Register the same table once more: {command(self._folder, dataset)}, with --engine or without",
            )
        else:
            found = fingerprint_before(self._key(), variables, X)
        with self._file.transaction():
            if self.required(dataset)["fingerprint"] == found:
                return
            if not in_full:
                raise self._changed(dataset)
            there = self._there(dataset, record_tags(self._key(), variables, X, persons))
            raise self._changed(dataset, there, by_persons=persons is not None)

    def rows_of(
        self, registered: Registration, variables: Sequence[str], X: Matrix, persons: Persons | None = None
    ) -> Mask:
        """(n,) which records of the registered table are in these blocks of it.

        Raises LedgerError if there are not as many as were registered: the values are now those of other persons.
        """
        tags = record_tags(self._key(), variables, X, persons)
        with self._file.transaction():
            rows = np.isin(self._there(registered.dataset, tags).of_each, registered.numbers)
            if rows.sum() != registered.n_samples:
                raise self._changed(registered.dataset)
        return rows

    def find(self, dataset: str) -> Registration | None:
        """A dataset as last registered; None for an unknown id."""
        return {known.dataset: known for known in self.all()}.get(dataset)

    def n_left_out(self, dataset: str) -> int:
        """How many records of the blocks of a dataset its table lacks since it grew; they keep what they have spent."""
        with self._file.transaction():
            entries = self._entries()
            blocks = tuple(_blocks(_latest(entries)[dataset], entries))
            return sum(len(self._tags(one.entry)) - one.n_samples for one in blocks)

    def all(self) -> tuple[Registration, ...]:
        """All datasets as last registered, in the order in which they first came."""
        entries = self._entries()
        return tuple(
            Registration(
                dataset,
                tuple(entry["variables"]),
                entry["n_samples"],
                tuple(block for block in _blocks(entry, entries) if block.n_samples),
            )
            for dataset, entry in _latest(entries).items()
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
        """Each with the number of it."""
        with self._file.transaction():
            return [{**json.loads(text), "entry": number} for number, text in self._file.texts("register")]

    def _there(self, dataset: str, tags: Tags) -> "_There":
        """Which blocks of a dataset the records with these tags are in."""
        entries = self._entries()
        last = _latest(entries).get(dataset)
        blocks = () if last is None else tuple(_blocks(last, entries))
        known = [self._tags(one.entry) for one in blocks]
        place = blocks_of(tags, known)
        numbers = np.array([-1, *(one.number for one in blocks)])
        return _There(blocks, numbers[place + 1], np.concatenate([np.empty(0, dtype=np.uint64), *known]))

    def _tags(self, entry: int) -> Tags:
        """Those of the block that an entry has made."""
        return np.frombuffer(self._file.payload(entry), dtype="<u8").astype(np.uint64)

    def _alike(self, tags: Tags, new: RegisterEntry, entries: Sequence[RegisterEntry], *, anew: bool) -> dict[str, str]:
        """Datasets of other budgets with records of a new entry, more than chance explains; each with the reason.

        With `anew` also those of which somebody has said that their records are other ones: the tags are of records
        that nobody has looked at.
        """
        found: dict[str, str] = {}
        own = _account(new["dataset"], entries)
        looked_at = {
            frozenset({entry["dataset"], other}) for entry in entries for other in entry.get("other_records", ())
        }
        for entry in entries:
            other = entry["dataset"]
            if "made" not in entry or other in own:
                continue
            if not anew and frozenset({new["dataset"], other}) in looked_at:
                continue
            theirs = self._tags(entry["entry"])
            if share := max(overlap(tags, theirs), overlap(theirs, tags)):
                found[other] = (
                    f"about {share:.0%} of the {'new ' * anew}records of one are, or were, records of the other"
                )
        return found

    def _before(self, variables: Sequence[str], X: Matrix | RowsElsewhere) -> "_Before | None":
        """What an older fedbnsl would know a table by; None: no entry is by one, or the rows are not here."""
        if isinstance(X, RowsElsewhere) or not any(is_of_before(one["fingerprint"]) for one in self._entries()):
            return None
        key = self._key()
        return _Before(fingerprint_before(key, variables, X), columns_before(key, X))

    def _key(self) -> bytes:
        with self._file.transaction():
            return self._file.origin().key

    @property
    def _folder(self) -> Path:
        return self._file.path.parent

    def _changed(self, dataset: str, there: "_There | None" = None, *, by_persons: bool = False) -> LedgerError:
        register = command(self._folder, dataset)
        said = f"the table of dataset {dataset!r} is not the one registered under this id"
        grows = ""
        if there is not None and there.blocks and there.n_kept:
            said += (
                f": of {counted(there.n_known, 'record')} that were registered it has {there.n_kept:,}, and "
                f"{counted(there.n_new, 'other')}"
            )
            if by_persons and there.n_kept == there.n_known and not there.n_new:
                said += ": their values, or how they are read, have changed"
            if by_persons:
                grows = (
                    "If persons came, went or were corrected, and each is still called as before: "
                    f"{register} --grows; new ones get a budget of their own. "
                )
            elif there.n_kept == there.n_known:  # otherwise it would be refused
                grows = f"If it has grown, and new records shall have a budget of their own: {register} --grows. "
        return LedgerError(
            said,
            remedy=f"Bring the registered table back. {grows}Or, if the new one is meant, register it, where what was "
            f"spent stays spent: {register} --supersedes",
        )

    def _refuse_forgotten(self, dataset: str) -> None:
        """Refuse a dataset that a ledger may have known whose spending nobody knows, but one that was charged."""
        forgotten = any(entry["entries"] is None for entry in self._file.contents(RESTORED))
        if forgotten and all(entry["dataset"] != dataset for entry in self._file.contents(LOST)):
            raise LedgerError(
                f"the ledger was restored from a backup that does not know dataset {dataset!r}: whether its table has "
                "spent something since is not known",
                remedy="If you state that its records were never used in a run: "
                f"{command(self._folder, dataset)} --never-used. Otherwise it has no budget left here.",
            )

    def _refuse_copies(self, dataset: str, new: Tags, there: "_There") -> None:
        """Refuse new records that are copies of those that were there, more than chance explains: a second budget."""
        if share := max(overlap(new, there.known), overlap(there.known, new)):
            raise LedgerError(
                f"about {share:.0%} of the new records of dataset {dataset!r} are like those that were registered, or "
                "the other way round: a copy of a record would have a second budget",
                remedy="Leave the copies out. If they are records of other people, say so: "
                f"{command(self._folder, dataset)} --grows --other-records",
            )

    def _refuse_growth(self, dataset: str, there: "_There", *, by_persons: bool) -> None:
        register = command(self._folder, dataset)
        if self.find(dataset) is None:
            raise LedgerError(f"dataset {dataset!r} is not registered, and cannot grow", remedy=f"First: {register}")
        if not there.blocks:
            raise LedgerError(
                f"dataset {dataset!r} was registered without tags of its records, by an older fedbnsl or in a ledger "
                "that was restored: which records are new is not known",
                remedy=f"Put the table back as it was, and register it once more: {register}. Then the one that has "
                "grown, with --grows.",
            )
        if by_persons and not there.n_kept:
            raise LedgerError(
                f"of {counted(there.n_known, 'person')} of dataset {dataset!r} that were registered, none is in the "
                "table any more: if they are called otherwise now, they would get a second budget",
                remedy="Export it with the same identifiers as before. Or register the whole anew, where what was "
                f"spent stays spent: {register} --supersedes",
            )
        if gone := 0 if by_persons else there.n_known - there.n_kept:
            raise LedgerError(
                f"of {counted(there.n_known, 'record')} of dataset {dataset!r} that were registered, {gone:,} are not "
                "in the table any more: if they were corrected, they would get a second budget",
                remedy="Put them back as they were. Or tell persons apart by an entry of kind 'group' in the data "
                "dictionary (within = 'between'): then a person keeps the budget, whatever else changes. Or register "
                f"the whole anew, where what was spent stays spent: {register} --supersedes",
            )


class _Before(NamedTuple):
    """What an older fedbnsl would know a table by."""

    fingerprint: str
    columns: Sequence[str]


def _entry(dataset: str, variables: Sequence[str], seen: Recognised, file: Sequence[str]) -> dict[str, Any]:
    """What is noted of a table."""
    return {
        "dataset": dataset,
        "fingerprint": seen.fingerprint,
        "column_fingerprints": seen.columns,
        "file": list(file),
        "variables": list(variables),
        "n_samples": len(seen.tags),
    }


@dataclass(frozen=True)
class _There:
    """What of a table was registered before."""

    blocks: tuple[Block, ...]  # of the last registration, also those of which no record was left
    of_each: Index  # (n,) number of the block that each record is in; -1: of none
    known: Tags  # of the records of these blocks, also those that are gone

    @property
    def n_known(self) -> int:
        """How many records these blocks have or had."""
        return len(self.known)

    @property
    def n_kept(self) -> int:
        """How many of its records were there."""
        return int((self.of_each >= 0).sum())

    @property
    def n_new(self) -> int:
        """How many were not."""
        return len(self.of_each) - self.n_kept

    @property
    def sizes(self) -> dict[int, int]:
        """Its records by block."""
        return {one.number: int((self.of_each == one.number).sum()) for one in self.blocks}


def _is_of(known: RegisterEntry, new: RegisterEntry, before: _Before | None, there: _There) -> bool:
    """Whether a table is the one of the last entry of its dataset, perhaps by an older fedbnsl."""
    if not known:
        return False
    if not is_of_before(known["fingerprint"]):
        return bool(known["fingerprint"] == new["fingerprint"])
    if before is not None:
        return bool(known["fingerprint"] == before.fingerprint)
    return there.n_kept == there.n_known and not there.n_new  # what tags tell, where the rows are elsewhere


def _blocks(last: RegisterEntry, entries: Sequence[RegisterEntry]) -> Iterator[Block]:
    """The blocks of a dataset whose last entry is given, also those of which no record was left.

    Records of a table that another one took the place of may come back, and are not known again: the other one may have
    other columns, or tell records apart in another way. So what was spent before counts for all that come later.
    """
    made: dict[int, Block] = {}
    before, replaced = None, 0
    for one in entries:
        if one["dataset"] == last["dataset"]:
            if before is not None and _takes_its_place(one, before):
                replaced = one["entry"]
            if "made" in one:
                inherits = replaced if one["fresh"] else one["entry"]
                made[one["made"]] = Block(one["made"], 0, one["entry"], inherits, one["time"])
            before = one
    for number, n_samples in last.get("blocks", ()):
        yield replace(made[number], n_samples=n_samples)


def _takes_its_place(new: RegisterEntry, before: RegisterEntry) -> bool:
    """Whether records of the entry before may not be known again in the new one."""
    if any(number != new.get("made") for number, _ in new.get("blocks", ())):
        return False  # it has grown, or is the same
    # The same table without blocks is that of an older fedbnsl; a ledger that was restored may lack others.
    is_same = new["fingerprint"] == before["fingerprint"] or new.get("known_before", False)
    return not is_same or "blocks" in before or "restored" in before


def _latest(entries: Sequence[RegisterEntry]) -> dict[str, RegisterEntry]:
    """The last entry of each dataset, in the order in which they first came."""
    return {entry["dataset"]: entry for entry in entries}


def _account(dataset: str, entries: Sequence[RegisterEntry]) -> frozenset[str]:
    links = [{entry["dataset"], *entry.get("same_budget", ())} for entry in entries]
    account = frozenset({dataset})
    for _ in links:  # a link may lead to another: one pass for each is enough
        account = account.union(*(link for link in links if link & account))
    return account


def _known_as(new: RegisterEntry, entries: Sequence[RegisterEntry], before: _Before | None) -> dict[str, str]:
    """Datasets of other budgets that hold, or ever held, records of a new entry; each with the reason."""
    found: dict[str, str] = {}
    own, last = _account(new["dataset"], entries), _latest(entries)
    again = new.get("known_before") or last.get(new["dataset"], {}).get("fingerprint") == new["fingerprint"]
    for entry in entries:
        other, columns = entry["dataset"], entry.get("column_fingerprints")
        if other in own:
            continue
        mine: _Before | None = _Before(new["fingerprint"], new["column_fingerprints"])
        if is_of_before(entry["fingerprint"]):
            mine = before
        if set(new["file"]) & set(entry.get("file", ())):
            found[other] = f"its file is, or was, that of {other!r}"
        elif columns is None or mine is None:  # registered by an older fedbnsl
            if mine is not None and entry["fingerprint"] == mine.fingerprint:
                found[other] = f"it is, or was, the table of {other!r}"
            elif entry is last[other] and not again:
                what = "without its columns" if columns is None else "by what Dask workers cannot tell"
                found[other] = f"an older fedbnsl registered {other!r} {what}; register that one again"
        elif of_the_same_rows(mine.columns, columns):
            named = zip(new["variables"], mine.columns, strict=True)
            shared = [name for name, column in named if column in columns]
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
        "leave out columns that are alike by design, such as row numbers (`columns` in policy.toml); if single records "
        "are alike and are other people's, say so: --other-records.",
    )
