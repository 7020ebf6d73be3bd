"""The speed of a local solve, and of a run over the network.

Every speed is a ratio of two measurements made in turns in the same run; absolute seconds stand beside it for
orientation only.
"""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers import pgcd
from fedbnsl_research.trials.harness import N_SAMPLES, Row, oracles, timed
from fedbnsl_workbench import localnet
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import site_files, write_federation
from fedbnsl_workbench.tables.synthetic import synthesise

_STEPS = 2000


def local_solve() -> Iterator[Row]:
    """One local solve at d=200 against a literal (vectorised) NumPy reading of Algorithm 1, step by step."""
    literal = oracles()
    plan = Plan.load("fed-sparse")
    d = 200
    X = synthesise(d, d, 1, N_SAMPLES, 2).tables[0]
    zero, allowed = SparseMatrix.zeros(d), ~np.eye(d, dtype=bool)
    dense_zero = zero.to_dense()
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
        seconds, (B_literal, _) = timed(lambda: literal.literal_pgcd(X, *[dense_zero] * 3, **settings))
        slow.append(seconds)
        gap = max(gap, float(np.abs(B.to_dense() - B_literal).max()))
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
