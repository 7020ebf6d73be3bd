"""What a run has learned, as its report shows it: edges with their verdicts, and the drawing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbnsl.console.wording import counted
from fedbnsl.graphs.graph import Edge
from fedbnsl_workbench.report.confidence import (
    Confidence,
    between,
    confidence_of,
    heterogeneity,
    percent,
    signed,
    unsure_pairs,
    ways,
)
from fedbnsl_workbench.report.dag_drawing import STYLES, Arrow, draw, sample
from fedbnsl_workbench.report.run_files import ReportedRun, Truth
from fedbnsl_workbench.report.verdict import DIRECTED_BY, is_directed

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
        has several coefficients or no direction.
    verdict
        correct, reversed, open (undirected in one of the two graphs), extra or missing; unscored if the truth lacks one
        of the variables; empty without a truth.
    standardised
        The estimate without units; None where the run has none.
    coefficients
        Between the columns of the two variables, if these have several: as in result.json.
    directed_by
        A key of `verdict.DIRECTED_BY`; empty where result.json does not say.
    """

    source: str
    target: str
    estimate: float | None
    truth: float | None
    verdict: str
    standardised: float | None = None
    coefficients: tuple[Mapping[str, Any], ...] = ()
    directed: bool = True
    directed_by: str = ""
    confidence: Confidence = field(default_factory=Confidence)

    @property
    def strength(self) -> float:
        """The absolute weight by which edges are compared with each other and with the threshold."""
        return abs((self.estimate if self.standardised is None else self.standardised) or 0.0)

    @property
    def difference(self) -> float | None:
        """Estimate - truth."""
        return None if self.estimate is None or self.truth is None else self.estimate - self.truth

    @property
    def mark(self) -> str:
        """An arrow or a dash."""
        return "\u2192" if self.directed else "\u2014"

    @property
    def said_of_verdict(self) -> str:
        """The verdict, and of an open one in which of the two graphs."""
        if self.verdict != "open":
            return self.verdict
        return "open in the truth" if self.directed else "open here"


def verdict(edge: Edge, truth: Truth | None, *, directed: bool = True) -> str:
    """Verdict on a learned edge, as in `metrics.score`: reversed if the truth has only the opposite edge."""
    if truth is None:
        return ""
    i, j = edge
    if not truth.scored[i, j]:
        return "unscored"
    there, back = truth.marks[i, j], truth.marks[j, i]
    if not (there or back):
        return "extra"
    # In a truth with a cycle, both may be true of a pair of opposite edges: either direction is right then.
    undirected = there and back and not (truth.edges[i, j] and truth.edges[j, i])
    if directed and not undirected:
        return "correct" if there else "reversed"
    return "open" if directed or not undirected else "correct"


def learned_edges(run: ReportedRun) -> list[EdgeRow]:
    """The edges of the result, by decreasing strength."""
    position = {name: k for k, name in enumerate(run.variables)}
    rows: list[EdgeRow] = []
    weights = _true_weights(run)
    for edge in run.result["edges"]:
        pair, directed = (position[edge["source"]], position[edge["target"]]), is_directed(edge)
        coefficients = tuple(edge.get("coefficients") or ())
        rows.append(
            EdgeRow(
                edge["source"],
                edge["target"],
                edge["weight"],
                None if coefficients or not directed else weights.get(pair),
                verdict(pair, run.truth, directed=directed),
                None if run.divided_by is None else edge["standardised"],
                coefficients,
                directed,
                edge.get("directed_by", ""),
                confidence_of(edge),
            )
        )
    return sorted(rows, key=lambda row: -row.strength)


def _true_weights(run: ReportedRun) -> Mapping[Edge, float]:
    return (run.truth.reference.weights or {}) if run.truth else {}


def missing_edges(run: ReportedRun) -> list[EdgeRow]:
    """True edges whose pair was not learned at all; an undirected one as the DAG of the truth has it."""
    if run.truth is None:
        return []
    marks, learned = run.truth.marks, run.marks
    # A pair of opposite edges (a cycle of the truth) is two edges: the one that was not learned is missing.
    twice = run.truth.edges & run.truth.edges.T
    lacking = marks & ~learned & ~(learned.T & ~twice)
    undirected = marks & marks.T & ~twice
    pairs: list[Edge] = [
        (int(i), int(j)) for i, j in np.argwhere(lacking) if run.truth.edges[i, j] or not undirected[i, j]
    ]
    weights = _true_weights(run)
    names = run.variables
    return [
        EdgeRow(names[i], names[j], None, weights.get((i, j)), "missing", directed=not undirected[i, j])
        for i, j in pairs
    ]


def drawing(run: ReportedRun) -> str:
    """The graph as SVG; with a truth, edges that are missing are drawn too. Empty without edges, or with too many.

    Pairs that are unsure are part of it where their variables are drawn: for the page's script to show.
    """
    rows = [*learned_edges(run), *missing_edges(run)]
    if not 0 < len(rows) <= MOST_DRAWN:
        return ""
    position = {name: k for k, name in enumerate(run.variables)}
    strongest = max((row.strength for row in rows), default=0.0) or 1.0
    arrows = [
        Arrow(
            position[row.source],
            position[row.target],
            _kind(row),
            row.strength / strongest,
            _words(row),
            row.directed,
            row.confidence.adjacent,
        )
        for row in rows
    ]
    arrows += [
        Arrow(
            position[pair.source],
            position[pair.target],
            "unsure",
            0.0,
            f"{pair.source} \u2014 {pair.target}, not in the graph\nin {percent(pair.adjacent)} of the draws: "
            f"{ways(pair)}",
            directed=False,
            share=pair.adjacent,
        )
        for pair in unsure_pairs(run)[: MOST_DRAWN - len(rows)]
    ]
    counts = Counter(row.verdict for row in rows)
    verdicts = ", ".join(f"{counts[kind]} {kind}" for kind in STYLES if counts[kind])
    n = len(run.result["edges"])
    title = f"Learned graph: {counted(n, 'edge')} among {len(run.variables)} variables" + (
        f"; {verdicts}" if verdicts else ""
    )
    return draw(run.variables, arrows, title=f"{title}. The table of edges below lists them all.")


def _words(row: EdgeRow) -> str:
    """What the drawing says of an edge, line by line."""
    known, lines = row.confidence, [f"{row.source} {row.mark} {row.target}"]
    if row.verdict:
        lines[0] += f", {row.said_of_verdict}"
    if row.estimate is not None:
        lines.append(f"weight {signed(row.estimate, known.interval)}{_in_95(known.interval)}")
    if row.standardised is not None:
        lines.append(
            f"without units {signed(row.standardised, known.standardised_interval)}"
            f"{_in_95(known.standardised_interval)}"
        )
    if row.directed_by:
        who = DIRECTED_BY.get(row.directed_by, row.directed_by)
        how = "direction" if row.directed_by == "untested" else "directed"
        lines.append(f"{how} {who}" if row.directed else f"no direction: {who}")
    if known.adjacent is not None:
        lines.append(f"in {percent(known.adjacent)} of the draws: {ways(known)}")
    if known.sites is not None:
        lines.append(f"over the sites {heterogeneity(known)}")
    if known.without_a_site is not None:
        kept, searches = known.without_a_site
        lines.append(f"kept in {kept} of {searches} searches without a site")
    return "\n".join(lines)


def _in_95(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f", 95\u00a0% {between(interval)}"


def legend(run: ReportedRun) -> list[dict[str, str]]:
    """The kinds of edges that the drawing tells apart: a sample line and what it means."""
    rows = [*learned_edges(run), *missing_edges(run)]
    counts = Counter(row.verdict for row in rows)
    kinds = ["positive", "negative"] if run.truth is None else ["correct", "reversed", "extra", "missing"]
    kinds += [kind for kind in ("open", "unscored") if kind in counts]
    found = [
        {"sample": sample(kind), "meaning": STYLES[kind].meaning, "count": str(counts[kind]) if run.truth else ""}
        for kind in kinds
    ]
    headless = [row for row in rows if not row.directed]
    if headless:
        drawn = {_kind(row) for row in headless}
        undecided = sum(row.directed_by == "undecided" for row in headless)
        why = "either direction fits the data" if undecided < len(headless) else ""
        if undecided:
            why += f"{', or ' if why else ''}too few draws agree on it ({undecided})"
        found.append(
            {
                "sample": "".join(sample(kind, directed=False) for kind in STYLES if kind in drawn),
                "meaning": f"without a head: {why}",
                "count": str(len(headless)),
            }
        )
    return found


def _kind(row: EdgeRow) -> str:
    """How an edge is drawn, one of STYLES."""
    return row.verdict or ("negative" if (row.estimate or 0.0) < 0 else "positive")


def isolated(run: ReportedRun) -> list[str]:
    """Variables without an edge in the drawing."""
    drawn = run.marks if run.truth is None else run.marks | run.truth.edges
    degree = drawn.sum(axis=0) + drawn.sum(axis=1)
    return [name for name, n_edges in zip(run.variables, degree.tolist(), strict=True) if not n_edges]
