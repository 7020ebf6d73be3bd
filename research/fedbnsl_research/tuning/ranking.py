"""Configurations of a search by the mean of a metric over their seeds."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl_research.trials.harness import Row
from fedbnsl_research.trials.trials import Outcome
from fedbnsl_research.tuning.grid import Choice

LOWER_IS_BETTER = ("shd", "shd_double", "missing", "extra", "reversed", "fdr")
HIGHER_IS_BETTER = ("tpr", "precision", "f1", "skeleton_precision", "skeleton_recall", "skeleton_f1")
HELD_OUT = "held_out"
"""The metric that needs no true graph: see `fedbnsl_research.tuning.held_out`."""

METRICS = (*LOWER_IS_BETTER, *HIGHER_IS_BETTER, HELD_OUT)


@dataclass(frozen=True)
class Ranked:
    """One configuration over all seeds.

    Attributes
    ----------
    mean, std, worst
        Of the metric over the seeds that ended well and have it; None without any (std: without two).
    undefined
        Seeds that ended well, but whose metric is not defined: a quotient by zero. They are in no mean.
    empty
        Those of them whose true graph has edges, where the learned one has none: a mean that leaves them out
        looks better than it is.
    failures
        Seeds that failed; `error` is the first one's.
    mb
        MB (10^6 bytes) of a run by the paper's formula, both directions, all sites; mean over the seeds.
    seconds
        From a run's first round on; mean over the seeds.
    """

    choice: Choice
    plan: Plan
    mean: float | None
    std: float | None
    worst: float | None
    seeds: int
    undefined: int
    empty: int
    failures: int
    mb: float | None
    seconds: float | None
    error: str

    def as_row(self, rank: int) -> Row:
        """For tables and JSON."""
        row = {"rank": rank, **self.choice, **vars(self)}
        return {key: value for key, value in row.items() if key not in ("choice", "plan")}


def row_of(outcome: Outcome) -> Row:
    """The scores of a trial, or its error."""
    return {"error": outcome.error} if outcome.error else dict(outcome.rows[0])


def summary(choice: Choice, plan: Plan, outcomes: Sequence[Outcome], metric: str) -> Ranked:
    """One configuration over its seeds."""
    rows = [row_of(outcome) for outcome in outcomes]
    well = [row for row in rows if not row["error"]]
    undefined = [row for row in well if row[metric] is None]
    values = [float(row[metric]) for row in well if row[metric] is not None]
    return Ranked(
        choice=choice,
        plan=plan,
        mean=statistics.mean(values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 else None,
        worst=(max if metric in LOWER_IS_BETTER else min)(values, default=None),
        seeds=len(rows),
        undefined=len(undefined),
        empty=sum(row["n_reference_edges"] > 0 for row in undefined),
        failures=len(rows) - len(well),
        mb=statistics.mean(row["mb"] for row in well) if well else None,
        seconds=statistics.mean(row["seconds"] for row in well) if well else None,
        error=next((row["error"] for row in rows if row["error"]), ""),
    )


def rank(summaries: Iterable[Ranked], metric: str) -> list[Ranked]:
    """Best mean first, among equal ones the fewest MB.

    Configurations are ordered by failed seeds first, then by `empty` seeds (no edge learned where there are some, so
    no metric), fewest first; the mean decides among equals. Configurations without any mean come last.
    """
    sign = 1 if metric in LOWER_IS_BETTER else -1

    def place(r: Ranked) -> tuple[float, ...]:
        if r.mean is None or r.mb is None:
            return (1, r.failures, r.empty)
        return (0, r.failures, r.empty, sign * r.mean, r.mb)

    return sorted(summaries, key=place)


def best_plan(best: Ranked, header: Sequence[str], metric: str) -> str:
    """A plan file that says where its settings come from."""
    spread = "" if best.std is None else f" +- {best.std:.4g}"
    n_scored = best.seeds - best.failures - best.undefined
    lines = [
        *header,
        f"score: {metric} {best.mean:.4g}{spread}, worst {best.worst:.4g}, over {n_scored} seed(s)",
        "chosen: " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in best.choice.items()),
    ]
    # A comment of TOML ends with its line and holds no control characters.
    comment = "".join(f"# {''.join(c if c.isprintable() else '?' for c in line)}\n" for line in lines)
    name = f"{best.plan.name[:190]}-tuned"
    return f"{comment}\n{best.plan.with_settings(name=name).to_toml()}"
