"""How the cost of a run grows with variables, rounds and sites, and how a site's work grows with its rows.

Everything runs in this process. Seconds are those of the fastest of a few turns (processor time, but for the
coordinator's part). Bytes are the same in every turn.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.fingerprint import fingerprint
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.trials.harness import N_SAMPLES, Row, exponent, megabytes_sent, run_plan, timed
from fedbnsl_workbench.tables.synthetic import synthesise

_VARIABLES = (20, 50, 100, 200, 400)
_MANY_VARIABLES = (200, 400, 1000)
_MANY_SITES = 4
_MANY_SAMPLES = 5000
_ROUNDS = (5, 10, 20, 40, 80)
_ROUNDS_VARIABLES = 100
_SITES = (8, 32, 125, 500, 1000)
_SITES_VARIABLES = 50
_SITES_SAMPLES = 200
_ROWS = (10**3, 10**4, 10**5, 10**6)
_COLUMNS = 20
_RUN_SITES = 8
_SEED = 100
_TURNS = 3

Costs = Mapping[str, float]


def growth() -> Iterator[Row]:
    """The lean plan by variables, rounds and sites, fed-sparse by rounds, and a table by rows."""
    sparse, lean = Plan.load("fed-sparse"), Plan.load("lean")

    def by_rounds(plan: Plan, rounds: int) -> Costs:
        return _run(plan.with_settings(rounds=rounds), _ROUNDS_VARIABLES, _RUN_SITES, N_SAMPLES)

    title = f"lean plan, by variables; P={_RUN_SITES}, {N_SAMPLES} rows a site"
    yield grown(title, _VARIABLES, lambda d: _run(lean, d, _RUN_SITES, N_SAMPLES))
    title = f"lean plan, by many variables; P={_MANY_SITES}, {_MANY_SAMPLES} rows a site"
    yield grown(title, _MANY_VARIABLES, lambda d: _run(lean, d, _MANY_SITES, _MANY_SAMPLES))
    for plan in (lean, sparse):
        title = f"{plan.name} plan, by rounds; d={_ROUNDS_VARIABLES}, P={_RUN_SITES}, {N_SAMPLES} rows a site"
        yield grown(title, _ROUNDS, partial(by_rounds, plan))
    title = f"lean plan, by sites; d={_SITES_VARIABLES}, {_SITES_SAMPLES} rows a site"
    yield grown(title, _SITES, lambda n_sites: _run(lean, _SITES_VARIABLES, n_sites, _SITES_SAMPLES))
    with tempfile.TemporaryDirectory() as scratch:
        yield grown(f"a site's CSV file of {_COLUMNS} columns, by rows", _ROWS, partial(_table, Path(scratch)))


def grown(name: str, sizes: Sequence[int], cost_of: Callable[[int], Costs]) -> Row:
    """Costs at each size, and exponents of growth: least squares over all sizes, and between the last two sizes."""
    cost_of(sizes[0])  # compiles, and reads what is read once a process
    costs = [_least([cost_of(size) for _ in range(_TURNS)]) for size in sizes]
    row: Row = {"figure": name, "at": " ".join(f"{size}" for size in sizes)}
    for what in costs[0]:
        values = [cost[what] for cost in costs]
        row[what] = " ".join(f"{value:.3g}" for value in values)
        row[f"exponent, {what}"] = exponent(sizes, values)
        row[f"exponent of the last two, {what}"] = exponent(sizes[-2:], values[-2:])
    return row


def _least(turns: Sequence[Costs]) -> Costs:
    return {what: min(turn[what] for turn in turns) for what in turns[0]}


def _run(plan: Plan, d: int, n_sites: int, n_samples: int) -> Costs:
    """One simulated run: second moments, rounds and the files of its folder."""
    federation = synthesise(d, d, n_sites, n_samples, _SEED)
    started = time.process_time()
    result = run_plan(plan, federation)
    return {
        "s of the processor": time.process_time() - started,
        "s of the coordinator": result["seconds"]["global"],
        "s of its last round": result["rounds"][-1]["global_s"],
        "MB serialised": megabytes_sent(result, "serialised"),
    }


def _table(folder: Path, n_rows: int) -> Costs:
    """What a site does with a CSV file before a run."""
    path = folder / f"{n_rows}.csv"
    if not path.exists():
        _write_table(path, n_rows)
    measured = partial(timed, clock=time.process_time)
    reading_s, data = measured(lambda: Dataset.read(path))
    moments_s, _ = measured(lambda: SecondMoments.of(data.X))
    fingerprint_s, _ = measured(lambda: fingerprint(bytes(32), data.variables, data.X))
    return {"s reading": reading_s, "s moments": moments_s, "s fingerprint": fingerprint_s}


def _write_table(path: Path, n_rows: int) -> None:
    """A table in which each column depends on the one before, with all digits."""
    arrow: Any = import_module("pyarrow")
    X = np.random.default_rng(n_rows).standard_normal((n_rows, _COLUMNS))
    X[:, 1:] += 0.8 * X[:, :-1]
    import_module("pyarrow.csv").write_csv(arrow.table({f"v{k}": column for k, column in enumerate(X.T)}), path)
