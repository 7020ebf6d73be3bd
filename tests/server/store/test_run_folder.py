"""The run folder as the second life of a coordinator finds it: memberships, history, lock."""

import errno
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import ResultError
from fedbnsl.events.logs import EventLog
from fedbnsl.files.shortage import shortage
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.sites import membership_log
from fedbnsl_server.sites.membership_log import Membership
from fedbnsl_server.sites.roster import Member
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.run_folder import RunFolder, load_plan
from fedbnsl_server.store.run_id import RunIdentity

PLAN = Plan(name="again", n_participants=2)
NAMES = ("age", "größe", "IL 6")
BEGUN = datetime(2026, 3, 1, 12, 30, 5, tzinfo=UTC)
REGISTER = RunIdentity(0xFEDC_BA98_7654_3210, BEGUN, {"data": -3})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder that a coordinator has made and left."""
    RunFolder.create(tmp_path / "run", PLAN, REGISTER).close()
    return tmp_path / "run"


@pytest.fixture
def again(run: Path) -> Iterator[RunFolder]:
    folder = RunFolder.resume(run, PLAN)
    yield folder
    folder.close()


def line(t: int, **more: Any) -> str:
    up = {"formula": 9 * t, "serialised": 100 * t}
    down = {"formula": t, "serialised": 10 * t}
    entry = {"round": t, "kind": "admm", "contributed": ["a"], "bytes": {"a": {"up": up, "down": down}}}
    known = {"event": "round", "time": "T", "elapsed_s": t / 2, "control_bytes": {"a": 1000 * t}}
    return json.dumps({**entry, **known, **more}) + "\n"


def save_state(run: Path, t: int) -> None:
    state = initial_state(3, ["a", "b"])
    object.__setattr__(state, "round", t)
    checkpoint.save(run / "checkpoint.npz", state, plan_digest=PLAN.digest())


# ---- run.json ------------------------------------------------------------------------------------------------------


def test_number_seeds_and_memberships_are_found_again(run: Path) -> None:
    folder = RunFolder.resume(run, PLAN)
    assert (folder.identity.run, folder.identity.created_at, folder.identity.seeds) == (
        REGISTER.run,
        BEGUN,
        {"data": -3},
    )
    assert folder.past.membership == Membership()
    gone, b, a = Member(NAMES, 3, False), Member(NAMES[::-1], 7, True), Member(NAMES, 9, False)
    for site, member in (("c", gone), ("b", b), ("c", None), ("a", a)):
        membership_log.note(folder.events, site, member)
    folder.close()
    folder = RunFolder.resume(run, PLAN)
    found = folder.past.membership
    folder.close()
    assert found == Membership({"b": b, "a": a})
    assert list(found.members) == ["b", "a"]


def test_a_run_that_everybody_left_has_no_members(run: Path) -> None:
    folder = RunFolder.resume(run, PLAN)
    for member in (Member(NAMES, 3, False), None, Member(NAMES[::-1], 3, False)):
        membership_log.note(folder.events, "a", member)
    folder.close()
    events = [json.loads(text) for text in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert membership_log.replay(events[:2]) == Membership()
    assert membership_log.replay(events) == Membership({"a": Member(NAMES[::-1], 3, False)})


def test_a_membership_that_was_freed_under_an_earlier_version_is_free(run: Path) -> None:
    folder = RunFolder.resume(run, PLAN)
    membership_log.note(folder.events, "a", Member(NAMES, 3, False))
    folder.events.write("seat freed", site="a")
    folder.close()
    folder = RunFolder.resume(run, PLAN)
    folder.close()
    assert folder.past.membership == Membership()


def test_a_line_that_frees_a_membership_nobody_had_is_refused(run: Path) -> None:
    (run / "events.jsonl").write_text('{"event": "membership freed", "site": "a"}\n', encoding="utf-8")
    with pytest.raises(ResultError, match="memberships of the run cannot be read"):
        RunFolder.resume(run, PLAN)


def test_what_is_written_of_memberships_grows_with_their_number(run: Path) -> None:
    folder = RunFolder.resume(run, PLAN)
    sizes = []
    for k in range(100):
        membership_log.note(folder.events, f"site-{k:02}", Member(NAMES, 3, False))
        sizes.append((run / "events.jsonl").stat().st_size)
    folder.close()
    assert sizes[99] < 1.1 * 100 * sizes[0], "a line a membership"
    again = RunFolder.resume(run, PLAN)
    again.close()
    assert len(again.past.membership.members) == 100


def test_a_folder_whose_making_broke_off_before_the_plan_was_there_is_made_anew(run: Path) -> None:
    (run / "plan.toml").unlink()
    folder = RunFolder.open(run, PLAN, RunIdentity(5, BEGUN))
    assert (folder.identity.run, folder.is_continued) == (5, False)
    folder.close()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema": "fedbnsl.run/9"}', '{"schema": "fedbnsl.run/2", "run": 7}']
)
def test_a_register_that_cannot_be_read_is_refused_by_name(text: str, run: Path) -> None:
    (run / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=r"run\.json"):
        RunFolder.resume(run, PLAN)
    RunFolder.create(run.with_name("other"), PLAN, REGISTER).close()


def test_a_simulation_cannot_be_continued(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, PLAN).close()
    assert not (tmp_path / "run.lock").exists()
    with pytest.raises(ResultError, match="holds no run that can be continued"):
        load_plan(tmp_path)
    with pytest.raises(ResultError, match="holds a run already"):
        RunFolder.open(tmp_path, PLAN, REGISTER)


def test_another_plan_is_refused_with_both_digests_and_what_to_do(run: Path) -> None:
    other = PLAN.with_settings(rounds=7)
    with pytest.raises(ResultError) as caught:
        RunFolder.open(run, other, REGISTER)
    for word in (
        PLAN.digest().hex()[:12],
        other.digest().hex()[:12],
        "naming the folder in place of the plan",
        "--out",
    ):
        assert word in str(caught.value)


# ---- the lock ------------------------------------------------------------------------------------------------------


def test_a_folder_is_one_coordinators_until_it_closes_it(run: Path) -> None:
    first = RunFolder.resume(run, PLAN)
    for _ in range(2):
        with pytest.raises(ResultError, match="another coordinator works on run folder"):
            RunFolder.resume(run, PLAN)
    first.close()
    RunFolder.resume(run, PLAN).close()


def test_a_folder_in_the_making_is_locked_too(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path, PLAN, REGISTER)
    (tmp_path / "plan.toml").unlink()
    with pytest.raises(ResultError, match="another coordinator works on run folder"):
        RunFolder.create(tmp_path, PLAN, REGISTER)
    first.close()


# ---- what is past --------------------------------------------------------------------------------------------------


def test_the_past_ends_with_the_checkpoint_and_the_last_line_of_a_round_counts(run: Path) -> None:
    text = line(1) + line(2, kind="lost") + line(2) + line(3) + '{"event": "round", "round": 4, "ki'
    (run / "events.jsonl").write_text(text, encoding="utf-8")
    save_state(run, 2)
    folder = RunFolder.resume(run, PLAN)
    past = folder.past
    assert [(entry["round"], entry["kind"]) for entry in past.rounds] == [(1, "admm"), (2, "admm")]
    assert set(past.rounds[0]) == {"round", "kind", "contributed", "bytes"}
    assert (past.round, past.elapsed_s, past.control_bytes) == (2, 1.0, {"a": 2000})
    assert past.last_answered() == {"a": 2}
    traffic = past.traffic()
    assert (dict(traffic.up["a"]), dict(traffic.down["a"])) == ({1: 100, 2: 200}, {1: 10, 2: 20})
    assert traffic.control["a"] == 2000
    assert (run / "events.jsonl").read_text(encoding="utf-8") == text, "nothing is written yet"
    folder.close()


def test_without_a_checkpoint_there_is_no_past(run: Path) -> None:
    (run / "events.jsonl").write_text(line(1), encoding="utf-8")
    folder = RunFolder.resume(run, PLAN)
    assert (folder.past.state, folder.past.rounds, folder.past.round) == (None, (), 0)
    folder.close()


def test_a_line_that_is_missing_below_the_checkpoint_is_named(run: Path) -> None:
    (run / "events.jsonl").write_text(line(1) + line(3), encoding="utf-8")
    save_state(run, 3)
    with pytest.raises(ResultError, match=r"events\.jsonl has no line for round 2"):
        RunFolder.resume(run, PLAN)


def test_what_is_appended_after_a_torn_line_stands_on_a_line_of_its_own(run: Path) -> None:
    (run / "events.jsonl").write_bytes(line(1).encode() + '{"text": "naïv'.encode()[:-1])
    for life in (1, 2):
        folder = RunFolder.resume(run, PLAN)
        folder.take_up()
        assert len(folder.past.resumed_at) == life
        folder.close()
    kept, torn, *added = (run / "events.jsonl").read_bytes().splitlines()
    assert kept == line(1).strip().encode()
    assert torn.startswith(b'{"text": "na')
    assert [json.loads(text)["event"] for text in added] == ["resumed", "resumed"]


def test_a_log_that_ends_as_it_should_gets_no_empty_line(tmp_path: Path) -> None:
    for _ in range(2):
        log = EventLog(tmp_path / "events.jsonl")
        log.write("notice", text="größe")
        log.sync()
        log.close()
    assert [json.loads(text)["text"] for text in (tmp_path / "events.jsonl").read_text().splitlines()] == ["größe"] * 2


@pytest.mark.parametrize("state", ["interrupted", "failed"])
def test_only_a_finished_result_ends_a_run(state: str, run: Path, again: RunFolder) -> None:
    assert again.finished_result() is None
    (run / "result.json").write_text(json.dumps({"state": state}), encoding="utf-8")
    assert again.finished_result() is None
    (run / "result.json").write_text(json.dumps({"state": "finished", "n": 1}), encoding="utf-8")
    assert again.finished_result() == {"state": "finished", "n": 1}
    (run / "result.json").write_text('{"state": "fin', encoding="utf-8")
    with pytest.raises(ResultError, match=r"result\.json cannot be read"):
        again.finished_result()


class _FullAfter:
    """A file on a disk that takes so many more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def write(self, line: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(line[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_line_for_which_there_was_no_room_leaves_nothing_behind(room: int, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("notice", text="before")
    log._file = disk = _FullAfter(log._file, room)  # type: ignore[assignment]
    for _ in range(3):
        with pytest.raises(ResultError, match="No space left") as caught:
            log.write("notice", text="too long for what is left of the disk")
        assert shortage(caught.value) == "No space left on device"
    disk.room = 10_000
    log.write("notice", text="after")
    log.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["before", "after"]


def test_a_line_that_the_disk_did_not_keep_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with monkeypatch.context() as failing:

        def fsync(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        failing.setattr(os, "fsync", fsync)
        for _ in range(2):
            log.write("notice", text="once")
            with pytest.raises(ResultError, match="Input/output error"):
                log.sync()
    log.write("notice", text="once")
    log.sync()
    log.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1


def test_only_what_may_pass_is_a_shortage() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EROFS):
        assert shortage(OSError(number, "x")) == os.strerror(number)
    assert shortage(MemoryError()) == os.strerror(errno.ENOMEM)
    for error in (OSError(errno.EACCES, "x"), OSError(errno.ENOENT, "x"), ResultError("x"), ValueError()):
        assert shortage(error) == ""
