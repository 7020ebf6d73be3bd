"""A process dies at any moment while its table grows and its blocks pay: the ledger opens, and no record loses more."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Request

KILLS = 120
CAP = 30
PRICE = 7
NEW_ROWS = 3  # of each month
NAMES = ("x", "y")

# Its lines are the number of the next round. A child registers the table of the next month, pays for the last block and
# for all of them, stores both answers, and so on until it is killed. It says what it has done, with the records.
NURSERY = """
import os, sys
from pathlib import Path
import numpy as np
from fedbnsl.errors import BudgetExhaustedError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.spending import Cap
from fedbnsl_client.budget.payments import Payment, Request

NEW_ROWS, PRICE, CAP = map(int, sys.argv[2:])

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def live(path, number):
    with Ledger.open(path) as ledger:
        while True:
            known = ledger.registrations.find("a")
            n = known.n_samples + NEW_ROWS
            X = np.outer(np.arange(n), [1.0, 2.0])[::-1]
            ledger.registrations.register("a", ("x", "y"), X, grows=True)
            say("grown", n)
            known = ledger.registrations.find("a")
            for blocks in (known.numbers[-1:], known.numbers[-3:-1], known.numbers, ()):
                request = Request("a", 1, number, "north", blocks)
                rows = X[ledger.registrations.rows_of(known.of_blocks(blocks), ("x", "y"), X), 0].astype(int)
                say("asked", number, *blocks)
                try:
                    ledger.payments.reserve(request, Payment(PRICE, {}), Cap(CAP, CAP))
                except BudgetExhaustedError:
                    say("exhausted")
                    continue
                say("reserved", number, ",".join(map(str, rows)))
                ledger.payments.store(request, number.to_bytes(8))
                say("stored", number)
                number += 1

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            live(Path(sys.argv[1]), int(line))
        except BaseException as error:
            say("failed", type(error).__name__, error)
        os._exit(1)
    say("born", child)
    os.waitpid(child, 0)
    say("dead")
"""


def table(n: int) -> Matrix:
    return np.outer(np.arange(n), [1.0, 2.0])


def life_of_a_child(process: "subprocess.Popen[str]", number: int, steps: int, seconds: float) -> list[list[str]]:
    """Let a child begin with a round, take so many steps and live so much longer; kill it, return what it said."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    lines: list[list[str]] = []
    child = 0
    while not child or len(lines) < steps:
        words = process.stdout.readline().split()
        assert words, "the nursery died"
        if words[0] == "born":
            child = int(words[1])
        else:
            lines.append(words)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    while (words := process.stdout.readline().split()) != ["dead"]:
        lines.append(words)
    assert not [words for words in lines if words[0] == "failed"], lines
    return lines


@pytest.mark.audit
@pytest.mark.timeout(900)
def test_processes_killed_while_a_table_grows_and_its_blocks_pay_overspend_no_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", NAMES, table(NEW_ROWS))
    rng = random.Random(3)
    number, n_rows, n_entries = 1, NEW_ROWS, 0
    lost: Counter[int] = Counter()  # units that each record has lost at least, as the children said
    said: Counter[str] = Counter()
    left_a_journal = grown_unsaid = 0
    command = [sys.executable, "-c", NURSERY, str(path), str(NEW_ROWS), str(PRICE), str(CAP)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(KILLS):
                stored, told = 0, n_rows
                for words in life_of_a_child(process, number, rng.randrange(12), rng.uniform(0.0, 0.02)):
                    said[words[0]] += 1
                    if words[0] == "grown":
                        told = int(words[1])
                    elif words[0] == "reserved":
                        lost.update(dict.fromkeys(map(int, words[2].split(",")), PRICE))
                    elif words[0] == "stored":
                        stored = int(words[1])
                left_a_journal += path.with_name("ledger.db-journal").exists()
                with Ledger.open(path) as ledger:  # which verifies the chain, the tags and the answers
                    known = ledger.registrations.find("a")
                    assert known is not None
                    n_rows = known.n_samples
                    assert n_rows in (told, told + NEW_ROWS)
                    grown_unsaid += n_rows > told
                    ledger.registrations.check_table("a", NAMES, table(n_rows))
                    for block in known.blocks:
                        assert block.n_samples == NEW_ROWS
                        rows = ledger.registrations.rows_of(known.of_blocks([block.number]), NAMES, table(n_rows))
                        spent = ledger.payments.spending("a", blocks=[block.number]).units
                        assert max(lost[int(row)] for row in np.flatnonzero(rows)) <= spent <= CAP
                    if stored:
                        assert ledger.payments.stored(Request("a", 1, stored, "north")) == stored.to_bytes(8)
                    entries = ledger.entries()
                    assert len(entries) >= n_entries
                    n_entries = len(entries)
                    kinds = Counter(entry.kind for entry in entries)
                    assert ledger.mark.spent.get("a", 0) == PRICE * kinds["reserve"]
                    assert kinds["reserve"] >= max(kinds["store"], said["reserved"])
                    # Never ask for a round again whose payment may be open: its blocks are those of another life.
                    number = 1 + max((one.content["round"] for one in entries if one.kind == "reserve"), default=0)
        finally:
            assert process.stdin is not None
            process.stdin.close()
    # The test did test something: some kills fell into a commit, or between a growth and what was said of it, whatever
    # the disk takes; answers were stored; and some blocks could pay no more.
    assert left_a_journal + grown_unsaid > 0
    assert kinds["reserve"] >= kinds["store"] > 0
    assert said["exhausted"] > 0
