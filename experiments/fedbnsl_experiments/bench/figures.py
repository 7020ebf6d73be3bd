"""The figures that the project states about itself, measured anew: accuracy, bytes, speed.

Every speed is a ratio of two measurements made in turns in the same run; absolute seconds stand beside it for
orientation only.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers import pgcd
from fedbnsl_experiments import localnet
from fedbnsl_experiments.bench.growth import growth
from fedbnsl_experiments.bench.lean import lean, private_moments, unequal_noise
from fedbnsl_experiments.bench.load import load
from fedbnsl_experiments.bench.privacy import privacy, privacy_tuning
from fedbnsl_experiments.bench.private_steps import private_steps
from fedbnsl_experiments.bench.rows import rows
from fedbnsl_experiments.bench.scale import one_step, thousand
from fedbnsl_experiments.bench.sites import sites
from fedbnsl_experiments.bench.startup import startup
from fedbnsl_experiments.bench.wire_bytes import wire
from fedbnsl_experiments.scoring.evaluation import learned_graph, read_result
from fedbnsl_experiments.scoring.metrics import empty_graph_scores, random_dag_scores, score
from fedbnsl_experiments.simulate import simulate
from fedbnsl_experiments.tables.folder import site_files, write_federation
from fedbnsl_experiments.tables.sachs import federate, read_sachs
from fedbnsl_experiments.tables.synthetic import synthesise
from fedbnsl_experiments.trials.harness import (
    N_SAMPLES,
    Row,
    by_seed,
    mean_of,
    megabytes_sent,
    oracles,
    run_plan,
    run_row,
    timed,
)

_STEPS = 2000

Setting = tuple[str, Plan, int, range, int, float]


def _settings() -> list[Setting]:
    """Of the accuracy figures, on graphs that nothing was tuned on: see `_accuracy`."""
    default, paper = Plan.load("fed-sparse"), Plan.load("paper-homogeneous")
    return [
        ("homogeneous, default plan", default, 20, range(2, 12), 8, 0.0),
        ("homogeneous, default plan", default, 100, range(2, 6), 8, 0.0),
        ("homogeneous, default plan", default, 200, range(2, 4), 8, 0.0),
        ("heterogeneous 0.1, default plan", default, 20, range(2, 7), 5, 0.1),
        ("homogeneous, paper-homogeneous plan", paper, 20, range(2, 12), 8, 0.0),
    ]


def _tuning_settings() -> list[Setting]:
    """The graphs that the default plan was tuned on."""
    default = Plan.load("fed-sparse")
    label = "homogeneous, default plan, tuning graphs"
    return [(label, default, 20, range(100, 130), 8, 0.0), (label, default, 100, range(100, 120), 8, 0.0)]


def accuracy() -> Iterator[Row]:
    """SHD and bytes on generated data, by setting."""
    return _accuracy(_settings())


def tuning() -> Iterator[Row]:
    """The same on the graphs of the tuning."""
    return _accuracy(_tuning_settings())


def _accuracy(settings: list[Setting]) -> Iterator[Row]:
    """A row for each (label, plan, d, seeds, P, variance of the weights)."""
    for label, plan, d, seeds, n_sites, variance in settings:
        rows: list[Row] = []
        for seed in seeds:
            federation = synthesise(d, d, n_sites, N_SAMPLES, seed, weight_variance=variance)
            rows.append(run_row(run_plan(plan, federation), federation))
        yield {
            "figure": label,
            "d": d,
            "P": n_sites,
            "seeds": f"{seeds.start}..{seeds.stop - 1}",
            "mean SHD": mean_of(rows, "shd"),
            "SHD by seed": by_seed(rows, "shd"),
            "MB formula": mean_of(rows, "mb_formula"),
            "MB serialised": mean_of(rows, "mb_serialised"),
            "s a run": mean_of(rows, "seconds"),
        }


def sachs() -> Iterator[Row]:
    """The Sachs data over three sites, shuffled and contiguous, against the three edge lists, with the controls.

    Raises
    ------
    ResultError
        If FEDBNSL_DATA does not name a folder with sachs/.
    """
    data = read_sachs()
    plan = Plan.load("paper-sachs")
    for name, seed in (("shuffled (seed 0)", 0), ("contiguous", None)):
        result = run_plan(plan, federate(data, seed=seed))
        edges = learned_graph(result)
        for reference_name, reference in data.references.items():
            scores = score(edges, reference)
            chance = random_dag_scores(reference, scores.n_edges)
            yield {
                "figure": f"Sachs, {name}",
                "reference": reference_name,
                "edges": scores.n_edges,
                "SHD": scores.shd,
                "SHD empty": empty_graph_scores(reference).shd,
                "SHD random": f"{chance['mean']['shd']:.1f} +- {chance['std']['shd']:.1f}",
                "skeleton hits": scores.skeleton_hits,
                "hits random": f"{chance['mean']['skeleton_hits']:.1f}",
                "v-structures in common": f"{scores.v_structures_common} of {scores.v_structures_reference}",
                "MB formula": round(megabytes_sent(result, "formula"), 2),
                "h(W) at the end": f"{result['acyclicity']:.1e}",
            }


def local_solve() -> Iterator[Row]:
    """One local solve at d=200 against a literal (vectorised) NumPy reading of Algorithm 1, step by step."""
    literal = oracles()
    plan = Plan.load("fed-sparse")
    d = 200
    X = synthesise(d, d, 1, N_SAMPLES, 2).tables[0]
    zero, allowed = np.zeros((d, d)), ~np.eye(d, dtype=bool)
    settings: Row = {
        "lam": plan.l1_weight,
        "rho_2": plan.consensus_penalty,
        "gamma": plan.step_size,
        "max_steps": _STEPS,
        "tol": plan.local_tol,
        "allowed": allowed,
    }
    pgcd.warm_up()
    moments = SecondMoments.of(X)
    fast: list[float] = []
    slow: list[float] = []
    gap = 0.0
    for _ in range(5):
        seconds, (B, _) = timed(lambda: pgcd.solve(moments, zero, zero, zero, **settings))
        fast.append(seconds)
        seconds, (B_literal, _) = timed(lambda: literal.literal_pgcd(X, zero, zero, zero, **settings))
        slow.append(seconds)
        gap = max(gap, float(np.abs(B - B_literal).max()))
    whole: Row = {**settings, "max_steps": plan.local_steps}
    seconds, (_, steps) = timed(lambda: pgcd.solve(moments, zero, zero, zero, **whole))
    yield {
        "figure": f"local solve, first {_STEPS} steps at d=200: literal NumPy / ours",
        "ratio": round(statistics.median(s / f for s, f in zip(slow, fast, strict=True))),
        "largest difference": f"{gap:.1e}",
        "ms ours": round(1e3 * statistics.median(fast), 2),
        "ms literal": round(1e3 * statistics.median(slow)),
        "us a step of a whole solve": round(1e6 * seconds / steps, 2),
        "its steps": steps,
    }


def network() -> Iterator[Row]:
    """Whole runs as real processes over loopback gRPC against the same run in one process, from the first round on."""
    for d, turns in ((20, 3), (200, 1)):
        plan = Plan.load("fed-sparse").with_settings(n_participants=8)
        ratios: list[float] = []
        overheads: list[float] = []
        seconds: list[tuple[float, float]] = []
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                write_federation(synthesise(d, d, 8, N_SAMPLES, 2), folder / "data")
                files = site_files(folder / "data")
                tables = {site: Dataset.read(path) for site, path in files.items()}
                alone = simulate(plan, tables, folder / "alone")
                localnet.run(plan, files, folder / "network", watch=lambda status: None, seeds={})
                together = read_result(folder / "network")["seconds"]["total"]
                alone_s = alone["seconds"]["total"]
            seconds.append((together, alone_s))
            ratios.append(together / alone_s)
            overheads.append((together - alone_s) / n_rounds(plan))
        yield {
            "figure": f"whole run at d={d}, P=8: over loopback gRPC / in one process",
            "ratio": round(statistics.median(ratios), 2),
            "ms a round, overhead": round(1e3 * statistics.median(overheads), 1),
            "s network": round(statistics.median(s for s, _ in seconds), 2),
            "s one process": round(statistics.median(s for _, s in seconds), 2),
        }


FIGURES: dict[str, Callable[[], Iterator[Row]]] = {
    "accuracy": accuracy,
    "tuning": tuning,
    "sachs": sachs,
    "local-solve": local_solve,
    "network": network,
    "bytes": wire,
    "load": load,
    "rows": rows,
    "sites": sites,
    "privacy": privacy,
    "privacy-tuning": privacy_tuning,
    "private-steps": private_steps,
    "global-step": one_step,
    "d1000": thousand,
    "lean": lean,
    "private-moments": private_moments,
    "unequal-noise": unequal_noise,
    "growth": growth,
    "startup": startup,
}
