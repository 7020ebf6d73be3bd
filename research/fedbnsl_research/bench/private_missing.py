"""What `private` finds with values missing: cells, whole columns, and half of one column that goes with nothing.

Generated tables; ranges are four standard deviations to both sides, or as a row says.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_research.bench.missing import lacking_cells, lacking_columns
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

EPSILONS = (1.0, 5.0)
_SITES, _ROWS, _D, _NOISE, _SEEDS = 8, 5000, 20, (0.5, 2.0), range(5)
_SHARES, _ABSENT = (0.0, 0.1, 0.2), 0.1
_RUNS, _FEW, _WIDE = 20, (3, 400), 1e6


def private_missing(seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """A row for each budget and share; `seeds`: of the graphs, in place of the usual ones."""
    for epsilon in EPSILONS:
        for share in _SHARES:
            yield _row(epsilon, share, seeds or _SEEDS, of_columns=False)
        yield _row(epsilon, _ABSENT, seeds or _SEEDS, of_columns=True)
        for limit in (40.0, _WIDE):
            yield _false_edges(epsilon, limit, range(_RUNS) if seeds is None else seeds)


def _row(epsilon: float, share: float, seeds: Sequence[int], *, of_columns: bool) -> Row:
    found = list[tuple[float, int]]()
    for seed in seeds:
        drawn = synthesise(_D, _D, _SITES, _ROWS, seed, noise_range=_NOISE)
        limits = 4.0 * np.concatenate(drawn.tables).std(axis=0)
        rng, tables, absent = np.random.default_rng((seed, 1)), list(drawn.tables), dict[str, list[str]]()
        if of_columns:
            lacks = lacking_columns(_SITES, _D, share, rng)
            tables = [np.where(lacking, np.nan, X) for lacking, X in zip(lacks, tables, strict=True)]
            named = [[f"X{k + 1}" for k in np.flatnonzero(lacking).tolist()] for lacking in lacks]
            absent = {f"site-{k + 1}": names for k, names in enumerate(named) if names}
        elif share:
            tables = lacking_cells(tables, share, "MCAR", rng)
        marks, truth = _learned(epsilon, tables, limits, seed, absent), drawn.W != 0
        found.append((score(marks, truth).skeleton_f1 or 0.0, class_distance(marks, cpdag(truth))))
    what = "columns" if of_columns else "cells"
    return {
        "figure": f"epsilon {epsilon:g}: {_D} variables, {_SITES} x {_ROWS} rows, {share:.0%} of {what} missing, "
        f"{len(found)} graphs",
        "skeleton F1": round(statistics.mean(f1 for f1, _ in found), 3),
        "CPDAG SHD": round(statistics.mean(distance for _, distance in found), 1),
    }


def _false_edges(epsilon: float, limit: float, seeds: Sequence[int]) -> Row:
    """Five columns of which the first two depend on each other, and half of the last is missing."""
    n_false = n_lost = 0
    for seed in seeds:
        rng, tables = np.random.default_rng(seed), list[Matrix]()
        for _ in range(_FEW[0]):
            X = 10.0 * rng.standard_normal((_FEW[1], 5))
            X[:, 1] += 0.8 * X[:, 0]
            X[rng.random(_FEW[1]) < 0.5, 4] = np.nan
            tables.append(X)
        marks = _learned(epsilon, tables, np.array([40.0, 40.0, limit, limit, limit]), seed, {})
        pairs = marks | marks.T
        n_lost += not pairs[0, 1]
        pairs[0, 1] = pairs[1, 0] = False
        n_false += bool(pairs.any())
    return {
        "figure": f"epsilon {epsilon:g}: {_FEW[0]} x {_FEW[1]} rows, half of one column missing, values of 10 in three "
        f"columns with ranges of {limit:g}",
        "runs with a false edge": f"{n_false} of {len(seeds)}",
        "runs that lost the edge": f"{n_lost} of {len(seeds)}",
    }


def _learned(epsilon: float, tables: Sequence[Matrix], limits: Matrix, seed: int, absent: dict[str, list[str]]) -> Mask:
    """(d, d) marks of the class."""
    ranges = {f"X{k + 1}": {"range": [-limit, limit]} for k, limit in enumerate(limits.tolist())}
    plan = Plan.load("private", epsilon=epsilon).with_settings(
        n_participants=len(tables), bootstrap=0, dictionary=ranges, absent=absent
    )
    sites = {
        site: replace(table, absent=plan.absent.of(site))
        for site, table in site_tables(tables, dictionary=plan.dictionary).items()
    }
    with TemporaryDirectory() as scratch:
        return class_found(simulate(plan, sites, Path(scratch, "run"), noise_seed=seed))
