"""What a thousand variables cost: whole runs in one process."""

import os
import time
from collections.abc import Iterator
from functools import partial

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench.processes import MIB, in_own_process, peak_bytes
from fedbnsl_research.trials.harness import N_SAMPLES, Row, run_plan, run_row
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = 4


def thousand() -> Iterator[Row]:
    """Whole runs with a thousand variables and as many expected edges: fed-sparse, and lean."""
    for name in ("fed-sparse", "lean"):
        yield from _whole_run(Plan.load(name), n_variables=1000, seed=100)


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
