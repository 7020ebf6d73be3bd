"""What the reader of a report should be careful about, and the numbers behind it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbnsl_server.results.sentences import in_words
from fedbnsl_server.results.unused import unused_notes
from fedbnsl_workbench.report import charts as report_charts
from fedbnsl_workbench.report.learned import learned_edges
from fedbnsl_workbench.report.run_files import ReportedRun
from fedbnsl_workbench.report.summary import at_the_head
from fedbnsl_workbench.report.threshold_path import acyclic_edges
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.scoring.varsortability import varsortability

_TAUS = 80
# Nearer to the threshold than this share of it: another threshold, or other rows, may well drop the edge.
_NEAR = 0.2
# Above it, sorting variables by variance alone finds most of the order.
_HIGH_VARSORTABILITY = 0.9
_FAR_FROM_ZERO = 0.1
# Of numbers that are shown with four digits.
_SAME = 1e-4


def cautions(run: ReportedRun, scores: Mapping[str, Any] | None) -> list[str]:
    """Sentences, the most serious first; what holds for every run is in the page's template."""
    result = run.result
    found: list[str] = []
    told = [*at_the_head(result), *in_words([*unused_notes(result["unused"])])]
    if result["state"] != "finished":
        found.append(f"The run did not finish ({result['reason'].rstrip('.')}): its graph is shown as it stood.")
    found += [f"{warning[0].upper()}{warning[1:]}." for warning in result["warnings"] if warning not in told]
    if result["dropped_edges"]:
        n = len(result["dropped_edges"])
        found.append(f"{n} edge{'s were' if n > 1 else ' was'} left out to break cycles: see the list above.")
    tau = run.plan.threshold
    near = sum(edge.size < (1 + _NEAR) * tau for edge in learned_edges(run))
    if near:
        found.append(
            f"{near} of {len(result['edges'])} edges lie{'s' if near == 1 else ''} within {_NEAR:.0%} of the threshold "
            f"{tau:g}: a slightly higher one would drop them."
        )
    spread = varsortability_of(run)
    # ADMM sees scaled columns with equal variances: only a search in the tables' units can follow these.
    in_units = (run.searched or run.divided_by is None) and not run.is_class
    if spread is not None and spread > _HIGH_VARSORTABILITY and in_units:
        found.append(
            f"Varsortability in the learned graph is {spread:.2f}: variances grow along the arrows. In data "
            "like these, sorting the variables by variance alone may do as well, and directions may only reflect units."
        )
    if run.truth is not None and (left_out := run.truth.reference.left_out):
        found.append(f"{left_out[0].upper()}{left_out[1:]}.")
    if scores is not None:
        shd, chance, empty = (
            scores["scores"]["shd"],
            scores["random_dag"]["mean"]["shd"],
            scores["empty_graph"]["shd"],
        )
        if run.is_class and (classes := scores["class_scores"]) is not None:
            shd, chance = classes["run"]["shd"], classes["random_dag"]["shd"]["mean"]
            empty = classes["empty_graph"]["shd"]
        if shd >= min(chance, empty):
            found.append("Against this truth, the run does no better than the empty graph or random DAGs.")
        if scores["cyclic_reference"]:
            found.append("The truth has a directed cycle: no Bayesian network can match it in full.")
    return found


def varsortability_of(run: ReportedRun) -> float | None:
    """Varsortability of the directed edges, between columns; None without tables or such edges."""
    if run.scales is None:
        return None
    return varsortability(np.diag(run.scales.variance), run.columns.spread(run.directed).astype(np.float64))


def variances(run: ReportedRun) -> dict[str, Any] | None:
    """Residual variances: chart, extremes and their ratio; None where the run has none.

    In the units in which directions rest on their being equal; see `prepared.variance_units`. They are those of the
    reported fit: along curves where effects bend.
    """
    if not run.residual_variance:
        return None
    left = {name: run.result["fit"][name]["residual_variance"] for name in left_by_lines(run)}
    names, values = list(run.residual_variance), list({**run.residual_variance, **left}.values())
    if run.divided_by is not None and not run.searched:
        values = (np.array(values) / run.divided_by**2).tolist()
    low, high = int(np.argmin(values)), int(np.argmax(values))
    return {
        "chart": report_charts.residual_variances(names, values),
        "rows": sorted(zip(names, values, strict=True), key=lambda row: -row[1]),
        "low": (names[low], values[low]),
        "high": (names[high], values[high]),
        "ratio": values[high] / values[low] if values[low] > 0 else None,
    }


def left_by_lines(run: ReportedRun) -> dict[str, float]:
    """Residual variances of straight lines, as lgbn.json has them, where the reported fit leaves another."""
    fit, of_lines = run.result["fit"], run.residual_variance
    if not run.result["curves"] or not of_lines:
        return {}
    told = {name: one["residual_variance"] for name, one in fit.items() if one["residual_variance"] is not None}
    return {
        name: of_lines[name]
        for name, left in told.items()
        if name in of_lines and not math.isclose(left, of_lines[name], rel_tol=_SAME)
    }


def scale_table(run: ReportedRun) -> dict[str, Any] | None:
    """Means and standard deviations of the columns; None without tables."""
    if run.scales is None:
        return None
    std = np.sqrt(run.scales.variance)
    rows = list(zip(run.columns.names, run.scales.mean.tolist(), std.tolist(), strict=True))
    return {
        "rows": rows,
        "ratio": float(std.max() / std.min()) if std.min() > 0 else None,
        "off_centre": sum(abs(mean) > _FAR_FROM_ZERO * deviation for _, mean, deviation in rows),
        "varsortability": varsortability_of(run),
        "n_rows": run.scales.n_rows,
        "n_tables": run.scales.n_tables,
    }


def threshold_path(run: ReportedRun) -> dict[str, Any]:
    """Number of edges, and SHD to the truth, of raw W between variables, cut at rising thresholds and made acyclic."""
    W = run.columns.largest(np.nan_to_num(run.W))  # what is withheld is no edge of the curve
    strength = np.abs(W) * acyclic_edges(W)
    tau = run.plan.threshold
    top = max(float(strength.max()), tau)
    taus = sorted({*np.linspace(0.0, top, _TAUS).tolist(), tau})
    edges = [int((strength > t).sum()) for t in taus]
    shd = (
        None
        if run.truth is None
        else [score(run.truth.reference.of_common(strength > t), run.truth.reference.edges).shd for t in taus]
    )
    at = taus.index(tau)
    best = None if shd is None else int(np.argmin(shd))
    return {
        "chart": report_charts.threshold_path(taus, edges, shd, tau),
        "edges": edges[at],
        "shd": None if shd is None else shd[at],
        "best": None if shd is None or best is None else {"tau": taus[best], "shd": shd[best], "edges": edges[best]},
    }
