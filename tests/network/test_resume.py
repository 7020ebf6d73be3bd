"""Coordinators that end in the middle and are started again, while their sites go on calling; each site is a thread."""

import asyncio
import errno
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from command_line import Outcome
from fedbnsl.errors import DivergenceError, InterruptedRunError, QuorumLostError, ResultError, RunAbandonedError
from fedbnsl.events.logs import EventLog
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import Told
from fedbnsl_client.session import Session
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable, PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.algorithm import admm
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.run import coordinator
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.store import operator_commands
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise
from free_port import free_port
from private_site import DATASET, NAMES, ROWS, make_site, private_plan, rows, units_spent, write_table
from taken_part import take_part

SITES = ("a", "b", "c")
D = 5
LONG_S = 40.0
GRAPH_FILES = ("weights.csv", "edges.csv", "graph.graphml", "graph.dot", "dagitty.txt", "lgbn.json")
VARIABLES = synthesise(D, 6, len(SITES), 80, 5, weight_variance=0.05).variables
PLAN = Plan(
    variables=VARIABLES, rounds=4, refit_rounds=2, l1_weight=0.05, join_deadline_s=LONG_S, run_deadline_s=LONG_S
)
TOTAL = PLAN.rounds + PLAN.refit_rounds
CHANGES = PLAN.with_settings(send_tolerance=0.02, value_type="float32")


@pytest.fixture(scope="module")
def tables() -> dict[str, Dataset]:
    drawn = synthesise(D, 6, len(SITES), 80, 5, weight_variance=0.05)
    return {site: Dataset(drawn.variables, X) for site, X in zip(SITES, drawn.tables, strict=True)}


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


class Federation:
    """Sites that call one address, whatever coordinator answers there."""

    def __init__(self, tables: Mapping[str, Dataset], address: str) -> None:
        self.address = address
        self.notices: list[str] = []
        self.told_at_sites: list[str] = []
        self.ends: dict[str, Future[SparseMatrix]] = {}
        self._tables = tables
        self._threads = ThreadPoolExecutor(2 * len(tables))  # a site may live twice

    def start(self, *sites: str, lives: int = 1) -> None:
        for site in sites or self._tables:
            self.ends[site] = self._threads.submit(self._live, site, lives)

    def _live(self, site: str, lives: int) -> SparseMatrix:
        try:
            told = Told(self.told_at_sites.append)
            return take_part(PublicTable(site, self._tables[site]), Link(self.address), patience_s=LONG_S, told=told)
        except DivergenceError:
            if lives == 1:
                raise
        return self._live(site, lives - 1)

    def coordinate(
        self,
        plan: Plan,
        out: Path,
        *,
        on_round: Callable[[int], None] = lambda t: None,
        on_listening: Callable[[str], None] = lambda address: None,
    ) -> dict[str, Any]:
        def after_round(state: AdmmState, record: RoundRecord) -> None:
            on_round(record.round)

        return serve(
            plan,
            out,
            ServerSettings(self.address, on_listening),
            Follower(on_round=after_round, notice=self.notices.append),
        )

    def graphs(self) -> list[SparseMatrix]:
        return [self.ends[site].result(LONG_S) for site in sorted(self.ends)]

    def errors(self) -> set[type[BaseException] | None]:
        return {type(end.exception(LONG_S)) for end in self.ends.values()}

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def sites(tables: dict[str, Dataset], address: str) -> Iterator[Federation]:
    federation = Federation(tables, address)
    yield federation
    federation.close()


@pytest.fixture(scope="module")
def undisturbed(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    simulate(PLAN, tables, out)
    return out


@pytest.fixture(scope="module")
def changes_undisturbed(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("changes") / "run"
    simulate(CHANGES, tables, out)
    return out


def read(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def assert_same_run(run: Path, other: Path) -> None:
    """The same bits in every file, and the same history."""
    for name in (*GRAPH_FILES, "checkpoint.npz"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
    here, there = read(run), read(other)
    assert here["state"] == there["state"] == "finished"
    assert len(here["rounds"]) == len(there["rounds"])
    for one, two in zip(here["rounds"], there["rounds"], strict=True):
        for key in ("round", "kind", "contributed", "acyclicity", "edges"):
            assert one[key] == two[key], (one["round"], key)
        for site in SITES:
            for direction in ("up", "down"):
                assert one["bytes"][site][direction]["formula"] == two["bytes"][site][direction]["formula"]
    for direction in ("up", "down"):
        assert here["bytes"][direction]["formula"] == there["bytes"][direction]["formula"]
    for part in ("local", "global"):
        assert here["seconds"][part] == pytest.approx(sum(r[f"{part}_s"] for r in here["rounds"]), abs=1e-4)
    assert here["seconds"]["local"] + here["seconds"]["global"] <= here["seconds"]["total"] + 1e-4


COORDINATOR = """
import os, signal, sys
from pathlib import Path
from fedbnsl.graphs import files as graph_files
from fedbnsl.events.logs import EventLog
from fedbnsl.plan.plan import Plan
from fedbnsl_server.run import round_loop
from fedbnsl_server.sites import membership_log
from fedbnsl_server.store import checkpoint
from fedbnsl_server.sites.mailbox import Mailbox
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_server.grpc_api.servicer import Servicer

def die():
    os._exit(9)

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

def on_round(t):
    pass

{window}
plan, out, address = sys.argv[1:]
follower = Follower(on_round=lambda state, record: on_round(record.round))
serve(Plan.load(Path(plan)), Path(out), ServerSettings(address, print), follower)
"""


def coordinate_until(window: str, plan: Plan, out: Path, address: str) -> int:
    """A coordinator in a process of its own, which this code runs in before it serves; its exit code."""
    plan_file = out.with_name("plan.toml")
    plan_file.write_text(plan.to_toml(), encoding="utf-8")
    command = [sys.executable, "-c", COORDINATOR.format(window=window), plan_file, out, address]
    ended = subprocess.run(command, timeout=2 * LONG_S, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 9), ended.stderr
    return ended.returncode


# ---- SIGTERM -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_paused_after_every_round_gives_the_same_bits(
    sites: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sites.start()
    numbers = set()
    for lives in range(1, TOTAL + 1):
        assert coordinate_until(f"def on_round(t):\n  if t == {lives}: terminate()", PLAN, out, sites.address) == 0
        result = read(out)
        numbers.add(result["manifest"]["run"])
        if result["state"] == "finished":  # the last round was faster than the signal
            break
        t = len(result["rounds"])
        assert t >= lives
        assert (result["state"], result["reason"]) == ("interrupted", f"paused after round {t}")
        assert len(result["edges"]) > 0
        assert not any(end.done() for end in sites.ends.values()), "nobody is told"
    else:
        sites.coordinate(PLAN, out)
    assert len(numbers) == 1
    assert_same_run(out, undisturbed)
    assert len(read(out)["manifest"]["resumed_at"]) == len(events(out, "resumed")) >= TOTAL - 1
    assert all(graph == sites.graphs()[0] for graph in sites.graphs())


ENDED_BY = """
genuine = Servicer.{call}
async def answer_and_end(self, request, context):
    terminate()
    return await genuine(self, request, context)
Servicer.{call} = answer_and_end
"""


def test_a_run_that_is_paused_while_it_waits_for_sites_keeps_its_number_and_its_memberships(
    sites: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sites.start("a")
    assert coordinate_until(ENDED_BY.format(call="Join"), PLAN, out, sites.address) == 0
    first = read(out)
    assert (first["state"], first["reason"], first["rounds"]) == ("interrupted", "paused before round 1", [])
    assert [event["site"] for event in events(out, "seated")] == ["a"]
    result = sites.coordinate(PLAN, out, on_listening=lambda address: sites.start("b", "c"))
    assert result["manifest"]["run"] == first["manifest"]["run"]
    assert not [text for text in sites.notices if text.startswith("a joined")], "its membership was remembered"
    assert_same_run(out, undisturbed)


def test_a_site_whose_membership_was_forgotten_joins_again_by_itself(sites: Federation, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sites.start("a")
    coordinate_until(ENDED_BY.format(call="PullTask"), PLAN, out, sites.address)
    kept = [event for event in whole_lines(out) if event["event"] != "seated"]
    (out / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
    assert sites.coordinate(PLAN, out, on_listening=lambda address: sites.start("b", "c"))["state"] == "finished"
    assert len([text for text in sites.notices if text.startswith("a joined")]) == 1
    assert len(sites.graphs()) == 3


# ---- a coordinator that is killed ----------------------------------------------------------------------------------


def _in_push(t: int) -> str:
    return f"""
genuine = Mailbox.push
def push(self, update):
    repeat = genuine(self, update)
    if update.round == {t}: die()
    return repeat
Mailbox.push = push
"""


# Each is run in the coordinator's process before it serves; `die` ends it as SIGKILL does. A coordinator that is killed
# at every other step of a run is in tests/faults/test_killed_coordinator.py.
WINDOWS = {
    "when one update of round 3 was taken in": _in_push(3),
    "when all updates of round 3 were taken in": """
def on_advance(state, *rest):
    if state.round == 2: die()
    return genuine(state, *rest)
genuine, round_loop.advance = round_loop.advance, on_advance
""",
    "while the line of round 3 was written": """
genuine = EventLog.write
def write(self, event, **fields):
    if event == "round" and fields["round"] == 3:
        self._file.write(b'{"round": 3, "kind": "ad')
        die()
    genuine(self, event, **fields)
EventLog.write = write
""",
    "between line and checkpoint of round 3": """
genuine = checkpoint.save
def save(path, state, **options):
    if state.round == 3: die()
    genuine(path, state, **options)
checkpoint.save = save
""",
    "between line and checkpoint of the first round": """
checkpoint.save = lambda path, state, **options: die()
""",
    "between the checkpoint of round 3 and the tasks of the next": "def on_round(t):\n  if t == 3: die()",
    "in the first refit": _in_push(5),
    "between the results and the good-byes": """
Mailbox.finish = lambda *arguments: die()
""",
}


AFTER_CHANGES = (
    "when one update of round 3 was taken in",
    "between line and checkpoint of round 3",
    "between the checkpoint of round 3 and the tasks of the next",
    "in the first refit",
)


@pytest.mark.parametrize(
    ("window", "plan"),
    [
        ("while the line of round 3 was written", PLAN),
        ("between the results and the good-byes", PLAN),
        *((window, CHANGES) for window in AFTER_CHANGES),
    ],
)
def test_a_run_whose_coordinator_is_killed_goes_on_and_ends_with_the_same_bits(
    window: str, plan: Plan, sites: Federation, undisturbed: Path, changes_undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sites.start()
    assert coordinate_until(WINDOWS[window], plan, out, sites.address) == 9
    before = contents(out)
    assert not any(end.done() for end in sites.ends.values())
    result = sites.coordinate(plan, out)
    assert result == read(out)
    assert_same_run(out, changes_undisturbed if plan.sends_changes else undisturbed)
    assert all(graph == sites.graphs()[0] for graph in sites.graphs())
    if window == "between the results and the good-byes":
        assert contents(out) == before, "a finished run stays as it is"
        assert "is finished and is not repeated" in sites.notices[0]
    else:
        assert len(result["manifest"]["resumed_at"]) == 1
        assert sites.notices[0].startswith(f"continuing run {result['manifest']['run']} ")
    assert all(isinstance(event, dict) for event in whole_lines(out))
    for direction in ("up", "down") if plan.sends_changes else ():
        assert result["bytes"][direction]["formula"] < read(undisturbed)["bytes"][direction]["formula"]


def contents(run: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.rglob("*") if file.is_file()}


def whole_lines(run: Path) -> list[Any]:
    """What the lines hold that are JSON; at most one is not."""
    found = []
    torn = 0
    for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            torn += 1
    assert torn <= 1
    return found


@pytest.mark.parametrize(
    ("window", "plan"),
    [
        ("when all updates of round 3 were taken in", PLAN),
        ("between the checkpoint of round 3 and the tasks of the next", PLAN),
        ("when all updates of round 3 were taken in", CHANGES),
        ("between the checkpoint of round 3 and the tasks of the next", CHANGES),
    ],
    ids=["in round 3", "after round 3", "changes-in round 3", "changes-after round 3"],
)
def test_coordinator_and_a_site_that_both_start_again_end_with_the_same_bits(
    window: str,
    plan: Plan,
    sites: Federation,
    undisturbed: Path,
    changes_undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pushed, crashed = Session.push, threading.Event()

    def push_and_crash(self: Session, update: LocalUpdate) -> None:
        pushed(self, update)
        if (update.site, update.round) == ("c", 3) and not crashed.is_set():
            crashed.set()
            raise DivergenceError("c ends here, and begins anew")

    monkeypatch.setattr(Session, "push", push_and_crash)
    out = tmp_path / "run"
    sites.start("a", "b")
    sites.start("c", lives=2)
    assert coordinate_until(WINDOWS[window], plan, out, sites.address) == 9
    sites.coordinate(plan, out)
    assert crashed.is_set()
    assert_same_run(out, changes_undisturbed if plan.sends_changes else undisturbed)
    assert len(sites.graphs()) == 3


def test_a_run_folder_that_is_set_back_to_an_earlier_round_gives_the_same_bits(
    sites: Federation, undisturbed: Path, tmp_path: Path, fedbnsl: Callable[..., Outcome]
) -> None:
    out, backups = tmp_path / "run", tmp_path / "backups"
    sites.start()
    coordinate_until("def on_round(t):\n  if t == 1: terminate()", PLAN, out, sites.address)
    backups.mkdir()
    assert fedbnsl("coordinator", "backup", out, "--out", backups).code == 0
    t = len(read(out)["rounds"])
    coordinate_until(f"def on_round(t):\n  if t == {t + 2}: terminate()", PLAN, out, sites.address)
    assert len(read(out)["rounds"]) >= t + 2
    shutil.rmtree(out)
    [backup] = backups.iterdir()
    shutil.unpack_archive(backup, out, filter="data")
    sites.coordinate(PLAN, out)
    assert_same_run(out, undisturbed)
    assert len(sites.graphs()) == 3


def test_a_run_that_left_the_finite_numbers_can_be_taken_up_again(
    sites: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, calls = admm.global_step, itertools.count(1)

    def diverging(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise DivergenceError("the global step left the finite numbers")
        return genuine(*arguments, **options)

    with monkeypatch.context() as broken:
        broken.setattr(admm, "acyclicity_of", lambda W: math.inf)
        broken.setattr(admm, "global_step", diverging)
        sites.start()
        with pytest.raises(DivergenceError):
            sites.coordinate(PLAN, tmp_path / "run")
    assert (read(tmp_path / "run")["state"], sites.errors()) == ("failed", {RunAbandonedError})
    result = sites.coordinate(PLAN, tmp_path / "run", on_listening=lambda address: sites.start())
    assert [entry["acyclicity"] is None for entry in result["rounds"]] == [True, True] + [False] * (TOTAL - 2)


# ---- other ends ----------------------------------------------------------------------------------------------------


def test_a_run_that_was_interrupted_or_lost_its_quorum_can_be_continued(
    sites: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sites.start()
    with pytest.raises(InterruptedRunError):
        sites.coordinate(PLAN, out, on_round=lambda t: os.kill(os.getpid(), signal.SIGINT) if t == 2 else None)
    assert read(out)["state"] == "interrupted"
    assert sites.errors() == {RunAbandonedError}, "they were told"
    shutil.copytree(out, tmp_path / "lonely")
    with pytest.raises(QuorumLostError):  # nobody calls
        serve_shortly(tmp_path / "lonely")
    assert read(tmp_path / "lonely")["state"] == "failed"
    sites.coordinate(PLAN, out, on_listening=lambda address: sites.start())
    assert_same_run(out, undisturbed)
    assert read(out)["reason"] == ""


def serve_shortly(out: Path) -> None:
    """Continue a run whose sites do not come, with no patience."""
    with pytest.MonkeyPatch.context() as hurried:
        hurried.setattr(Mailbox, "_wait", no_wait)
        serve(PLAN, out, ServerSettings("127.0.0.1:0", lambda address: None))


async def no_wait(self: Mailbox, seconds: float, *, quorum_is_enough: bool) -> bool:
    return False


def test_a_quorum_that_is_lost_while_the_run_is_paused_ends_nothing(
    sites: Federation, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 3 an order cannot be answered for want of room, and all deadlines pass before c has sent its answer."""
    out, paused, lost = tmp_path / "run", threading.Event(), threading.Event()
    settle, push, wait, collect = operator_commands.settle, Session.push, Mailbox._wait, Mailbox._collect

    def settled(folder: Path, answer: operator_commands.Answer) -> None:
        if not lost.is_set():
            paused.set()
            raise ResultError("the answer cannot be written") from OSError(errno.ENOSPC, "No space left on device")
        settle(folder, answer)

    def pushed(self: Session, update: LocalUpdate) -> None:
        if (update.site, update.round) == ("c", 3) and not lost.is_set():
            operator_commands.give(out, "nobody", None)
            assert lost.wait(LONG_S)
        push(self, update)

    async def waited(self: Mailbox, seconds: float, *, quorum_is_enough: bool) -> bool:
        if self.round != 3 or lost.is_set():
            return await wait(self, seconds, quorum_is_enough=quorum_is_enough)
        while not paused.is_set():
            await asyncio.sleep(0.01)
        return False

    async def collected(self: Mailbox) -> Mapping[str, LocalUpdate]:
        try:
            return await collect(self)
        except QuorumLostError:
            lost.set()
            raise

    monkeypatch.setattr(operator_commands, "settle", settled)
    monkeypatch.setattr(Session, "push", pushed)
    monkeypatch.setattr(Mailbox, "_wait", waited)
    monkeypatch.setattr(Mailbox, "_collect", collected)
    sites.start()
    sites.coordinate(PLAN, out)
    assert lost.is_set()
    assert sites.errors() == {type(None)}
    assert_same_run(out, undisturbed)


def disk_fails(monkeypatch: pytest.MonkeyPatch, failing: str, number: int, *, times: float) -> None:
    """Let fsync fail so many times for one kind of file, in the middle of a run."""
    genuine, real = os.fsync, os.readlink
    # The line of a membership is put on the disk as well: of each of three, then of each round.
    name, first = {
        "line": ("events.jsonl", 6),
        "checkpoint": ("checkpoint.npz.part", 3),
        "membership": ("events.jsonl", 1),
        "results": ("weights.csv.part", 1),
    }[failing]
    calls = itertools.count(1)

    def fsync(descriptor: int) -> None:
        if Path(real(f"/proc/self/fd/{descriptor}")).name == name and first <= next(calls) < first + times:
            raise OSError(number, os.strerror(number))
        genuine(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("failing", ["line", "checkpoint", "membership", "results"])
def test_a_disk_that_fails_for_a_while_costs_the_run_nothing(
    failing: str, number: int, sites: Federation, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    disk_fails(
        monkeypatch, failing, number, times=5 if failing == "membership" else 2
    )  # for all sites, and to look again
    sites.start()
    sites.coordinate(PLAN, out)
    said = [event["text"] for event in events(out, "notice")]
    if failing != "results":  # by then the log is closed
        assert any(text.startswith("paused: ") and os.strerror(number) in text for text in said)
        assert "the run goes on" in said
    assert len(events(out, "round")) == TOTAL
    assert_same_run(out, undisturbed)


@pytest.mark.parametrize("failing", ["line", "checkpoint", "membership", "results"])
def test_a_folder_that_must_not_be_written_ends_the_run_with_a_clear_word_and_it_can_be_continued(
    failing: str, sites: Federation, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    sites.start(*(("a",) if failing == "membership" else SITES))
    with monkeypatch.context() as forbidden:
        disk_fails(forbidden, failing, errno.EACCES, times=math.inf)
        with pytest.raises(ResultError, match="cannot be written: Permission denied") as caught:
            sites.coordinate(PLAN, out)
    assert caught.value.exit_code == 9
    assert read(out)["state"] == "failed"
    done = {"line": 2, "checkpoint": 2, "membership": 0, "results": TOTAL}[failing]
    assert len(read(out)["rounds"]) == done
    assert sites.errors() == {RunAbandonedError}
    sites.coordinate(PLAN, out, on_listening=lambda address: sites.start())
    assert_same_run(out, undisturbed)


def test_a_disk_that_is_full_when_a_run_is_taken_up_ends_it_for_everybody(
    sites: Federation, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first round a run that has all its sites says so in events.jsonl at once."""
    out = tmp_path / "run"
    sites.start()
    assert coordinate_until(DIES_WITH_ALL_MEMBERSHIPS_TAKEN, PLAN, out, sites.address) == 9
    genuine = EventLog.write

    def write(self: EventLog, event: str, **fields: object) -> None:
        if event == "started":
            raise ResultError("no space left")
        genuine(self, event, **fields)

    with monkeypatch.context() as full:
        full.setattr(EventLog, "write", write)
        full.setattr(coordinator, "_HASTY_GOODBYE_S", LONG_S)  # sites may be slow to dial again
        with pytest.raises(ResultError, match="no space left"):
            sites.coordinate(PLAN, out)
    assert (read(out)["state"], read(out)["reason"]) == ("failed", "no space left")
    assert sites.errors() == {RunAbandonedError}
    sites.coordinate(PLAN, out, on_listening=lambda address: sites.start())
    assert_same_run(out, undisturbed)


DIES_WITH_ALL_MEMBERSHIPS_TAKEN = """
from fedbnsl_server.results.results import RunRecorder
RunRecorder.start = lambda *arguments, **options: die()
"""


def test_a_finished_run_is_told_to_a_site_that_missed_its_end_and_nothing_else(
    sites: Federation, tables: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    plan = PLAN.with_settings(site_grace_s=1.5)
    sites.start()
    result = sites.coordinate(plan, out)
    (graph, *_) = sites.graphs()
    before = contents(out)
    assert sites.coordinate(plan, out, on_listening=lambda address: sites.start("b")) == result
    assert sites.ends["b"].result(LONG_S) == graph
    assert contents(out) == before


def test_a_second_coordinator_and_another_plan_are_refused_while_the_first_goes_on(
    sites: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    out, refused = tmp_path / "run", []

    def second(t: int) -> None:
        if t == 2:
            for plan in (PLAN, PLAN.with_settings(rounds=5)):
                with pytest.raises(ResultError) as caught:
                    RunFolder.open(out, plan, RunIdentity(1, datetime.now(UTC)))
                refused.append(str(caught.value))

    sites.start()
    sites.coordinate(PLAN, out, on_round=second)
    assert refused[0] == f"another coordinator works on run folder {out}; end it first (SIGTERM pauses it)"
    assert f"holds the run of another plan ({PLAN.digest().hex()[:12]}…)" in refused[1]
    assert PLAN.with_settings(rounds=5).digest().hex()[:12] in refused[1]
    assert_same_run(out, undisturbed)


# ---- private runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "window",
    [
        "when one update of round 3 was taken in",
        "when all updates of round 3 were taken in",
        "between line and checkpoint of the first round",
        "between the checkpoint of round 3 and the tasks of the next",
    ],
)
def test_a_private_run_that_goes_on_pays_for_nothing_twice_and_sends_the_same_noise(
    window: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = private_plan(variables=NAMES, rounds=4, join_deadline_s=LONG_S, run_deadline_s=LONG_S)
    folders = {name: tmp_path / name for name in ("north", "south")}
    sent: dict[tuple[str, int], set[bytes]] = {}
    pushed = Session.push

    def push(self: Session, update: LocalUpdate) -> None:
        sent.setdefault((update.site, update.round), set()).add(
            codec.update_to_bytes(update, run=0, value_type=plan.value_type)
        )
        pushed(self, update)

    def take_part_from(name: str) -> SparseMatrix:
        with site_folder.opened(folders[name]) as (policy, ledger):
            table = GuardedTable(folders[name], policy, ledger, None)
            return take_part(table, Link(address), patience_s=LONG_S)

    monkeypatch.setattr(Session, "push", push)
    for k, (name, folder) in enumerate(folders.items()):
        make_site(folder, table=write_table(folder / "table.csv", rows(k)), site=name)
        with site_folder.opened(folder) as (_, ledger):
            ledger.approvals.approve(plan.digest(), plan.name)
    with ThreadPoolExecutor(len(folders)) as threads:
        ends = [threads.submit(take_part_from, name) for name in folders]
        assert coordinate_until(WINDOWS[window], plan, tmp_path / "run", address) == 9
        remembered = tmp_path / "site-ledgers.json"
        before = json.loads(remembered.read_text(encoding="utf-8")) if remembered.exists() else {}
        result = serve(plan, tmp_path / "run", ServerSettings(address, lambda text: None))
        assert ends[0].result(LONG_S) == ends[1].result(LONG_S)
    assert [entry["contributed"] for entry in result["rounds"]] == [["north", "south"]] * plan.rounds
    assert result["manifest"]["private"] is True
    assert set(sent) == {(name, t) for name in folders for t in range(1, plan.rounds + 1)}
    assert all(len(versions) == 1 for versions in sent.values()), "whatever was sent again was the same"
    price = price_of(plan, n_samples=ROWS, n_variables=len(NAMES))
    after = json.loads(remembered.read_text(encoding="utf-8"))
    for name, folder in folders.items():
        with site_folder.opened(folder) as (_, ledger):
            ledger.verify()
            assert units_spent(ledger, DATASET) == price.units
            head = ledger.payments.head(DATASET)
        told, told_before = (each.get(name, {"datasets": {}})["datasets"] for each in (after, before))
        assert told[head.dataset.hex()]["spent_units"] == head.spent_units
        assert (
            told[head.dataset.hex()]["n_entries"] >= told_before.get(head.dataset.hex(), {"n_entries": 0})["n_entries"]
        )
