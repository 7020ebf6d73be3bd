"""Processes that a server has forked, against those that start by themselves."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_workbench import localnet
from fedbnsl_workbench.fork_server import Forked, begin_to_load
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import write_federation
from fedbnsl_workbench.tables.synthetic import synthesise

pytestmark = pytest.mark.skipif(not begin_to_load(), reason="needs a system that forks")

LONG_S = 60.0


def ended(process: Forked) -> int:
    return process.wait(LONG_S)


def test_a_forked_command_prints_and_ends_as_one_that_starts_by_itself_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # after the server has started
    for words in (["--help"], ["plan", "show", "no-such-plan"], ["no-such-command"]):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        code = ended(Forked(words, log))
        alone = subprocess.run(
            [sys.executable, "-m", "fedbnsl", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        assert (code, log.read_bytes()) == (alone.returncode, alone.stdout)
        assert log.stat().st_size > 0


def test_a_forked_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    process = Forked(["coordinator", "serve", "lean", *SERVE, f"--out={tmp_path / 'run'}"], tmp_path / "log")
    await_text(tmp_path / "log", "listening on")
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[3]) == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0, "its run is paused"
    process.kill()  # it has ended: nothing happens, and to no other process


def test_a_forked_process_that_is_killed_tells_by_which_signal(tmp_path: Path) -> None:
    process = Forked(["coordinator", "serve", "lean", *SERVE, f"--out={tmp_path / 'run'}"], tmp_path / "log")
    process.kill()
    assert ended(process) == -signal.SIGKILL


def test_a_server_that_still_loads_ends_with_the_process_that_started_it() -> None:
    caller = subprocess.Popen([sys.executable, "-c", _CALLER], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    server = Path("/proc", caller.stdout.readline().strip())
    try:
        await_text(server / "maps", "numpy")
        os.kill(int(server.name), signal.SIGSTOP)  # it loads no further
        caller.kill()
        caller.wait()
        until = time.monotonic() + LONG_S
        while server.exists() and (server / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until, "it would load on"
            time.sleep(0.02)
    finally:
        caller.kill()
        with suppress(ProcessLookupError):
            os.kill(int(server.name), signal.SIGKILL)
        caller.stdout.close()


_CALLER = """
import time
from multiprocessing import forkserver
from fedbnsl_workbench.fork_server import begin_to_load
begin_to_load()
print(forkserver._forkserver._forkserver_pid, flush=True)
time.sleep(600)
"""


def test_two_forks_draw_different_keys(tmp_path: Path) -> None:
    keys: list[bytes] = []
    for name in ("one", "other"):
        words = ["coordinator", "init", str(tmp_path / name), "--name=here", "--host=127.0.0.1"]
        assert ended(Forked(words, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
        keys.append((tmp_path / name / "ca.key").read_bytes())
    assert keys[0] != keys[1]


def test_a_run_of_forked_processes_gives_the_same_bits_as_one_process(tmp_path: Path) -> None:
    write_federation(synthesise(8, 8, 3, 200, 7, weight_variance=0.05), tmp_path / "data")
    tables, plan = site_files(tmp_path / "data"), Plan(n_participants=3, rounds=5)
    localnet.run(plan, tables, tmp_path / "forked", seeds={}, forked=True)
    simulate(plan, {site: Dataset.read(path) for site, path in tables.items()}, tmp_path / "alone")
    for name in ("weights.csv", "edges.csv", "lgbn.json"):
        assert (tmp_path / "forked" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    for site in tables:
        assert "joined as" in (tmp_path / "forked" / "logs" / f"{site}.log").read_text(encoding="utf-8")


SERVE = ("--insecure", "--listen=127.0.0.1:0", "--variables=a,b")


def await_text(log: Path, text: str) -> None:
    until = time.monotonic() + LONG_S
    while text not in log.read_text(encoding="utf-8"):
        assert time.monotonic() < until, log.read_text(encoding="utf-8")
        time.sleep(0.02)
