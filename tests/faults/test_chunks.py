"""Every message in chunks: coordinator and sites are killed between two of them, and connections are cut."""

import signal
from pathlib import Path
from typing import Any

import pytest

from faults import invariants
from faults.killable import Blow
from faults.scene import COORDINATOR, SITES, Scene, guarded_plan, public_plan
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import chunks as chunks
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.simulate import simulate

ALL_WELL = {COORDINATOR: [0], "north": [0], "south": [0]}
SMALL = {"fedbnsl.protocol.chunks.CHUNK_BYTES": 50}
# At the coordinator: chunks that it hands out (of joins, tasks, the end) and takes.
_AT_THE_COORDINATOR = [
    "fedbnsl.protocol.chunks.CutMessage.chunk:after:2",
    "fedbnsl.protocol.chunks.CutMessage.chunk:after:19",
    "fedbnsl.protocol.chunks.JoinedMessage.add:after:1",
    "fedbnsl.protocol.chunks.JoinedMessage.add:after:7",
    "fedbnsl.protocol.chunks.JoinedMessage.parsed:after:4",
]
_AT_A_SITE = [
    "fedbnsl_client.session.Session._pulled:after:1",
    "fedbnsl_client.session.Session._pushed:before:2",
    "fedbnsl_client.session.Session._pushed:after:5",
]

both_kinds = pytest.mark.parametrize("plan", [public_plan(), guarded_plan()], ids=["public", "private"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """With messages as they are."""
    with Scene(tmp_path_factory.mktemp("undisturbed"), public_plan()) as scene:
        assert scene.perform() == ALL_WELL, scene.said
        return scene


def is_as_it_should_be(scene: Scene, undisturbed: Scene) -> None:
    invariants.everybody_contributed(scene)
    if scene.plan.privacy is None:
        invariants.is_the_undisturbed_result(scene, undisturbed.run)
    else:
        invariants.budgets_held(scene)  # not even a payment for nothing
        invariants.what_was_used_is_what_was_paid_for(scene)


def bytes_of_rounds(result: dict[str, Any]) -> list[Any]:
    return [entry["bytes"] for entry in result["rounds"]]


def test_a_run_in_chunks_gives_the_same_bits_and_counts_every_byte_of_them(
    undisturbed: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scene(tmp_path, public_plan(), constants=SMALL) as scene:
        assert scene.perform() == ALL_WELL, scene.said
        is_as_it_should_be(scene, undisturbed)
        monkeypatch.setattr(chunks, "CHUNK_BYTES", 50)
        tables = {site: Dataset.read(tmp_path / site / "table.csv") for site in SITES}
        simulated = simulate(scene.plan, tables, tmp_path / "simulated")
        counted = bytes_of_rounds(scene.result)
        assert counted == bytes_of_rounds(simulated)
        up = counted[0]["north"]["up"]["serialised"]
        # 130 bytes in three chunks; each with run, site and round, the SHA-256, and fields of one to three bytes.
        assert bytes_of_rounds(undisturbed.result)[0]["north"]["up"]["serialised"] == 130
        assert 130 + 3 * (5 + 7 + 2 + 34) < up < 130 + 3 * (5 + 7 + 2 + 34 + 12)


@both_kinds
@pytest.mark.parametrize(
    ("who", "step"),
    [*((COORDINATOR, step) for step in _AT_THE_COORDINATOR), *(("north", step) for step in _AT_A_SITE)],
)
def test_a_side_that_is_killed_between_two_chunks_sends_the_same_again(
    plan: Plan, who: str, step: str, undisturbed: Scene, tmp_path: Path
) -> None:
    with Scene(tmp_path, plan, constants=SMALL) as scene:
        assert scene.perform({who: [Blow.parse(step)]}) == {**ALL_WELL, who: [-signal.SIGKILL, 0]}, scene.said
        is_as_it_should_be(scene, undisturbed)


@both_kinds
def test_connections_that_are_cut_between_chunks_change_nothing(plan: Plan, undisturbed: Scene, tmp_path: Path) -> None:
    with Scene(tmp_path, plan, constants=SMALL) as scene:
        assert scene.perform_while_cut() == ALL_WELL, scene.said
        is_as_it_should_be(scene, undisturbed)
