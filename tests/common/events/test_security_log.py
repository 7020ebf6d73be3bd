"""The security log: its chain, its rotation, and what floods and full disks do to it."""

import errno
import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from fedbnsl.console.shown import shown
from fedbnsl.errors import ResultError, UnknownEndError
from fedbnsl.events import security_log
from fedbnsl.events.security_log import SecurityLog, lines, verify


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / security_log.NAME


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_log, "MAX_BYTES", 2000)
    monkeypatch.setattr(security_log, "N_FILES", 3)


def entries(path: Path) -> list[dict[str, object]]:
    return [line.entry for line in lines(path)]


def filled(path: Path, n: int = 6) -> SecurityLog:
    log = SecurityLog(path)
    for k in range(n):
        log.enter("approved", site=f"site-{k}")
    log.close()
    return log


# ---- the chain ---------------------------------------------------------------------------------------------------


def test_a_whole_chain_is_whole_and_private(path: Path) -> None:
    filled(path)
    oldest, head = verify(path)
    assert (oldest, head.number) == (1, 6)
    assert [entry["site"] for entry in entries(path)] == [f"site-{k}" for k in range(6)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def changed(rows: list[bytes]) -> list[bytes]:
    return [*rows[:2], rows[2].replace(b"site-2", b"site-9"), *rows[3:]]


def removed(rows: list[bytes]) -> list[bytes]:
    return [*rows[:2], *rows[3:]]


def reordered(rows: list[bytes]) -> list[bytes]:
    return [*rows[:2], rows[3], rows[2], *rows[4:]]


def added(rows: list[bytes]) -> list[bytes]:
    return [*rows[:2], rows[2], *rows[2:]]


def without_beginning(rows: list[bytes]) -> list[bytes]:
    return rows[2:]


def blanked(rows: list[bytes]) -> list[bytes]:
    return [*rows[:2], b"\n", *rows[3:]]


@pytest.mark.parametrize(
    ("meddle", "line"),
    [(changed, 4), (removed, 3), (reordered, 3), (added, 4), (without_beginning, 1), (blanked, 3)],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_the_first_line_is_named_that_does_not_follow_the_one_before(path: Path, meddle, line: int) -> None:
    log = filled(path)
    path.write_bytes(b"".join(meddle(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ResultError, match=rf"security-log\.jsonl, line {line}: the chain is broken"):
        verify(path)
    log.enter("approved", site="later")  # what is written afterwards does not mend it
    with pytest.raises(ResultError, match=rf"line {line}: the chain is broken"):
        verify(path)


@pytest.mark.parametrize("kept", [0, 2, 5])
def test_a_log_whose_end_was_cut_off_is_found_by_the_head_that_its_writer_noted(path: Path, kept: int) -> None:
    log = filled(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    with pytest.raises(ResultError, match="its end was cut off"):
        verify(path)
    log.enter("approved", site="later")
    expected = [f"site-{k}" for k in range(kept)] + [None, "later"]
    assert [entry.get("site") for entry in entries(path)] == expected, "what is written later does not hide it"
    with pytest.raises(ResultError, match=f"line {kept + 1}: when entry {kept + 1} was written, entries up to 6 were"):
        verify(path)


def test_a_longer_chain_that_was_written_anew_is_found_by_the_next_entry(path: Path) -> None:
    log = filled(path, 5)
    noted = security_log._noted_head(path)
    path.unlink()
    other = path.with_name("other.jsonl")
    filled(other, 7)
    other.rename(path)
    log.enter("approved", site="later")
    assert noted is not None
    assert entries(path)[7]["expected"] == str(noted)
    with pytest.raises(ResultError, match="entries up to 5 were missing"):
        verify(path)


def test_entries_that_were_not_synced_are_no_sign_of_a_missing_end(path: Path) -> None:
    log = filled(path, 2)
    for k in range(3):
        log.count("refused", why=f"reason {k}")
        log.flush()
    log.enter("approved", site="later")
    assert [entry["event"] for entry in entries(path)] == ["approved"] * 2 + ["refused"] * 3 + ["approved"]
    verify(path)


def test_a_chain_that_was_written_anew_is_told_by_a_head_that_was_noted(path: Path) -> None:
    filled(path)
    noted = str(verify(path)[1])
    filled(path, 2)
    assert verify(path, noted)[1].number == 8, "the log has grown since"
    path.unlink()
    for note in security_log.state_folder().glob("security-log-*"):  # whoever can do this is told by a head elsewhere
        note.unlink()
    filled(path)
    verify(path)
    with pytest.raises(ResultError, match="it was rewritten"):
        verify(path, noted)


@pytest.mark.parametrize("note", [None, "", "six:abc"])
def test_without_a_noted_head_nobody_claims_that_the_end_is_there(path: Path, monkeypatch, note: str | None) -> None:
    filled(path)
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    if note is not None:
        security_log._note_of(copy).write_text(note)
    with pytest.raises(UnknownEndError, match="whole, entries 1 to 6, but nothing tells whether its end is there"):
        verify(copy)
    assert verify(copy, str(verify(path)[1]))[1].number == 6
    monkeypatch.setattr(security_log, "state_folder", lambda: None)
    filled(path)
    with pytest.raises(UnknownEndError):
        verify(path)


def test_lines_that_a_power_cut_may_take_are_not_missed(path: Path) -> None:
    log = filled(path, 2)
    log.count("refused", why="malformed")
    log.flush()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert verify(path)[1].number == 2


def test_there_is_nothing_to_verify_without_a_log(path: Path) -> None:
    with pytest.raises(ResultError, match="there is no security log"):
        verify(path)


# ---- several files, several writers, crashes ---------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_the_chain_goes_on_from_file_to_file_and_the_oldest_are_dropped(path: Path) -> None:
    filled(path, 60)
    files = sorted(one.name for one in path.parent.glob(f"{path.name}*") if not one.name.endswith(".lock"))
    assert files == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert all((path.parent / name).stat().st_size <= 2000 for name in files)
    oldest, head = verify(path)
    assert 1 < oldest < head.number == 60
    assert [entry["n"] for entry in entries(path)] == list(range(oldest, 61))
    (path.parent / f"{path.name}.1").unlink()
    with pytest.raises(ResultError, match=r"security-log\.jsonl, line 1: the chain is broken"):
        verify(path)


@pytest.mark.usefixtures("small")
def test_a_crash_in_the_middle_of_a_rotation_loses_nothing(path: Path) -> None:
    filled(path)
    path.rename(f"{path}.1")
    filled(path)
    assert verify(path)[1].number == 12


def test_a_line_that_a_crash_cut_short_is_removed_and_said(path: Path) -> None:
    log = filled(path, 2)
    with path.open("ab") as file:
        file.write(b'{"n": 3, "time": "20')
    log.enter("approved", site="next")
    assert [entry["event"] for entry in entries(path)] == ["approved", "approved", "cut line removed", "approved"]
    assert entries(path)[2]["bytes"] == 20
    assert verify(path)[1].number == 4


def test_processes_that_write_at_once_make_one_chain(path: Path) -> None:
    writers = [multiprocessing.get_context("spawn").Process(target=filled, args=(path, 40)) for _ in range(3)]
    for writer in writers:
        writer.start()
    filled(path, 40)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [entry["event"] for entry in entries(path)] == ["approved"] * 160
    verify(path)


# ---- floods and full disks ---------------------------------------------------------------------------------------


def refuse(log: SecurityLog, *, why: str = "malformed", certificate: str = "AB:CD", said: str = "") -> None:
    log.count("refused", why=why, call="Join", site="north", certificate=certificate, address="10.0.0.1", said=said)


def test_a_flood_is_a_few_lines_that_tell_how_many_there_were(path: Path) -> None:
    clock = Clock()
    log = SecurityLog(path, clock=clock)
    for k in range(100_000):
        clock.now += 0.01
        refuse(log, said=f"text {k}")
        if k % 100 == 0:
            log.flush()
    refuse(log, certificate="EF:01")
    log.close()
    written = entries(path)
    assert len(written) < 12
    first = written[0]
    assert (first["event"], first["why"], first["site"]) == ("refused", "malformed", "north")
    assert (first["certificate"], first["address"], first["said"]) == ("AB:CD", "10.0.0.1", "text 0")
    said = [e["said"] for e in written if e["certificate"] == "AB:CD"]
    assert said[-1] == "text 99999", "of those that are counted, the last one's"
    assert len(set(said)) == len(said)
    by_caller = {
        one: sum(int(str(e.get("times", 1))) for e in written if e["certificate"] == one) for one in ("AB:CD", "EF:01")
    }
    assert by_caller == {"AB:CD": 100_000, "EF:01": 1}
    assert log.totals["refused", "malformed"] == 100_001
    verify(path)


def test_callers_of_endlessly_many_kinds_are_counted_together(path: Path) -> None:
    log = SecurityLog(path, clock=Clock())
    for k in range(5000):
        refuse(log, certificate=f"{k}")
    log.close()
    assert len(entries(path)) < 300
    assert len(log._repeated) == 0
    assert sum(int(str(entry.get("times", 1))) for entry in entries(path)) == 5000
    assert "others" in str(entries(path)[-1]["why"])


def test_what_comes_again_after_a_long_silence_has_a_line_of_its_own(path: Path) -> None:
    clock = Clock()
    log = SecurityLog(path, clock=clock)
    for _ in range(2):
        refuse(log)
        log.flush()
        clock.now += 3600
        log.flush()
    assert [entry.get("times", 1) for entry in entries(path)] == [1, 1]


def test_a_long_text_is_cut_and_no_character_of_it_acts_on_a_terminal(path: Path) -> None:
    sly = "\x1b[2J\u202esdrawkcab\n\ud800"
    SecurityLog(path).enter("refused", said=sly + "x" * 10_000)
    raw = path.read_bytes()
    assert len(raw) < 1000
    assert raw.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in raw.removesuffix(b"\n"))
    assert shown(sly) == r"\x1b[2J\u202esdrawkcab\n\ud800"
    assert shown("süd, 北") == "süd, 北"


def test_a_full_disk_ends_nothing_and_what_waits_is_written_or_counted(path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(security_log, "_MOST_WAITING", 20)
    clock = Clock()
    log = SecurityLog(path, clock=clock)
    log.enter("approved", site="before")
    whole = path.read_bytes()
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) > 10:
            return write(descriptor, content[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for k in range(30):
            log.enter("approved", site=f"late-{k}")
            clock.now += 1
    assert path.read_bytes() == whole, "half a line is taken back"
    assert caplog.text.count("cannot be written: No space left on device") == 1
    clock.now += 60
    log.flush()
    assert [entry.get("site") for entry in entries(path)[1:-1]] == [f"late-{k}" for k in range(20)]
    assert (entries(path)[-1]["event"], entries(path)[-1]["times"]) == ("entries lost", 10)
    verify(path)


def test_what_cannot_be_written_to_the_end_is_said(path: Path, caplog) -> None:
    path.mkdir()
    log = SecurityLog(path)
    log.enter("approved")
    log.close()
    assert f"1 entries are not in security log {path}" in caplog.text


def test_a_writer_that_hangs_holds_nobody_up_and_nothing_is_lost(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(security_log, "_OWN_LOCK_S", 0.01)
    log = SecurityLog(path)
    with security_log._locked(path):
        log.enter("approved", site="first")
        log.enter("approved", site="second")
    assert not path.exists()
    log.close()
    assert [entry["site"] for entry in entries(path)] == ["first", "second"]


def test_every_entry_is_a_json_object_with_number_time_and_event(path: Path) -> None:
    filled(path, 3)
    for row in path.read_text(encoding="ascii").splitlines():
        assert list(json.loads(row))[:3] == ["n", "time", "event"]
