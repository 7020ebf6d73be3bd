"""The figure of a table that workers read, with few rows: seconds do not matter, bits do."""

import pytest

from fedbnsl_research.bench.worker_tables import tables_of_workers

pytest.importorskip("pyarrow")
pytest.importorskip("distributed")


def test_workers_and_one_process_find_and_release_the_same_bits() -> None:
    (row,) = tables_of_workers(4000)
    assert row["bits"] == "the same"
    assert row["seconds of workers / of one process"] > 0
