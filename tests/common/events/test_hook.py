"""`--hook`: a command that is called when something happens, and cannot hurt the run."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbnsl.errors import SetupError
from fedbnsl.events.emitter import KINDS, Event
from fedbnsl.events.hook import FOR_PEOPLE, Hook, kinds_of

LONG_S = 60.0
KEEPS = "import os, sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A command line that runs a Python program, with a file's path as its argument."""

    def written(program: str) -> str:
        path = tmp_path / "the hook"
        path.write_text(f"#!{sys.executable} -S\n{program}\n", encoding="utf-8")
        path.chmod(0o700)
        return f"'{path}' '{tmp_path / 'told'}'"

    return written


@pytest.fixture
def told(tmp_path: Path) -> Callable[[], list[dict[str, object]]]:
    """The events that the script was given."""
    path = tmp_path / "told"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def await_that(holds: Callable[[], object]) -> None:
    until = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.01)


def test_the_command_gets_the_event_as_json_and_its_kind_and_run_in_the_environment(script, told) -> None:
    program = "import os, sys, json; e = json.load(sys.stdin); e['env'] = [os.environ['FEDBNSL_EVENT'], "
    program += "os.environ['FEDBNSL_RUN']]; open(sys.argv[1], 'a').write(json.dumps(e) + '\\n')"
    with Hook(script(program)) as hook:
        hook(Event("site away", "cohort-1", {"site": "north", "memberships": {"b", "a"}}, 1_790_000_000.5))
    expected = {"site": "north", "memberships": ["a", "b"], "event": "site away", "run": "cohort-1"}
    assert told() == [expected | {"time": "2026-09-21T14:13:20.500000Z", "env": ["site away", "cohort-1"]}]


def test_no_field_can_pass_for_the_kind_or_steer_a_terminal(script, tmp_path) -> None:
    with Hook(script(KEEPS), KINDS) as hook:
        hook(Event("notice", "a\x1b[2J", {"text": "\x1b[2J\u202e\ud800ß", "event": "run over", "run": "other"}))
    line = (tmp_path / "told").read_bytes()
    assert line.isascii()
    assert line.endswith(b"\n")
    assert b"\x1b" not in line
    assert json.loads(line)["event"] == "notice"


def test_the_command_inherits_no_secret(script, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    with Hook(script("import os, sys, json; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))")) as hook:
        hook(Event("paused", "r", {}))
    seen = json.loads((tmp_path / "told").read_text())
    assert "secret" not in seen.values()
    assert seen["PATH"] == os.environ["PATH"]
    assert {"FEDBNSL_EVENT", "FEDBNSL_RUN", "LC_TIME"} <= set(seen)


def test_by_default_it_hears_what_people_want_to_hear_at_once_and_else_what_was_chosen(script, told) -> None:
    command = script(KEEPS)
    with Hook(command) as hook:
        for kind in ("round asked", "site away", "site answered"):
            hook(Event(kind, "r", {}))
    assert [event["event"] for event in told()] == ["site away"]
    with Hook(command, kinds_of("round asked, site answered")) as hook:
        for kind in ("round asked", "site away", "site answered"):
            hook(Event(kind, "r", {}))
    assert [event["event"] for event in told()] == ["site away", "round asked", "site answered"]


def test_an_event_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert kinds_of("all") == KINDS
    assert set(FOR_PEOPLE) < set(KINDS)
    with pytest.raises(SetupError, match="'site gone'") as refused:
        kinds_of("site away,site gone")
    assert "site away, " in refused.value.remedy


@pytest.mark.parametrize("command", ["", "  ", "no-such-command-anywhere", "/etc/passwd", "mail 'unclosed"])
def test_a_command_that_does_not_exist_is_refused_at_the_start(command: str) -> None:
    with pytest.raises(SetupError, match="--hook"):
        Hook(command)


def test_one_command_runs_at_a_time_in_the_order_of_events_and_nobody_waits_for_it(script, tmp_path, told) -> None:
    program = "import os, sys, time\nwhile not os.path.exists(sys.argv[1] + '.go'): time.sleep(0.01)\n"
    program += "mine = sys.argv[1] + '.busy'\nos.close(os.open(mine, os.O_CREAT | os.O_EXCL))\n" + KEEPS
    program += "\nos.unlink(mine)"
    with Hook(script(program), last_wait_s=LONG_S) as hook:
        for k in range(5):
            hook(Event("site away", "r", {"k": k}))
        assert told() == []  # all calls are over, and the first command still waits
        (tmp_path / "told.go").touch()
    assert [event["k"] for event in told()] == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_with_too_many_events_the_oldest_are_lost_and_counted(script, tmp_path, told, caplog) -> None:
    program = "import os, sys, time\nopen(sys.argv[1] + '.began', 'w')\n"
    program += "while not os.path.exists(sys.argv[1] + '.go'): time.sleep(0.01)\n" + KEEPS
    with Hook(script(program), last_wait_s=LONG_S) as hook:
        hook(Event("site away", "r", {"k": -1}))
        await_that((tmp_path / "told.began").exists)
        for k in range(103):
            hook(Event("site away", "r", {"k": k}))
        (tmp_path / "told.go").touch()
    assert [event["k"] for event in told()] == [-1, *range(3, 103)]
    assert "it was not told of 3 events" in caplog.text


def test_a_command_that_fails_or_does_not_read_is_logged_with_its_exit_code(script, caplog) -> None:
    with Hook(script("raise SystemExit(3)")) as hook:
        hook(Event("site away", "r", {"much": "x" * 2**20}))
    assert "the hook failed at 'site away' with exit code 3" in caplog.text


def test_a_file_that_is_no_program_is_logged_and_the_next_event_is_tried(tmp_path, caplog) -> None:
    path = tmp_path / "hook"
    path.write_bytes(b"\0\0\0\0")
    path.chmod(0o700)
    with Hook(str(path)) as hook:
        hook(Event("site away", "r", {}))
        hook(Event("site back", "r", {}))
    assert "could not be started at 'site away'" in caplog.text
    assert "could not be started at 'site back'" in caplog.text


@pytest.mark.long
def test_a_command_that_hangs_is_killed_with_all_that_it_started(script, tmp_path, told, caplog) -> None:
    program = "import subprocess, sys, os, time\nif os.environ['FEDBNSL_EVENT'] == 'paused':\n"
    program += "    child = subprocess.Popen(['sleep', '1000'])\n"
    program += "    open(sys.argv[1] + '.pid', 'w').write(str(child.pid))\n    time.sleep(1000)\n" + KEEPS
    with Hook(script(program), timeout_s=3, last_wait_s=LONG_S) as hook:
        hook(Event("paused", "r", {}))
        hook(Event("goes on", "r", {}))
    assert [event["event"] for event in told()] == ["goes on"]
    assert "took longer than 3 s at 'paused' and was killed" in caplog.text
    await_that(lambda: is_gone(int((tmp_path / "told.pid").read_text())))


def test_at_the_end_it_waits_for_what_is_still_to_be_told_but_not_for_ever(script, tmp_path, caplog) -> None:
    program = "import os, sys, time\nopen(sys.argv[1] + '.pid', 'w').write(str(os.getpid()))\ntime.sleep(1000)"
    hook = Hook(script(program), last_wait_s=0.0)
    hook(Event("paused", "r", {}))
    await_that(lambda: (tmp_path / "told.pid").exists() and (tmp_path / "told.pid").read_text())
    hook(Event("run over", "r", {}))
    hook.close()
    assert "did not finish with, 2 events" in caplog.text
    await_that(lambda: is_gone(int((tmp_path / "told.pid").read_text())))
    hook(Event("run over", "r", {}))  # nothing is told after the end, and nothing fails
    await_that(lambda: not [thread for thread in threading.enumerate() if thread.name == "hook"])


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
