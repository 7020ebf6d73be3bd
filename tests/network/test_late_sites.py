"""Whole runs over gRPC in which sites leave, come back without their state, or are too slow; each site is a thread."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import FedbnslError, QuorumLostError, ResultError, RunAbandonedError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Finished, JoinReply, JoinRequest, LeaveReason, LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl_client import join_run
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.session import Session
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_server.sites.mailbox import Mailbox, Traffic, UpdateCheck
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise
from taken_part import take_part

SITES = ("a", "b", "c")
D = 6
LONG_S = 30.0
GRAPH_FILES = ("weights.csv", "edges.csv", "graph.graphml", "lgbn.json")
VARIABLES = synthesise(D, 7, len(SITES), 100, 5, weight_variance=0.05).variables
PLAN = Plan(
    variables=VARIABLES, rounds=8, refit_rounds=1, l1_weight=0.05, join_deadline_s=LONG_S, run_deadline_s=2 * LONG_S
)
CHANGES = {"send_tolerance": 0.02, "value_type": "float32"}

either = pytest.mark.parametrize("settings", [{}, CHANGES], ids=["all entries", "changes"])


class Crash(BaseException):
    """A participant ends; `end_notice` as after an error, or without a word like a killed process."""

    def __init__(self, *, end_notice: bool) -> None:
        super().__init__()
        self.end_notice = end_notice


@dataclass
class Stage:
    """What happens to whom and when, and all that the two sides knew.

    Attributes
    ----------
    before_handle, after_push, before_pull
        By site and round (for a pull: the last round seen), each called once.
    after_round
        By round, called on the coordinator's engine before the next round opens.
    come_back
        Set for a crashed site to join again, with nothing left of its state.
    held
        (site, round, [B, beta, W]) at every answer to an ADMM task; they are those of the round before.
    """

    before_handle: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)
    after_push: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)
    before_pull: dict[tuple[str, int], Callable[[], None]] = field(default_factory=dict)
    after_round: dict[int, Callable[[], None]] = field(default_factory=dict)
    come_back: dict[str, threading.Event] = field(default_factory=dict)
    joins: Counter[str] = field(default_factory=Counter)
    joined: threading.Condition = field(default_factory=threading.Condition)
    held: list[tuple[str, int, list[Matrix]]] = field(default_factory=list)
    states: dict[int, AdmmState] = field(default_factory=dict)
    ends: dict[str, SparseMatrix | BaseException] = field(default_factory=dict)

    def wait_for_joins(self, site: str, times: int) -> None:
        with self.joined:
            assert self.joined.wait_for(lambda: self.joins[site] >= times, LONG_S)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Participants and sessions of `take_part` that follow a script."""
    stage = Stage()

    class ScriptedParticipant(Participant):
        def handle(self, task: RoundTask) -> LocalUpdate:
            stage.before_handle.pop((self.site, task.round), lambda: None)()
            update = super().handle(task)
            if task.content.kind == "admm":
                rounds: Any = self._rounds["admm"]
                held = [one.to_dense() for one in (rounds._B, rounds._beta, rounds._W)]
                stage.held.append((self.site, task.round, held))
            return update

    class ScriptedSession(Session):
        def join(self, request: JoinRequest) -> JoinReply:
            reply = super().join(request)
            with stage.joined:
                stage.joins[request.site] += 1
                stage.joined.notify_all()
            return reply

        def pull(self, last_round: int) -> RoundTask | Finished:
            stage.before_pull.pop((self._site, last_round), lambda: None)()
            return super().pull(last_round)

        def push(self, update: LocalUpdate) -> None:
            super().push(update)
            stage.after_push.pop((update.site, update.round), lambda: None)()

        def leave(self, reason: LeaveReason) -> None:
            crash = sys.exception()
            if not isinstance(crash, Crash) or crash.end_notice:
                super().leave(reason)

    monkeypatch.setattr(join_run, "Participant", ScriptedParticipant)
    monkeypatch.setattr(join_run, "Session", ScriptedSession)
    return stage


@pytest.fixture(scope="module")
def tables() -> dict[str, Dataset]:
    drawn = synthesise(D, 7, len(SITES), 100, 5, weight_variance=0.05)
    return {site: Dataset(drawn.variables, X) for site, X in zip(SITES, drawn.tables, strict=True)}


def play(stage: Stage, plan: Plan, tables: Mapping[str, Dataset], out: Path) -> dict[str, Any]:
    """One whole run; the coordinator on this thread (it takes the signals), each site on one of its own."""

    def live(site: str, address: str) -> None:
        while True:
            try:
                stage.ends[site] = take_part(PublicTable(site, tables[site]), Link(address), patience_s=LONG_S)
            except Crash as crash:
                stage.ends[site] = crash
                if site in stage.come_back and stage.come_back[site].wait(LONG_S):
                    continue
            except FedbnslError as error:
                stage.ends[site] = error
            return

    def after_round(state: AdmmState, record: RoundRecord) -> None:
        stage.states[record.round] = state
        stage.after_round.pop(record.round, lambda: None)()

    with ThreadPoolExecutor(len(SITES)) as sites:
        alive = []

        def listening(address: str) -> None:
            alive.extend(sites.submit(live, site, address) for site in tables)

        try:
            result = serve(plan, out, ServerSettings("127.0.0.1:0", listening), Follower(on_round=after_round))
        finally:
            for site in alive:
                site.result(LONG_S)
    return result


def contributions(result: Mapping[str, Any]) -> dict[int, str]:
    return {entry["round"]: "".join(entry["contributed"]) for entry in result["rounds"]}


def dense_bits(matrix: Matrix) -> bytes:
    return (matrix + 0.0).tobytes()  # no signed zeros: they are no difference between two duals


def assert_both_sides_hold_the_same(stage: Stage) -> None:
    """In every ADMM round each site worked with the B, beta and W that the coordinator held after the round before."""
    assert len(stage.held) > 10
    for site, t, at_the_site in stage.held:
        state = stage.states.get(t - 1) or initial_state(D, SITES)
        of_it = state.sites[site]
        at_the_coordinator = (of_it.local_weights, of_it.consensus_dual, state.global_weights)
        for name, here, there in zip(("B", "beta", "W"), at_the_site, at_the_coordinator, strict=True):
            assert dense_bits(here) == dense_bits(there.to_dense()), (name, site, t)
        assert t == 1 or of_it.consensus_dual.nnz


def assert_only_changes_were_sent(
    result: Mapping[str, Any], tables: Mapping[str, Dataset], plan: Plan, out: Path
) -> None:
    """Less went up and down than without a tolerance."""
    simulate(plan.with_settings(send_tolerance=0.0), tables, out)
    everything = json.loads((out / "result.json").read_text(encoding="utf-8"))
    for direction in ("up", "down"):
        assert result["bytes"][direction]["formula"] < 0.9 * everything["bytes"][direction]["formula"]


def assert_same_bits(one: Path, other: Path) -> None:
    for name in GRAPH_FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert (one / "checkpoint.npz").read_bytes() == (other / "checkpoint.npz").read_bytes()


class AbsentFrom:
    """An Exchange in one process in which some sites are not there in some rounds."""

    def __init__(self, participants: Mapping[str, Participant], present: Mapping[int, str]) -> None:
        self.traffic = Traffic()
        self._participants = participants
        self._present = present

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        present = self._present[next(iter(tasks.values())).round]
        return {site: self._participants[site].handle(task) for site, task in tasks.items() if site in present}


def killed() -> None:
    raise Crash(end_notice=False)


def failed() -> None:
    raise Crash(end_notice=True)


# ---- a site that leaves --------------------------------------------------------------------------------------------


def test_a_run_with_a_quorum_goes_on_without_a_site_that_fails(
    stage: Stage, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    plan = PLAN.with_settings(quorum=2)
    stage.before_handle["c", 3] = failed
    result = play(stage, plan, tables, tmp_path / "run")
    present = {t: "abc" if t < 3 else "ab" for t in range(1, 10)}
    assert result["state"] == "finished"
    assert contributions(result) == present
    assert [result["sites"][site]["rounds_contributed"] for site in SITES] == [9, 9, 2]
    assert result == json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    for t in range(3, 10):
        assert result["rounds"][t - 1]["bytes"]["c"]["up"] == {"formula": 0, "serialised": 0}
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["contributed"] for event in events if event["event"] == "round"] == [
        list(w) for w in present.values()
    ]
    assert isinstance(stage.ends["c"], Crash)
    assert stage.ends["a"] == stage.ends["b"]
    learned = stage.ends["a"]
    assert isinstance(learned, SparseMatrix)
    weights = {(e["source"], e["target"]): e["weight"] for e in result["edges"]}
    names = result["variables"]
    assert weights == {
        (names[k // D], names[k % D]): v for k, v in zip(learned.index, learned.value.tolist(), strict=True)
    }
    assert_both_sides_hold_the_same(stage)

    participants = {site: Participant(site, table, plan) for site, table in tables.items()}
    alone = round_loop.run(
        plan, names, dict.fromkeys(SITES, 100), AbsentFrom(participants, present), on_round=lambda state, record: None
    )
    over_the_wire = checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=plan.digest())
    assert over_the_wire.global_weights == alone.global_weights
    assert over_the_wire.refitted == alone.refitted
    assert dict(over_the_wire.sites) == dict(alone.sites)


def test_a_run_below_its_quorum_ends_and_says_whom_it_lacked_and_the_others_learn_it(
    stage: Stage, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    plan = PLAN.with_settings(quorum=2, round_deadline_s=0.2, run_deadline_s=3.0)
    stage.before_handle["a", 2] = stage.before_handle["c", 2] = failed
    with pytest.raises(QuorumLostError, match=r"round 2: 1 of the needed 2 sites answered .* missing: a, c"):
        play(stage, plan, tables, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["state"] == "failed"
    assert "missing: a, c" in result["reason"]
    assert contributions(result) == {1: "abc"}
    assert checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=plan.digest()).round == 1
    abandoned = stage.ends["b"]
    assert isinstance(abandoned, RunAbandonedError)
    assert str(abandoned) == "the run ended without a result: too few sites answered in time"


# ---- a site that comes back without its state ----------------------------------------------------------------------


def back_in_the_open_round(stage: Stage) -> None:
    """c dies after its answer to round 5 and joins again while the others still work on it."""
    stage.come_back["c"] = threading.Event()
    stage.come_back["c"].set()
    stage.after_push["c", 5] = killed
    stage.before_handle["a", 5] = lambda: stage.wait_for_joins("c", 2)


def back_between_two_rounds(stage: Stage) -> None:
    """c dies after its answer to round 5 and joins again while the coordinator computes W: its snapshot is old."""
    back = stage.come_back["c"] = threading.Event()
    stage.after_push["c", 5] = killed

    def computing() -> None:
        back.set()
        stage.wait_for_joins("c", 2)

    stage.after_round[5] = computing


def back_as_the_round_closes(stage: Stage) -> None:
    """c dies after its answer to round 5, joins again in the open round, and pulls when the next one is there."""
    back_in_the_open_round(stage)
    closed = threading.Event()
    stage.after_round[5] = closed.set

    def dawdle() -> None:
        assert closed.wait(LONG_S)

    def second_life() -> None:
        stage.before_pull["c", 4] = dawdle
        killed()

    stage.after_push["c", 5] = second_life


def back_at_once(where: str, t: int, end: Callable[[], None]) -> Callable[[Stage], None]:
    """c ends in a round, and comes back before the others go on."""

    def scene(stage: Stage) -> None:
        stage.come_back["c"] = threading.Event()
        stage.come_back["c"].set()
        getattr(stage, where)["c", t] = end

    return scene


SCENES = {
    "in the open round": back_in_the_open_round,
    "between two rounds": back_between_two_rounds,
    "as the round closes": back_as_the_round_closes,
    "after an end notice, before it answered": back_at_once("before_handle", 3, failed),
    "for the refit, which needs no state": back_at_once("before_handle", 9, killed),
    "from the start, before there is any state": back_at_once("after_push", 1, killed),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize(
    "settings",
    [{}, {"value_type": "float32"}, {"local_solver": "closed-form"}, CHANGES],
    ids=["float64", "float32", "closed-form", "changes"],
)
def test_a_site_that_lost_its_state_comes_back_and_the_run_ends_with_the_same_bits(
    scene: str,
    settings: dict[str, Any],
    stage: Stage,
    tables: dict[str, Dataset],
    tmp_path: Path,
) -> None:
    plan = PLAN.with_settings(**settings)
    SCENES[scene](stage)
    result = play(stage, plan, tables, tmp_path / "run")
    assert stage.joins["c"] >= 2
    assert contributions(result) == dict.fromkeys(range(1, 10), "abc")
    assert all(isinstance(end, SparseMatrix) for end in stage.ends.values())
    assert_both_sides_hold_the_same(stage)
    simulate(plan, tables, tmp_path / "undisturbed")
    assert_same_bits(tmp_path / "run", tmp_path / "undisturbed")
    if plan.sends_changes:
        assert_only_changes_were_sent(result, tables, plan, tmp_path / "everything")


@either
def test_with_a_quorum_a_site_comes_back_after_rounds_without_it(
    settings: dict[str, Any], stage: Stage, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    back = stage.come_back["c"] = threading.Event()
    stage.before_handle["c", 3] = failed

    def call_back() -> None:
        back.set()
        stage.wait_for_joins("c", 2)

    stage.after_round[5] = call_back
    result = play(stage, PLAN.with_settings(quorum=2, **settings), tables, tmp_path / "run")
    assert contributions(result) == {t: "ab" if t in (3, 4, 5) else "abc" for t in range(1, 10)}
    assert_both_sides_hold_the_same(stage)
    assert {t for site, t, _ in stage.held if site == "c"} == {1, 2, 6, 7, 8}
    last = stage.states[8].sites["c"]
    assert last.local_weights.nnz > 0 < last.consensus_dual.nnz
    assert stage.ends["c"] == stage.ends["a"]


# ---- a site that is too slow ---------------------------------------------------------------------------------------


@either
@pytest.mark.parametrize(
    ("slow_at", "t", "missed"),
    [("before_handle", 4, (4,)), ("before_pull", 3, (4, 5))],
    ids=["its answer comes too late", "it misses whole rounds"],
)
def test_a_site_that_is_too_slow_goes_on_with_a_later_round(
    slow_at: str,
    t: int,
    missed: tuple[int, ...],
    settings: dict[str, Any],
    stage: Stage,
    tables: dict[str, Dataset],
    tmp_path: Path,
) -> None:
    """In whole rounds it takes over the coordinator's state: the W of round 3, which its dual follows, it never saw."""
    closed = threading.Event()
    stage.after_round[max(missed)] = closed.set
    getattr(stage, slow_at)["c", t] = lambda: closed.wait(LONG_S) and None
    result = play(stage, PLAN.with_settings(quorum=2, round_deadline_s=1.0, **settings), tables, tmp_path / "run")
    present = contributions(result)
    assert result["state"] == "finished"
    assert "c" in present[3]
    assert {present[round_] for round_ in missed} == {"ab"}
    assert any("c" in present[round_] for round_ in range(max(missed) + 1, 9))
    assert stage.joins["c"] >= len(missed)
    assert_both_sides_hold_the_same(stage)


# ---- a coordinator that cannot go on -------------------------------------------------------------------------------


def test_an_error_of_the_coordinator_ends_the_run_for_everybody(
    stage: Stage, tables: dict[str, Dataset], tmp_path: Path
) -> None:
    def full() -> None:
        raise ResultError("the disk is full")

    stage.after_round[3] = full
    with pytest.raises(ResultError, match="the disk is full"):
        play(stage, PLAN, tables, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert (result["state"], result["reason"]) == ("failed", "the disk is full")
    assert contributions(result) == dict.fromkeys((1, 2, 3), "abc")
    assert all(isinstance(end, RunAbandonedError) for end in stage.ends.values())


def test_the_results_are_written_before_anybody_is_told_of_the_end(
    stage: Stage, tables: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Mailbox.finish
    written: list[bool] = []

    async def finish(self: Mailbox, *arguments: Any) -> None:
        written.append((tmp_path / "run" / "result.json").exists())
        await said(self, *arguments)

    monkeypatch.setattr(Mailbox, "finish", finish)
    play(stage, Plan(variables=VARIABLES, n_participants=len(tables), rounds=2), tables, tmp_path / "run")
    assert written == [True]
