"""Tables as sites have them: what means, units, shifts, kinds and gaps do to a graph, and what the weight of rows does.

Generated hospitals (`tables.hospital`) are written to a folder and read from it, with dictionary and column files, as
`simulate` reads them. No plan was tuned on these seeds.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.sparse import Mask
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_research.tables.published import read_network
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.scoring.metrics import Scores, score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import described_by, read_tables
from fedbnsl_workbench.tables.hospital import ALL, Trouble, draw, write_hospitals

_SEEDS = range(10)

TABLES: dict[str, tuple[Trouble, ...]] = {
    "clean": (),
    "means of 3 to 12 sd": ("means",),
    "units x0.1 to x10": ("units",),
    "shifts between sites": ("shifts",),
    "a row of 999s": ("row-of-999s",),
    "a row of 999s that no column file names": ("unsaid-999s",),
    "one binary, one count, one nominal": ("binary", "count", "nominal"),
    "10 % of the rows lack a value": ("missing",),
    "all together, own spellings": ALL,
}
EPSILONS = (5.0, 1.0)

_NETWORK, _NETWORK_SEEDS = "ecoli70", range(3)
_NETWORK_ROWS = (100, 100, 100, 100, 100, 100, 2000, 10_000)


def tables() -> Iterator[Row]:
    """Plans `standard` and `private` on one trouble after the other, and site weights on tables of unequal length."""
    plans = {"standard": Plan.load("standard")}
    plans |= {f"private, epsilon {epsilon:g}": Plan.load("private", epsilon=epsilon) for epsilon in EPSILONS}
    for name, troubles in TABLES.items():
        yield _row(name, troubles, plans)
    yield from _weighted()


def _row(name: str, troubles: Sequence[Trouble], plans: Mapping[str, Plan]) -> Row:
    """Means over the seeds for each plan; all plans see the same files."""
    scores: dict[str, list[Scores]] = {label: [] for label in plans}
    scales_off: dict[str, list[float]] = {label: [] for label in plans}
    share: dict[str, float] = {}
    for seed in _SEEDS:
        hospitals = draw(seed, troubles)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "data")
            write_hospitals(hospitals, folder)
            for label, plan in plans.items():
                described, sites = _read(plan, folder)
                result = simulate(described, sites, Path(scratch, label), noise_seed=seed if plan.privacy else None)
                scores[label].append(score(learned_graph(result), hospitals.W != 0))
                scales_off[label].append(_scales_off(result, sites))
                share[label] = _share_of_statistics(described, next(iter(sites.values())))
    row: Row = {"figure": f"{name}, seeds {_SEEDS.start}..{_SEEDS.stop - 1}"}
    for label, plan in plans.items():
        row |= {f"{figure}, {label}": value for figure, value in _means(scores[label]).items()}
        if plan.privacy is not None:
            off = f"{statistics.median(scales_off[label]):.2g} %"
            row[f"budget for the statistics round, {label}"] = f"{share[label]:.0%}"
            row[f"scale that is farthest off, {label}"] = f"{off} (median over the seeds)"
    return row


def _read(plan: Plan, folder: Path) -> tuple[Plan, dict[str, Dataset]]:
    """The plan with the dictionary of the folder, and its tables."""
    files = site_files(folder)
    plan = described_by(plan, folder).with_settings(n_participants=len(files))
    return plan, read_tables(files, plan.variables, dictionary=plan.dictionary, warn=False)


def _share_of_statistics(plan: Plan, table: Dataset) -> float:
    """Of what a run costs a table; 0 without privacy."""
    if plan.privacy is None:
        return 0.0
    price = price_of(plan, n_samples=table.n_samples, n_variables=len(table.variables))
    return price.setup_units / price.units


def _means(scores: Sequence[Scores]) -> Row:
    return {
        "SHD": round(statistics.mean(one.shd for one in scores), 2),
        "SHD by seed": " ".join(str(one.shd) for one in scores),
        "skeleton F1": round(statistics.mean(one.skeleton_f1 or 0.0 for one in scores), 3),
    }


def _scales_off(result: Mapping[str, Any], sites: Mapping[str, Dataset]) -> float:
    """By how many percent the run's scale of a column differs at most from the pooled standard deviation."""
    whole = [table.X[~np.isnan(table.X).any(axis=1)] for table in sites.values()]
    exact = np.sqrt(sum(len(X) * X.var(axis=0) for X in whole) / sum(map(len, whole)))
    told = np.array(list(result["preparation"]["scales"].values()))
    return float(100.0 * np.abs(told / exact - 1.0).max())


def _weighted() -> Iterator[Row]:
    """The same tables and the same search, with sites that weigh as their rows, and with one vote each."""
    network = read_network(_NETWORK)
    plans = {
        weighting: Plan.load("standard").with_settings(
            n_participants=len(_NETWORK_ROWS), preparation={"weighting": weighting}
        )
        for weighting in ("sites", "rows")
    }
    found: dict[str, list[Mask]] = {weighting: [] for weighting in plans}
    for seed in _NETWORK_SEEDS:
        drawn = network.tables(_NETWORK_ROWS, np.random.default_rng(seed))
        sites = {f"site-{k}": Dataset(network.variables, X) for k, X in enumerate(drawn, start=1)}
        with tempfile.TemporaryDirectory() as scratch:
            for weighting, plan in plans.items():
                found[weighting].append(learned_graph(simulate(plan, sites, Path(scratch, weighting))))
    truth = network.W != 0
    row: Row = {"figure": f"{_NETWORK}, sites of {', '.join(map(str, _NETWORK_ROWS))} rows"}
    for weighting, graphs in found.items():
        distances = [class_distance(cpdag(graph), cpdag(truth)) for graph in graphs]
        row[f"CPDAG SHD, weighting = {weighting}"] = round(statistics.mean(distances), 1)
        row[f"CPDAG SHD by seed, weighting = {weighting}"] = " ".join(map(str, distances))
        f1 = statistics.mean(score(graph, truth).skeleton_f1 or 0.0 for graph in graphs)
        row[f"skeleton F1, weighting = {weighting}"] = round(f1, 3)
    yield row
