"""The file of a ledger: entries and payloads that can only be added, in transactions that succeed or fail as a whole.

Several processes of a site may have the file open: two runs at once, an agent and the command that approves a plan.
Each transaction holds the ledger's lock and the mark's, and reads everything again. Whenever the ledger has grown,
`high_water_mark` notes its new state outside the ledger's folder.
"""

import hashlib
import json
import os
import shlex
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from fedbnsl.errors import LedgerError
from fedbnsl.files import durable
from fedbnsl_client.budget import high_water_mark
from fedbnsl_client.budget.high_water_mark import Mark
from fedbnsl_client.budget.ledger_chain import canonical, first_link, next_link
from fedbnsl_client.budget.ledger_lock import LedgerBusyError, OwnerLock, refuse_network, refuse_second_name
from fedbnsl_client.budget.ledger_schema import APPLICATION_ID, BACKUP_ID, SCHEMA, SEALED, VERSION, WITHDRAWN

# Longer than any transaction takes; the longest verifies the whole ledger.
_PATIENCE_S = 60.0

Measure = Literal["units", "against_all", "in_sums"]
"""Of a cost: against the coordinator, against it and all other sites, and the part of the first in sums over sites."""

_IN_ALL = "COALESCE(json_extract(content, '$.units_against_all'), units)"
_MEASURES: Mapping[Measure, str] = {
    "units": "units",
    "against_all": _IN_ALL,
    # Earlier versions, and what is lost of a ledger, do not tell: all of it may be in sums.
    "in_sums": f"COALESCE(json_extract(content, '$.units_in_sums'), CASE WHEN {_IN_ALL} > units THEN units ELSE 0 END)",
}

REGISTER, RESTORED, LOST = "register", "restored", "lost"
_OF_BLOCKS = ("kind", "sha256", "blocks", "made", "fresh")


@dataclass(frozen=True, repr=False)
class Origin:
    """Random values, drawn when a ledger is made: a public id (16 bytes), a secret key and a secret seed (32 each)."""

    ledger_id: bytes
    key: bytes
    seed: bytes


class LedgerFile:
    """An open ledger file. Everything but `transaction` and `close` is for use inside a transaction."""

    def __init__(self, path: Path, database: sqlite3.Connection, resources: ExitStack) -> None:
        self.path = path
        self._database = database
        self._resources = resources
        self._process = os.getpid()
        self._ledger_id = b""
        self._mark: Mark | None = None  # as this process last read or wrote it
        self._charged_for: Mark | None = None  # of a newer copy that is lost
        self._has_grown = False
        self._is_locked = self._in_transaction = False
        self._runs: dict[int, OwnerLock] = {}  # in which this ledger takes part here

    @classmethod
    def create(cls, path: Path, origin: Origin) -> None:
        """Make a ledger without entries, readable by its owner alone.

        Raises LedgerError if there is a file already, or the place cannot hold a ledger.
        """
        path = path.resolve()
        refuse_network(path)
        with ExitStack() as stack:
            stack.callback(OwnerLock.of(path).release)
            for file in (path, _journal(path)):  # a journal left alone would be rolled back into the new file
                if os.path.lexists(file):
                    raise LedgerError(f"{file} exists already; a ledger is never overwritten")
            # Under another name until it is complete: a crash must not leave half a ledger.
            unfinished = path.with_name(path.name + ".new")
            try:
                _remove(unfinished)
                os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                with closing(_connected(unfinished)) as database:
                    database.executescript(SCHEMA)
                    database.execute("INSERT INTO origin VALUES (1, ?, ?, ?)", astuple(origin))
                first = first_link(*astuple(origin)).hex()
                high_water_mark.write(origin.ledger_id, Mark(0, first, {}, [], [], str(path.parent)))
                unfinished.rename(path)
                durable.sync_folder(path.parent)
            except (OSError, sqlite3.Error, LedgerError) as error:
                with suppress(OSError):
                    _remove(unfinished)
                known = isinstance(error, LedgerError)
                raise error if known else LedgerError(f"ledger {path} cannot be made: {error}") from None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        accept_backup: bool = False,
        accept_newest: bool = False,
        charge_all: Callable[["LedgerFile"], object] | None = None,
    ) -> Self:
        """Open a ledger that exists, and verify it.

        Raises LedgerError if it is missing, damaged, of another format, on a network file system, or has a second name;
        or another process changes it for longer than a transaction takes; or it is an older copy of what this user has
        seen of it, a backup, or nothing is noted of it here.

        Parameters
        ----------
        accept_backup
            The spending that is in the mark but not in the copy is charged to it. Where there is no mark, nobody knows
            how much that is: `charge_all` charges it with all that its tables may spend.
        accept_newest
            Somebody states that a ledger without a mark is the newest.
        """
        path = path.resolve()
        if not os.path.isfile(path):
            raise LedgerError(f"there is no ledger {path}; if there was one, restore it: it is not made again")
        refuse_network(path)
        with ExitStack() as stack:
            refuse_second_name(path)
            try:
                database = stack.enter_context(closing(_connected(path)))
                found = _pragma(database, "application_id"), _pragma(database, "user_version")
            except sqlite3.Error as error:
                raise LedgerError(f"ledger {path} cannot be opened: {error}") from None
            is_backup = found[0] == BACKUP_ID
            if found[0] not in (APPLICATION_ID, BACKUP_ID) or found[1] not in (1, VERSION, WITHDRAWN, SEALED):
                raise LedgerError(f"{path} is not a ledger of format {VERSION}, which this version of fedbnsl reads")
            file = cls(path, database, stack)
            with file.locked():
                file.verify()
                if is_backup and not accept_backup:
                    raise _backup(path)
                with file.transaction():
                    file._compare_with_mark(
                        accept_backup=accept_backup, accept_newest=accept_newest, charge_all=charge_all
                    )
                    if is_backup:
                        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                if found[1] < VERSION:  # an older fedbnsl, without shared budgets, must not open the file again
                    with file.transaction():
                        database.execute(f"PRAGMA user_version = {VERSION}")
            file._resources = stack.pop_all()
        return file

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep all others out over several transactions; those that have waited see what was done meanwhile."""
        if self._is_locked:
            yield
            return
        with ExitStack() as stack:
            stack.callback(OwnerLock.of(self.path, patience_s=_PATIENCE_S).release)
            if not self._ledger_id:
                self._ledger_id = self._read_id()
            # The mark, too: two copies in two places could both spend the same budget.
            mark = high_water_mark.prepared(self._ledger_id)
            stack.callback(OwnerLock.of(mark, patience_s=_PATIENCE_S).release)
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    def take_run(self, run: int) -> None:
        """Let no other process answer this run from this ledger, until this one is closed: both would pay for it.

        Raises LedgerBusyError if another does.
        """
        if run in self._runs:
            return
        try:
            lock = OwnerLock.of(self.path.with_name(f"{self.path.name}.run-{run_text(run)}"), passing=True)
        except LedgerBusyError:
            raise LedgerBusyError(
                f"another process of this site takes part in run {run_text(run)}: each round would be paid for twice"
            ) from None
        self._resources.callback(lock.release)
        self._runs[run] = lock

    def promise(self, run: int, content: Mapping[str, object]) -> None:
        """Tell the other processes what a run that was taken is going to spend."""
        self._runs[run].note(json.dumps(content))

    def runs_that_go_on(self) -> list[str]:
        """The numbers of those that a process answers from here now."""
        held = OwnerLock.notes(self.path.parent.glob(f"{self.path.name}.run-*.lock"))
        return [file.name.removeprefix(f"{self.path.name}.run-").removesuffix(".lock") for file in held]

    def promises(self, *, but: int) -> list[Mapping[str, Any]]:
        """What the runs that go on have promised, but one; that of a process that is gone counts no more."""
        own = self.path.with_name(f"{self.path.name}.run-{run_text(but)}.lock")
        others = [file for file in self.path.parent.glob(f"{self.path.name}.run-*.lock") if file != own]
        return [json.loads(text) for text in OwnerLock.notes(others).values() if text]

    def back_up(self, target: Path) -> None:
        """Copy the ledger as it is between two transactions; the copy opens only by `accept_backup`.

        Raises LedgerError if the file, which must be new, cannot be written.
        """
        try:
            with self.locked():
                os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                with closing(_connected(target)) as copy:
                    self._database.backup(copy)
                    copy.execute(f"PRAGMA application_id = {BACKUP_ID}")
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"ledger {self.path} cannot be copied to {target}: {error}") from error

    def close(self) -> None:
        """Close the file, and let others answer its runs."""
        if os.getpid() == self._process:
            self._resources.close()

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Commit all changes to the disk at the end of the outermost one; discard them after an exception.

        Raises LedgerError, with the system's message, if the file cannot be read or written.
        """
        if os.getpid() != self._process:
            raise LedgerError(f"ledger {self.path} was opened by another process; a fork of it must not use it")
        if self._in_transaction:  # a part of a larger one
            yield
            return
        with self.locked():
            yield from self._transaction()

    def _transaction(self) -> Generator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._in_transaction = True
            try:
                yield
                mark = self._next_mark() if self._has_grown else None
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # some failures have ended it already
                    self._database.execute("ROLLBACK")
                raise
            finally:
                self._in_transaction = self._has_grown = False
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error
        if mark is not None:  # after the commit: a crash between the two leaves a mark that is behind
            high_water_mark.write(self._ledger_id, mark)
            self._mark = mark

    def _read_id(self) -> bytes:
        try:
            return self.origin().ledger_id
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error

    # ---- inside a transaction ---------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        """The random values of the ledger."""
        row = self._database.execute("SELECT ledger_id, key, seed FROM origin").fetchone()
        if row is None:
            raise LedgerError(f"ledger {self.path} has lost its id and key")
        return Origin(*row)

    def rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Number, canonical text and link of all entries in order, as bytes: a damaged file may hold no UTF-8."""
        return self._database.execute(
            "SELECT number, CAST(content AS BLOB), CAST(link AS BLOB) FROM entries ORDER BY number"
        )

    def contents(self, kind: str) -> list[Mapping[str, Any]]:
        """The contents of all entries of a kind in order."""
        return [json.loads(text) for _, text in self.texts(kind)]

    def texts(self, *kinds: str) -> list[tuple[int, bytes]]:
        """Number and canonical text of all entries of some kinds, in their order."""
        marks = ", ".join("?" * len(kinds))
        sql = f"SELECT number, CAST(content AS BLOB) FROM entries WHERE kind IN ({marks}) ORDER BY number"  # noqa: S608
        return [*self._database.execute(sql, kinds)]

    def one(self, sql: str, *values: object) -> Any:
        """The first value that a query finds; None if there is none."""
        row = self._database.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def tip(self) -> tuple[int, bytes]:
        """Number and link of the last entry; 0 and the first link if there is none."""
        number: int = self.one("SELECT COALESCE(MAX(number), 0) FROM entries")
        return number, self.link_of(number)

    def link_of(self, number: int) -> bytes:
        """The link of an entry, of 0 the first link; empty if there is no such entry."""
        if number == 0:
            return first_link(*astuple(self.origin()))
        link: bytes | None = self.one("SELECT link FROM entries WHERE number = ?", number)
        return link or b""

    def append(self, kind: str, **content: object) -> int:
        """Add an entry; return its number. Raises LedgerError if the ledger is sealed."""
        self.refuse_sealed()
        last, link = self.tip()
        number = last + 1
        text = canonical({"kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds"), **content})
        values = (number, text, next_link(link, number, text.encode()))
        self._database.execute("INSERT INTO entries (number, content, link) VALUES (?, ?, ?)", values)
        self._has_grown = True
        return number

    def append_with_payload(self, kind: str, payload: bytes, **content: object) -> int:
        """Add an entry and the payload whose hash it keeps; return its number."""
        number = self.append(kind, sha256=hashlib.sha256(payload).hexdigest(), **content)
        self._database.execute("INSERT INTO outbox VALUES (?, ?)", (number, payload))
        return number

    def refuse_older(self, version: int = WITHDRAWN) -> None:
        """Let no fedbnsl open the file from now on that does not know withdrawals, or, with SEALED, seals."""
        self._database.execute(f"PRAGMA user_version = {version}")

    def seal(self) -> None:
        """Let nothing be entered from now on."""
        self.append("seal")
        self.refuse_older(SEALED)

    def refuse_sealed(self) -> None:
        """Raise LedgerError if nothing may be entered any more."""
        if since := self.sealed_since():
            raise LedgerError(
                f"ledger {self.path} was sealed on {since[:10]}, as this site left for good: no run is paid from it",
                remedy="It is final. A site that comes back has a new folder, with a max_epsilon less what "
                "`participant ledger` says was spent here.",
            )

    def sealed_since(self) -> str:
        """When it was sealed, in ISO 8601, UTC; empty if it is not."""
        return self.one("SELECT json_extract(content, '$.time') FROM entries WHERE kind = 'seal'") or ""

    def payload(self, number: int) -> bytes:
        """The payload of an entry, checked against the hash in the entry."""
        content = json.loads(self.one("SELECT content FROM entries WHERE number = ?", number))
        payload: bytes | None = self.one("SELECT CAST(payload AS BLOB) FROM outbox WHERE number = ?", number)
        if payload is None or hashlib.sha256(payload).hexdigest() != content["sha256"]:
            raise LedgerError(f"ledger {self.path}: the payload of entry {number} is not what was stored")
        return payload

    def spending(self, run: str | None = None, *, measure: Measure = "units", with_lost: bool = True) -> dict[str, int]:
        """Units reserved for each dataset in one run or in all.

        Lost units may be of any run: they count, unless it is asked what is known of a run.
        """
        lost = "kind = 'lost' OR " * with_lost
        sql = (
            f"SELECT dataset, SUM({_MEASURES[measure]}) FROM entries "  # noqa: S608  # constants
            f"WHERE {lost}kind = 'reserve' AND (? IS NULL OR run = ?) GROUP BY dataset"
        )
        return dict(self._database.execute(sql, (run, run)))

    def spending_of_block(
        self,
        dataset: str,
        block: int,
        *,
        made: int,
        inherits: int,
        run: str | None = None,
        measure: Measure = "units",
        with_lost: bool = True,
    ) -> int:
        """Units reserved for one block of a dataset, which the entry `made` has made.

        A payment counts for the blocks that it names; one that names none, for those that there were; and all that was
        paid for the dataset before the entry `inherits`.
        """
        lost = "kind = 'lost' OR " * with_lost
        sql = (
            f"SELECT COALESCE(SUM({_MEASURES[measure]}), 0) FROM entries "  # noqa: S608  # as above
            f"WHERE dataset = :dataset AND ({lost}kind = 'reserve' AND (:run IS NULL OR run = :run)) "
            "AND CASE WHEN number < :made THEN number < :inherits "
            "WHEN json_extract(content, '$.blocks') IS NULL THEN TRUE "
            "ELSE :block IN (SELECT value FROM json_each(content, '$.blocks')) END"
        )
        values = {"dataset": dataset, "run": run, "made": made, "inherits": inherits, "block": block}
        units: int = self._database.execute(sql, values).fetchone()[0]
        return units

    def sites_per_person(self, dataset: str) -> int:
        """At how many sites a person may have a record: the most that a plan of a run which was paid for says."""
        sql = (
            "SELECT MAX(json_extract(content, '$.sites_per_person')) FROM entries "
            "WHERE kind IN ('reserve', 'lost') AND dataset = ?"
        )
        return self.one(sql, dataset) or 1

    def state(self) -> Mark:
        """The state that the mark notes."""
        number, link = self.tip()
        unprotected = sorted({entry["dataset"] for entry in self.contents("unprotected")})
        registered = [dict(entry) for entry in self.contents("register")]
        spent, against_all = self.spending(), self.spending(measure="against_all")
        more = {dataset: units for dataset, units in against_all.items() if units != spent[dataset]}
        sites = {dataset: k for dataset in spent if (k := self.sites_per_person(dataset)) > 1}
        return Mark(
            number,
            link.hex(),
            spent,
            unprotected,
            registered,
            str(self.path.parent),
            more,
            sites,
            bool(self.sealed_since()),
        )

    def _next_mark(self) -> Mark:
        known = high_water_mark.read(self._ledger_id)
        # Other processes may have written to this file since; a mark that does not fit is that of another copy, or this
        # file was replaced by an older one while it was open.
        if known not in (None, self._charged_for) and self.link_of(known.n_entries).hex() != known.link:
            raise LedgerError(
                f"another copy of ledger {self.path} was used while this one was open; keep only that one"
            )
        return self.state()

    def _compare_with_mark(
        self, *, accept_backup: bool, accept_newest: bool, charge_all: Callable[["LedgerFile"], object] | None
    ) -> None:
        """Refuse an older copy, or charge it for what it lacks; update a mark that is behind."""
        self._mark = known = high_water_mark.read(self._ledger_id)
        here = self.state()
        if known is None:
            if accept_backup and charge_all is not None:
                if not self.sealed_since():  # from such a one nothing is paid any more
                    charge_all(self)
            elif not accept_newest:
                raise _not_noted(self.path, high_water_mark.file_of(self._ledger_id))
        elif self.link_of(known.n_entries).hex() != known.link:
            if not accept_backup:
                raise _older(self.path, here, known)
            self._charge_for(known)
        self._has_grown = here != known

    def forget_blocks(self) -> None:
        """Enter each table once more, without its blocks: which records are new, a restored ledger cannot tell."""
        for entry in {entry["dataset"]: entry for entry in self.contents(REGISTER)}.values():
            self._register_restored(entry)

    def _register_restored(self, entry: Mapping[str, Any]) -> None:
        known_of_it = {key: value for key, value in entry.items() if key not in _OF_BLOCKS}
        self.append(REGISTER, **{**known_of_it, "restored": True})

    def _charge_for(self, newer: Mark) -> None:
        """Enter what the newer mark has and this copy lacks: tables, spending and uses without privacy."""
        here = self.state()
        self._charged_for = newer
        if here.sealed:  # from such a one nothing is paid any more
            return
        self.append(RESTORED, entries=newer.n_entries)
        for entry in newer.registered:
            if entry not in here.registered:  # without the tags of its records, and so without blocks
                self._register_restored(entry)
        for dataset, units in newer.spent.items():
            in_all = newer.of_all(dataset) - here.of_all(dataset)
            if units > here.spent.get(dataset, 0) or in_all > 0:
                lost = max(units - here.spent.get(dataset, 0), 0)
                sites = newer.sites_per_person.get(dataset, 1)
                more = {"sites_per_person": sites} if sites > 1 else {}
                self.append(LOST, dataset=dataset, units=lost, units_against_all=max(in_all, lost), **more)
        for dataset in set(newer.unprotected) - set(here.unprotected):
            self.append("unprotected", dataset=dataset, run="", digest="")
        if newer.sealed:
            self.seal()

    # ---- the whole --------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Recompute the chain, the hashes of the payloads and the sums, in one transaction.

        Raises LedgerError, naming the first entry that is wrong.
        """
        with self.transaction():
            damage = self.one("PRAGMA integrity_check(1)")
            if damage != "ok":
                raise LedgerError(f"ledger {self.path} is damaged: {damage}")
            expected, link = 0, first_link(*astuple(self.origin()))
            spending: dict[str, int] = {}
            against_all: dict[str, int] = {}
            for number, text, written in self.rows():
                expected += 1
                if number != expected:
                    raise LedgerError(f"ledger {self.path}: entry {expected} is missing")
                link = next_link(link, number, text)
                if link != written:
                    raise LedgerError(f"ledger {self.path}: entry {number} is not what was written")
                entry = json.loads(text)
                if entry["kind"] in ("reserve", "lost"):
                    dataset, in_all = entry["dataset"], entry.get("units_against_all", entry["units"])
                    spending[dataset] = spending.get(dataset, 0) + entry["units"]
                    against_all[dataset] = against_all.get(dataset, 0) + in_all
                elif "sha256" in entry:
                    self.payload(number)
            if self.one("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'entries'") != expected:
                raise LedgerError(f"ledger {self.path}: entry {expected + 1} is missing")
            stray = self.one(
                "SELECT MIN(number) FROM outbox WHERE number NOT IN "
                "(SELECT number FROM entries WHERE json_extract(content, '$.sha256') IS NOT NULL)"
            )
            if stray is not None:
                raise LedgerError(f"ledger {self.path}: there is a payload for entry {stray}, which stored none")
            if spending != self.spending() or against_all != self.spending(measure="against_all"):
                raise LedgerError(f"ledger {self.path}: its sums do not match its entries")


def run_text(run: int) -> str:
    """A run's number as entries have it."""
    return f"{run:016x}"


def _older(path: Path, here: Mark, known: Mark) -> LedgerError:
    command = shlex.join(["fedbnsl", "participant", "ledger", str(path.parent), "--accept-backup"])
    return LedgerError(
        f"ledger {path} is an older copy: it has {here.n_entries} entries and lacks what this user has seen in it "
        f"({known.n_entries} entries); what was spent since is missing from it",
        remedy=f"Put the newest ledger.db back. If it is lost: {command} goes on with this copy and charges to it what "
        "is known to be missing; coordinators that saw the lost one refuse it until their operators agree.",
    )


def _backup(path: Path) -> LedgerError:
    return LedgerError(
        f"ledger {path} is a backup, and forgets what was spent after it was made",
        remedy=f"Put the newest ledger.db back. If it is lost: {_accepts_backup(path)}",
    )


def _not_noted(path: Path, note: Path) -> LedgerError:
    newest = shlex.join(["fedbnsl", "participant", "ledger", str(path.parent), "--accept-newest"])
    return LedgerError(
        f"nothing is noted of ledger {path} in {note.parent}: whether it is the newest copy, or an older one that "
        "forgets what was spent since, is not known",
        remedy=f"If it was moved, or used by another user, bring {note.name} from there, or set XDG_STATE_HOME to "
        f"where it is. If you state that it is the newest: {newest}. If it was restored from a backup: "
        f"{_accepts_backup(path)}",
    )


def _accepts_backup(path: Path) -> str:
    command = shlex.join(["fedbnsl", "participant", "ledger", str(path.parent), "--accept-backup"])
    return (
        f"{command} goes on with it, and charges what is noted outside the folder to be missing; where that note is "
        "lost, too, all that its tables may spend"
    )


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to an existing file, which syncs every commit."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        mode = _pragma(database, "journal_mode = DELETE")
        database.execute("PRAGMA synchronous = EXTRA")  # the removal of the journal, which is the commit, included
        database.execute("PRAGMA fullfsync = ON")  # macOS: past the disk's own cache
        if mode != "delete" or _pragma(database, "synchronous") != 3:
            raise sqlite3.OperationalError("SQLite does not sync as required")
    except BaseException:
        database.close()
        raise
    return database


def _pragma(database: sqlite3.Connection, name: str) -> Any:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _journal(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def _remove(unfinished: Path) -> None:
    for file in (unfinished, _journal(unfinished)):
        file.unlink(missing_ok=True)
