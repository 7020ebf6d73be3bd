"""The figures of many sites, with few: what is read, what is refused, what the components add up to."""

import copy
import json
import os
import subprocess
import sys

import pytest

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import load as bench_load
from fedbnsl_research.bench.load import Readings
from fedbnsl_research.bench.processes import Reading


@pytest.fixture(scope="module")
def rows():
    return list(bench_load._load(Plan(rounds=2), n_sites=5, n_variables=6))


def test_every_site_contributes_to_every_round(rows):
    times, _ = rows
    assert times["rounds"] == 3, "two and the refit"
    assert times["contributions"] == 15
    assert "5 sites, d=6" in times["figure"]
    assert all(json.dumps(row, allow_nan=False) for row in rows)


def test_every_site_has_a_connection_of_its_own(rows):
    _, memory = rows
    more = memory["open files before round 1"] - memory["open files without sites"]
    assert more >= 3, "the last is not there yet, and a coordinator that starts may still read a file"


def test_memory_is_that_of_the_coordinators_process(rows):
    _, memory = rows
    assert 0 < memory["MiB without sites"] <= memory["MiB before round 1"] <= memory["MiB at most"]
    assert memory["MiB after the last round"] <= memory["MiB at most"]


# A process of its own: that of the tests frees memory and files whenever it likes.
_GROWS = """
import os, time
print("idle", flush=True)
input()
held, file, start = b"x" * (64 * 2**20), open(os.devnull), time.process_time()
while time.process_time() < start + 0.1:
    hash(held[:1000])
print("grown", flush=True)
input()
"""


def test_a_reading_grows_with_what_the_process_holds_and_does():
    with subprocess.Popen(
        [sys.executable, "-c", _GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "idle\n"
        before = Reading.of(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "grown\n"
        after = Reading.of(child.pid)
        child.stdin.write("\n")
    assert after.cpu_s >= before.cpu_s + 0.05
    assert after.resident_bytes - before.resident_bytes > 50 * 2**20
    assert after.highest_bytes >= after.resident_bytes
    assert after.n_files == before.n_files + 1


def test_there_is_no_reading_of_a_process_that_has_ended():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there as a zombie
    with pytest.raises(ProcessLookupError):
        Reading.of(child.pid)
    child.wait()
    with pytest.raises(FileNotFoundError):
        Reading.of(child.pid)


def result(*, total, local, globally, n_rounds=2):
    sites = ["a", "b", "c", "d"]
    return {
        "sites": dict.fromkeys(sites),
        "variables": ["X", "Y"],
        "rounds": [{"contributed": sites} for _ in range(n_rounds)],
        "seconds": {"total": total, "local": local, "global": globally},
        "edges": [{"source": "X", "target": "Y", "weight": 1.0}],
    }


def test_the_components_of_a_round_add_up(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    mib = 2**20
    readings = Readings(
        Reading(100 * mib, 100 * mib, 1.0, 9),
        Reading(110 * mib, 110 * mib, 2.0, 13),
        Reading(120 * mib, 140 * mib, 5.0, 13),
    )
    network, alone = result(total=20.0, local=14.0, globally=4.0), result(total=10.0, local=8.0, globally=1.0)
    row = bench_load._times(network, alone, readings)
    assert row["ratio"] == 2.0
    assert row["s a round"] == 10.0
    assert row["s solving"] == 2.0, "8 s on two processors in two rounds"
    assert row["s global step"] == 2.0
    assert row["s messages"] == 5.0
    assert row["s checkpoint and event"] == 1.0
    assert row["ms overhead a site"] == 1500.0
    assert row["s of the coordinator's processor a round"] == 1.5
    memory = bench_load._memory(network, readings)
    assert (memory["MiB at most"], memory["KiB a site"]) == (140, 40 * 1024 / 4)


def test_a_run_in_which_a_site_missed_a_round_gives_no_figures():
    plan, alone = Plan(rounds=1), result(total=1.0, local=1.0, globally=0.0)
    network = copy.deepcopy(alone)
    bench_load._check(network, alone, plan)
    network["rounds"][1]["contributed"].remove("c")
    with pytest.raises(ResultError, match="missed a round"):
        bench_load._check(network, alone, plan)
    network["rounds"].pop()
    with pytest.raises(ResultError, match="missed a round"):
        bench_load._check(network, alone, plan)


def test_a_run_that_learned_something_else_gives_no_figures():
    plan, alone = Plan(rounds=1), result(total=1.0, local=1.0, globally=0.0)
    network = copy.deepcopy(alone)
    network["edges"][0]["weight"] += 1e-12
    with pytest.raises(ResultError, match="another graph"):
        bench_load._check(network, alone, plan)


def test_the_settings_are_those_that_the_project_states(monkeypatch):
    asked = []
    monkeypatch.setattr(bench_load, "_load", lambda plan, **how: asked.append((plan.rounds, how)) or iter([{}]))
    assert list(bench_load.load()) == [{}]
    assert asked == [(20, {"n_sites": 500, "n_variables": 50})]
