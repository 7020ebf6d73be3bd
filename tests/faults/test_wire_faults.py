"""What a network does to a run: lost replies, bytes that are repeated or missing, dead lines, sites slow or gone."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from faults import invariants
from faults.killable import Blow, stop
from faults.scene import COORDINATOR, SITES, VARIABLES, Scene, guarded_plan, public_plan
from fedbnsl.errors import QuorumLostError, RunAbandonedError, UnreachableError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import open_channel
from fedbnsl.protocol.messages import JoinRequest, LocalUpdate
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc

ALL_WELL = {COORDINATOR: [0], "north": [0], "south": [0]}
ACCEPTED = "fedbnsl_server.sites.mailbox.Mailbox.push"
SENT = "fedbnsl_client.session.Session.push"

both_kinds = pytest.mark.parametrize("plan", [public_plan(), guarded_plan()], ids=["public", "private"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Scene(tmp_path_factory.mktemp("undisturbed"), public_plan()) as scene:
        assert scene.perform() == ALL_WELL, scene.said
        return scene.run


def nothing_was_lost_and_nothing_came_twice(scene: Scene, undisturbed: Path) -> None:
    invariants.everybody_contributed(scene)
    if scene.plan.privacy is None:
        invariants.is_the_undisturbed_result(scene, undisturbed)
    else:
        invariants.budgets_held(scene)
        invariants.what_was_used_is_what_was_paid_for(scene)


@contextmanager
def standing_still(scene: Scene, blow: Blow) -> Iterator[None]:
    """All are started, and the coordinator stands at a step while the body runs; then everything goes on to its end."""
    coordinator = scene.open(blow)
    for site in SITES:
        scene.start(site)
    coordinator.wait_until_stopped(20)
    yield
    coordinator.signal(signal.SIGCONT)
    assert scene.last() == ALL_WELL, scene.said


@both_kinds
@pytest.mark.parametrize("occurrence", [1, 2, 5])
def test_a_reply_that_is_lost_after_the_update_was_stored_is_asked_for_again(
    plan: Plan, occurrence: int, undisturbed: Path, tmp_path: Path
) -> None:
    with Scene(tmp_path, plan) as scene:
        with standing_still(scene, stop(ACCEPTED, "after", occurrence)):
            assert scene.proxy.cut() >= 2
        nothing_was_lost_and_nothing_came_twice(scene, undisturbed)


@both_kinds
def test_connections_that_are_cut_again_and_again_change_nothing(plan: Plan, undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, plan) as scene:
        assert scene.perform_while_cut() == ALL_WELL, scene.said
        nothing_was_lost_and_nothing_came_twice(scene, undisturbed)


@both_kinds
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("fault", ["truncated", "half-closed"])
def test_a_stream_that_breaks_off_is_given_up_for_a_new_connection(
    plan: Plan, fault: str, direction: str, undisturbed: Path, tmp_path: Path
) -> None:
    with Scene(tmp_path, plan) as scene:
        with standing_still(scene, stop(ACCEPTED, "before", 2)):
            before, flow = scene.proxy.n_connections, getattr(scene.proxy, direction)
            if fault == "truncated":
                flow.left = 5
            else:
                scene.proxy.half_close(flow)
        assert scene.proxy.n_connections > before
        nothing_was_lost_and_nothing_came_twice(scene, undisturbed)


@both_kinds
@pytest.mark.parametrize("n_chunks", [1, 3, 8])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_bytes_that_come_twice_change_no_result(
    plan: Plan, n_chunks: int, direction: str, undisturbed: Path, tmp_path: Path
) -> None:
    """What HTTP/2 makes of them is its affair: it ignores some frames and gives up a stream or the connection."""
    with Scene(tmp_path, plan) as scene:
        with standing_still(scene, stop(ACCEPTED, "before", 2)):
            flow = getattr(scene.proxy, direction)
            flow.repeats = n_chunks
        assert flow.repeats == 0, "all of them came twice"
        nothing_was_lost_and_nothing_came_twice(scene, undisturbed)


def test_a_slow_line_changes_nothing(undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        scene.proxy.up.delay_s = scene.proxy.down.delay_s = 0.03
        scene.proxy.down.bytes_per_s = 50_000.0
        assert scene.perform() == ALL_WELL, scene.said
        nothing_was_lost_and_nothing_came_twice(scene, undisturbed)


def test_a_message_that_is_sent_twice_is_one_and_another_one_for_the_same_round_is_refused(tmp_path: Path) -> None:
    plan = public_plan(refit_rounds=0, quorum=1)
    with Scene(tmp_path, plan, sites=("north",)) as scene:
        scene.open()
        north = scene.start("north", stop(SENT, "before", 1))
        with open_channel(scene.proxy.address) as channel:
            stub = federation_grpc.FederationStub(channel)
            reply = stub.Join(codec.encode_join(JoinRequest("south", VARIABLES, 120)), timeout=5)
            north.wait_until_stopped(20)
            first, other = (
                codec.encode_update(
                    LocalUpdate("south", 1, admm_rounds.Answer(SparseMatrix(4, np.array([1]), np.array([value])))),
                    run=reply.run,
                    value_type="float64",
                )
                for value in (0.25, 0.5)
            )
            for duplicate in (False, True, True):
                assert stub.PushUpdate(first, timeout=5).duplicate is duplicate
            with pytest.raises(grpc.RpcError) as caught:
                stub.PushUpdate(other, timeout=5)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.details() == "a second, different update of 'south' for round 1"
            north.signal(signal.SIGCONT)
            stub.Leave(federation.LeaveRequest(run=reply.run & 0xFFFF_FFFF, site="south"), timeout=5)
        assert scene.last() == {COORDINATOR: [0], "north": [0]}, scene.said
        assert [entry["contributed"] for entry in scene.result["rounds"]] == [["north", "south"], ["north"], ["north"]]


def test_a_site_that_is_too_late_for_a_round_keeps_its_last_answer_and_comes_back(tmp_path: Path) -> None:
    with Scene(tmp_path, guarded_plan(rounds=6, quorum=1, round_deadline_s=3.0)) as scene:
        scene.open()
        scene.start("south")
        north = scene.start("north", stop(SENT, "before", 2))
        north.wait_until_stopped(20)
        scene.until(lambda: "round 2/6 admm  sites 1/2" in scene.said, "round 2 without north")
        north.signal(signal.SIGCONT)
        assert scene.last() == ALL_WELL, scene.said
        contributed = [entry["contributed"] for entry in scene.result["rounds"]]
        assert contributed[:2] == [["north", "south"], ["south"]]
        assert contributed[-1] == ["north", "south"], "it is back"
        invariants.budgets_held(scene)
        invariants.what_was_used_is_what_was_paid_for(scene)  # with the last B_p of whoever is missing


def test_a_quorum_goes_on_without_a_site_that_is_gone_and_the_record_says_so(tmp_path: Path) -> None:
    with Scene(tmp_path, guarded_plan(quorum=1, round_deadline_s=5.0, site_grace_s=0.5)) as scene:
        coordinator = scene.open()
        scene.start("south")
        north = scene.start("north", Blow(SENT, "before", 2))
        assert north.wait(20) == -signal.SIGKILL
        assert coordinator.wait(30) == 0, scene.said
        assert [entry["contributed"] for entry in scene.result["rounds"]] == [["north", "south"], ["south"], ["south"]]
        assert scene.result["sites"]["north"]["rounds_contributed"] == 1
        assert "round 2 waits for north" in coordinator.said
        invariants.budgets_held(scene)
        invariants.what_was_used_is_what_was_paid_for(scene)


def test_without_a_quorum_the_run_stops_at_its_deadline_and_names_who_is_missing(tmp_path: Path) -> None:
    with Scene(tmp_path, guarded_plan(round_deadline_s=0.5, run_deadline_s=2.0)) as scene:
        coordinator, south = scene.open(), scene.start("south")
        north = scene.start("north", Blow(SENT, "before", 2))
        assert north.wait(20) == -signal.SIGKILL
        assert coordinator.wait(20) == QuorumLostError.exit_code, scene.said
        assert "1 of the needed 2 sites answered within run_deadline_s = 2 s; missing: north" in coordinator.said
        assert south.wait(20) == RunAbandonedError.exit_code
        assert "too few sites answered in time" in south.said
        assert scene.result["state"] == "failed"
        invariants.budgets_held(scene)


def test_nobody_hangs_forever_on_a_line_that_swallows_everything(tmp_path: Path) -> None:
    """The longest wait is a long poll's: LONG_POLL_S and the plan's rpc_timeout_s."""
    plan = public_plan(rpc_timeout_s=0.5, round_deadline_s=0.5, run_deadline_s=3.0, join_deadline_s=5.0)
    with Scene(tmp_path, plan) as scene:
        coordinator = scene.open(stop(ACCEPTED, "before", 2))
        sites = [scene.start(site) for site in SITES]
        coordinator.wait_until_stopped(20)
        scene.proxy.up.black_hole = True
        scene.proxy.cut()
        coordinator.signal(signal.SIGCONT)
        assert coordinator.wait(20) == QuorumLostError.exit_code, scene.said
        for site in sites:
            assert site.wait(45) == UnreachableError.exit_code, scene.said
            assert f"the coordinator at {scene.proxy.address} did not answer for 5 s" in site.said
        assert scene.proxy.up.n_swallowed, "the black hole was called"
