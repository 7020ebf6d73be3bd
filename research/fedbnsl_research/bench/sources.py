"""What it costs to read a long table: a Parquet folder, the same by Dask workers, and a query to PostgreSQL.

Each measurement runs in a separate process, so that the peak is its own. What is measured of a table is what a run
without ADMM does with it: reading and checks, statistics of the columns, moments of the prepared columns.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tomli_w

from fedbnsl.plan.preparation import Preparation
from fedbnsl.sparse import Matrix
from fedbnsl_client.data import dask_table
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.mapped_array import lies_in_file
from fedbnsl_client.data.preparation import column_statistics, prepared
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.bench.postgresql_server import READER_PASSWORD, Server, postgresql_server
from fedbnsl_research.bench.processes import MIB, in_own_process, peak_bytes
from fedbnsl_research.bench.rows import write_table
from fedbnsl_research.trials.harness import Row, timed

_ROWS = 10**7
_DATABASE_ROWS = 10**6
_VARIABLES = 20
_FILES = 10
_WORKERS = 2


@dataclass(frozen=True)
class Use:
    """Seconds of each part, and the most memory of each process in bytes: the site's, then those of its workers."""

    n_rows: int
    mapped: bool
    read_s: float
    statistics_s: float
    moments_s: float
    peaks: tuple[int, ...]
    moments: Matrix

    def cells(self) -> Row:
        """As a figure gives it."""
        site, *workers = (round(peak / MIB) for peak in self.peaks)
        return {
            "MiB at most": site,
            **({"MiB at most, each worker": workers} if workers else {}),
            "s reading and checks": round(self.read_s, 1),
            "s statistics of columns": round(self.statistics_s, 1),
            "s moments": round(self.moments_s, 1),
        }


def sources(n_rows: int = _ROWS) -> Iterator[Row]:
    """A Parquet folder of ten million rows here and by two workers, and a million rows of PostgreSQL.

    TMPDIR takes 320 bytes a row: the folder, and the values that the site maps.
    """
    title = f"{n_rows:,} x {_VARIABLES} from a Parquet folder"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "table")
        folder.mkdir()
        for k, part in enumerate(np.array_split(np.arange(n_rows), _FILES)):
            write_table(folder / f"{k}.parquet", len(part), seed=k)
        here = in_own_process(partial(use_here, folder))
        yield {"figure": title, **here.cells(), "MiB of the files": round(_bytes(folder) / MIB)}
        there = in_own_process(partial(use_of_workers, folder))
        if not np.allclose(here.moments, there.moments, rtol=1e-10, atol=0.0):
            raise ValueError("expected the workers' moments to be those of the table")
        yield {"figure": f"{title}, by {_WORKERS} Dask workers", **there.cells()}
    yield from _database(_DATABASE_ROWS)


def _database(n_rows: int) -> Iterator[Row]:
    with postgresql_server() as server, tempfile.TemporaryDirectory() as scratch:
        columns = ", ".join(f"(random() - 0.5) * {k + 1} as v{k}" for k in range(_VARIABLES))
        server.run(f"create table records as select {columns} from generate_series(1, {n_rows});")  # noqa: S608
        server.run("grant select on records to reader; analyze records;")
        table = Path(scratch, "table.toml")
        table.write_text(
            tomli_w.dumps({"database": {"url": server.url, "query": "select * from records"}}), encoding="utf-8"
        )
        copies = {kind: _copy_s(server, kind) for kind in ("csv", "binary")}
        with mock.patch.dict(os.environ, {"PGPASSWORD": READER_PASSWORD}):
            found = in_own_process(partial(use_here, table))
        if found.n_rows != n_rows:
            raise ValueError(f"expected {n_rows} rows, and {found.n_rows} were read")
        millions = n_rows / 10**6
        yield {
            "figure": f"{n_rows:,} x {_VARIABLES} from PostgreSQL",
            **found.cells(),
            "s a million rows": round(found.read_s / millions, 2),
            "s a million rows, COPY to a CSV file": round(copies["csv"] / millions, 2),
            "s a million rows, COPY to a binary file": round(copies["binary"] / millions, 2),
            "reading / COPY to a CSV file": round(found.read_s / copies["csv"], 2),
        }


def _copy_s(server: Server, kind: str) -> float:
    file = server.folder / f"copied.{kind}"
    seconds, _ = timed(lambda: server.run(f"copy records to '{file}' (format {kind});"))
    file.unlink()
    return seconds


def use_here(path: Path) -> Use:
    """What a site does by itself."""
    read_s, data = timed(lambda: Dataset.read(path))
    return _use(data, read_s, lambda: (peak_bytes(),))


def use_of_workers(path: Path) -> Use:
    """What a site does with workers that are processes of this machine."""
    distributed: Any = import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=_WORKERS,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
        ) as workers,
        dask_table.connected(workers.scheduler_address.replace("tcp://", "dask://")) as cluster,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        read_s, data = timed(lambda: dask_table.read(cluster, path))
        return _use(data, read_s, lambda: (peak_bytes(), *client.run(peak_bytes).values()))


def _use(data: Dataset, read_s: float, peaks: Any) -> Use:
    preparation = Preparation()
    statistics_s, _ = timed(lambda: column_statistics(data.X, preparation))
    moments_s, loss = timed(lambda: SecondMoments.of(data.X, *prepared(data.X, preparation, None)))
    return Use(data.n_samples, lies_in_file(data.X), read_s, statistics_s, moments_s, peaks(), loss.S)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
