"""A private table that Dask workers read against one process that reads it: the same bits, and the seconds of both."""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import Policy
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dask_table import Cluster, connected
from fedbnsl_client.data.fingerprint import recognised
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.private_moments import release_residual_moments, release_statistics
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from fedbnsl_client.site.new_site import NewSite
from fedbnsl_research.trials.harness import Row

_ROWS = 10**7
_COLUMNS = 5
_FILES = 20
_WORKERS = 2
_RUN = 1
_KEY = bytes(32)


def tables_of_workers(n_rows: int = _ROWS) -> Iterator[Row]:
    """Register a table, be admitted to a run of `private-moments` and release what that releases first.

    Raises ResultError if Dask or pyarrow is not installed.
    """
    try:
        distributed: Any = import_module("distributed")
        import_module("pyarrow")
    except ImportError:
        raise ResultError("tables of workers need Dask and pyarrow") from None
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        table = _written(Path(scratch, "table"), n_rows)
        here, bits = _measured(Path(scratch, "here"), table, None, n_rows)
        cluster = distributed.LocalCluster(
            n_workers=_WORKERS, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        )
        address = stack.enter_context(cluster).scheduler_address.replace("tcp://", "dask://")
        there, bits_there = _measured(Path(scratch, "there"), table, stack.enter_context(connected(address)), n_rows)
    row: Row = {"figure": f"{n_rows:,} records of {_COLUMNS} columns, private, {_WORKERS} Dask workers"}
    row["bits"] = "the same" if bits == bits_there else "others"
    for what in here:
        row[f"s {what}, one process"], row[f"s {what}, workers"] = round(here[what], 1), round(there[what], 1)
    row["seconds of workers / of one process"] = round(sum(there.values()) / sum(here.values()), 2)
    yield row


def _measured(folder: Path, table: Path, cluster: Cluster | None, n_rows: int) -> tuple[dict[str, float], list[bytes]]:
    """Seconds by what is done, and what was found and released."""
    seconds: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        done = work()
        seconds[what] = time.perf_counter() - began
        return done

    plan = Plan.load("private-moments").with_settings(n_participants=2)
    new = NewSite(site="north", data=table, dataset_id="table", max_epsilon=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        timed("registering", lambda: site_folder.create(folder, new, cluster))
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
        data = timed("being admitted", lambda: _admitted(folder, policy, ledger, plan, cluster))
        price = price_of(plan, n_samples=n_rows, n_variables=_COLUMNS)
        ones, zero = np.ones(_COLUMNS), np.zeros((_COLUMNS, _COLUMNS))
        draw = randomness.seeded("workers")

        def released() -> list[bytes]:
            low, of = -10.0 * ones, np.arange(_COLUMNS)
            statistics = release_statistics(data.X, low, -low, of, price.moments_variance, draw)
            moments = release_residual_moments(data.X, zero, ones, 5.0, price.moments_variance, draw)
            return [statistics.tobytes(), moments.tobytes()]

        bits = timed("statistics and moments", released)
        tags, fingerprint, columns = recognised(_KEY, data.variables, data.X)
    return seconds, [*bits, tags.tobytes(), fingerprint.encode(), *map(str.encode, columns)]


def _admitted(folder: Path, policy: Policy, ledger: Ledger, plan: Plan, cluster: Cluster | None) -> Any:
    table = GuardedTable(folder, policy, ledger, None, cluster=cluster)
    return table.admit(plan, _RUN, table.variables)[0]


def _written(folder: Path, n_rows: int) -> Path:
    """Parquet files in which each column depends on the one before."""
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    folder.mkdir()
    for k in range(_FILES):
        X = np.random.default_rng(k).standard_normal((n_rows // _FILES, _COLUMNS))
        X[:, 1:] += 0.8 * X[:, :-1]
        parquet.write_table(arrow.table({f"v{j}": column for j, column in enumerate(X.T)}), folder / f"{k:02d}.parquet")
    return folder
