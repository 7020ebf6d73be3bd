"""The figure about sources measures what it says, here on short tables."""

import pytest

from fedbnsl_client.data import dask_table, mapped_array
from fedbnsl_research.bench import sources as bench_sources
from postgresql_server import postgresql_server

for needed in ("pyarrow", "distributed", "adbc_driver_postgresql"):
    pytest.importorskip(needed)


def test_a_folder_is_read_here_and_by_workers_and_a_query_beside_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sources, "in_own_process", lambda work: work())
    monkeypatch.setattr(bench_sources, "postgresql_server", postgresql_server)
    monkeypatch.setattr(bench_sources, "_DATABASE_ROWS", 2000)
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 8 * 20 * 1000)
    monkeypatch.setattr(dask_table, "_PART_ROWS", 500)
    here, there, database = bench_sources.sources(3000)
    assert here["figure"] == "3,000 x 20 from a Parquet folder"
    assert there["figure"] == "3,000 x 20 from a Parquet folder, by 2 Dask workers"
    assert database["figure"] == "2,000 x 20 from PostgreSQL"
    for row in (here, there, database):
        assert row["MiB at most"] > 50
        assert row["s moments"] >= 0
    assert len(there["MiB at most, each worker"]) == 2
    assert database["s a million rows"] > database["s a million rows, COPY to a binary file"] > 0
