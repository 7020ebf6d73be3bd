"""What the coordinator's page shows of a run, without a browser."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from fedbnsl.events.emitter import Event
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LeaveReason, RunStatus, SiteProgress
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.observe.page import run_report
from fedbnsl_server.observe.page.live_run import LiveRun
from fedbnsl_server.observe.page.present_graph import MOST_EDGES, present_graph
from fedbnsl_server.observe.page.remedies import remedies
from fedbnsl_server.observe.page.runs_page import RunsPage
from fedbnsl_server.sites.why_left import WHY_LEFT
from fedbnsl_server.store.run_id import RunIdentity

NAMES = ("a", "b", "c")
PLAN = Plan(n_participants=2, rounds=5, variables=NAMES, sites=("north", "south"), threshold=0.1)
NORTH = SiteProgress("north", True, False, 0.5, 1000, 200, online_s=60.0, last_round=3, spent_units=250_000_000_000)
SOUTH = SiteProgress("south", False, False, 2.0, 10, 20, online_s=60.0, last_round=2)
IDENTITY = RunIdentity(7, datetime(2026, 11, 29, tzinfo=UTC), study="heart")
STATUS = RunStatus("running", 3, 6, 1.5e-3, 17, 12.75, (NORTH, SOUTH))


def shown(live: LiveRun) -> dict:
    return json.loads(live.publisher.snapshot())


def event(kind: str, **fields) -> Event:
    return Event(kind, "run", fields)


def over(t: int, h: float = 0.5) -> Event:
    return event(
        "round over", round=t, stage="admm", acyclicity=h, edges=4, undirected=0, contributed=["north"], n_bytes=100,
        local_s=1.0, global_s=0.5,
    )  # fmt: skip


@pytest.fixture
def live(tmp_path):
    return LiveRun(PLAN, tmp_path / "run", IDENTITY)


def look(live: LiveRun, status: RunStatus) -> dict:
    async def asked() -> None:
        live.follow(lambda: status, asyncio.get_running_loop())
        await live.publisher.refresh()

    asyncio.run(asked())
    return shown(live)["now"]


def test_rounds_bytes_and_log_follow_the_events(live):
    live.heard(event("site joined", site="north", n_samples=40))
    live.heard(event("run started", plan="", rounds=6, variables=NAMES, sites=["north", "south"], after_round=0))
    live.heard(over(1))
    live.heard(over(2, h=float("inf")))
    live.heard(event("notice", text="<b>be careful</b>"))
    found = shown(live)
    assert [(one["round"], one["bytes"], one["h"], one["s"]) for one in found["rounds"]["items"]] == [
        (1, 100, 0.5, 1.5),
        (2, 200, None, 1.5),
    ]
    assert found["log"]["items"][-1][1] == "<b>be careful</b>"
    assert found["run"]["variables"] == list(NAMES)
    assert (found["run"]["study"], found["run"]["run"]) == ("heart", f"{7:016x}")


def test_who_answered_and_who_is_waited_for_since_when(live):
    asked = event("round asked", round=3, stage="admm", sites=["north", "south"])
    live.heard(event("site joined", site="north", n_samples=40))
    live.heard(asked)
    now = look(live, STATUS)
    assert now["waited_for"] == ["south"]
    assert now["since"] == asked.time_unix_s
    assert [(one["site"], one["state"], one["rows"], one["zcdp"]) for one in now["sites"]] == [
        ("north", "answered", 40, 0.25),
        ("south", "works", None, None),
    ]
    assert now["warnings"] == []


def test_the_last_status_is_that_of_the_end_whose_loop_is_gone(live):
    look(live, STATUS)
    live.heard(event("run over", outcome="failed", reason="no quorum"))
    found = shown(live)["now"]
    assert (found["state"], found["reason"], found["warnings"]) == ("failed", "no quorum", [])
    assert found["edges"] == 17
    asyncio.run(live.publisher.refresh())  # nobody is asked any more


def test_a_continued_run_begins_with_its_rounds(tmp_path):
    way = {"formula": 1, "serialised": 50}
    past = [
        {"round": 1, "kind": "admm", "contributed": ["north"], "acyclicity": None, "edges": 2, "local_s": 1.0,
         "global_s": 0.0, "bytes": {"north": {"up": way, "down": way}}},
    ]  # fmt: skip
    live = LiveRun(PLAN, tmp_path / "run", IDENTITY, past=past)
    live.heard(over(2))
    assert [(one["round"], one["bytes"]) for one in shown(live)["rounds"]["items"]] == [(1, 100), (2, 200)]


def test_a_kind_of_event_that_it_does_not_know_changes_nothing(live):
    live.heard(event("something new", of="later"))
    assert shown(live)["log"]["items"] == []


@pytest.mark.parametrize(
    ("status", "text", "to_do"),
    [
        (replace(STATUS, state="paused", reason="No space left on device"), "paused: No space left", "Make room"),
        (replace(STATUS, reason="waiting for south (quorum 2 of 2)"), "Too few sites", "coordinator eject"),
        (replace(STATUS, state="waiting for sites", round=0, sites=(NORTH,)), "1 of 2 sites have not joined", "join"),
        (replace(STATUS, sites=(NORTH, replace(SOUTH, online_s=0.0))), "Not heard of for a while: south", "goes on"),
        (replace(STATUS, sites=(NORTH, replace(SOUTH, left=True))), "Left the run: south", "eject 'my run' SITE"),
        *(
            (
                replace(STATUS, sites=(NORTH, replace(SOUTH, left=True, why_left=reason))),
                f"Left the run: south. Why: {WHY_LEFT[reason].text}.",
                WHY_LEFT[reason].to_do,
            )
            for reason in LeaveReason
            if reason not in (LeaveReason.UNSPECIFIED, LeaveReason.OPERATOR)
        ),
    ],
)  # fmt: skip
def test_what_stands_out_comes_with_what_to_do(status, text, to_do):
    found = remedies(status, PLAN, "my run", asked_s=None, round_s=1.0, rounds_seen=10)
    assert len(found) == 1
    assert text in found[0].text
    assert to_do in found[0].to_do


def test_a_site_that_takes_much_longer_than_rounds_took_is_named():
    given = {"round_s": 1.0, "rounds_seen": 10}
    assert remedies(STATUS, PLAN, "run", asked_s=9.0, **given) == []
    assert "south" in remedies(STATUS, PLAN, "run", asked_s=11.0, **given)[0].text
    nobody = replace(STATUS, sites=(replace(NORTH, answered=False), SOUTH))
    assert remedies(nobody, PLAN, "run", asked_s=100.0, **given) == [], "all are slow: it is the round"


def test_the_graph_has_the_edges_beyond_the_threshold_heaviest_first():
    W = np.array([[0.0, 0.3, -0.9], [0.0, 0.0, 0.05], [0.5, 0.0, 0.0]])
    state = replace(initial_state(3, ["north"]), global_weights=SparseMatrix.from_dense(W), round=4)
    found = present_graph(state, PLAN, PLAN.edge_mask(NAMES))
    assert [line[:2] for line in found.pop("drawing")["lines"]] == [[0, 1], [0, 2], [2, 0]]
    assert found == {"round": 4, "left_out": 0, "edges": [[0, 2, -0.9, 1], [2, 0, 0.5, 1], [0, 1, 0.3, 1]]}


def test_a_graph_of_very_many_edges_is_cut():
    d = 120
    names = tuple(f"x{k}" for k in range(d))
    W = np.ones((d, d)) - np.eye(d)
    state = replace(initial_state(d, ["north"]), global_weights=SparseMatrix.from_dense(W))
    plan = PLAN.with_settings(variables=names)
    found = present_graph(state, plan, plan.edge_mask(names))
    assert (len(found["edges"]), found["left_out"]) == (MOST_EDGES, d * (d - 1) - MOST_EDGES)
    assert found["drawing"] is None, "a matrix of dots instead"


def test_a_report_brings_its_own_policy_and_no_looser_one():
    page = '<meta http-equiv="Content-Security-Policy" content="{}">'
    own = "default-src 'none'; script-src 'sha256-Ab+/9='; style-src 'unsafe-inline'; img-src data:"
    assert run_report.policy_of(page.format(own)).startswith(own + "; frame-ancestors 'self'; sandbox allow-scripts")
    for loose in (
        "default-src *",
        "script-src 'unsafe-inline'",
        "script-src 'self'",
        "default-src 'none'; connect-src *",
    ):
        assert "script-src" not in run_report.policy_of(page.format(loose))
        assert run_report.policy_of(page.format(loose)).startswith("default-src 'none'")
    assert "script-src" not in run_report.policy_of("<p>no policy")


def test_a_signal_ends_the_waiting_for_viewers_and_nothing_else(monkeypatch):
    """The loop that played the run has unset the handlers that it began with."""
    waited = []
    with RunsPage("127.0.0.1:0") as page:

        def wait(*_, **__):
            waited.append(1)
            os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(page.port, "wait_for_viewers", wait)
        page.wait_for_viewers()
    assert waited == [1]
