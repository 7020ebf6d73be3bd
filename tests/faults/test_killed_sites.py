"""A site is killed at every step of its protocol and started again with the same command."""

import signal
from pathlib import Path

import pytest

from faults import invariants
from faults.killable import NO_SUCH_STEP, Blow
from faults.scene import COORDINATOR, Scene, guarded_plan, public_plan
from fedbnsl.errors import ResultError, UnreachableError

_PRIVATE_AND_PUBLIC = [
    "fedbnsl_client.session.Session.join:before:1",
    "fedbnsl_client.session.Session.join:after:1",
    "fedbnsl_client.session.Session.settle:after:1",
    "fedbnsl_client.session.Session.pull:before:1",
    "fedbnsl_client.session.Session.pull:after:1",
    "fedbnsl_client.session.Session.pull:after:3",
    "fedbnsl_client.rounds.admm.Rounds.answer:before:1",
    "fedbnsl_client.rounds.admm.Rounds.answer:after:2",
    "fedbnsl_client.rounds.admm.Rounds.begin:after:2",
    "fedbnsl_client.session.Session.push:before:1",
    "fedbnsl_client.session.Session.push:after:1",
    "fedbnsl_client.session.Session.push:after:2",
    "fedbnsl_client.session.Session.push:before:3",
]
_PUBLIC = [
    "fedbnsl_client.rounds.refit.Rounds.answer:before:1",
    "fedbnsl_client.session.Session.push:before:4",
]
_PRIVATE = [
    "fedbnsl_client.budget.journal.RunJournal.check:after:1",
    "fedbnsl_client.budget.registrations.Registrations.check_table:after:1",
    "fedbnsl_client.budget.payments.Payments.reserve:before:1",
    "fedbnsl_client.budget.payments.Payments.reserve:after:1",
    "fedbnsl_client.budget.payments.Payments.reserve:after:2",
    "fedbnsl_client.budget.payments.Payments.reserve:after:3",
    "fedbnsl_client.rounds.kinds.release_setup:before:1",
    "fedbnsl_client.rounds.kinds.release_setup:after:1",
    "fedbnsl_client.budget.payments.Payments.store:before:1",
    "fedbnsl_client.budget.payments.Payments.store:after:1",
    "fedbnsl_client.budget.payments.Payments.store:before:2",
    "fedbnsl_client.budget.payments.Payments.store:after:2",
    "fedbnsl_client.budget.payments.Payments.store:before:4",
    "fedbnsl_client.budget.ledger_file.LedgerFile.append:after:1",
    "fedbnsl_client.budget.ledger_file.LedgerFile.append_with_payload:after:2",
    "fedbnsl_client.budget.high_water_mark.write:before:1",
    "fedbnsl_client.budget.high_water_mark.write:after:2",
]
# Told of the end, a site has nothing more to answer: what it lost with its process is at the coordinator.
_AT_THE_END = [
    "fedbnsl.protocol.codec.decode_finished:before:1",
    "fedbnsl.protocol.codec.decode_finished:after:1",
    "fedbnsl_client.join_run._keep:before:1",
    "fedbnsl_client.join_run.personalise:after:1",
    "fedbnsl_client.join_run._keep:after:1",
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Scene(tmp_path_factory.mktemp("undisturbed"), public_plan()) as scene:
        assert scene.perform() == {COORDINATOR: [0], "north": [0], "south": [0]}, scene.said
        assert scene.result["edges"], "there is something to compare"
        return scene.run


@pytest.mark.parametrize("step", [*_PRIVATE_AND_PUBLIC, *_PUBLIC])
def test_a_killed_site_comes_back_to_the_same_bits(step: str, undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        ends = scene.perform({"north": [Blow.parse(step)]})
        assert ends == {COORDINATOR: [0], "north": [-signal.SIGKILL, 0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.is_the_undisturbed_result(scene, undisturbed)
        assert (tmp_path / "north/out/edges.csv").read_bytes() == (tmp_path / "south/out/edges.csv").read_bytes()


@pytest.mark.parametrize("step", [*_PRIVATE_AND_PUBLIC, *_PRIVATE])
def test_a_killed_private_site_pays_once_more_at_most_and_never_draws_twice(step: str, tmp_path: Path) -> None:
    with Scene(tmp_path, guarded_plan()) as scene:
        ends = scene.perform({"north": [Blow.parse(step)]})
        assert ends == {COORDINATOR: [0], "north": [-signal.SIGKILL, 0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.budgets_held(scene, {"north": 1})
        invariants.what_was_used_is_what_was_paid_for(scene)


@pytest.mark.parametrize("step", _AT_THE_END)
def test_a_site_killed_after_the_end_finds_nobody_or_its_result(step: str, undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        scene.patience_s = 1.0
        ends = scene.perform({"north": [Blow.parse(step)]})
        assert (ends[COORDINATOR], ends["south"], ends["north"][0]) == ([0], [0], -signal.SIGKILL), scene.said
        invariants.is_the_undisturbed_result(scene, undisturbed)
        out = tmp_path / "north" / "out"
        if (out / "edges.csv").exists():
            assert ends["north"][1] == ResultError.exit_code
            assert (out / "personalised-edges.csv").exists(), "what is never overwritten is whole"
        else:
            assert ends["north"][1] == UnreachableError.exit_code
            assert f"the coordinator at {scene.proxy.address} did not answer for 1 s" in scene.said


def test_a_site_that_is_killed_in_every_life_pays_once_more_for_each_and_gets_there(tmp_path: Path) -> None:
    lives = [
        "fedbnsl_client.budget.payments.Payments.reserve:after:1",
        "fedbnsl_client.budget.payments.Payments.store:before:1",
        "fedbnsl_client.budget.payments.Payments.store:after:1",
        "fedbnsl_client.budget.payments.Payments.reserve:after:1",
        "fedbnsl_client.session.Session.push:before:1",
        "fedbnsl_client.session.Session.push:after:2",
    ]
    with Scene(tmp_path, guarded_plan()) as scene:
        ends = scene.perform({"north": [Blow.parse(step) for step in lives]})
        assert ends["north"] == [*[-signal.SIGKILL] * len(lives), 0], scene.said
        invariants.budgets_held(scene, {"north": 3})  # those that came between a payment and its answer
        invariants.what_was_used_is_what_was_paid_for(scene)


def test_a_step_that_does_not_exist_any_more_is_no_success(tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        gone = scene.start("north", Blow.parse("fedbnsl_client.session.Session.no_such_step:after:1"))
        assert gone.wait(20) == NO_SUCH_STEP
        assert "no step fedbnsl_client.session.Session.no_such_step:after:1" in gone.said
