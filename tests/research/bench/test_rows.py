"""The figure about long tables measures what it says, here on a short one."""

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.bench import rows as bench_rows
from fedbnsl_research.trials.harness import oracles

pytest.importorskip("pyarrow")
PLAN = Plan.load("private-steps")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rows, "in_own_process", lambda work: work())
    monkeypatch.setattr(bench_rows, "peak_bytes", partial(next, itertools.count(100 * 2**20, 2**20)))
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 8 * 20 * 1000)
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 8 * 20 * 200)


def test_every_form_is_measured_against_the_old_way() -> None:
    found = list(bench_rows._rows(PLAN, n_rows=3000))
    assert [row["figure"].removeprefix("3,000 x 20") for row in found] == [
        " from Parquet: peak of reading and second moments",
        ": peak of private steps and fingerprint, mapped",
        " from CSV: peak of reading and second moments",
        " from CSV, without pyarrow: peak of reading and second moments",
    ]
    for row in found:
        assert row["MiB at most"] > 100
    for row in found[0], *found[2:]:
        assert row["bytes a row / before, read whole"] == 0.1  # both grew by 1 MiB
        assert row["s reading"] >= 0
        assert row["s a row / before, read whole"] > 0
    assert found[1]["s a row and step / in memory"] > 0


def test_a_table_that_should_have_been_mapped_and_was_not_is_no_figure() -> None:
    with pytest.raises(ValueError, match="expected the large table mapped"):
        list(bench_rows._rows(PLAN, n_rows=900))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_old_way_reads_the_same_table(tmp_path: Path, kind: str) -> None:
    for suffix in ("csv", kind):
        bench_rows.write_table(tmp_path / f"table.{suffix}", 300)
    literal = oracles().literal_table(tmp_path / "table.csv")
    assert literal.shape == (300, 20)
    assert np.array_equal(Dataset.read(tmp_path / f"table.{kind}").X, literal)
