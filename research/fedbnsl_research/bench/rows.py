"""What a long table costs a site: peak memory and time of reading, moments, fingerprint and private steps.

Each measurement runs in a separate process, so that the peak is its own. The old way, which reads the whole file into
memory, is measured on a table with a tenth of the rows.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.data import csv_table
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import fingerprint
from fedbnsl_client.data.mapped_array import lies_in_file
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.privacy import randomness
from fedbnsl_client.solvers.local_solver import private_solver, release_setup, warm_up
from fedbnsl_research.bench.processes import MIB, in_own_process, peak_bytes
from fedbnsl_research.trials.harness import Row, oracles, timed

_ROWS = 10**7
_SMALLER = 10
_VARIABLES = 20
_STEPS = 5
_CHUNK = 100_000


@dataclass(frozen=True)
class Use:
    """Seconds of each part, and the process's peak so far in bytes: at its start, after the moments, at the end."""

    n_rows: int
    mapped: bool
    idle: int
    moments_peak: int
    peak: int
    read_s: float
    moments_s: float
    fingerprint_s: float = 0.0
    start_s: float = 0.0
    step_s: float = 0.0

    @property
    def bytes_a_row(self) -> float:
        """What reading and moments take beyond an idle process."""
        return (self.moments_peak - self.idle) / self.n_rows

    @property
    def moments_s_a_row(self) -> float:
        """Of reading and moments."""
        return (self.read_s + self.moments_s) / self.n_rows


def rows() -> Iterator[Row]:
    """Ten million rows of twenty columns as a site uses them; needs 10 GB in TMPDIR."""
    yield from _rows(Plan.load("private-steps", epsilon=5.0), n_rows=_ROWS)


def _rows(plan: Plan, *, n_rows: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        small, parquet, plain = (Path(scratch, name) for name in ("small.csv", "large.parquet", "large.csv"))
        title = f"{n_rows:,} x {_VARIABLES}"
        write_table(small, n_rows // _SMALLER)
        before = in_own_process(partial(_used_before, small))
        fitting = in_own_process(partial(use_of, small, plan))
        write_table(parquet, n_rows)
        found = in_own_process(partial(use_of, parquet, plan))
        yield _reading(f"{title} from Parquet", parquet, found, before)
        yield _private(title, found, fitting)
        parquet.unlink()
        write_table(plain, n_rows)
        for name, fast in (("CSV", True), ("CSV, without pyarrow", False)):
            found = in_own_process(partial(use_of, plain, plan, fast=fast, private=False))
            yield _reading(f"{title} from {name}", plain, found, before)


def _reading(name: str, path: Path, found: Use, before: Use) -> Row:
    return {
        "figure": f"{name}: peak of reading and second moments",
        "MiB at most": round(found.moments_peak / MIB),
        "of these without a table": round(found.idle / MIB),
        "bytes a row / before, read whole": round(found.bytes_a_row / before.bytes_a_row, 3),
        "s a row / before, read whole": round(found.moments_s_a_row / before.moments_s_a_row, 3),
        "s reading": round(found.read_s, 1),
        "s moments": round(found.moments_s, 2),
        "MiB of the file": round(path.stat().st_size / MIB),
        f"MiB before, {before.n_rows:,} rows": round(before.moments_peak / MIB),
        f"s before, {before.n_rows:,} rows": round(before.read_s + before.moments_s, 1),
    }


def _private(title: str, found: Use, fitting: Use) -> Row:
    """Steps over a mapped table, against steps over one in memory."""
    if not found.mapped or fitting.mapped:
        raise ValueError("expected the large table mapped from a file and the small one in memory")
    return {
        "figure": f"{title}: peak of private steps and fingerprint, mapped",
        "MiB at most": round(found.peak / MIB),
        "s a row and step / in memory": round(found.step_s / found.n_rows / (fitting.step_s / fitting.n_rows), 2),
        "s a step": round(found.step_s, 3),
        "s until the first step": round(found.start_s, 1),
        "s fingerprint": round(found.fingerprint_s, 1),
        f"s a step, {fitting.n_rows:,} rows in memory": round(fitting.step_s, 3),
        f"MiB at most, {fitting.n_rows:,} rows in memory": round(fitting.peak / MIB),
    }


def _used_before(path: Path) -> Use:
    literal = oracles().literal_table
    idle = peak_bytes()
    read_s, X = timed(lambda: literal(path))
    moments_s, _ = timed(lambda: X.T @ X / len(X))
    return Use(len(X), lies_in_file(X), idle, peak_bytes(), peak_bytes(), read_s, moments_s)


def use_of(path: Path, plan: Plan, *, fast: bool = True, private: bool = True) -> Use:
    """What a site does with its table: reading and moments, then its fingerprint and private steps."""
    warm_up()
    idle = peak_bytes()
    with mock.patch.object(csv_table, "has_fast_reader", return_value=fast):
        read_s, data = timed(lambda: Dataset.read(path))
    moments_s, _ = timed(lambda: SecondMoments.of(data.X))
    moments_peak = peak_bytes()
    of_moments = Use(data.n_samples, lies_in_file(data.X), idle, moments_peak, moments_peak, read_s, moments_s)
    if not private:
        return of_moments
    fingerprint_s, _ = timed(lambda: fingerprint(bytes(32), data.variables, data.X))
    start_s, solver = timed(lambda: _started(plan.with_settings(local_steps=_STEPS), data))
    zero = np.zeros((_VARIABLES, _VARIABLES))
    first_s, B = timed(lambda: solver(zero, zero, zero))
    solving_s, _ = timed(lambda: solver(B, zero, zero))
    return replace(
        of_moments,
        peak=peak_bytes(),
        fingerprint_s=fingerprint_s,
        start_s=start_s + first_s - solving_s,
        step_s=solving_s / _STEPS,
    )


def _started(plan: Plan, data: Dataset) -> Callable[..., Any]:
    privacy, d = plan.privacy, len(data.variables)
    assert privacy is not None  # noqa: S101
    price = price_of(plan, n_samples=data.n_samples, n_variables=d)
    setup = release_setup(plan, privacy, price, data.X, randomness.system)
    return private_solver(plan, privacy, price, data.X, ~np.eye(d, dtype=bool), setup, randomness.system)


def write_table(path: Path, n_rows: int, *, seed: int | None = None) -> None:
    """A table in which each column depends on the one before, with all digits; by default n_rows is the seed."""
    arrow: Any = import_module("pyarrow")
    names = [f"v{k}" for k in range(_VARIABLES)]
    schema = arrow.schema([(name, arrow.float64()) for name in names])
    rng = np.random.default_rng(n_rows if seed is None else seed)
    if path.suffix == ".csv":
        writer: Any = import_module("pyarrow.csv").CSVWriter(path, schema)
    else:
        writer = import_module("pyarrow.parquet").ParquetWriter(path, schema, write_page_checksum=True)
    with writer as file:
        for start in range(0, n_rows, _CHUNK):
            X = rng.standard_normal((min(_CHUNK, n_rows - start), _VARIABLES))
            X[:, 1:] += 0.8 * X[:, :-1]
            file.write_table(arrow.table([np.ascontiguousarray(column) for column in X.T], schema=schema))
