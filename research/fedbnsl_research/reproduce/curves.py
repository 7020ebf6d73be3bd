"""Structural scores by round: of one run, their mean over runs, and the chart of it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_research.reproduce.study_page import band
from fedbnsl_research.trials.harness import Row, run_plan, scores_row
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_workbench.pages.chart_files import Chart
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.tables.synthetic import SyntheticFederation

SCORES = {"shd": "SHD", "tpr": "TPR", "fdr": "FDR"}
"""Column to the name of its axis."""


def run_by_round(plan: Plan, federation: SyntheticFederation) -> tuple[dict[str, Any], list[Row]]:
    """A result, and one row of scores per round, for the graph of a run that ends with that round."""
    mask, truth = plan.edge_mask(federation.variables), federation.W != 0
    rows: list[Row] = []

    def note(state: AdmmState) -> None:
        dag = consensus_graph(state, plan, mask).dag
        rows.append({"round": state.round, **scores_row(score(dag, truth))})

    return run_plan(plan, federation, follow=note), rows


def mean_of_rows(rows: Sequence[Row]) -> Row:
    """The mean of each score."""
    return {column: statistics.mean(float(row[column]) for row in rows) for column in SCORES}


def last_rounds(rows: Sequence[Row]) -> list[Row]:
    """The last row of each seed."""
    last: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda row: int(row["round"])):
        last[row["seed"]] = row
    return list(last.values())


def settled(rows: Sequence[Row]) -> list[Row]:
    """By seed, the round from which the SHD stays within 1 of its last value."""
    found: list[Row] = []
    for final in last_rounds(rows):
        of_seed = [row for row in rows if row["seed"] == final["seed"]]
        away = [int(row["round"]) for row in of_seed if abs(row["shd"] - final["shd"]) > 1]
        found.append({"seed": final["seed"], "settled": max(away, default=0) + 1})
    return found


@dataclass(frozen=True)
class Curve:
    """Mean and sample standard deviation over seeds by round; a run that has ended counts with its last value."""

    rounds: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]


def mean_curve(rows: Sequence[Row], column: str) -> Curve:
    """The mean of a score by round."""
    by_seed: dict[Any, dict[int, float]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {})[int(row["round"])] = float(row[column])
    rounds = range(1, 1 + max(int(row["round"]) for row in rows))
    columns = [[values[min(t, max(values))] for values in by_seed.values()] for t in rounds]
    means = [statistics.mean(values) for values in columns]
    return Curve(rounds, means, [_spread(values) for values in columns])


def _spread(values: Sequence[float]) -> float:
    """Sample standard deviation, as everywhere; 0 for one value, so that its band is a line."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def draw_curve(axes: Chart, rows: Sequence[Row], column: str, index: int, label: str) -> None:
    """A score by round, with a band of one standard deviation."""
    curve = mean_curve(rows, column)
    band(axes, curve.rounds, curve.mean, curve.std, index, label)


def finish_chart(axes: Chart, column: str, *, x: str = "round") -> None:
    """Names and ends of the axes of a chart of one score."""
    axes.set_ylabel("SHD (edges)" if column == "shd" else SCORES[column])
    axes.set_xlabel(x)
    if column == "shd":
        axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])  # a curve along zero stays whole
    else:
        axes.set_ylim(-0.02, 1.02)
