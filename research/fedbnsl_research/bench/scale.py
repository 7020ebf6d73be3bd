"""What many variables cost: one global step against the dense one, and whole runs with a thousand and two thousand."""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_research.bench.processes import MIB, in_own_process, peak_bytes
from fedbnsl_research.trials.harness import N_SAMPLES, Row, oracles, run_plan, run_row, timed
from fedbnsl_server.algorithm.acyclicity import acyclicity
from fedbnsl_server.algorithm.admm import AdmmState, acyclicity_coefficients
from fedbnsl_server.algorithm.global_step import global_step
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = 4
_FEW_SAMPLES = 2000
_TURNS = 3
_EVERY = 8


@dataclass(frozen=True, eq=False)
class _Problem:
    """One global step of a run: mean A and start W, (d, d), and the coefficients of h and h^2 / 2."""

    round: int
    A: SparseMatrix
    W: SparseMatrix
    alpha: float
    rho_1: float

    @classmethod
    def between(cls, before: AdmmState, after: AdmmState, plan: Plan) -> "_Problem":
        """The step that led from one state to the next."""
        B = [site.local_weights.to_dense() for site in after.sites.values()]
        beta = [site.consensus_dual.to_dense() for site in before.sites.values()]
        A = np.mean(B, axis=0) + np.mean(beta, axis=0) / plan.consensus_penalty
        alpha, rho_1 = acyclicity_coefficients(plan, after.round, before.acyclicity_dual)
        return cls(after.round, SparseMatrix.from_dense(A), before.global_weights, alpha, rho_1)

    def value(self, W: Matrix, weight: float) -> float:
        """The objective of the step."""
        h, _ = acyclicity(W)
        return 0.5 * weight * float(((W - self.A.to_dense()) ** 2).sum()) + self.alpha * h + 0.5 * self.rho_1 * h * h


def one_step() -> Iterator[Row]:
    """The global step at d=200 on the iterates of a run."""
    yield from _steps(Plan.load("fed-sparse"), n_variables=200, seed=100)


def _steps(plan: Plan, *, n_variables: int, seed: int) -> Iterator[Row]:
    literal = oracles()
    d = n_variables
    federation = synthesise(d, d, _SITES, N_SAMPLES, seed)
    states: list[AdmmState] = []
    run_plan(plan, federation, follow=states.append)
    problems = [
        _Problem.between(before, after, plan)
        for before, after in pairwise(states[: plan.rounds])
        if after.round % _EVERY == 0
    ]
    allowed = ~np.eye(d, dtype=bool)
    weight = _SITES * plan.consensus_penalty
    dense_s: list[float] = []
    ours_s: list[float] = []
    shares: list[float] = []
    for problem in problems:
        A, W, alpha, rho_1 = problem.A, problem.W, problem.alpha, problem.rho_1
        step = partial(
            global_step, A, W, n_participants=_SITES, rho_2=plan.consensus_penalty, alpha=alpha, rho_1=rho_1,
            allowed=allowed, max_iterations=plan.global_iterations,
        )  # fmt: skip
        dense_step = partial(
            literal.dense_global_step, A.to_dense(), W.to_dense(), weight=weight, alpha=alpha, rho_1=rho_1,
            allowed=allowed, max_iterations=plan.global_iterations,
        )  # fmt: skip
        turns = [(timed(dense_step), timed(step)) for _ in range(_TURNS)]
        dense_s.append(statistics.median(dense[0] for dense, _ in turns))
        ours_s.append(statistics.median(ours[0] for _, ours in turns))
        (_, dense), (_, ours) = turns[-1]
        start = problem.value(W.to_dense(), weight)
        shares.append((start - problem.value(ours.to_dense(), weight)) / (start - problem.value(dense, weight)))
    ratios = [slow / fast for slow, fast in zip(dense_s, ours_s, strict=True)]
    yield {
        "figure": f"global step at d={d}, P={_SITES}: dense / by components, on {len(problems)} rounds of a run",
        "ratio": round(statistics.median(ratios), 1),
        "ratio of the sums": round(sum(dense_s) / sum(ours_s), 1),
        "ratio by round": " ".join(f"{p.round}: {r:.1f}" for p, r in zip(problems, ratios, strict=True)),
        "ms dense": round(1e3 * statistics.median(dense_s), 1),
        "ms ours": round(1e3 * statistics.median(ours_s), 1),
        "objective's decrease, ours / dense, least median": f"{min(shares):.3f} {statistics.median(shares):.3f}",
    }


def thousand() -> Iterator[Row]:
    """Whole runs with a thousand variables and as many expected edges: fed-sparse, and lean."""
    for name in ("fed-sparse", "lean"):
        yield from _whole_run(Plan.load(name), n_variables=1000, seed=100)


def two_thousand() -> Iterator[Row]:
    """A whole run of the lean plan with two thousand variables and as many expected edges, on few rows."""
    yield from _whole_run(Plan.load("lean"), n_variables=2000, n_samples=_FEW_SAMPLES, seed=100)


def _whole_run(plan: Plan, *, n_variables: int, n_samples: int = N_SAMPLES, seed: int) -> Iterator[Row]:
    """One run in a process of its own, which holds the tables of all sites."""
    row, peak = in_own_process(partial(_measured_run, plan, n_variables, n_samples, seed))
    yield {
        "figure": f"whole run of the {plan.name} plan at d={n_variables}, P={_SITES}, n_p={n_samples}, in one process",
        "rounds": plan.rounds,
        "s": round(row["seconds"], 1),
        "s of the processor": round(row["processor_seconds"], 1),
        "processors": len(os.sched_getaffinity(0)),
        "SHD": row["shd"],
        "edges": row["edges"],
        "true edges": row["true_edges"],
        "TPR": round(row["tpr"], 3),
        "FDR": round(row["fdr"], 3),
        "MB formula": round(row["mb_formula"], 1),
        "MB serialised": round(row["mb_serialised"], 1),
        "MiB at most": round(peak / MIB),
    }


def _measured_run(plan: Plan, n_variables: int, n_samples: int, seed: int) -> tuple[Row, int]:
    """Row of a run, and the most memory of this process."""
    federation = synthesise(n_variables, n_variables, _SITES, n_samples, seed)
    started = time.process_time()
    result = run_plan(plan, federation)
    processor_s = time.process_time() - started
    return {**run_row(result, federation), "processor_seconds": processor_s}, peak_bytes()
