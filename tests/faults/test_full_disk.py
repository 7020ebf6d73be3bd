"""The disk is full: a site stops, a coordinator waits; nothing is lost, and the result is the same with space again."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from faults import invariants
from faults.killable import stop
from faults.scene import COORDINATOR, LONG_S, Scene, guarded_plan, public_plan
from fedbnsl.errors import InterruptedRunError, LedgerError, ResultError, RunAbandonedError
from fedbnsl_server.observe.status_client import Observer

PAGE_BYTES = 4096
ALL_WELL = {COORDINATOR: [0], "north": [0], "south": [0]}


@contextmanager
def small_disk(path: Path, n_bytes: int) -> Iterator[Path]:
    """A file system of its own, of so many bytes; skips where this process may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all that is left."""
    filler = disk / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    try:
        while os.write(descriptor, bytes(PAGE_BYTES)):
            pass
    except OSError:
        return filler
    finally:
        os.close(descriptor)
    raise AssertionError("a full disk takes nothing")


@pytest.mark.parametrize("pages_left", [0, 0.5, 1, 2, 3])
def test_a_site_whose_ledger_cannot_grow_stops_and_goes_on_later(pages_left: float, tmp_path: Path) -> None:
    with Scene(tmp_path, guarded_plan(rounds=15)) as scene:
        scene.open()
        scene.start("south")
        ledger = tmp_path / "north" / "ledger.db"
        north = scene.start("north", most_file_bytes=ledger.stat().st_size + int(pages_left * PAGE_BYTES))
        assert north.wait(20) == LedgerError.exit_code, scene.said
        assert f"error: ledger {ledger}: " in north.said
        scene.start("north")
        assert scene.last() == {COORDINATOR: [0], "north": [LedgerError.exit_code, 0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.budgets_held(scene, {"north": 1})
        invariants.what_was_used_is_what_was_paid_for(scene)


def test_a_site_on_a_full_disk_stops_and_goes_on_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "north", 256 * 1024) as disk, Scene(tmp_path, guarded_plan()) as scene:
        filler = fill(disk)
        scene.open()
        scene.start("south")
        north = scene.start("north")
        assert north.wait(20) == LedgerError.exit_code, scene.said
        assert "error: the lock of a run cannot be written: No space left on device" in north.said
        lacks = "north left the run: its ledger cannot be written"
        scene.until(lambda: any(lacks in one.get("text", "") for one in scene.events), "the reason")
        filler.unlink()
        scene.start("north")
        assert scene.last() == {COORDINATOR: [0], "north": [LedgerError.exit_code, 0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.budgets_held(scene, {"north": 1})
        invariants.what_was_used_is_what_was_paid_for(scene)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Scene(tmp_path_factory.mktemp("undisturbed"), public_plan()) as scene:
        assert scene.perform() == ALL_WELL, scene.said
        return scene.run


@contextmanager
def nearly_full(scene: Scene, pages_left: int) -> Iterator[Path]:
    """All are started with a run folder on a disk that will be full; the body gets what fills it."""
    with small_disk(scene.folder / "disk", 256 * 1024) as disk:
        scene.run = disk / "run"
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - pages_left * PAGE_BYTES)
        scene.open()
        for site in scene.sites:
            scene.start(site)
        yield filler


PAUSED = "cannot be written: No space left on device; the run goes on by itself once there is room"


# For memberships, for rounds, for the results.
@pytest.mark.parametrize(
    ("kind", "pages_left"),  # the plan of a private run takes one more before the first membership
    [*(("public", pages) for pages in (5, 6, 7, 9, 11)), *(("private", pages) for pages in (6, 7, 8, 9, 11))],
)
def test_a_coordinator_on_a_full_disk_pauses_and_goes_on_by_itself(
    kind: str, pages_left: int, undisturbed: Path, tmp_path: Path
) -> None:
    plan = public_plan() if kind == "public" else guarded_plan()
    with Scene(tmp_path, plan) as scene:
        scene.patience_s = LONG_S  # of a site that has no membership yet
        with nearly_full(scene, pages_left) as filler:
            scene.until(lambda: PAUSED in scene.said, "the run to pause")
            with closing(Observer(scene.proxy.upstream)) as observer:
                status = observer.status()
            assert status is not None
            assert (status.state, status.reason) == ("paused", "No space left on device")
            assert all(command.returncode is None for [command] in scene.commands.values()), scene.said
            filler.unlink()
            assert scene.last() == ALL_WELL, scene.said
            assert "the run goes on\n" in scene.said
            invariants.everybody_contributed(scene)
            if kind == "public":
                invariants.is_the_undisturbed_result(scene, undisturbed)
            else:
                invariants.budgets_held(scene)
                invariants.what_was_used_is_what_was_paid_for(scene)


@pytest.mark.parametrize(("pages_left", "number"), [(6, signal.SIGTERM), (6, signal.SIGINT), (11, signal.SIGTERM)])
def test_a_paused_coordinator_stops_when_it_is_asked_to_and_goes_on_later(
    pages_left: int, number: signal.Signals, undisturbed: Path, tmp_path: Path
) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        scene.patience_s = LONG_S
        with nearly_full(scene, pages_left) as filler:
            [coordinator] = scene.commands[COORDINATOR]
            scene.until(lambda: PAUSED in scene.said, "the run to pause")
            coordinator.signal(number)
            stopped = ResultError if number is signal.SIGTERM else InterruptedRunError
            assert coordinator.wait(20) == stopped.exit_code, scene.said
            filler.unlink()
            scene.open()
            if number is signal.SIGINT:  # they were told
                for site in scene.sites:
                    assert scene.commands[site][0].wait(20) == RunAbandonedError.exit_code, scene.said
                    scene.start(site)
            assert {codes[-1] for codes in scene.last().values()} == {0}, scene.said
            invariants.everybody_contributed(scene)
            invariants.is_the_undisturbed_result(scene, undisturbed)


def test_a_disk_that_is_full_before_the_run_is_said_to_whoever_starts_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256 * 1024) as disk, Scene(tmp_path, guarded_plan()) as scene:
        scene.run = disk / "run"
        fill(disk)
        assert scene.open().wait(20) == ResultError.exit_code, scene.said
        assert "cannot be written: No space left on device" in scene.said


def test_a_coordinator_without_open_files_pauses_and_goes_on_by_itself(undisturbed: Path, tmp_path: Path) -> None:
    with Scene(tmp_path, public_plan()) as scene:
        coordinator = scene.open(stop("fedbnsl_server.sites.mailbox.Mailbox.push", "before", 2))
        for site in scene.sites:
            scene.start(site)
        coordinator.wait_until_stopped(20)
        soft, hard = resource.prlimit(coordinator.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(coordinator.pid, resource.RLIMIT_NOFILE, (3, hard))
        coordinator.signal(signal.SIGCONT)
        scene.until(lambda: "cannot be written: Too many open files; the run goes on" in scene.said, "the run to pause")
        assert all(command.returncode is None for [command] in scene.commands.values()), scene.said
        resource.prlimit(coordinator.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert scene.last() == ALL_WELL, scene.said
        invariants.everybody_contributed(scene)
        invariants.is_the_undisturbed_result(scene, undisturbed)
