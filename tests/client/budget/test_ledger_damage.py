"""Tampering with a ledger is found, and a full disk makes it neither pay too little nor answer twice."""

import errno
import hashlib
import json
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fedbnsl.errors import LedgerError
from fedbnsl_client.budget.ledger import Ledger
from ledgers import filled, ledger, path, request, reserve
from private_site import units_spent

__all__ = ["filled", "ledger", "path"]  # fixtures


@contextmanager
def tampering(path: Path) -> Iterator[sqlite3.Connection]:
    """A raw connection without the triggers, which are back in place afterwards."""
    with closing(sqlite3.connect(path)) as raw, raw:
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        assert len(triggers) == 6
        for name, _ in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        yield raw
        for _, sql in triggers:
            raw.execute(sql)


TAMPERINGS = [
    ("UPDATE entries SET content = replace(content, '\"units\":10', '\"units\":1') WHERE number = 4", "entry 4 is not"),
    ("UPDATE entries SET content = content || ' ' WHERE number = 1", "entry 1 is not"),
    ("UPDATE entries SET link = zeroblob(32) WHERE number = 9", "entry 9 is not"),
    ("UPDATE entries SET link = (SELECT link FROM entries WHERE number = 2) WHERE number = 3", "entry 3 is not"),
    ("DELETE FROM entries WHERE number = 5", "entry 5 is missing"),
    ("DELETE FROM entries WHERE number = 1", "entry 1 is missing"),
    ("DELETE FROM entries WHERE number = 9", "entry 9 is missing"),
    ("DELETE FROM entries", "entry 1 is missing"),
    ("INSERT INTO entries (content, link) SELECT content, link FROM entries WHERE number = 4", "entry 10 is not"),
    ("UPDATE outbox SET payload = x'00' WHERE number = 7", "payload of entry 7"),
    ("UPDATE outbox SET payload = CAST(payload AS TEXT) || '!' WHERE number = 7", "payload of entry 7"),
    ("DELETE FROM outbox WHERE number = 3", "payload of entry 3"),
    ("INSERT INTO outbox VALUES (2, x'00')", "payload for entry 2"),
    ("UPDATE origin SET key = zeroblob(32)", "entry 1 is not"),
    ("UPDATE origin SET ledger_id = zeroblob(16)", "entry 1 is not"),
]


@pytest.mark.parametrize(("sql", "said"), TAMPERINGS)
@pytest.mark.long
def test_a_changed_or_missing_row_is_found_and_named(filled, sql, said):
    with tampering(filled) as raw:
        assert raw.execute(sql).rowcount >= 1
    with pytest.raises(LedgerError, match=said):
        Ledger.open(filled)


def test_verify_finds_what_changed_under_an_open_ledger(filled):
    with Ledger.open(filled) as ledger:
        ledger.verify()
        with tampering(filled) as raw:
            raw.execute("UPDATE outbox SET payload = x'00' WHERE number = 5")
        with pytest.raises(LedgerError, match="payload of entry 5"):
            ledger.verify()
        with pytest.raises(LedgerError, match="payload of entry 5"):
            ledger.payments.stored(request(2))
        assert ledger.payments.stored(request(1)) == b"answer 1"


def test_sums_that_are_not_those_of_the_entries_are_found(filled, monkeypatch):
    with Ledger.open(filled) as ledger:
        monkeypatch.setattr(ledger._file, "spending", lambda: {"a": 39})
        with pytest.raises(LedgerError, match="sums"):
            ledger.verify()


def test_a_chain_recomputed_from_the_description_is_the_one_written(filled):
    with closing(sqlite3.connect(filled)) as raw:
        ledger_id, key, seed = raw.execute("SELECT ledger_id, key, seed FROM origin").fetchone()
        rows = raw.execute("SELECT number, content, link FROM entries ORDER BY number").fetchall()
    link = hashlib.sha256(b"fedbnsl.ledger/1\0" + ledger_id + key + seed).digest()
    for number, content, written in rows:
        text = json.dumps(json.loads(content), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert text == content, "canonical"
        link = hashlib.sha256(link + number.to_bytes(8, "little") + text.encode()).digest()
        assert link == written
    with Ledger.open(filled) as ledger:
        assert ledger.mark.link == link.hex()
        assert ledger.mark.n_entries == len(rows) == 9


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE entries SET content = content",
        "DELETE FROM entries WHERE number = 9",
        "REPLACE INTO entries (number, content, link) SELECT number, content, link FROM entries WHERE number = 9",
        "INSERT INTO entries (number, content, link) SELECT 20, content, link FROM entries WHERE number = 4",
        "UPDATE outbox SET payload = payload",
        "DELETE FROM outbox",
        "REPLACE INTO outbox SELECT * FROM outbox WHERE number = 3",
    ],
)
def test_the_file_itself_refuses_to_change_or_lose_a_row(filled, sql):
    before = filled.read_bytes()
    with closing(sqlite3.connect(filled)) as raw, raw, pytest.raises(sqlite3.IntegrityError):
        raw.execute(sql)
    assert filled.read_bytes() == before


# ---- a full disk -----------------------------------------------------------------------------------------------


@contextmanager
def pages_left(ledger: Ledger, path: Path, n_pages: int) -> Iterator[None]:
    """SQLite's own end of the disk: "database or disk is full"."""
    database = ledger._file._database
    database.execute(f"PRAGMA max_page_count = {path.stat().st_size // 4096 + n_pages}")
    yield
    database.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def files_end_at(ledger: Ledger, path: Path, n_pages: int) -> Iterator[None]:
    """The system's: a write beyond the limit fails in the middle of a commit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4096 * n_pages, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("n_pages", [0, 1, 2, 5, 11, 13])
@pytest.mark.parametrize(("short_of", "said"), [(pages_left, "full"), (files_end_at, "disk I/O error|full")])
@pytest.mark.long
def test_a_full_disk_is_said_loses_nothing_and_overspends_nothing(filled, short_of, said, n_pages):
    reserved, kept = 4, {k: b"answer %d" % k for k in range(1, 5)}

    def until_full(ledger: Ledger) -> None:
        nonlocal reserved
        for round_ in range(5, 30):
            payload = os.urandom(9000)
            reserve(ledger, request(round_), cap_units=100)
            reserved += 1
            ledger.payments.store(request(round_), payload)
            kept[round_] = payload

    with Ledger.open(filled) as ledger:
        with short_of(ledger, filled, n_pages), pytest.raises(LedgerError, match=said):
            until_full(ledger)
        ledger.verify()
        assert units_spent(ledger, "a") == 10 * reserved <= 100
        round_ = max(kept) + 1
        reserve(ledger, request(round_), cap_units=1000)  # there is room again
        ledger.payments.store(request(round_), b"room")
    with Ledger.open(filled) as ledger:
        assert units_spent(ledger, "a") == 10 * (reserved + 1)
        assert {k: ledger.payments.stored(request(k)) for k in kept} == kept
        assert ledger.payments.stored(request(round_)) == b"room"


def test_a_ledger_that_cannot_be_written_whole_is_not_made(path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(LedgerError, match="cannot be made"):
            Ledger.create(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db.lock"]
    Ledger.create(path).close()


def test_the_limit_on_files_is_what_the_test_takes_it_for(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            (tmp_path / "file").write_bytes(bytes(200))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
