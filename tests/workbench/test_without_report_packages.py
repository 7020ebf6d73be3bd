"""The main job without the packages for reports, which the image of the coordinator does not have."""

import subprocess
import sys
from pathlib import Path

from test_architecture import EXTRA

BLOCKED = f"""
import sys
for package in {EXTRA!r}:
    sys.modules[package] = None  # an import of it fails
from fedbnsl.cli import main
main(sys.argv[1:])
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_data_is_made_learned_from_and_scored_without_it(tmp_path: Path) -> None:
    data, result = tmp_path / "data", tmp_path / "run"
    plan = tmp_path / "plan.toml"
    plan.write_text("rounds = 3\n", encoding="utf-8")
    for arguments in (
        ("data", "synth", "--nodes", 4, "--edges", 4, "--sites", 2, "--rows", 50, "--out", data),
        ("simulate", plan, "--data", data, "--out", result),
        ("evaluate", result, "--truth", data / "truth.csv"),
    ):
        outcome = run(*arguments)
        assert outcome.returncode == 0, outcome.stderr


def test_a_command_that_needs_it_says_how_to_get_it(tmp_path: Path) -> None:
    outcome = run("report", tmp_path)
    assert outcome.returncode == 2
    assert "Install fedbnsl with all" in outcome.stderr
