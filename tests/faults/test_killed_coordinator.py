"""The coordinator is killed at every step and started again with the same command, on another port."""

import signal
from pathlib import Path

import pytest

from faults import invariants
from faults.killable import Blow, stop
from faults.scene import COORDINATOR, Scene, guarded_plan, public_plan

_STEPS = [
    # Membership
    "fedbnsl_server.sites.roster.Roster.join:after:1",
    "fedbnsl_server.sites.roster.Roster.join:before:2",
    "fedbnsl_server.sites.roster.Roster.join:after:2",
    "fedbnsl_server.store.site_ledgers.SiteLedgers.check:after:1:private",
    "fedbnsl.protocol.codec.encode_join_reply:after:1",
    "fedbnsl_server.results.results.RunRecorder.start:before:1",
    "fedbnsl_server.results.results.RunRecorder.start:after:1",
    # Tasks
    "fedbnsl.protocol.codec.encode_task:before:1",
    "fedbnsl.protocol.codec.encode_task:after:1",
    "fedbnsl.protocol.codec.encode_task:after:3",
    # Updates
    "fedbnsl.protocol.codec.decode_update:after:1",
    "fedbnsl_server.sites.mailbox.Mailbox.push:before:1",
    "fedbnsl_server.sites.mailbox.Mailbox.push:after:1",
    "fedbnsl_server.sites.mailbox.Mailbox.push:after:2",
    "fedbnsl_server.sites.mailbox.Mailbox.push:after:3",
    "fedbnsl_server.sites.mailbox.Mailbox.push:after:6",
    # The global step and what is written of it
    "fedbnsl_server.run.round_loop.advance:before:1",
    "fedbnsl_server.run.round_loop.advance:after:2",
    "fedbnsl_server.rounds.refit.advance:after:1:public",
    "fedbnsl_server.store.site_ledgers.SiteLedgers.save:after:1",
    "fedbnsl_server.store.checkpoint.save:before:1",
    "numpy.savez:after:1",
    "numpy.savez:after:2",
    "fedbnsl_server.store.checkpoint.save:after:1",
    "fedbnsl_server.store.checkpoint.save:after:3",
    "fedbnsl_server.results.results.RunRecorder.on_round:after:1",
    "fedbnsl_server.results.results.RunRecorder.on_round:after:2",
    # The end
    "fedbnsl_server.results.results.RunRecorder.finish:before:1",
    "fedbnsl.graphs.files.write_all:before:1",
    "fedbnsl.graphs.files.write_weights:after:1",
]
# The run is over and written down: whoever comes back is told the end, or finds nobody.
_AFTER_THE_RESULTS = [
    "fedbnsl_server.results.results.RunRecorder.finish:after:1",
    "fedbnsl_server.sites.mailbox.Mailbox.finish:before:1",
    "fedbnsl.protocol.codec.encode_finished:after:1",
    "fedbnsl_server.sites.mailbox.Mailbox.finish:after:1",
]


def of(kind: str) -> list[str]:
    """The steps of one kind of run: those that name none belong to both."""
    named = [step.split(":") for step in _STEPS]
    return [":".join(parts[:3]) for parts in named if parts[3:] in ([], [kind])]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Scene(tmp_path_factory.mktemp("undisturbed"), public_plan()) as scene:
        scene.perform()
        return scene.run


@pytest.mark.parametrize("step", of("public"))
def test_a_killed_coordinator_comes_back_to_the_same_bits(step: str, undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        ends = scene.perform({COORDINATOR: [Blow.parse(step)]})
        assert ends == {COORDINATOR: [-signal.SIGKILL, 0], "north": [0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.is_the_undisturbed_result(scene, undisturbed)


@pytest.mark.parametrize("step", of("private"))
def test_a_killed_coordinator_costs_the_sites_nothing(step: str, tmp_path: Path) -> None:
    with Scene(tmp_path, guarded_plan()) as scene:
        ends = scene.perform({COORDINATOR: [Blow.parse(step)]})
        assert ends == {COORDINATOR: [-signal.SIGKILL, 0], "north": [0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.budgets_held(scene)
        invariants.what_was_used_is_what_was_paid_for(scene)


@pytest.mark.parametrize("step", _AFTER_THE_RESULTS)
def test_a_coordinator_killed_after_its_results_has_them(step: str, undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan(join_deadline_s=5.0)) as scene:
        ends = scene.perform({COORDINATOR: [Blow.parse(step)]})
        assert ends[COORDINATOR] == [-signal.SIGKILL, 0], scene.said
        for site in scene.sites:
            assert ends[site] == [0], scene.said
        invariants.everybody_contributed(scene)
        invariants.is_the_undisturbed_result(scene, undisturbed)


def test_a_coordinator_that_is_killed_in_every_life_gets_there(undisturbed: Path, tmp_path: Path) -> None:
    lives = [
        "fedbnsl_server.sites.roster.Roster.join:after:1",
        "fedbnsl_server.sites.mailbox.Mailbox.push:after:2",
        "fedbnsl_server.results.results.RunRecorder.start:after:1",
        "fedbnsl_server.store.checkpoint.save:after:2",
        "fedbnsl_server.rounds.refit.advance:before:1",
        "fedbnsl_server.results.results.RunRecorder.finish:after:1",
    ]
    with Scene(tmp_path, public_plan()) as scene:
        ends = scene.perform({COORDINATOR: [Blow.parse(step) for step in lives]})
        assert ends == {COORDINATOR: [*[-signal.SIGKILL] * len(lives), 0], "north": [0], "south": [0]}, scene.said
        assert len(set(scene.addresses)) > 1, "another port each time"
        invariants.everybody_contributed(scene)
        invariants.is_the_undisturbed_result(scene, undisturbed)


def test_a_paused_coordinator_goes_on_where_it_stood(undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        coordinator = scene.open(stop("fedbnsl_server.sites.mailbox.Mailbox.push", "after", 3))
        for site in scene.sites:
            scene.start(site)
        coordinator.wait_until_stopped(20)
        coordinator.signal(signal.SIGTERM)
        coordinator.signal(signal.SIGCONT)
        assert coordinator.wait(20) == 0, scene.said
        assert scene.result["state"] == "interrupted"
        scene.open()
        assert scene.last() == {COORDINATOR: [0, 0], "north": [0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.is_the_undisturbed_result(scene, undisturbed)


@pytest.mark.parametrize("kind", ["public", "private"])
def test_everybody_is_killed_at_once(kind: str, undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan() if kind == "public" else guarded_plan()) as scene:
        ends = scene.perform(
            {
                COORDINATOR: [Blow.parse("fedbnsl_server.store.checkpoint.save:after:2")],
                "north": [Blow.parse("fedbnsl_client.session.Session.push:before:2")],
                "south": [Blow.parse("fedbnsl_client.session.Session.push:after:1")],
            }
        )
        assert set(map(tuple, ends.values())) == {(-signal.SIGKILL, 0)}, scene.said
        invariants.everybody_contributed(scene)
        if kind == "public":
            invariants.is_the_undisturbed_result(scene, undisturbed)
        else:
            invariants.budgets_held(scene, {"north": 1, "south": 1})
            invariants.what_was_used_is_what_was_paid_for(scene)
