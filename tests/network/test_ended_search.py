"""Ctrl-C while a coordinator searches: the search ends with the best so far, and the result says so.

A search of real processes goes on until it hears that it is enough, or (DEAF) much longer.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Phase
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_workbench.localnet import LocalNetwork
from forked import forked_network

LONG_S = 60.0
SITES = ("north", "south")
SLOW = """
import time
from fedbnsl_server.rounds import moments
genuine = moments.confidence_of
def confidence_of(*arguments, progress, **options):
    progress.begin("bootstrap")
    progress.at(0.25)
    while not progress.is_enough:
        time.sleep(0.01)
    time.sleep({deaf_s})
    return genuine(*arguments, progress=progress, **options)
moments.confidence_of = confidence_of
from fedbnsl.cli import main
main()
"""
DEAF_S = 600
ENDING = "ending this search with the best so far, and going on with the run; Ctrl-C again at once interrupts the run"


def await_that(holds: Callable[[], object]) -> None:
    until = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.05)


def slow(deaf_s: float, *arguments: str | Path) -> "subprocess.Popen[str]":
    """`fedbnsl ARGUMENTS` with such a search."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOW.format(deaf_s=deaf_s), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    for k, _ in enumerate(SITES):
        a, e, u = rng.normal(size=(3, 80))
        rows = np.column_stack([a, 2 * a + e, e - u]).tolist()
        text = "a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)
        (folder / f"site-{k + 1}.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    plan = Plan.load("standard").with_settings(variables=("a", "b", "c"), n_participants=2, bootstrap=100)
    path = tmp_path / "plan.toml"
    path.write_text(plan.to_toml(), encoding="utf-8")
    return path


class Searching:
    """A coordinator in its search, and its sites."""

    def __init__(self, network: LocalNetwork, tmp_path: Path, plan_file: Path, tables: Path, deaf_s: float) -> None:
        address, self.out = tmp_path / "address", tmp_path / "run"
        command = ("coordinator", "serve", plan_file, "--insecure", "--listen=127.0.0.1:0", f"--out={self.out}")
        self.process = slow(deaf_s, *command, f"--address-file={address}")
        await_that(address.exists)
        self.address = address.read_text(encoding="utf-8")
        for k, site in enumerate(SITES):
            join = ["participant", "join", self.address, "--insecure", "--public-data", f"--site={site}"]
            network.start(site, [*join, f"--data={tables / f'site-{k + 1}.csv'}"])
        self.observer, self.network = Observer(self.address), network

    def phase(self) -> Phase | None:
        seen = self.observer.status()
        return None if seen is None else seen.phase

    def await_search(self) -> None:
        await_that(lambda: (phase := self.phase()) is not None and phase.what == "bootstrap")


@pytest.fixture
def searching(tmp_path: Path, plan_file: Path, tables: Path) -> Iterator[Callable[[float], Searching]]:
    started: list[Searching] = []
    with forked_network(tmp_path / "logs") as network:

        def start(deaf_s: float) -> Searching:
            started.append(Searching(network, tmp_path, plan_file, tables, deaf_s))
            started[-1].await_search()
            return started[-1]

        yield start
        for one in started:
            with closing(one.observer), one.process:
                one.process.kill()


def test_the_status_tells_what_the_coordinator_works_on_and_which_share_is_done(searching):
    one = searching(0.0)
    await_that(one.phase)
    phase = one.phase()
    assert (phase.what, phase.share, phase.left_s) == ("bootstrap", 0.25, None)


def test_the_first_ctrl_c_in_a_search_ends_the_search_and_the_run_finishes_and_says_so(searching):
    one = searching(0.0)
    one.process.send_signal(signal.SIGINT)
    said, _ = one.process.communicate(timeout=LONG_S)
    assert one.process.returncode == 0, said
    assert ENDING in said
    told = "the search of round 13 was ended early by the operator, in its part 'bootstrap': the graph is complete"
    assert f"be careful: {told}" in said
    result = json.loads((one.out / "result.json").read_text(encoding="utf-8"))
    assert result["state"] == "finished"
    draws = result["estimation"]["draws"]
    assert draws < 100
    (sentence,) = result["verdict"]["incomplete"]
    assert sentence.endswith(f"; {draws} of 100 draws of the bootstrap were made")
    assert sentence in result["warnings"]
    assert [entry["round"] for entry in result["rounds"] if "ended_in" in entry] == [13]
    for site in SITES:
        await_that(lambda site=site: one.network.ended(site))
        assert "the coordinator's operator ended a search early" in "\n".join(one.network.said(site))


def test_a_second_ctrl_c_interrupts_the_run_which_can_be_continued(searching):
    one = searching(DEAF_S)
    one.process.send_signal(signal.SIGINT)
    await_that(lambda: ENDING in (one.out / "events.jsonl").read_text(encoding="utf-8"))
    one.process.send_signal(signal.SIGINT)
    said, _ = one.process.communicate(timeout=LONG_S)
    assert one.process.returncode == 130, said
    assert "interrupted in round 13" in said
    assert "continue with: fedbnsl coordinator serve" in said
    assert json.loads((one.out / "result.json").read_text(encoding="utf-8"))["state"] == "interrupted"


def test_sigterm_in_a_search_pauses_the_run_as_ever(searching):
    one = searching(DEAF_S)
    one.process.send_signal(signal.SIGTERM)
    said, _ = one.process.communicate(timeout=LONG_S)
    assert one.process.returncode == 0, said
    assert ENDING not in said
    assert "paused after round 12; continue with:" in said


@pytest.mark.parametrize("deaf_s", [0.0, DEAF_S], ids=["once", "twice"])
def test_in_a_simulation_ctrl_c_is_heard_while_it_searches(deaf_s, tables, tmp_path):
    out = tmp_path / "simulated"
    command = ("simulate", "standard", "--data", tables, "--out", out, "--set", "bootstrap=100")
    with slow(deaf_s, *command) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("bootstrap: 25 %") for line in lines)
        process.send_signal(signal.SIGINT)
        assert any(ENDING in line for line in lines)
        if deaf_s:
            process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == (130 if deaf_s else 0), rest
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert result["state"] == ("interrupted" if deaf_s else "finished")
    assert bool(result["verdict"]["incomplete"]) is not bool(deaf_s)
