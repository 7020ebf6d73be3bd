"""A site's process dies at any moment: what it told anybody is in the ledger, and the cap holds.

A nursery imports the ledger once and forks the processes to be killed, so that each costs milliseconds.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Request

KILLS = 50
PRICE = 7
NEW_ROUNDS = 3  # that the cap leaves to each process
RUN = 2**63 + 5

# Its lines are: cap; a child answers rounds until the cap stops it, then waits to be killed. Every round before is
# asked for again, as a coordinator that restarted would.
NURSERY = """
import os, signal, sys
from pathlib import Path
from fedbnsl.errors import BudgetExhaustedError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.spending import Cap
from fedbnsl_client.budget.payments import Payment, Request

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def answer_rounds(path, run, price, cap):
    with Ledger.open(path) as ledger:
        for round_ in range(1, 10**6):
            request = Request("a", run, round_, "north")
            payload = ledger.payments.stored(request)
            if payload is None:
                try:
                    ledger.payments.reserve(request, Payment(price, {"K": 3}), Cap(cap, 0))
                except BudgetExhaustedError:
                    say("exhausted", round_)
                    signal.pause()
                say("reserved", round_)
                payload = os.urandom(24)
                ledger.payments.store(request, payload)
                say("stored", round_)
            say("sent", round_, payload.hex())

path, run, price = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            answer_rounds(path, run, price, int(line))
        except BaseException as error:
            say("failed", type(error).__name__, error)
        os._exit(1)
    say("born", child)
    _, status = os.waitpid(child, 0)
    say("dead", os.WTERMSIG(status) if os.WIFSIGNALED(status) else "by itself")
"""


@contextmanager
def nursery(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", NURSERY, str(path), str(RUN), str(PRICE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def life_of_a_child(
    process: subprocess.Popen[str], cap: int, *, steps: int | None, seconds: float
) -> list[tuple[str, ...]]:
    """Let a child take so many new steps, or only be born, and live so much longer; kill it, return what it said."""
    assert process.stdin is not None
    process.stdin.write(f"{cap}\n")
    process.stdin.flush()
    lines: list[tuple[str, ...]] = []

    def read_until(enough: Callable[[Counter[str]], bool]) -> None:
        assert process.stdout is not None
        while not enough(Counter(line[0] for line in lines)):
            lines.append(tuple(process.stdout.readline().split()))
            assert lines[-1], "the nursery died"
            assert lines[-1][0] != "failed", lines[-1]

    read_until(lambda said: said["born"] == 1)
    if steps is not None:
        read_until(lambda said: said["reserved"] + said["stored"] >= steps or said["exhausted"] == 1)
    (child,) = [int(line[1]) for line in lines if line[0] == "born"]
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    read_until(lambda said: said["dead"] == 1)
    assert lines.pop() == ("dead", str(int(signal.SIGKILL)))
    return lines


def seconds_a_step(path: Path) -> float:
    """How long a commit takes on this disk, so that kills fall into all parts of one."""
    with Ledger.create(path) as ledger:
        before = time.perf_counter()
        for k in range(5):
            ledger.approvals.approve(bytes([k]), "plan")
        return (time.perf_counter() - before) / 5


@pytest.mark.timeout(120)
def test_fifty_killed_processes_lose_no_payload_and_spend_no_more_than_the_cap(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", ("x", "y"), np.random.default_rng(0).normal(size=(25, 2)))
        last = ledger.mark
    step_s = seconds_a_step(tmp_path / "other.db")
    rng = random.Random(11)
    sent: dict[int, str] = {}
    said: Counter[str] = Counter()
    left_a_journal = 0
    with nursery(path) as process:
        for _ in range(KILLS):
            cap = last.spent.get("a", 0) + NEW_ROUNDS * PRICE
            steps = rng.choice([None, *range(2 * NEW_ROUNDS + 2)])
            seconds = rng.uniform(0, 1.5 * step_s)
            for word, *rest in life_of_a_child(process, cap, steps=steps, seconds=seconds):
                said[word] += 1
                if word == "sent":
                    round_, payload = int(rest[0]), rest[1]
                    assert sent.setdefault(round_, payload) == payload, "one request, one draw of noise"
            left_a_journal += path.with_name("ledger.db-journal").exists()
            with Ledger.open(path) as ledger:  # which verifies the chain
                head, entries = ledger.mark, ledger.entries()
                for round_, payload in sent.items():
                    stored = ledger.payments.stored(Request("a", RUN, round_, "north"))
                    assert stored is not None
                    assert stored.hex() == payload
            kinds = Counter(entry.kind for entry in entries)
            stores = Counter(entry.content["round"] for entry in entries if entry.kind == "store")
            assert set(stores.values()) <= {1}
            assert set(sent) <= set(stores)
            assert head.spent.get("a", 0) == PRICE * kinds["reserve"] <= cap
            assert kinds["reserve"] >= max(kinds["store"], said["reserved"])
            assert kinds["store"] >= said["stored"]
            assert head.n_entries == sum(kinds.values()) >= last.n_entries
            assert last.spent.get("a", 0) <= head.spent.get("a", 0)
            last = head
    # The test did test something: rounds were answered and asked for again, kills fell into commits and between reserve
    # and store, and the cap stopped a process that would have gone on.
    assert left_a_journal > 0
    assert kinds["reserve"] > kinds["store"] > 0, kinds
    assert said["sent"] > len(sent) > 0
    assert said["exhausted"] > 0
