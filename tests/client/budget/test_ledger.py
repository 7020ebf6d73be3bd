"""A site's ledger: it never forgets, never gives back, never answers one request with two draws of noise."""

import hashlib
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.errors import LedgerError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.data.fingerprint import fingerprint
from ledgers import NAMES, OTHER, RUN, TABLE, answer, filled, ledger, path, request, reserve
from private_site import units_spent

__all__ = ["filled", "ledger", "path"]  # fixtures


def test_a_ledger_is_readable_by_its_owner_alone_and_leaves_no_unfinished_file(path):
    before = os.umask(0)
    try:
        Ledger.create(path).close()
    finally:
        os.umask(before)
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {
        "ledger.db": 0o600,
        "ledger.db.lock": 0o600,
    }


@pytest.mark.parametrize("content", [b"", b"something of somebody"])
def test_a_ledger_is_not_made_over_a_file(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="never overwritten"):
        Ledger.create(path)
    assert path.read_bytes() == content


def test_a_ledger_is_not_made_where_a_lost_one_left_its_journal(path):
    path.with_name("ledger.db-journal").write_bytes(b"pages of the lost one")
    with pytest.raises(LedgerError, match="journal exists already"):
        Ledger.create(path)


def test_what_a_creation_that_was_cut_short_left_is_in_nobodys_way(path):
    path.with_name("ledger.db.new").write_bytes(b"half of a ledger")
    Ledger.create(path).close()
    assert not path.with_name("ledger.db.new").exists()


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(LedgerError, match="No such file or directory"):
        Ledger.create(tmp_path / "missing" / "ledger.db")


def test_a_missing_ledger_is_refused_and_not_made(path):
    with pytest.raises(LedgerError, match="restore it"):
        Ledger.open(path)
    assert list(path.parent.iterdir()) == []


def test_a_ledger_that_vanishes_while_it_is_opened_is_not_made(path, monkeypatch):
    monkeypatch.setattr(os.path, "isfile", lambda _: True)
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger.open(path)
    assert not path.exists()


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(1, size // 4096):  # the first page holds the schema
            file.seek(page * 4096 + 2000)
            file.write(b"\xa5" * 500)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def replaced_by_text(path: Path) -> None:
    path.write_text("not a database, but longer than a header of one would be: " + "x" * 4096)


def of_a_later_format(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 5")


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY)")


def without_its_key(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("DELETE FROM origin")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_short, "malformed|damaged|not a database"),
        (overwritten, "malformed|damaged|entry"),
        (emptied, "not a ledger of format 2"),
        (replaced_by_text, "file is not a database"),
        (of_a_later_format, "not a ledger of format 2"),
        (of_another_program, "not a ledger of format 2"),
        (without_its_key, "lost its id and key"),
    ],
)
def test_a_damaged_ledger_or_another_file_is_refused_and_the_lock_let_go(filled, damage, said):
    good = filled.read_bytes()
    damage(filled)
    with pytest.raises(LedgerError, match=said):
        Ledger.open(filled)
    filled.write_bytes(good)
    Ledger.open(filled).close()


def test_everything_is_there_after_reopening(path):
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", NAMES, TABLE)
        ledger.approvals.approve(bytes(32), "first plan")
        answer(ledger, 1, bytes(range(256)))
        head, entries = ledger.payments.head("a"), ledger.entries()
    with Ledger.open(path) as ledger:
        assert ledger.payments.head("a") == head
        assert ledger.entries() == entries
        assert ledger.payments.stored(request(1)) == bytes(range(256))
        assert units_spent(ledger, "a") == 10
        ledger.registrations.check_table("a", NAMES, TABLE)
    with pytest.raises(LedgerError, match="closed"):
        units_spent(ledger, "a")


def test_commits_are_synced_as_hard_as_sqlite_can(ledger):
    database = ledger._file._database
    assert database.execute("PRAGMA synchronous").fetchone() == (3,)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def known(ledger: Ledger) -> list[tuple[str, tuple[str, ...], int]]:
    return [(one.dataset, one.variables, one.n_samples) for one in ledger.registrations.all()]


def test_the_same_table_in_another_order_is_the_same_dataset(ledger):
    order = np.random.default_rng(1).permutation(30)
    ledger.registrations.register("a", ("weight", "age", "dose"), TABLE[order][:, [2, 0, 1]])
    ledger.registrations.check_table("a", ("dose", "weight", "age"), np.asfortranarray(TABLE[::-1][:, [1, 2, 0]]))
    assert ledger.mark.n_entries == 1
    assert known(ledger) == [("a", NAMES, 30)]


def one_ulp(X: Matrix) -> Matrix:
    X[4, 1] = np.nextafter(X[4, 1], np.inf)
    return X


def two_values_exchanged(X: Matrix) -> Matrix:
    X[[3, 4], 1] = X[[4, 3], 1]
    return X


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (NAMES, one_ulp),
        (NAMES, two_values_exchanged),
        (NAMES, lambda X: X[:-1]),
        (NAMES, lambda X: np.vstack([X, X[:1]])),
        (("age", "dose", "height"), lambda X: X),
        (("dose", "age", "weight"), lambda X: X),
        (NAMES[:2], lambda X: X[:, :2]),
    ],
)
def test_a_known_id_with_another_content_is_refused_unless_it_supersedes(ledger, names, change: Callable):
    changed = change(TABLE.copy())
    for attempt in (ledger.registrations.register, ledger.registrations.check_table):
        with pytest.raises(LedgerError, match="not the one registered"):
            attempt("a", names, changed)
    assert ledger.mark.n_entries == 1
    reserve(ledger, request(1))
    ledger.registrations.register("a", names, changed, supersedes=True)
    ledger.registrations.check_table("a", names, changed)
    assert known(ledger) == [("a", names, len(changed))]
    assert units_spent(ledger, "a") == 10, "a new content is no new budget"
    with pytest.raises(LedgerError, match="not the one registered"):
        ledger.registrations.check_table("a", NAMES, TABLE)


def test_a_content_that_was_superseded_is_still_known_under_its_id(ledger):
    ledger.registrations.register("a", NAMES, OTHER, supersedes=True)
    with pytest.raises(LedgerError, match="registered as 'a'"):
        ledger.registrations.register("b", NAMES, TABLE)
    ledger.registrations.register("b", NAMES, TABLE + 2)
    ledger.registrations.register("a", NAMES, TABLE, supersedes=True)
    assert [entry.content["supersedes"] for entry in ledger.entries()] == [False, True, False, True]
    assert known(ledger) == [("a", NAMES, 30), ("b", NAMES, 30)]


def test_an_unknown_dataset_is_not_checked_and_spends_nothing(ledger):
    assert ledger.registrations.find("b") is None
    with pytest.raises(LedgerError, match="'b' is not registered"):
        ledger.registrations.check_table("b", NAMES, TABLE)
    with pytest.raises(LedgerError, match="'b' is not registered"):
        reserve(ledger, request(1, dataset="b"))
    with pytest.raises(LedgerError, match="'b' is not registered"):
        ledger.payments.note_unprotected("b", RUN, bytes(32))
    assert units_spent(ledger, "b") == 0
    assert len(ledger.entries()) == 1


def test_the_fingerprint_is_told_nowhere(path, caplog):
    said: list[str] = []
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", NAMES, TABLE)
        for dataset, table in (("a", OTHER), ("b", TABLE)):
            with pytest.raises(LedgerError) as caught:
                ledger.registrations.register(dataset, NAMES, table)
            said.append(str(caught.value))
        public = {name: getattr(ledger, name) for name in dir(ledger) if not name.startswith("_")}
        shown = repr(
            [
                public,
                ledger.entries(),
                ledger.payments.head("a"),
                ledger.mark,
                ledger.registrations.all(),
                ledger,
                said,
                caplog.text,
            ]
        )
    with closing(sqlite3.connect(path)) as raw:
        (code,) = raw.execute("SELECT json_extract(content, '$.fingerprint') FROM entries").fetchone()
        key, seed = raw.execute("SELECT key, seed FROM origin").fetchone()
    kind, digits = code.split(":")
    assert (kind, len(digits)) == ("records", 64), "it is in the file"
    for secret in (bytes.fromhex(digits), key, seed):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert "fingerprint" not in shown.replace(str(path.parent), "")


def test_two_ledgers_with_the_same_history_have_nothing_public_in_common(tmp_path):
    heads = []
    for name in ("one.db", "two.db"):
        with Ledger.create(tmp_path / name) as ledger:
            empty = ledger.payments.head("a")
            ledger.registrations.register("a", NAMES, TABLE)
            answer(ledger, 1, b"")
            heads += [empty, ledger.payments.head("a")]
    assert len({head.digest for head in heads}) == 4
    assert len({head.ledger_id for head in heads}) == len({head.dataset for head in heads}) == 2
    assert all(len(head.digest) == 32 and len(head.ledger_id) == 16 for head in heads)


def dumb_content(names, X: Matrix) -> tuple:
    """A table as an unordered heap of labelled rows."""
    order = sorted(range(len(names)), key=names.__getitem__)
    rows = sorted(tuple((float(row[k]) + 0.0).hex() for k in order) for row in X)
    return tuple(names[k] for k in order), tuple(rows)


SMALL = st.tuples(st.integers(1, 4), st.integers(1, 3)).flatmap(
    lambda shape: st.tuples(
        st.lists(st.sampled_from(["a", "b", "ab", "é", ""]), min_size=shape[1], max_size=shape[1], unique=True),
        hnp.arrays(np.float64, shape, elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324])),
    )
)


@given(SMALL, SMALL, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
@pytest.mark.long
def test_fingerprints_agree_exactly_where_the_contents_do(one, two, random):
    key = bytes(32)
    (names, X), (other_names, Y) = one, two
    rows, columns = list(range(X.shape[0])), list(range(X.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    shuffled = fingerprint(key, [names[k] for k in columns], X[rows][:, columns])
    assert shuffled == fingerprint(key, names, X)
    same = dumb_content(names, X) == dumb_content(other_names, Y)
    assert (fingerprint(key, names, X) == fingerprint(key, other_names, Y)) == same
    assert fingerprint(b"k" * 32, names, X) != fingerprint(key, names, X)


@pytest.mark.parametrize("names", [("age", "dose"), ("age", "dose", "dose"), (*NAMES, "more")])
def test_names_that_do_not_fit_the_array_are_a_bug_and_enter_nothing(ledger, names):
    with pytest.raises(ValueError, match="names"):
        ledger.registrations.register("c", names, OTHER)
    assert ledger.mark.n_entries == 1


# ---- plans -----------------------------------------------------------------------------------------------------


def test_an_approved_plan_is_known_once_entered_and_entered_once(ledger):
    digest = hashlib.sha256(b"plan").digest()
    assert not ledger.approvals.current()
    ledger.approvals.approve(digest, "trial é")
    ledger.approvals.approve(digest, "again")
    assert [*ledger.approvals.current()] == [digest.hex()]
    (entry,) = [entry for entry in ledger.entries() if entry.kind == "approve"]
    assert entry.content == {"digest": digest.hex(), "name": "trial é"}
