"""Sites that fall silent in the middle of a task: killed, stopped, or behind a line that has died without a word."""

import signal
from contextlib import closing
from pathlib import Path

import pytest

from faults import invariants
from faults.killable import Blow
from faults.scene import COORDINATOR, LONG_S, SITES, Scene, public_plan
from fedbnsl.protocol import channel
from fedbnsl_server.observe.status_client import Observer

ANSWER = "fedbnsl_client.rounds.admm.Rounds.answer"
FAR_S = 600.0  # no deadline ends what a test waits for

_POLL_S = 0.3
HASTY_COORDINATOR = {
    "fedbnsl_server.sites.roster.AWAY_S": 2.0,
    "fedbnsl_server.sites.mailbox._LOOK_S": 0.1,
    "fedbnsl_server.grpc_api.servicer.LONG_POLL_S": _POLL_S,
}
HASTY_SITE = {"fedbnsl_client.session.ALIVE_EVERY_S": 0.2, "fedbnsl_client.session._LOOK_S": 0.1}
HASTY_SITE_POLLS = {**HASTY_SITE, "fedbnsl_client.session.LONG_POLL_S": _POLL_S}


def online(scene: Scene) -> dict[str, bool]:
    with closing(Observer(scene.proxy.upstream)) as observer:
        status = observer.status()
    assert status is not None
    return {site.site: site.online_s > 0 for site in status.sites}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_site_that_falls_silent_in_a_task_costs_a_quorum_no_deadline(how: signal.Signals, tmp_path: Path) -> None:
    plan = public_plan(quorum=1, rounds=6, round_deadline_s=FAR_S, run_deadline_s=FAR_S)
    with Scene(tmp_path, plan) as scene:
        coordinator = scene.open(constants=HASTY_COORDINATOR)
        scene.start("south", constants=HASTY_SITE_POLLS)
        north = scene.start("north", Blow(ANSWER, "before", 2, how), constants=HASTY_SITE_POLLS)
        assert coordinator.wait(2 * LONG_S) == 0, scene.said
        assert "north is away" in coordinator.said
        contributed = [entry["contributed"] for entry in scene.result["rounds"]]
        assert contributed == [["north", "south"], *[["south"]] * 6]
        north.signal(signal.SIGKILL)


def test_without_a_quorum_a_silent_site_is_seen_and_waited_for(tmp_path: Path) -> None:
    plan = public_plan(round_deadline_s=FAR_S, run_deadline_s=FAR_S)
    with Scene(tmp_path, plan) as scene:
        scene.open(constants=HASTY_COORDINATOR)
        scene.start("south", constants=HASTY_SITE_POLLS)
        north = scene.start("north", Blow(ANSWER, "before", 2, signal.SIGSTOP), constants=HASTY_SITE_POLLS)
        north.wait_until_stopped(20)
        scene.until(lambda: online(scene) == {"north": False, "south": True}, "north to be away")
        scene.until(lambda: "north is away" in scene.said, "the round to notice")
        north.signal(signal.SIGCONT)
        assert scene.last() == {COORDINATOR: [0], "north": [0], "south": [0]}, scene.said
        assert "north is back" in scene.said
        invariants.everybody_contributed(scene)


def test_a_line_that_dies_without_a_word_is_found_by_its_silence(tmp_path: Path) -> None:
    """The deadlines of calls are far: nothing but keepalive ends those that hang."""
    hasty = [(name, value // 10) for name, value in channel._KEEPALIVE]
    keepalive = {"fedbnsl.protocol.channel._KEEPALIVE": hasty}
    often = {**keepalive, "fedbnsl.protocol.channel.SERVER_MIN_PING_INTERVAL_S": 1}
    plan = public_plan(rpc_timeout_s=FAR_S, round_deadline_s=FAR_S, run_deadline_s=FAR_S)
    with Scene(tmp_path, plan) as scene:
        slow = "fedbnsl_server.sites.mailbox.Mailbox.push"
        coordinator = scene.open(Blow(slow, "before", 2, signal.SIGSTOP), constants={**HASTY_COORDINATOR, **often})
        for site in SITES:
            scene.start(site, constants={**HASTY_SITE, **keepalive})
        coordinator.wait_until_stopped(20)
        scene.proxy.go_silent()
        coordinator.signal(signal.SIGCONT)
        assert scene.last() == {COORDINATOR: [0], "north": [0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
