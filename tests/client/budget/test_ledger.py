"""A site's ledger: it never forgets, never gives back, never answers one request with two draws of noise."""

import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedbnsl.errors import BudgetExhaustedError, LedgerError
from fedbnsl.privacy.zcdp import UNITS_PER_ZCDP
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget import ledger_lock
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.ledger_lock import filesystem_of
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.registrations import Registration
from fedbnsl_client.budget.spending import LARGEST_CAP_UNITS, Cap, Spending
from fedbnsl_client.data.fingerprint import fingerprint
from private_site import units_spent

RUN = 2**64 - 1  # as large as a run's number can be
NAMES = ("age", "dose", "weight")
TABLE = np.random.default_rng(7).normal(size=(30, 3))
OTHER = TABLE + np.eye(30, 3)
RECIPE = {"T": 10, "K": 3, "C": 0.1 + 0.2, "bounds": [1.0, 2.5], "version": "0.2"}


def request(round_: int, *, run: int = RUN, dataset: str = "a", site: str = "north") -> Request:
    return Request(dataset, run, round_, site)


def reserve(ledger: Ledger, asked: Request, units: int = 10, cap_units: int = 1000) -> None:
    ledger.payments.reserve(asked, Payment(units, RECIPE), Cap(cap_units, 0))


def answer(ledger: Ledger, round_: int, payload: bytes) -> None:
    reserve(ledger, request(round_))
    ledger.payments.store(request(round_), payload)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path) as made:
        made.registrations.register("a", NAMES, TABLE)
        yield made


@pytest.fixture
def filled(path: Path) -> Path:
    """A closed ledger: 1 register, then reserve and store for rounds 1 to 4."""
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", NAMES, TABLE)
        for round_ in range(1, 5):
            answer(ledger, round_, b"answer %d" % round_)
    return path


# ---- the file --------------------------------------------------------------------------------------------------


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
        raw.execute("PRAGMA user_version = 4")


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


# ---- several at once -------------------------------------------------------------------------------------------------

PAYING = """
import pathlib, sys
from fedbnsl.errors import BudgetExhaustedError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap
path, run, n = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with Ledger.open(path) as ledger:
    ledger.payments.take_run(run)
    for t in range(n):
        request = Request("a", run, t, "site")
        try:
            ledger.payments.reserve(request, Payment(10, {"round": t}), Cap(500, 0))
        except BudgetExhaustedError:
            break
        ledger.payments.store(request, b"noise of run %d in round %d" % (run, t))
        print(t, flush=True)
"""


def paying(path: Path, run: int, n: int) -> subprocess.Popen[str]:
    """A process that pays n rounds of a run, 10 units each, as long as 500 units hold them."""
    return subprocess.Popen([sys.executable, "-c", PAYING, path, str(run), str(n)], stdout=subprocess.PIPE, text=True)


def test_the_spending_of_two_runs_at_once_adds_up_under_the_other_name_of_a_ledger_too(ledger, path):
    other_name = path.with_name("link.db")
    other_name.symlink_to(path)
    before = units_spent(ledger, "a")
    both = [paying(path, 1, 15), paying(other_name, 2, 15)]
    assert [len(one.communicate(timeout=120)[0].split()) for one in both] == [15, 15]
    assert units_spent(ledger, "a") == before + 2 * 150
    ledger.verify()


@pytest.mark.long
def test_two_runs_at_once_stay_below_the_cap_together(ledger, path):
    both = [paying(path, 1, 40), paying(path, 2, 40)]
    paid = [len(one.communicate(timeout=120)[0].split()) for one in both]
    assert sum(paid) < 80
    assert 490 < units_spent(ledger, "a") <= 500


@pytest.mark.parametrize("rounds", [1, 4, 9])
@pytest.mark.long
def test_a_process_that_is_killed_leaves_the_ledger_to_the_others(ledger, path, rounds):
    victim = paying(path, 1, 40)
    for _ in range(rounds):
        victim.stdout.readline()
    victim.kill()
    victim.communicate(timeout=60)
    survivor = paying(path, 2, 5)
    assert len(survivor.communicate(timeout=120)[0].split()) == 5
    stored = [t for t in range(40) if ledger.payments.stored(Request("a", 1, t, "site")) is not None]
    assert len(stored) >= rounds, "what was sent was paid for and kept"
    ledger.verify()


def test_one_process_alone_answers_a_run(ledger, path):
    ledger.payments.take_run(7)
    ledger.payments.take_run(7)
    with Ledger.open(path) as other:
        other.payments.take_run(8)
        with pytest.raises(LedgerError, match="another process of this site takes part in run 0000000000000007"):
            other.payments.take_run(7)
        ledger.close()
        other.payments.take_run(7)
    assert not list(path.parent.glob("*.run-*")), "no lock of a run stays behind"


def test_a_ledger_is_not_made_while_another_process_holds_its_name(path):
    with path.with_name("ledger.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="in use"):
            Ledger.create(path)
    Ledger.create(path).close()


def test_a_fork_does_not_own_the_ledger_of_its_parent(ledger):
    def try_it(pipe) -> None:
        try:
            reserve(ledger, request(1))
        except LedgerError as error:
            pipe.send(str(error))
        else:
            pipe.send("reserved")
        ledger.close()

    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    child = context.Process(target=try_it, args=(far,))
    child.start()
    assert near.poll(30)
    assert "opened by another process" in near.recv()
    child.join(30)
    near.close()
    far.close()
    assert units_spent(ledger, "a") == 0


def test_another_program_that_writes_the_file_is_waited_for_and_then_said(ledger, path):
    ledger._file._database.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="database is locked"):
            reserve(ledger, request(1))
        raw.execute("ROLLBACK")
    reserve(ledger, request(1))


MOUNTS = """\
proc /proc proc rw 0 0
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/vdb /home/local xfs rw 0 0
//nas/all /mnt/my\\040share cifs rw 0 0
me@host: /home/local/far fuse.sshfs rw 0 0
/dev/vdc /twice ext4 rw 0 0
server:/b /twice nfs rw 0 0
odd
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/ledger.db", "ext4"),
        ("/proc/ledger.db", "proc"),  # mounted before the root, as a system that starts does
        ("/home/ledger.db", "nfs4"),
        ("/homely/ledger.db", "ext4"),
        ("/home/local/ledger.db", "xfs"),
        ("/home/local/far/x/ledger.db", "fuse.sshfs"),
        ("/mnt/my share/ledger.db", "cifs"),
        ("/mnt/ledger.db", "ext4"),
        ("/twice/ledger.db", "nfs"),
    ],
)
def test_the_deepest_mount_says_where_a_ledger_lies(path, kind):
    assert filesystem_of(Path(path), MOUNTS) == kind


def test_a_path_without_a_mount_lies_nowhere_known():
    assert filesystem_of(Path("/x"), "") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "lustre"])
def test_a_ledger_on_a_network_file_system_is_neither_made_nor_opened(filled, tmp_path, monkeypatch, kind):
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} {kind} rw 0 0\n")
    monkeypatch.setattr(ledger_lock, "_MOUNTS", tmp_path / "mounts")
    for attempt in (lambda: Ledger.open(filled), lambda: Ledger.create(tmp_path / "new.db")):
        with pytest.raises(LedgerError, match=rf"network file system \({kind}\)"):
            attempt()
    assert not (tmp_path / "new.db").exists()


def test_where_there_is_no_table_of_mounts_nothing_is_refused(filled, tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_lock, "_MOUNTS", tmp_path / "missing")
    Ledger.open(filled).close()


# ---- datasets --------------------------------------------------------------------------------------------------


def test_the_same_table_in_another_order_is_the_same_dataset(ledger):
    order = np.random.default_rng(1).permutation(30)
    ledger.registrations.register("a", ("weight", "age", "dose"), TABLE[order][:, [2, 0, 1]])
    ledger.registrations.check_table("a", ("dose", "weight", "age"), np.asfortranarray(TABLE[::-1][:, [1, 2, 0]]))
    assert ledger.mark.n_entries == 1
    assert ledger.registrations.all() == (Registration("a", NAMES, 30),)


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
    assert ledger.registrations.find("a") == Registration("a", names, len(changed))
    assert units_spent(ledger, "a") == 10, "a new content is no new budget"
    with pytest.raises(LedgerError, match="not the one registered"):
        ledger.registrations.check_table("a", NAMES, TABLE)


def test_a_content_that_was_superseded_is_still_known_under_its_id(ledger):
    ledger.registrations.register("a", NAMES, OTHER, supersedes=True)
    with pytest.raises(LedgerError, match="registered as 'a'"):
        ledger.registrations.register("b", NAMES, TABLE)
    ledger.registrations.register("b", NAMES, TABLE + 1)
    ledger.registrations.register("a", NAMES, TABLE, supersedes=True)
    assert [entry.content["supersedes"] for entry in ledger.entries()] == [False, True, False, True]
    assert ledger.registrations.all() == (Registration("a", NAMES, 30), Registration("b", NAMES, 30))


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
    assert len(code) == 64, "it is in the file"
    for secret in (bytes.fromhex(code), key, seed):
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


# ---- spending --------------------------------------------------------------------------------------------------


def test_spending_is_counted_by_dataset_and_by_run(ledger):
    ledger.registrations.register("b", NAMES, OTHER)
    reserve(ledger, request(1), 3)
    reserve(ledger, request(2), 5)
    reserve(ledger, request(1, run=RUN - 1), 7)
    reserve(ledger, request(3, dataset="b"), 11)
    assert [units_spent(ledger, dataset) for dataset in "abc"] == [15, 11, 0]
    assert (units_spent(ledger, "a", RUN), units_spent(ledger, "a", RUN - 1)) == (8, 7)
    assert (units_spent(ledger, "b", RUN), units_spent(ledger, "b", 0)) == (11, 0)
    assert ledger.mark.spent == {"a": 15, "b": 11}


def test_a_federation_is_told_of_its_own_payments_from_one_dataset_and_of_nothing_else(ledger):
    ledger.registrations.register("b", NAMES, OTHER)

    def heads():
        return {(dataset, to): ledger.payments.head(dataset, to) for dataset in "ab" for to in ("", "AA", "BB")}

    assert len({head.dataset for head in heads().values()}) == 6, "what stands for a dataset is another everywhere"
    assert {(head.n_entries, head.spent_units) for head in heads().values()} == {(0, 0)}
    for k, (dataset, to) in enumerate([("a", "AA"), ("b", "AA"), ("a", ""), ("a", "AA"), ("a", "BB")], 1):
        before = heads()
        ledger.payments.reserve(request(k, dataset=dataset), Payment(10, {}, authority=to), Cap(1000, 0))
        ledger.payments.store(request(k, dataset=dataset), b"answer")
        ledger.approvals.approve(bytes([k]), "plan")
        changed = {which for which, head in heads().items() if head != before[which]}
        assert changed == {(dataset, to)}
    told = ledger.payments.head("a", "AA")
    assert (told.n_entries, told.spent_units) == (2, 20)
    assert told.digest != before["a", "BB"].digest


def test_the_cap_can_be_spent_to_the_last_unit_and_no_further(ledger):
    reserve(ledger, request(1), 60, cap_units=100)
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(2), 41, cap_units=100)
    reserve(ledger, request(2), 40, cap_units=100)
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(3), 1, cap_units=100)
    reserve(ledger, request(3), 0, cap_units=100)
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(4), 0, cap_units=99)  # a policy that was lowered
    assert units_spent(ledger, "a") == 100
    assert [entry.kind for entry in ledger.entries()] == ["register", "reserve", "reserve", "reserve"]


def test_an_exhausted_budget_is_told_in_numbers(ledger):
    reserve(ledger, request(1), UNITS_PER_ZCDP // 4, cap_units=UNITS_PER_ZCDP)
    with pytest.raises(BudgetExhaustedError, match=r"'a': spent 0\.25 zCDP, asked 20 more, cap 1\.000000000001$"):
        reserve(ledger, request(2), 20 * UNITS_PER_ZCDP, cap_units=UNITS_PER_ZCDP + 1)


def test_sums_near_the_largest_cap_are_exact(ledger):
    reserve(ledger, request(1), LARGEST_CAP_UNITS - 1, cap_units=LARGEST_CAP_UNITS)
    reserve(ledger, request(2), 1, cap_units=LARGEST_CAP_UNITS)
    assert units_spent(ledger, "a") == LARGEST_CAP_UNITS
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(3), 10**30, cap_units=LARGEST_CAP_UNITS)
    ledger.verify()


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", np.int64(1), None])
def test_a_cost_or_cap_that_is_no_whole_number_is_refused(wrong):
    with pytest.raises(ValueError, match="whole numbers"):
        Payment(wrong, {})
    for caps in ((wrong, 0), (0, wrong)):
        with pytest.raises(ValueError, match="whole number of units"):
            Cap(*caps)


def test_no_cap_lets_sums_grow_beyond_what_the_file_adds_up_exactly():
    Cap(LARGEST_CAP_UNITS, LARGEST_CAP_UNITS)
    for caps in ((LARGEST_CAP_UNITS + 1, 0), (0, LARGEST_CAP_UNITS + 1)):
        with pytest.raises(ValueError, match="at most 1000000000000000000"):
            Cap(*caps)


@pytest.mark.parametrize("wrong", [1, 0, None, "yes"])
def test_a_run_is_counted_by_gaussian_dp_or_is_not(wrong):
    with pytest.raises(ValueError, match="is counted by Gaussian DP or is not"):
        Payment(1, {}, wrong)


@pytest.mark.parametrize("wrong", [{"X": TABLE}, {"scale": float("nan")}, {"x": {1, 2}}, {"x": b""}, {"x": "\udc80"}])
def test_a_recipe_that_cannot_be_written_down_is_refused(ledger, wrong):
    with pytest.raises(LedgerError, match="plain values"):
        ledger.payments.reserve(request(1), Payment(1, wrong), Cap(100, 0))
    assert units_spent(ledger, "a") == 0
    ledger.verify()


def pay(ledger: Ledger, round_: int, units: int, *, gaussian: bool, dataset: str = "a") -> None:
    """With 100 units to spend in all, or 110 if all are for Gaussian releases."""
    asked = request(round_, dataset=dataset)
    ledger.payments.reserve(asked, Payment(units, {}, gaussian), Cap(100, 110))


def test_gaussian_releases_alone_may_spend_more_and_then_nothing_else_may_follow(ledger):
    pay(ledger, 1, 60, gaussian=True)
    pay(ledger, 2, 50, gaussian=True)
    assert ledger.payments.spending("a") == Spending(110, gaussian=True)
    for gaussian in (True, False):
        with pytest.raises(BudgetExhaustedError, match=r"spent 0\.00000000011 zCDP, asked 0\.000000000001 more"):
            pay(ledger, 3, 1, gaussian=gaussian)
    assert [entry.content["gaussian"] for entry in ledger.entries()[1:]] == [True, True]


def test_one_release_that_is_not_gaussian_makes_all_count_as_zcdp(ledger):
    pay(ledger, 1, 60, gaussian=True)
    pay(ledger, 2, 10, gaussian=False)
    assert ledger.payments.spending("a") == Spending(70, gaussian=False)
    with pytest.raises(BudgetExhaustedError, match=r"asked 0\.000000000031 more, cap 0\.0000000001$"):
        pay(ledger, 3, 31, gaussian=True)
    pay(ledger, 3, 30, gaussian=True)


def test_private_steps_after_gaussian_releases_need_room_as_zcdp(ledger):
    pay(ledger, 1, 99, gaussian=True)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, 2, 2, gaussian=False)
    pay(ledger, 2, 0, gaussian=False)  # which releases nothing
    pay(ledger, 3, 11, gaussian=True)


def test_kinds_are_told_by_dataset_and_by_run(ledger):
    ledger.registrations.register("b", NAMES, OTHER)
    pay(ledger, 1, 10, gaussian=True)
    pay(ledger, 2, 10, gaussian=False, dataset="b")
    ledger.payments.reserve(request(3, run=5), Payment(10, {}), Cap(100, 0))
    assert ledger.payments.spending("a", RUN) == Spending(10, gaussian=True)
    assert ledger.payments.spending("a", 5) == Spending(10, gaussian=False)
    assert ledger.payments.spending("a") == Spending(20, gaussian=False)
    assert ledger.payments.spending("b") == Spending(10, gaussian=False)
    assert ledger.payments.spending("c") == Spending(0)


def test_what_an_older_fedbnsl_paid_for_was_not_gaussian(ledger):
    with ledger._file.transaction():
        old = {"dataset": "a", "run": "0" * 16, "round": 1, "site": "north", "units": 10, "recipe": {}, "authority": ""}
        ledger._file.append("reserve", **old)
    ledger.verify()
    assert ledger.payments.spending("a") == Spending(10, gaussian=False)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, 1, 91, gaussian=True)


def test_the_recipe_comes_back_bit_for_bit_and_the_time_is_utc(ledger):
    before = datetime.now(UTC) - timedelta(seconds=1)
    reserve(ledger, request(1), 7)
    entry = ledger.entries()[-1]
    assert (entry.number, entry.kind) == (2, "reserve")
    assert entry.content == {
        "dataset": "a",
        "run": "ffffffffffffffff",
        "round": 1,
        "site": "north",
        "units": 7,
        "gaussian": False,
        "recipe": RECIPE,
        "authority": "",
    }
    assert before <= entry.time <= datetime.now(UTC)
    assert entry.time.utcoffset() == timedelta(0)


def test_a_reservation_without_a_payload_is_paid_again_and_never_given_back(ledger):
    reserve(ledger, request(1), 10, cap_units=25)
    reserve(ledger, request(1), 10, cap_units=25)
    assert units_spent(ledger, "a") == 20
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(1), 10, cap_units=25)
    ledger.payments.store(request(1), b"late")
    assert units_spent(ledger, "a") == 20


def test_an_answered_request_is_not_reserved_again(ledger):
    answer(ledger, 1, b"first")
    with pytest.raises(LedgerError, match="answered already"):
        reserve(ledger, request(1))
    assert units_spent(ledger, "a") == 10
    reserve(ledger, request(1, run=RUN - 1))
    reserve(ledger, request(1, site="south"))
    reserve(ledger, request(2))
    assert units_spent(ledger, "a") == 40


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_belongs_to_the_dataset_that_paid(ledger, answered):
    ledger.registrations.register("b", NAMES, OTHER)
    reserve(ledger, request(1))
    if answered:
        ledger.payments.store(request(1), b"a's")
    other = request(1, dataset="b")
    for attempt in (
        lambda: reserve(ledger, other),
        lambda: ledger.payments.store(other, b"a's"),
        lambda: ledger.payments.stored(other),
    ):
        with pytest.raises(LedgerError, match="reserved for dataset 'a', not 'b'"):
            attempt()
    assert units_spent(ledger, "b") == 0


def test_nothing_is_stored_that_was_not_paid(ledger):
    for unpaid in (request(1), request(2, site="south"), request(2, run=0)):
        with pytest.raises(LedgerError, match="nothing was reserved"):
            ledger.payments.store(unpaid, b"free")
        assert ledger.payments.stored(unpaid) is None
        reserve(ledger, request(2)) if units_spent(ledger, "a") == 0 else None


@pytest.mark.parametrize("payload", [b"", b"\0\xff" * 3, os.urandom(200_000)], ids=len)
def test_the_stored_payload_comes_back_bit_for_bit_and_stays(ledger, payload):
    assert ledger.payments.stored(request(1)) is None
    reserve(ledger, request(1))
    assert ledger.payments.stored(request(1)) is None
    ledger.payments.store(request(1), payload)
    ledger.payments.store(request(1), payload)
    assert ledger.payments.stored(request(1)) == payload
    with pytest.raises(LedgerError, match="another answer already"):
        ledger.payments.store(request(1), payload + b"!")
    assert ledger.payments.stored(request(1)) == payload
    assert [entry.kind for entry in ledger.entries()] == ["register", "reserve", "store"]
    assert ledger.entries()[-1].content["sha256"] == hashlib.sha256(payload).hexdigest()


# ---- tampering -------------------------------------------------------------------------------------------------


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


# ---- any sequence ----------------------------------------------------------------------------------------------

CAP = 100
KEYS = st.builds(Request, st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 3), st.just("north"))


class AnySequence(RuleBasedStateMachine):
    """Reserve, store, copy away, reopen in any order, against a list of what succeeded."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.path = self.folder / "ledger.db"
        self.ledger = Ledger.create(self.path)
        self.ledger.registrations.register("a", NAMES, TABLE)
        self.ledger.registrations.register("b", NAMES, OTHER)
        self.paid: list[tuple[Request, int, bool]] = []
        self.answers: dict[tuple[int, int], tuple[str, bytes]] = {}

    def payer(self, asked: Request) -> str | None:
        return next((r.dataset for r, *_ in self.paid if (r.run, r.round) == (asked.run, asked.round)), None)

    @rule(asked=KEYS, units=st.integers(0, 60), gaussian=st.booleans())
    def reserve(self, asked: Request, units: int, gaussian: bool) -> None:
        allowed = self.payer(asked) in (None, asked.dataset) and (asked.run, asked.round) not in self.answers
        pays = self.within_its_cap([*self.paid, (asked, units, gaussian)], asked.dataset)
        try:
            self.ledger.payments.reserve(asked, Payment(units, RECIPE, gaussian), Cap(CAP, CAP + 40))
        except LedgerError:
            assert not allowed
        except BudgetExhaustedError:
            assert allowed
            assert not pays
        else:
            assert allowed
            assert pays
            self.paid.append((asked, units, gaussian))

    def within_its_cap(self, paid: list[tuple[Request, int, bool]], dataset: str) -> bool:
        kinds = [(units, gaussian) for asked, units, gaussian in paid if asked.dataset == dataset]
        larger = all(gaussian for units, gaussian in kinds if units)
        return sum(units for units, _ in kinds) <= CAP + 40 * larger

    @rule(asked=KEYS, payload=st.sampled_from([b"", b"x", b"y"]))
    def store(self, asked: Request, payload: bytes) -> None:
        key = (asked.run, asked.round)
        allowed = self.payer(asked) == asked.dataset and self.answers.get(key, (asked.dataset, payload))[1] == payload
        try:
            self.ledger.payments.store(asked, payload)
        except LedgerError:
            assert not allowed
        else:
            assert allowed
            self.answers[key] = (asked.dataset, payload)

    @rule()
    def reopen(self) -> None:
        mark = self.ledger.mark
        self.ledger.close()
        self.ledger = Ledger.open(self.path)
        assert self.ledger.mark == mark

    @precondition(lambda self: hasattr(self, "ledger"))
    @invariant()
    def the_file_says_what_happened(self) -> None:
        for dataset in "ab":
            spent = sum(units for asked, units, _ in self.paid if asked.dataset == dataset)
            assert units_spent(self.ledger, dataset) == spent
            assert self.within_its_cap(self.paid, dataset)
        for (run, round_), (dataset, payload) in self.answers.items():
            assert self.ledger.payments.stored(Request(dataset, run, round_, "north")) == payload
        assert self.ledger.mark.n_entries == 2 + len(self.paid) + len(self.answers)

    def teardown(self) -> None:
        with suppress(AttributeError):  # nothing was begun
            self.ledger.verify()
            self.ledger.close()
            shutil.rmtree(self.folder)


@pytest.mark.long
def test_no_sequence_of_calls_overspends_or_answers_twice():
    run_state_machine_as_test(AnySequence, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))
