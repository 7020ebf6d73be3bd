"""Trials: kept, taken up again, the same however many processes run them."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from rich.console import Console

from fedbnsl import __version__
from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import DataError, InterruptedRunError, ResultError, SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl_research.trials.store import TrialStore
from fedbnsl_research.trials.trials import run_trials, trial_key
from fedbnsl_research.tuning.tune import GeneratedData, run_trial, trial_of


class Called:
    """A trial's function that notes what it was called with."""

    def __init__(self, fails=()):
        self.seeds = []
        self.fails = set(fails)

    def __call__(self, trial):
        self.seeds.append(trial["seed"])
        if trial["seed"] in self.fails:
            raise DataError("no such table")
        return [{"seed": trial["seed"], "half": trial["seed"] / 2, "pair": (1, 2)}]


def run(function, seeds, store, **options):
    console = options.pop("console", Console(file=io.StringIO()))
    trials = [{"seed": seed} for seed in seeds]
    return run_trials(function, trials, store, work="test", title="test", console=console, **options)


def test_what_the_store_holds_is_not_run_again_and_comes_in_the_order_asked(tmp_path):
    function, store = Called(), tmp_path / "new" / "trials.jsonl"
    first = run(function, [3, 1], store)
    again = run(function, [1, 2, 3], store)
    assert function.seeds == [3, 1, 2]
    assert [o.rows[0]["half"] for o in again] == [0.5, 1.0, 1.5]
    assert again[2] == first[0]  # a tuple is a list in both


def test_a_failed_trial_is_an_outcome_and_tried_again(tmp_path):
    function = Called(fails=[2])
    outcomes = run(function, [1, 2], tmp_path / "t")
    assert outcomes[1].error == "DataError: no such table"
    assert not outcomes[1].rows
    function.fails.clear()
    assert run(function, [1, 2], tmp_path / "t")[1].error == ""
    assert function.seeds == [1, 2, 2]


def test_an_interruption_is_no_outcome_and_keeps_what_was_done(tmp_path):
    def interrupted(trial):
        if trial["seed"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return []

    with pytest.raises(InterruptedRunError) as raised, interruptible():
        run(interrupted, [1, 2, 3], tmp_path / "t")
    assert "the same command continues from there" in raised.value.remedy
    function = Called()
    run(function, [1, 2, 3], tmp_path / "t")
    assert function.seeds == [2, 3]


@pytest.mark.parametrize("torn", [b'{"trial": {"seed": 5}, "ro', b"{", b'{"trial": {"seed": 5}, "rows": []'])
def test_a_torn_last_line_costs_that_line_and_not_the_next(tmp_path, torn):
    store, function = tmp_path / "t", Called()
    run(function, [1], store)
    store.write_bytes(store.read_bytes() + torn)
    run(function, [1, 5], store)
    run(function, [1, 5], store)
    assert function.seeds == [1, 5]


@pytest.mark.parametrize("start", [b"", b'{"vers'])
def test_a_store_torn_before_its_version_begins_anew(tmp_path, start):
    store = tmp_path / "t"
    store.write_bytes(start)
    function = Called()
    run(function, [1], store)
    run(function, [1], store)
    assert function.seeds == [1]
    lines = [json.loads(line) for line in store.read_text().splitlines()[-2:]]
    assert {"version": __version__, "work": "test"} in lines


def test_a_store_of_another_version_is_refused_and_left_alone(tmp_path):
    store = tmp_path / "t"
    store.write_text('{"version": "0.0.1"}\n')
    with pytest.raises(ResultError, match="do not mix"):
        run(Called(), [1], store)
    assert store.read_text() == '{"version": "0.0.1"}\n'


@pytest.mark.parametrize("content", ["a,b\n1,2\n", json.dumps({"version": __version__}) + '\n{"seed": 1}\n', "[]\n"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    store = tmp_path / "t"
    store.write_text(content)
    with pytest.raises(ResultError, match="no file of trials"):
        run(Called(), [1], store)
    assert store.read_text() == content


def test_two_commands_do_not_work_on_one_store(tmp_path):
    with TrialStore(tmp_path / "t", work="test"), pytest.raises(ResultError, match="another command works"):
        run(Called(), [1], tmp_path / "t")
    run(Called(), [1], tmp_path / "t")


def test_a_trial_is_known_again_by_values_and_not_by_order_or_spelling():
    trial = {"b": (0.1, 1e-9), "a": {"y": 2, "x": None}}
    assert trial_key(trial) == trial_key({"a": {"x": None, "y": 2}, "b": [0.1, 1e-9]})
    assert trial_key(json.loads(trial_key(trial))) == trial_key(trial)
    assert trial_key({"a": 0.1 + 0.2}) != trial_key({"a": 0.3})
    with pytest.raises(ValueError, match="JSON"):
        trial_key({"a": math.nan})


@pytest.mark.parametrize("jobs", [0, -2])
def test_no_number_of_processes_is_refused(tmp_path, jobs):
    with pytest.raises(SetupError, match="--jobs"):
        run(Called(), [1], tmp_path / "t", jobs=jobs)


def test_without_a_terminal_progress_is_a_line_now_and_then(tmp_path):
    file = io.StringIO()
    run(Called(), range(5), tmp_path / "t")
    run(Called(), range(40), tmp_path / "t", console=Console(file=file))
    lines = file.getvalue().splitlines()
    assert lines[0] == "test: 5/40 trials"
    assert lines[-1] == "test: 40/40 trials"
    assert len(lines) <= 11


DATA = GeneratedData(nodes=5, edges=4, sites=2, rows=100, heterogeneous=0.0)


def measured(tmp_path, name, **options):
    plan = Plan(rounds=4, n_participants=2)
    trials = [trial_of(plan, DATA, seed) for seed in (100, 101, 102)]
    function = partial(run_trial, DATA)
    console = Console(file=io.StringIO())
    outcomes = run_trials(function, trials, tmp_path / name, work="t", title="t", console=console, **options)
    assert not any(outcome.error for outcome in outcomes)
    return [{k: v for k, v in o.rows[0].items() if k != "seconds"} for o in outcomes]


def test_two_processes_and_dask_give_what_one_process_gives(tmp_path):
    alone = measured(tmp_path, "1")
    assert measured(tmp_path, "2", jobs=2) == alone
    assert measured(tmp_path, "dask", dask="", jobs=1) == alone


def test_a_missing_scheduler_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbnsl_research.trials.workers._WORKERS_DEADLINE_S", 1)
    with pytest.raises(SetupError, match="no Dask scheduler answers at tcp:"):
        run(Called(), [1], tmp_path / "t", dask="tcp://127.0.0.1:9")


def test_dask_that_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SetupError, match="distributed") as raised:
        run(Called(), [1], tmp_path / "t", dask="")
    assert "pip install" in raised.value.remedy


def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(tmp_path):
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(f"l1_weight = {[k / 1000 for k in range(1, 400)]}\n")
    small = ["--nodes", "5", "--edges", "4", "--sites", "2", "--rows", "100", "--set", "rounds=20"]
    command = [sys.executable, "-m", "fedbnsl", "tune", "fed-sparse", "--grid", str(grid), "--seeds", "100", *small]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--out", str(out)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    store = out / "trials.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if store.exists() and store.read_bytes().count(b"\n") > 3:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    output, errors = process.communicate(timeout=150)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert output == ""
    assert wait_until_alone(process.pid)
    with TrialStore(store, work="tune") as kept:
        assert 3 <= len(kept.lines) < 399


def wait_until_alone(group):
    """Whether the processes of a group end soon; one that is dead and waited for by nobody counts as ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        states = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        if not [line for line in states.splitlines() if line.split()[0] == str(group) and "Z" not in line]:
            return True
        time.sleep(0.1)
    return False


def test_the_trials_of_another_work_are_not_mixed_with(tmp_path):
    with TrialStore(tmp_path / "t", work="reproduce table1") as kept:
        kept.append({"trial": {"seed": 1}, "rows": [], "error": "", "seconds": 0.1})
    before = (tmp_path / "t").read_bytes()
    with pytest.raises(ResultError, match="holds the trials of `reproduce table1`, not of `reproduce sachs`"):
        TrialStore(tmp_path / "t", work="reproduce sachs")
    assert (tmp_path / "t").read_bytes() == before
