"""The file of a ledger: entries that can only be added, and payloads with them, all of a transaction or none of it."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fedbnsl.errors import LedgerError
from fedbnsl_client.budget.ledger_chain import canonical, first_link, next_link
from fedbnsl_client.budget.ledger_lock import OwnerLock, refuse_network
from fedbnsl_client.budget.ledger_schema import APPLICATION_ID, SCHEMA, VERSION


@dataclass(frozen=True, repr=False)
class Origin:
    """What a ledger is born with, all of it random: a public number (16 bytes), a secret key and seed (32 each)."""

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

    @classmethod
    def create(cls, path: Path, origin: Origin) -> None:
        """Make a ledger without entries, readable by its owner alone.

        Raises
        ------
        LedgerError
            If there is a file already, or the place cannot hold a ledger.
        """
        path = path.resolve()
        refuse_network(path)
        with ExitStack() as stack:
            stack.callback(OwnerLock.of(path).release)
            for file in (path, _journal(path)):  # a journal left alone would be rolled back into the new file
                if os.path.lexists(file):
                    raise LedgerError(f"there is a file {file} already; a ledger is never overwritten")
            # Under another name until it is whole: a crash leaves no half of a ledger.
            unfinished = path.with_name(path.name + ".new")
            try:
                _remove(unfinished)
                os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                with closing(_connected(unfinished)) as database:
                    database.executescript(SCHEMA)
                    database.execute("INSERT INTO origin VALUES (1, ?, ?, ?)", astuple(origin))
                unfinished.rename(path)
                _sync_folder(path.parent)
            except (OSError, sqlite3.Error) as error:
                with suppress(OSError):
                    _remove(unfinished)
                raise LedgerError(f"ledger {path} cannot be made: {error}") from None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a ledger that exists, and verify it.

        Raises
        ------
        LedgerError
            If it is missing, damaged, of another format, in use by another process, or on a network file system.
        """
        path = path.resolve()
        if not os.path.isfile(path):
            raise LedgerError(f"there is no ledger {path}; if there ever was one, bring it back: it is not made anew")
        refuse_network(path)
        with ExitStack() as stack:
            stack.callback(OwnerLock.of(path).release)
            try:
                database = stack.enter_context(closing(_connected(path)))
                found = _pragma(database, "application_id"), _pragma(database, "user_version")
            except sqlite3.Error as error:
                raise LedgerError(f"ledger {path} cannot be opened: {error}") from None
            if found != (APPLICATION_ID, VERSION):
                raise LedgerError(f"{path} is no ledger of format {VERSION}, which this version of fedbnsl reads")
            file = cls(path, database, stack)
            file.verify()
            file._resources = stack.pop_all()
        return file

    def close(self) -> None:
        """Give the file free."""
        if os.getpid() == self._process:
            self._resources.close()

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All of it is on the disk when this ends, or after an exception nothing of it.

        Raises
        ------
        LedgerError
            With the system's words, if the file cannot be read or written.
        """
        if os.getpid() != self._process:
            raise LedgerError(f"ledger {self.path} was opened by another process; a fork of it is no owner")
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # some failures have ended it already
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self.path}: {error}") from None

    # ---- inside a transaction ---------------------------------------------------------------------------------------

    def origin(self) -> Origin:
        """What the ledger was born with."""
        row = self._database.execute("SELECT ledger_id, key, seed FROM origin").fetchone()
        if row is None:
            raise LedgerError(f"ledger {self.path} has lost its number and key")
        return Origin(*row)

    def rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Number, canonical text and link of all entries in order; as bytes, since damaged text may be no text."""
        return self._database.execute(
            "SELECT number, CAST(content AS BLOB), CAST(link AS BLOB) FROM entries ORDER BY number"
        )

    def contents(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """The contents of all entries of a kind in order."""
        rows = self._database.execute("SELECT content FROM entries WHERE kind = ? ORDER BY number", (kind,))
        return (json.loads(text) for (text,) in rows)

    def tip(self) -> tuple[int, bytes]:
        """Number and link of the last entry; 0 and the first link if there is none."""
        row: tuple[int, bytes] | None
        row = self._database.execute("SELECT number, link FROM entries ORDER BY number DESC LIMIT 1").fetchone()
        return (0, first_link(*astuple(self.origin()))) if row is None else row

    def append(self, kind: str, **content: object) -> int:
        """Add an entry; its number."""
        last, link = self.tip()
        number = last + 1
        text = canonical({"kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds"), **content})
        values = (number, text, next_link(link, number, text.encode()))
        self._database.execute("INSERT INTO entries (number, content, link) VALUES (?, ?, ?)", values)
        return number

    def append_with_payload(self, kind: str, payload: bytes, **content: object) -> int:
        """Add an entry and the payload whose hash it keeps; its number."""
        number = self.append(kind, sha256=hashlib.sha256(payload).hexdigest(), **content)
        self._database.execute("INSERT INTO outbox VALUES (?, ?)", (number, payload))
        return number

    def payload(self, number: int) -> bytes:
        """The payload of an entry, proved by the hash that the entry keeps."""
        content = json.loads(self._one("SELECT content FROM entries WHERE number = ?", number))
        payload: bytes | None = self._one("SELECT CAST(payload AS BLOB) FROM outbox WHERE number = ?", number)
        if payload is None or hashlib.sha256(payload).hexdigest() != content["sha256"]:
            raise LedgerError(f"ledger {self.path}: the payload of entry {number} is not what was stored")
        return payload

    def payer(self, run: str, round_: int, site: str) -> str | None:
        """The dataset that a request was reserved for."""
        sql = "SELECT dataset FROM entries WHERE kind = 'reserve' AND run = ? AND round = ? AND site = ? LIMIT 1"
        payer: str | None = self._one(sql, run, round_, site)
        return payer

    def stored_as(self, run: str, round_: int, site: str) -> int | None:
        """Number of the entry that a request's payload belongs to."""
        sql = "SELECT number FROM entries WHERE kind = 'store' AND run = ? AND round = ? AND site = ?"
        number: int | None = self._one(sql, run, round_, site)
        return number

    def spent(self, dataset: str, run: str | None = None) -> int:
        """Units reserved for a dataset, in one run or in all."""
        sql = "SELECT COALESCE(SUM(units), 0) FROM entries WHERE kind = 'reserve' AND dataset = ?"
        units: int = self._one(sql, dataset) if run is None else self._one(sql + " AND run = ?", dataset, run)
        return units

    def spending(self) -> dict[str, int]:
        """Units reserved, by dataset."""
        return dict(
            self._database.execute("SELECT dataset, SUM(units) FROM entries WHERE kind = 'reserve' GROUP BY dataset")
        )

    # ---- the whole --------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Compute everything anew, in a transaction of its own: the chain, the hashes of the payloads, the sums.

        Raises
        ------
        LedgerError
            If something does not agree; names the first entry that does not.
        """
        with self.transaction():
            damage = self._one("PRAGMA integrity_check(1)")
            if damage != "ok":
                raise LedgerError(f"ledger {self.path} is damaged: {damage}")
            expected, link = 0, first_link(*astuple(self.origin()))
            spending: dict[str, int] = {}
            for number, text, written in self.rows():
                expected += 1
                if number != expected:
                    raise LedgerError(f"ledger {self.path}: entry {expected} is missing")
                link = next_link(link, number, text)
                if link != written:
                    raise LedgerError(f"ledger {self.path}: entry {number} is not what was written")
                entry = json.loads(text)
                if entry["kind"] == "reserve":
                    spending[entry["dataset"]] = spending.get(entry["dataset"], 0) + entry["units"]
                elif entry["kind"] == "store":
                    self.payload(number)
            if self._one("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'entries'") != expected:
                raise LedgerError(f"ledger {self.path}: entry {expected + 1} is missing")
            stray = self._one(
                "SELECT MIN(number) FROM outbox WHERE number NOT IN (SELECT number FROM entries WHERE kind = 'store')"
            )
            if stray is not None:
                raise LedgerError(f"ledger {self.path}: there is a payload for entry {stray}, which stored none")
            if spending != self.spending():
                raise LedgerError(f"ledger {self.path}: its sums are not those of its entries")

    def _one(self, sql: str, *values: object) -> Any:
        row = self._database.execute(sql, values).fetchone()
        return None if row is None else row[0]


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to a file that exists, which syncs whatever it commits."""
    database = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        mode = _pragma(database, "journal_mode = DELETE")
        database.execute("PRAGMA synchronous = EXTRA")  # the removal of the journal, which is the commit, included
        database.execute("PRAGMA fullfsync = ON")  # macOS: past the disk's own cache
        if mode != "delete" or _pragma(database, "synchronous") != 3:
            raise sqlite3.OperationalError("SQLite does not sync as it was told")
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
