"""The tables of a ledger's file: rows can be added, never changed or deleted."""

APPLICATION_ID = 0x6662_6E6C  # "fbnl": tells a ledger from any other SQLite file
BACKUP_ID = 0x6662_6E63  # "fbnc": a copy that was made as a backup, which no fedbnsl opens as if it were the ledger
VERSION = 2  # 1: datasets were registered without fingerprints of their columns; it is read and becomes 2
WITHDRAWN = 3  # from the first approval on that was taken back: an older fedbnsl would not heed that
SEALED = 4  # of one that was sealed, which an older fedbnsl would not heed either

# The chain hashes `content`; the other columns are generated from it and cannot differ from it.
# AUTOINCREMENT remembers the last number given, so that missing entries at the end are noticed.
# Runs are unsigned 64-bit numbers, which SQLite lacks: they are kept as 16 hexadecimal digits.
# REPLACE deletes without a DELETE trigger: rows may only be added at the end, each request's payload once.
SCHEMA = """
BEGIN;
CREATE TABLE origin (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    ledger_id BLOB NOT NULL,
    key BLOB NOT NULL,
    seed BLOB NOT NULL
);
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    content TEXT NOT NULL,
    link BLOB NOT NULL,
    kind TEXT AS (json_extract(content, '$.kind')),
    dataset TEXT AS (json_extract(content, '$.dataset')),
    run TEXT AS (json_extract(content, '$.run')),
    round INTEGER AS (json_extract(content, '$.round')),
    site TEXT AS (json_extract(content, '$.site')),
    units INTEGER AS (json_extract(content, '$.units'))
);
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY REFERENCES entries (number),
    payload BLOB NOT NULL
);
CREATE INDEX entries_by_kind ON entries (kind, dataset, run, units);
CREATE INDEX entries_by_request ON entries (run, round, site, kind, dataset);
CREATE UNIQUE INDEX stored_once ON entries (run, round, site) WHERE kind = 'store';
CREATE TRIGGER entries_stay BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries never change'); END;
CREATE TRIGGER entries_remain BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries never go'); END;
CREATE TRIGGER entries_follow BEFORE INSERT ON entries
WHEN NEW.number IS NOT (SELECT COALESCE(MAX(number), 0) + 1 FROM entries)
BEGIN SELECT RAISE(ABORT, 'an entry follows the last one'); END;
CREATE TRIGGER outbox_stays BEFORE UPDATE ON outbox BEGIN SELECT RAISE(ABORT, 'payloads never change'); END;
CREATE TRIGGER outbox_remains BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'payloads never go'); END;
CREATE TRIGGER outbox_follows BEFORE INSERT ON outbox
WHEN EXISTS (SELECT 1 FROM outbox WHERE number = NEW.number)
BEGIN SELECT RAISE(ABORT, 'a payload is stored once'); END;
PRAGMA application_id = 1717726828;
PRAGMA user_version = 2;
COMMIT;
"""
