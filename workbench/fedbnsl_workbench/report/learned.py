"""What a run has learned, as its report shows it: edges with their verdicts, and the drawing."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fedbnsl.console.wording import counted, first_few
from fedbnsl.graphs.graph import Edge as Pair
from fedbnsl.plan.row_groups import LAG, PRESENT
from fedbnsl_server.results.numbers import between, percent, signed
from fedbnsl_server.results.result_schema import Edge, OfSites, Shares, Unsure
from fedbnsl_server.results.sentences import DIRECTED_BY
from fedbnsl_workbench.report.along_curves import along_curves
from fedbnsl_workbench.report.dag_drawing import STYLES, Arrow, draw, sample
from fedbnsl_workbench.report.lagged_drawing import draw_lagged
from fedbnsl_workbench.report.nodes import words_of_variables
from fedbnsl_workbench.report.run_files import ReportedRun, Truth

# Smaller shares are what is left of a subtraction: no draw has them.
_LEAST = 1e-9
MOST_DRAWN = 1000
"""Edges of the largest drawing: beyond it nobody could follow a line, and the layout would take minutes."""


class EdgeRow(Edge):
    """A line of the table of edges: an edge of result.json, or one of the truth that was not learned (weight None).

    Attributes
    ----------
    truth
        Weight of this very edge in the truth; None where unknown, where the truth has no such edge, and where the edge
        has several coefficients or no direction.
    verdict
        correct, reversed, open (undirected in one of the two graphs), extra or missing; unscored if the truth lacks one
        of the variables; empty without a truth.
    along_curve
        Of a curved effect: the standard deviation of the change along its curve, in scales of the variable that
        changes; None of others.
    """

    truth: float | None
    verdict: str
    along_curve: float | None = None

    @property
    def size(self) -> float:
        """The absolute weight, without units if it can be, which is compared with the threshold."""
        return abs((self.weight if self.standardised is None else self.standardised) or 0.0)

    @property
    def strength(self) -> float:
        """By which edges are compared with each other: the size, or what it would be if the curve were a line."""
        return self.size if self.along_curve is None else self.along_curve

    @property
    def difference(self) -> float | None:
        """Estimate - truth."""
        return None if self.weight is None or self.truth is None else self.weight - self.truth

    @property
    def mark(self) -> str:
        """An arrow or a dash."""
        return "\u2192" if self.directed else "\u2014"

    @property
    def why_directed(self) -> str:
        """What a source other than the class has for the direction, in words; empty where it has none of its own."""
        told = self.evidence
        if told is None or not told.sites or told.log_likelihood is None:
            return ""
        return f" ({first_few(told.sites, 3)}; log-likelihood {told.log_likelihood:+.1f})"

    @property
    def said_of_verdict(self) -> str:
        """The verdict, and of an open one in which of the two graphs."""
        if self.verdict != "open":
            return self.verdict
        return "open in the truth" if self.directed else "open here"


def verdict(edge: Pair, truth: Truth | None, *, directed: bool = True) -> str:
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
    weights, along = _true_weights(run), along_curves(run.result)
    for edge in run.result["edges"]:
        pair, directed = (position[edge["source"]], position[edge["target"]]), edge["directed"]
        content = {
            **edge,
            "standardised": None if run.divided_by is None else edge["standardised"],
            "truth": None if edge["coefficients"] or not directed else weights.get(pair),
            "verdict": verdict(pair, run.truth, directed=directed),
            "along_curve": along.get((edge["source"], edge["target"])),
        }
        rows.append(EdgeRow.model_validate(content))
    return sorted(rows, key=lambda row: -row.strength)


def _true_weights(run: ReportedRun) -> Mapping[Pair, float]:
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
    pairs: list[Pair] = [
        (int(i), int(j)) for i, j in np.argwhere(lacking) if run.truth.edges[i, j] or not undirected[i, j]
    ]
    weights = _true_weights(run)
    names = run.variables
    return [
        EdgeRow(
            source=names[i],
            target=names[j],
            weight=None,
            directed=not undirected[i, j],
            directed_by="",
            truth=weights.get((i, j)),
            verdict="missing",
        )
        for i, j in pairs
    ]


def drawing(run: ReportedRun, *, with_unsure: bool = True) -> str:
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
            kind_of(row),
            row.strength / strongest,
            _words(row),
            row.directed,
            None if row.bootstrap is None else row.bootstrap.adjacent,
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
        for pair in unsure_pairs(run)[: (MOST_DRAWN - len(rows)) * with_unsure]
    ]
    counts = Counter(row.verdict for row in rows)
    verdicts = ", ".join(f"{counts[kind]} {kind}" for kind in STYLES if counts[kind])
    n = len(run.result["edges"])
    title = f"Learned graph: {counted(n, 'edge')} among {len(run.variables)} variables" + (
        f"; {verdicts}" if verdicts else ""
    )
    title = f"{title}. The table of edges below lists them all."
    before, words = before_of(run), words_of_variables(run)
    if before:
        return draw_lagged(run.variables, before, arrows, title=title, words=words)
    return draw(run.variables, arrows, title=title, words=words)


def before_of(run: ReportedRun) -> dict[int, int]:
    """The variables that are not of the present, and the present one that each belongs to, itself if none does."""
    place, dictionary = {name: k for k, name in enumerate(run.variables)}, run.plan.dictionary
    if not dictionary.rows.lags:
        return {}
    return {
        k: place.get(name.removesuffix(LAG), k) for name, k in place.items() if dictionary.slice_of(name) != PRESENT
    }


def _words(row: EdgeRow) -> str:
    """What the drawing says of an edge, line by line."""
    lines = [f"{row.source} {row.mark} {row.target}"]
    if row.verdict:
        lines[0] += f", {row.said_of_verdict}"
    if row.weight is not None:
        lines.append(f"weight {_with_interval(row.weight, row.interval)}")
    if row.standardised is not None:
        lines.append(f"without units {_with_interval(row.standardised, row.standardised_interval)}")
    if row.along_curve is not None:
        lines.append(f"of a straight line through a curve, along which it is {row.along_curve:.2f}")
    if row.directed_by:
        who = DIRECTED_BY.get(row.directed_by, row.directed_by)
        how = "direction" if row.directed_by == "untested" else "directed"
        lines.append(f"{how} {who}{row.why_directed}" if row.directed else f"no direction: {who}")
    if row.noise is not None:
        lines.append(f"by the shape of noise {chance(row.noise.p)} as named, {chance(row.noise.p_reversed)} reversed")
    if row.bootstrap is not None:
        lines.append(f"in {percent(row.bootstrap.adjacent)} of the draws: {ways(row.bootstrap)}")
    if row.sites is not None:
        lines.append(f"over the sites {heterogeneity(row.sites)}")
    if row.without_a_site is not None:
        lines.append(f"kept in {row.without_a_site.adjacent} of {row.without_a_site.of} searches without a site")
    return "\n".join(lines)


def _with_interval(weight: float, interval: Sequence[float] | None) -> str:
    return signed(weight, interval) + ("" if interval is None else f", 95\u00a0% {between(interval)}")


def heterogeneity(sites: OfSites) -> str:
    """I^2 and p of an edge, in short."""
    if sites.i2 is None or sites.p is None:
        return "not known"
    return f"I\u00b2\u00a0{percent(sites.i2)}, {chance(sites.p)}"


def chance(p: float) -> str:
    """A p value, in short."""
    return "p\u00a0<\u00a00.001" if p < 0.001 else f"p\u00a0=\u00a0{p:.2g}"


def ways(of: Shares) -> str:
    """Which way a pair points in the draws; a dash where there are none."""
    parts = ((of.forward, "\u2192"), (of.backward, "\u2190"), (of.undirected, "\u2014"))
    return ", ".join(f"{sign}\u00a0{percent(share)}" for share, sign in parts if share > _LEAST) or "\u2013"


def unsure_pairs(run: ReportedRun) -> list[Unsure]:
    """Pairs that are not in the graph, as result.json orders them: by falling share."""
    return [Unsure.model_validate(pair) for pair in run.result["unsure"]]


def legend(run: ReportedRun) -> list[dict[str, str]]:
    """The kinds of edges that the drawing tells apart: a sample line and what it means."""
    rows = [*learned_edges(run), *missing_edges(run)]
    counts = Counter(row.verdict for row in rows)
    kinds = ["positive", "negative"] if run.truth is None else ["correct", "reversed", "extra", "missing"]
    kinds += [kind for kind in ("open", "unscored") if kind in counts]
    drawn = {kind_of(row) for row in rows}
    kinds += [kind for kind in ("levels", "curved") if kind in drawn]
    found = [
        {"sample": sample(kind), "meaning": STYLES[kind].meaning, "count": str(counts[kind]) if run.truth else ""}
        for kind in kinds
    ]
    if any(row.bootstrap is not None and row.bootstrap.adjacent < 1.0 for row in rows):
        pale = sample(kinds[0]) + sample(kinds[0], share=0.5)
        found.append({"sample": pale, "meaning": "paler: fewer bootstrap draws have it (100 % and 50 %)", "count": ""})
    headless = [row for row in rows if not row.directed]
    if headless:
        without = {kind_of(row) for row in headless}
        undecided = sum(row.directed_by == "undecided" for row in headless)
        why = "either direction fits the data" if undecided < len(headless) else "too few draws agree on a direction"
        if 0 < undecided < len(headless):
            why += f", or, for {undecided} of them, too few draws agree on one"
        found.append(
            {
                "sample": "".join(sample(kind, directed=False) for kind in STYLES if kind in without),
                "meaning": f"without a head, {counted(len(headless), 'edge')}: {why}",
                "count": "",
            }
        )
    return found


def kind_of(row: EdgeRow) -> str:
    """How an edge is drawn, one of STYLES."""
    if row.verdict or row.along_curve is not None:
        return row.verdict or "curved"
    if row.coefficients:
        return "levels"
    return "negative" if (row.weight or 0.0) < 0 else "positive"


def isolated(run: ReportedRun) -> list[str]:
    """Variables without an edge in the drawing."""
    drawn = run.marks if run.truth is None else run.marks | run.truth.edges
    degree = drawn.sum(axis=0) + drawn.sum(axis=1)
    return [name for name, n_edges in zip(run.variables, degree.tolist(), strict=True) if not n_edges]
