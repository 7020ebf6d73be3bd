"""The disk is full, at either side: a clear stop, nothing lost, and the same result once there is space again."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults import invariants
from faults.scene import COORDINATOR, Scene, guarded_plan
from fedbnsl.errors import LedgerError, ResultError, RunAbandonedError, UnreachableError

PAGE_BYTES = 4096


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
        assert f"error: ledger {disk / 'ledger.db'}: database or disk is full" in north.said
        filler.unlink()
        scene.start("north")
        assert scene.last() == {COORDINATOR: [0], "north": [LedgerError.exit_code, 0], "south": [0]}, scene.said
        invariants.everybody_contributed(scene)
        invariants.budgets_held(scene, {"north": 1})
        invariants.what_was_used_is_what_was_paid_for(scene)


@pytest.mark.parametrize("pages_left", [1, 2, 3, 4, 5, 6, 8])
def test_a_coordinator_on_a_full_disk_stops_and_goes_on_later(pages_left: int, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256 * 1024) as disk, Scene(tmp_path, guarded_plan()) as scene:
        scene.run, scene.patience_s = disk / "run", 1.0
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - pages_left * PAGE_BYTES)
        coordinator = scene.open()
        sites = [scene.start(site) for site in scene.sites]
        assert coordinator.wait(20) == ResultError.exit_code, scene.said
        assert "cannot be written: No space left on device" in coordinator.said
        for site in sites:
            assert site.wait(40) in (RunAbandonedError.exit_code, UnreachableError.exit_code), scene.said
        filler.unlink()
        scene.open()
        for site in scene.sites:
            scene.start(site)
        assert {codes[-1] for codes in scene.last().values()} == {0}, scene.said
        invariants.everybody_contributed(scene)
        invariants.budgets_held(scene)
        invariants.what_was_used_is_what_was_paid_for(scene)
