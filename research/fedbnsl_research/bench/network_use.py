"""Learned networks in use: predictions of rows that were not used, and classifiers that were trained on synthetic rows.

Tables are those of generated hospitals (`tables.hospital`) of equal means: eight of 1000 rows learn, one of
3000 judges.
"""

import math
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbnsl.graphs.files import LGBN
from fedbnsl.network.families import positions
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.network.predictions import predicted, scored
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.site_files import site_files
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.results.network_of_run import fitted_network
from fedbnsl_workbench.networks.rows import read_rows, rows_of_table
from fedbnsl_workbench.networks.synthetic import write_table
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import dictionary_of, read_tables
from fedbnsl_workbench.tables.hospital import Trouble, draw, write_hospitals

_TROUBLES: tuple[Trouble, ...] = ("means", "binary", "ordinal", "nominal", "count")
_SITES, _ROWS, _JUDGES, _SYNTHETIC = 8, 1000, 3000, 8000
_SEEDS, _SPEED_ROWS = range(5), 1_000_000
_PLANS = {
    "standard": Plan.load("standard", ["bootstrap=0"]),
    "private, epsilon 5": Plan.load("private", ["privacy.secure_aggregation=false", "bootstrap=0"], epsilon=5.0),
    "private, epsilon 1": Plan.load("private", ["privacy.secure_aggregation=false", "bootstrap=0"], epsilon=1.0),
}


def network_use(seeds: Sequence[int] = ()) -> Iterator[Row]:
    """A row for each plan, over all seeds; then the seconds of a million rows."""
    told: dict[str, dict[str, list[float]]] = {name: {} for name in _PLANS}
    seconds, n_variables = math.nan, 0
    for seed in seeds or _SEEDS:
        with TemporaryDirectory() as scratch:
            folder = Path(scratch, "sites")
            write_hospitals(draw(seed, _TROUBLES, rows=[_ROWS] * _SITES + [_JUDGES]), folder)
            whole: FittedNetwork | None = None  # of the first plan: it tells all columns
            for name, plan in _PLANS.items():
                run = Path(scratch, name)
                learn, judges = _learned(folder, plan, run)
                told[name].setdefault("runs that tell a network", []).append((run / LGBN).exists())
                if not (run / LGBN).exists():  # noise hides residual variances
                    continue
                fitted = fitted_network(run)
                whole = whole or fitted
                for key, number in _of_run(fitted, whole, learn, judges, seed).items():
                    told[name].setdefault(key, []).append(number)
                if name == "standard" and seed == (seeds or _SEEDS)[-1]:
                    begun = time.perf_counter()
                    write_table(fitted, _SPEED_ROWS, 1, Path(scratch, "rows.csv"), plain=True)
                    seconds = time.perf_counter() - begun
                    n_variables = len(fitted.variables)
    for name, numbers in told.items():
        yield {"figure": f"{name}, {_SITES} x {_ROWS} rows, {len(seeds or _SEEDS)} tables"} | {
            key: f"{np.nanmean(own):.3f}" for key, own in numbers.items()
        }
    yield {"figure": f"{_SPEED_ROWS:,} synthetic rows of {n_variables} variables", "seconds": f"{seconds:.1f}"}


def _learned(folder: Path, plan: Plan, run: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows that the run has learned from, and those that judge it, as their files have them."""
    files = site_files(folder)
    *learn, judge = files
    described = dictionary_of(folder)
    sites = read_tables({site: files[site] for site in learn}, described.variables, dictionary=described, warn=False)
    plan = plan.with_settings(n_participants=_SITES).with_dictionary(described, origin="hospitals")
    simulate(plan, sites, run, noise_seed=None if plan.privacy is None else 1)
    return [row for site in learn for row in read_rows(folder / f"{site}.csv")], read_rows(folder / f"{judge}.csv")


def _of_run(
    fitted: FittedNetwork,
    whole: FittedNetwork,
    learn: list[dict[str, str]],
    judges: list[dict[str, str]],
    seed: int,
) -> dict[str, float]:
    """Shares within intervals and R^2 of numbers, and areas under the ROC curve of variables of two levels.

    Real rows train with the columns of `whole`: a private run may not tell all of them.
    """
    told = rows_of_table(fitted, judges)[0]
    at_home = fitted.with_own_means(told)[0]
    real, real_judges = rows_of_table(whole, learn)[0], rows_of_table(whole, judges)[0]
    synthetic = fitted.network.sample(_SYNTHETIC, np.random.default_rng(seed))
    found: dict[str, list[float]] = {}
    for name in fitted.variables:
        scores = scored(fitted, predicted(fitted, told, name, np.random.default_rng(seed)), told, name)
        if scores is None:
            continue
        if name not in fitted.levels:
            found.setdefault("values within 95 % intervals", []).append(scores["within"])
            own = scored(at_home, predicted(at_home, told, name, np.random.default_rng(seed)), told, name)
            if own is not None:
                found.setdefault("with the table's own means", []).append(own["within"])
            found.setdefault("R^2", []).append(scores["r2"])
        elif "auc" in scores:
            found.setdefault("AUC, network", []).append(scores["auc"])
            found.setdefault("AUC, trained on real rows", []).append(_auc(whole, real, real_judges, name))
            found.setdefault("AUC, trained on synthetic rows", []).append(_auc(fitted, synthetic, told, name))
    return {key: float(np.mean(own)) for key, own in found.items()}


def _auc(fitted: FittedNetwork, rows: Matrix, judges: Matrix, name: str) -> float:
    """Of a logistic regression on all other columns; 0.5 where its rows have one level alone."""
    linear: Any = import_module("sklearn.linear_model")
    metrics: Any = import_module("sklearn.metrics")
    own = fitted.members(name)
    others = np.concatenate([fitted.members(other) for other in fitted.variables if other != name])
    rows, judges = (one[~np.isnan(one[:, [*own, *others]]).any(axis=1)] for one in (rows, judges))
    y, true = (positions(one, own, 2) for one in (rows, judges))
    if len(np.unique(y)) < 2:
        return 0.5
    scale = rows[:, others].std(axis=0)
    scale[scale == 0.0] = 1.0
    model = linear.LogisticRegression(max_iter=1000).fit(rows[:, others] / scale, y)
    return float(metrics.roc_auc_score(true, model.predict_proba(judges[:, others] / scale)[:, 1]))
