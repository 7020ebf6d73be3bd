"""What a person at a site sees of its long work, and Ctrl-C in the middle of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.protocol.messages import Phase
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.mapped_array import gathered, row_blocks
from fedbnsl_client.data.watched import watched

LONG_S = 60.0
NAMES = ("a", "b", "c")
# Reads a block, says so and stands still.
HALF_READ = """
import sys, time
from fedbnsl_client.data.sources import csv_table
genuine = csv_table.CsvTable.codes
def codes(*arguments):
    for block in genuine(*arguments):
        yield block
        print("half read", file=sys.stderr, flush=True)
        time.sleep(600)
csv_table.CsvTable.codes = codes
from fedbnsl.cli import main
main()
"""


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 8 * len(NAMES) * 64)


def table(path: Path, n_rows: int) -> Path:
    rows = np.random.default_rng(0).normal(size=(n_rows, len(NAMES))).tolist()
    text = ",".join(NAMES) + "\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_whoever_watches_sees_which_share_of_a_table_was_read(form, tmp_path):
    path = table(tmp_path / "table.csv", 640)
    if form == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.read_csv(path), tmp_path / "table.parquet")
        path = tmp_path / "table.parquet"
    seen: list[Phase | None] = []
    with watched(seen.append):
        found = Dataset.read(path)
    assert found.n_samples == 640
    phases = [phase for phase in seen if phase is not None]
    assert {phase.what for phase in phases} == {f"reading {path.name}"}
    shares = [phase.share for phase in phases]
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert 0.0 < shares[0] < 0.5 < shares[-1] <= 1.0
    assert seen[-1] is None


@pytest.mark.usefixtures("small_blocks")
def test_whoever_watches_sees_each_pass_over_a_table_that_lies_in_a_file(monkeypatch):
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 1000)
    X = gathered([np.ones((640, 3))], 3)
    seen: list[Phase | None] = []
    with watched(seen.append):
        assert sum(len(block) for block in row_blocks(X)) == 640
    assert [phase.share for phase in seen if phase is not None] == pytest.approx([k / 10 for k in range(10)])
    assert seen[-1] is None


@pytest.mark.long
def test_ctrl_c_in_the_middle_of_reading_ends_the_site_and_leaves_nothing_behind(tmp_path):
    out = tmp_path / "kept"
    join = ["participant", "join", "127.0.0.1:9", "--insecure", "--public-data", "--site=north", f"--out={out}"]
    with subprocess.Popen(
        [sys.executable, "-c", HALF_READ, *join, f"--data={table(tmp_path / 'north.csv', 50)}"],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
    ) as process:
        assert process.stderr is not None
        assert any("half read" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONG_S)
    assert process.returncode == 130
    assert "interrupted by SIGINT" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["north.csv"]
