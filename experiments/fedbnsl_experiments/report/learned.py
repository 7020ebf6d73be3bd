"""What a run has learned, as its report shows it: edges with their verdicts, and the drawing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbnsl.graphs.graph import Edge
from fedbnsl_experiments.report.dag_drawing import STYLES, Arrow, draw, sample
from fedbnsl_experiments.report.run_files import ReportedRun, Truth

MOST_DRAWN = 1000
"""Edges of the largest drawing: beyond it nobody could follow a line, and the layout would take minutes."""


@dataclass(frozen=True)
class EdgeRow:
    """A line of the table of edges.

    Attributes
    ----------
    estimate
        None for an edge that was not learned; the largest of several coefficients, by their size without units.
    truth
        Weight of this very edge in the truth; None where unknown, where the truth has no such edge, and where the edge
        has several coefficients.
    verdict
        correct, reversed, extra or missing; unscored if the truth lacks one of the variables; empty without a truth.
    standardised
        The estimate without units; None where the run has none.
    coefficients
        Between the columns of the two variables, if these have several: as in result.json.
    """

    source: str
    target: str
    estimate: float | None
    truth: float | None
    verdict: str
    standardised: float | None = None
    coefficients: tuple[Mapping[str, Any], ...] = ()

    @property
    def strength(self) -> float:
        """The absolute weight by which edges are compared with each other and with the threshold."""
        return abs((self.estimate if self.standardised is None else self.standardised) or 0.0)

    @property
    def difference(self) -> float | None:
        """Estimate - truth."""
        return None if self.estimate is None or self.truth is None else self.estimate - self.truth


def verdict(edge: Edge, truth: Truth | None) -> str:
    """Verdict on a learned edge, as in `metrics.score`: reversed if the truth has only the opposite edge."""
    if truth is None:
        return ""
    i, j = edge
    if not truth.scored[i, j]:
        return "unscored"
    if truth.edges[i, j]:
        return "correct"
    return "reversed" if truth.edges[j, i] else "extra"


def learned_edges(run: ReportedRun) -> list[EdgeRow]:
    """The edges of the result, by decreasing strength."""
    position = {name: k for k, name in enumerate(run.variables)}
    rows: list[EdgeRow] = []
    weights = _true_weights(run)
    for edge in run.result["edges"]:
        pair = position[edge["source"]], position[edge["target"]]
        coefficients = tuple(edge.get("coefficients", ()))
        rows.append(
            EdgeRow(
                edge["source"],
                edge["target"],
                edge["weight"],
                None if coefficients else weights.get(pair),
                verdict(pair, run.truth),
                None if run.divided_by is None else edge["standardised"],
                coefficients,
            )
        )
    return sorted(rows, key=lambda row: -row.strength)


def _true_weights(run: ReportedRun) -> Mapping[Edge, float]:
    return (run.truth.reference.weights or {}) if run.truth else {}


def missing_edges(run: ReportedRun) -> list[EdgeRow]:
    """True edges that were learned in neither direction."""
    if run.truth is None:
        return []
    wrong = run.dag & ~run.truth.edges
    pairs: list[Edge] = [(int(i), int(j)) for i, j in np.argwhere(run.truth.edges & ~run.dag & ~wrong.T)]
    weights = _true_weights(run)
    names = run.variables
    return [EdgeRow(names[i], names[j], None, weights.get((i, j)), "missing") for i, j in pairs]


def drawing(run: ReportedRun) -> str:
    """The graph as SVG; with a truth, edges that are missing are drawn too. Empty without edges, or with too many."""
    rows = [*learned_edges(run), *missing_edges(run)]
    if not 0 < len(rows) <= MOST_DRAWN:
        return ""
    position = {name: k for k, name in enumerate(run.variables)}
    strongest = max((row.strength for row in rows), default=0.0) or 1.0
    arrows: list[Arrow] = []
    for row in rows:
        kind = row.verdict or ("negative" if (row.estimate or 0.0) < 0 else "positive")
        words = f"{row.source} \u2192 {row.target}"
        words += f", weight {row.estimate:.3g}" if row.estimate is not None else ""
        words += f" ({row.standardised:.3g} without units)" if row.standardised is not None else ""
        words += f", {row.verdict}" if row.verdict else ""
        arrows.append(Arrow(position[row.source], position[row.target], kind, row.strength / strongest, words))
    counts = Counter(row.verdict for row in rows)
    verdicts = ", ".join(f"{counts[kind]} {kind}" for kind in STYLES if counts[kind])
    n = len(run.result["edges"])
    title = f"Learned graph: {n} edges among {len(run.variables)} variables" + (f"; {verdicts}" if verdicts else "")
    return draw(run.variables, arrows, title=f"{title}. The table of edges below lists them all.")


def legend(run: ReportedRun) -> list[dict[str, str]]:
    """The kinds of edges that the drawing tells apart: a sample line and what it means."""
    counts = Counter(row.verdict for row in [*learned_edges(run), *missing_edges(run)])
    kinds = ["positive", "negative"] if run.truth is None else ["correct", "reversed", "extra", "missing"]
    kinds += ["unscored"] * ("unscored" in counts)
    return [
        {"sample": sample(kind), "meaning": STYLES[kind].meaning, "count": str(counts[kind]) if run.truth else ""}
        for kind in kinds
    ]


def isolated(run: ReportedRun) -> list[str]:
    """Variables without an edge in the drawing."""
    drawn = run.dag if run.truth is None else run.dag | run.truth.edges
    degree = drawn.sum(axis=0) + drawn.sum(axis=1)
    return [name for name, n_edges in zip(run.variables, degree.tolist(), strict=True) if not n_edges]
