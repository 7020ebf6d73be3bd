"""Several processes and several runs that use one ledger at once."""

import fcntl
import multiprocessing
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import LedgerError
from fedbnsl_client.budget import ledger_lock
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.ledger_lock import filesystem_of
from fedbnsl_client.budget.payments import Request
from ledgers import filled, ledger, path, request, reserve
from private_site import units_spent

__all__ = ["filled", "ledger", "path"]  # fixtures

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


GROWING = """
import pathlib, sys
import numpy as np
from fedbnsl.errors import BudgetExhaustedError, LedgerError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap

def table(n):
    return np.outer(np.arange(n), [1.0, 2.0])

path, run = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with Ledger.open(path) as ledger:
    print("open", flush=True)
    sys.stdin.readline()  # both begin at once
    ledger.payments.take_run(run)
    for t in range(0, 30, 2):
        n = ledger.registrations.find("b").n_samples + 3
        try:
            ledger.registrations.register("b", ("x", "y"), table(n), grows=True)
            print("grown", n)
        except LedgerError as error:  # the other process has added more rows meanwhile
            print("behind", str(error).replace(chr(10), " "))
        known = ledger.registrations.find("b")
        for number, blocks in ((t, known.numbers[-1:]), (t + 1, known.numbers[-3:])):
            request = Request("b", run, number, "site", blocks)
            try:
                ledger.payments.reserve(request, Payment(7, {}), Cap(30, 30))
            except BudgetExhaustedError:
                print("exhausted")
                continue
            ledger.payments.store(request, b"%d" % number)
            print("paid", number, *blocks)
"""


@pytest.mark.long
def test_two_processes_that_grow_a_table_and_pay_at_once_overspend_and_lose_nothing(ledger, path):
    ledger.registrations.register("b", ("x", "y"), np.outer(np.arange(3), [1.0, 2.0]), other_records=True)
    both = [
        subprocess.Popen(
            [sys.executable, "-c", GROWING, path, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for run in (1, 2)
    ]
    assert [one.stdout.readline() for one in both] == ["open\n"] * 2
    for one in both:
        one.stdin.write("go\n")
        one.stdin.flush()
    said = [[line.split() for line in one.communicate(timeout=300)[0].splitlines()] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    spent: Counter[int] = Counter()
    for run, lines in enumerate(said, start=1):
        for _, number, *blocks in (words for words in lines if words[0] == "paid"):
            spent.update(dict.fromkeys(map(int, blocks), 7))
            asked = Request("b", run, int(number), "site")
            assert ledger.payments.stored(asked) == number.encode(), "what was paid for is kept"
    known = ledger.registrations.find("b")
    assert known.n_samples == max(int(words[1]) for lines in said for words in lines if words[0] == "grown")
    assert {block.n_samples for block in known.blocks} == {3}
    for block in known.blocks:
        of_block = ledger.payments.spending("b", blocks=[block.number]).units
        assert of_block == spent[block.number] <= 30, "every payment counts once, for the blocks that it names"
    assert any(words[0] == "exhausted" for lines in said for words in lines), "some blocks could pay no more"
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
