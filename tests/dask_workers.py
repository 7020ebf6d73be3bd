"""A Dask scheduler with worker processes, and Parquet tables in parts, for tests of tables that workers read."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl_client.data.reading import ColumnMap

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
distributed = pytest.importorskip("distributed")

FILES, ROWS = 3, 130
AS_WRITTEN: dict[str, Any] = {
    "age": {"range": [0, 110]},
    "crp": {"range": [0, 500], "transform": "log1p"},
    "sex": {"kind": "binary", "levels": ["f", "m"]},
    "blood": {"kind": "nominal", "levels": ["0", "A", "B"]},
}
HERE_AS_WRITTEN: dict[str, Any] = {"age": {"column": "Alter", "factor": 1 / 12}, "sex": {"levels": {"f": "w"}}}
WARD, HERE = Dictionary.model_validate(AS_WRITTEN), ColumnMap.model_validate(HERE_AS_WRITTEN)


class Workers:
    """A scheduler and workers, each a process; a worker that is killed is not started again."""

    def __init__(self, cluster: Any) -> None:
        self._scheduler: str = cluster.scheduler_address
        self._wait = cluster.wait_for_workers
        self.address = self._scheduler.replace("tcp://", "dask://")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, n_workers: int) -> None:
        """Start so many workers, and wait until they are there."""
        words = [self._scheduler, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
        self._processes += [
            subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_worker", *words], stderr=subprocess.DEVNULL)
            for _ in range(n_workers)
        ]
        self._wait(len(self._processes), timeout=60)

    def kill(self, n_workers: int) -> None:
        """Kill so many of them."""
        for _ in range(n_workers):
            process = self._processes.pop()
            process.kill()
            process.wait()


@contextmanager
def workers(n_workers: int) -> Iterator[Workers]:
    """So many workers on this machine."""
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
        found = Workers(cluster)
        try:
            found.start(n_workers)
            yield found
        finally:
            found.kill(len(found._processes))


def written(folder: Path, columns: dict[str, Any]) -> Path:
    """Three files with row groups of 40 rows."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    for k in range(FILES):
        parquet.write_table(table.slice(k * ROWS, ROWS), folder / f"{k}.parquet", row_group_size=40)
    return folder


def ward_table(folder: Path, seed: int = 5) -> Path:
    """A table as sites have it, with missing values in a fifth of the rows."""
    drawn, n = np.random.default_rng(seed), FILES * ROWS
    months, blood = drawn.integers(240, 1000, n), drawn.choice(["0", "A", "B"], n)
    crp = np.exp(months / 300 + (blood == "A") + drawn.normal(0.0, 0.5, n))
    return written(
        folder,
        {
            "Alter": pyarrow.array(months),
            "note": pyarrow.array(["x"] * n),
            "crp": pyarrow.array(crp, mask=drawn.random(n) < 0.1),
            "sex": pyarrow.array(drawn.choice(["w", "m", "NA"], n, p=[0.45, 0.45, 0.1])).dictionary_encode(),
            "blood": pyarrow.array(blood),
        },
    )
