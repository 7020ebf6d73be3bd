"""Coordinators that end in the middle while a quorum is enough: each life may have other contributors to a round.

Each site is a thread; a coordinator that is killed is a process of its own.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Finished, LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client import join_run
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.session import Session
from fedbnsl_server.run import round_loop
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_server.store import checkpoint
from network.test_resume import LONG_S, PLAN, SITES, Federation, address, coordinate_until, sites, tables

__all__ = ["address", "sites", "tables"]  # fixtures

QUORUM = PLAN.with_settings(rounds=7, refit_rounds=1, quorum=2, round_deadline_s=1.0)
CHANGES = {"send_tolerance": 0.02, "value_type": "float32"}


class Script:
    """What happens to whom and when, and with which dual each site answered the coordinator that lived to the end."""

    def __init__(self) -> None:
        self.before_pull: dict[tuple[str, int], Callable[[], None]] = {}
        self.before_push: dict[tuple[str, int], Callable[[], None]] = {}
        self.after_push: dict[tuple[str, int], Callable[[], None]] = {}
        self.duals: dict[tuple[str, int], Matrix] = {}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()

    class ScriptedParticipant(Participant):
        def handle(self, task: RoundTask) -> LocalUpdate:
            update = super().handle(task)
            if task.content.kind == "admm":
                script.duals[self.site, task.round] = self._rounds["admm"]._beta.to_dense()
            return update

    class ScriptedSession(Session):
        def pull(self, last_round: int) -> RoundTask | Finished:
            script.before_pull.pop((self._site, last_round), lambda: None)()
            return super().pull(last_round)

        def push(self, update: LocalUpdate) -> None:
            script.before_push.pop((update.site, update.round), lambda: None)()
            super().push(update)
            script.after_push.pop((update.site, update.round), lambda: None)()

    monkeypatch.setattr(join_run, "Participant", ScriptedParticipant)
    monkeypatch.setattr(join_run, "Session", ScriptedSession)
    return script


class AnewInEveryRound:
    """An Exchange in one process in which only some sites contribute, each starting from what the coordinator holds."""

    def __init__(self, plan: Plan, tables: Mapping[str, Dataset], present: Mapping[int, list[str]]) -> None:
        self.traffic = Traffic()
        self._plan = plan
        self.held: dict[int, Mapping[str, SiteState]] = {}
        self._tables = tables
        self._present = present

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        t = next(iter(tasks.values())).round
        self.held[t] = snapshots
        return {
            site: Participant(site, self._tables[site], self._plan, snapshots[site]).handle(tasks[site])
            for site in self._present[t]
        }


def assert_as_if_in_one_process(
    plan: Plan, result: Mapping[str, Any], out: Path, tables: Mapping[str, Dataset], script: Script
) -> dict[int, str]:
    """The bits of a run of one process in which the same sites contributed, on both sides; who contributed."""
    assert result["state"] == "finished"
    present = {entry["round"]: entry["contributed"] for entry in result["rounds"]}
    exchange = AnewInEveryRound(plan, tables, present)
    n_samples = dict.fromkeys(SITES, 100)
    alone = round_loop.run(plan, result["variables"], n_samples, exchange, on_round=lambda state, record: None)
    for (site, t), beta in script.duals.items():
        if site in present[t]:
            held = exchange.held[t][site].consensus_dual.to_dense()
            assert np.array_equal(beta, held), f"{site} answered round {t} with another dual than the coordinator held"
    kept = checkpoint.load(out / "checkpoint.npz", plan_digest=plan.digest())
    assert kept.global_weights == alone.global_weights
    assert kept.refitted == alone.refitted
    assert dict(kept.sites) == dict(alone.sites)
    return {t: "".join(names) for t, names in present.items()}


def wait_for(event: threading.Event) -> Callable[[], None]:
    def wait() -> None:
        assert event.wait(LONG_S)

    return wait


# c has answered round 3, and a; b has not.
DIES_WITH_TWO_OF_THREE = """
genuine = Mailbox.push
def push(self, update):
    repeat = genuine(self, update)
    if update.round == 3 and len(self._updates) == 2: die()
    return repeat
Mailbox.push = push
"""


@pytest.mark.parametrize(
    ("wakes_after", "settings"),
    [(0, {}), (3, {}), (4, {}), (5, {}), (0, CHANGES), (3, CHANGES), (5, CHANGES)],
    ids=["at once", "round 3", "round 4", "round 5", "changes-at once", "changes-round 3", "changes-round 5"],
)
def test_a_site_whose_answer_died_with_its_coordinator_is_not_taken_for_one_that_contributed(
    wakes_after: int,
    settings: dict[str, Any],
    script: Script,
    sites: Federation,
    tables: dict[str, Dataset],
    tmp_path: Path,
) -> None:
    answered, woken = threading.Event(), threading.Event()
    plan = QUORUM.with_settings(**settings)
    script.after_push["c", 3] = answered.set
    script.before_push["a", 3] = script.before_push["b", 3] = wait_for(answered)
    if wakes_after:
        script.before_pull["c", 3] = wait_for(woken)
    out = tmp_path / "run"
    sites.start()
    assert coordinate_until(DIES_WITH_TWO_OF_THREE, plan, out, sites.address) == 9
    result = sites.coordinate(plan, out, on_round=lambda t: woken.set() if t == wakes_after else None)
    present = assert_as_if_in_one_process(plan, result, out, tables, script)
    for t in range(3, wakes_after + 1):
        assert present[t] == "ab"
    assert any("c" in present[t] for t in range(max(3, wakes_after + 1), 8))
    assert sites.graphs()[0] == sites.graphs()[2]


@pytest.mark.parametrize("settings", [{}, CHANGES], ids=["all entries", "changes"])
def test_a_site_that_sleeps_while_a_folder_is_set_back_and_catches_up_takes_over_the_new_history(
    settings: dict[str, Any], script: Script, sites: Federation, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    plan, woken = QUORUM.with_settings(**settings), threading.Event()
    script.before_pull["c", 5] = wait_for(woken)
    out = tmp_path / "run"
    sites.start()
    coordinate_until("def on_round(t):\n  if t == 2: die()", plan, out, sites.address)
    backup = shutil.copytree(out, tmp_path / "backup")
    coordinate_until("def on_round(t):\n  if t == 5: die()", plan, out, sites.address)
    shutil.rmtree(out)
    shutil.copytree(backup, out)
    result = sites.coordinate(plan, out, on_round=lambda t: woken.set() if t == 5 else None)
    present = assert_as_if_in_one_process(plan, result, out, tables, script)
    assert [present[t] for t in (3, 4, 5)] == ["ab", "ab", "ab"]
    assert any("c" in present[t] for t in (6, 7))
    assert sites.graphs()[0] == sites.graphs()[2]
