"""What a person should know before believing the edges of a run and their directions: one sentence each."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedbnsl import __version__
from fedbnsl.console.wording import counted, first_few
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.messages import Units
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.degenerate_columns import FEW_ROWS
from fedbnsl_server.search.private.pooled_moments import NOISE_WIDTHS, least_noise
from fedbnsl_server.sites.ejection import Ejected

# Correlations of residuals that people look for in their tables.
_FAINT = 0.1
# Of a ratio of equal numbers; in single precision, and after several steps.
_ROUNDING, _NEARLY = 1e-9, 1e-4
# Parts of a search that change nothing of its graph.
_AFTER_THE_SEARCH = {
    "bootstrap": "how sure its edges are was not looked at to the end",
    "without one site each": "whether it hangs on one site was not looked at to the end",
    "searching without prior knowledge": "whether the tables contradict what was known beforehand was not looked at",
}
# With fewer rows for each column of the tables, results are warned of.
_ROWS_A_COLUMN = 5
# The largest residual variance over the smallest, beyond which a result warns.
_UNEQUAL_VARIANCES = 2.0


def of_sites_that_went(
    ejected: Sequence[Ejected], turned_out: Mapping[str, int], contributed: Collection[str]
) -> list[str]:
    """Sites that were ejected, and those whose enrolment ended but whose contributions stay."""
    gone = {one.site for one in ejected}
    return [one.sentence for one in ejected] + [
        f"{site} lost its enrolment after round {t}: what it had contributed stays in the result"
        for site, t in turned_out.items()
        if site not in gone and site in contributed
    ]


def of_ended_searches(plan: Plan, rounds: Sequence[Mapping[str, Any]], draws: int | None) -> list[str]:
    """Searches that the coordinator's operator has ended before they were complete.

    Parameters
    ----------
    rounds
        Their entries in the result.
    draws
        Of the bootstrap; None: there is none yet.
    """
    found: list[str] = []
    for entry in rounds:
        if part := entry.get("ended_in"):
            lost = _AFTER_THE_SEARCH.get(part)
            what = "another graph may fit better" if lost is None else f"the graph is complete, but {lost}"
            found.append(
                f"the search of round {entry['round']} was ended early by the operator, in its part {part!r}: {what}"
            )
    if found and draws is not None and plan.graph_class == "cpdag" and draws < plan.bootstrap:
        found[-1] += f"; {draws} of {plan.bootstrap} draws of the bootstrap were made"
    return found


def of_other_versions(site_versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Sites with another fedbnsl, or one that told none: then the results need not be the same bit for bit."""
    other = [
        f"{site} {told.get('fedbnsl', 'unknown')}"
        for site, told in sorted(site_versions.items())
        if told.get("fedbnsl") != __version__
    ]
    if not other:
        return []
    return [
        f"the parties ran different versions of fedbnsl (coordinator {__version__}; {', '.join(other)}): the same "
        "run need not give the same bits again"
    ]


def of_too_much_noise(plan: Plan, rows: Sequence[int], d: int) -> list[str]:
    """Warn if the noise of private moments hides edges that the plan looks for, by public numbers alone."""
    if plan.privacy is None or not plan.moments_rounds or not rows:
        return []
    prices = [price_of(plan, n_samples=n, n_variables=d) for n in rows]
    variances = [price.moments_variance for price in prices]
    hidden = NOISE_WIDTHS * least_noise(variances, rows, d, plan.moments_rounds)
    remedy = "use more rows, more sites or a larger epsilon"
    if plan.graph_class == "cpdag" and plan.threshold < hidden:  # the score decides, which knows the noise
        few = f"the noise hides correlations of residuals below {hidden:.2g}: edges that are fainter are lost; {remedy}"
        return [few] if hidden > _FAINT else []
    if hidden <= plan.threshold:
        return []
    return [
        f"the noise hides correlations of residuals below {hidden:.2g}, which is more than the threshold "
        f"{plan.threshold:g}: most edges are lost; {remedy}"
    ]


def of_few_rows(rows: int, n_columns: int) -> list[str]:
    """Rows that are too few to choose among so many edges.

    Parameters
    ----------
    rows
        Of all sites together, those that were used.
    """
    if rows >= _ROWS_A_COLUMN * n_columns:
        return []
    return [
        f"{rows:,} rows are few for {n_columns} columns, fewer than {_ROWS_A_COLUMN} a column "
        f"({_ROWS_A_COLUMN * n_columns:,}): faint edges are missed, some edges are there by chance, and directions are "
        "hardly known; bring more rows, or choose fewer variables beforehand"
    ]


def of_uncounted_sites(sites: Sequence[str]) -> list[str]:
    """Sites of a private run whose last release is in no number of the result, by released numbers alone."""
    if not sites:
        return []
    verb = "has" if len(sites) == 1 else "have"
    return [
        f"{first_few(sites)} {verb} too few rows for this epsilon: the noise hides the last release, which does not "
        "count in the result; more rows, narrower ranges in the data dictionary or a larger epsilon would tell"
    ]


def of_rare_levels(plan: Plan, columns: Sequence[str], units: Units | None, rows: int) -> list[str]:
    """Columns of zeros and ones whose rarer value a few rows have, by the standard deviations that a run has.

    Parameters
    ----------
    units
        Of the run without privacy: noise hides rare levels, which `unused` says.
    rows
        Of all sites together, those that were used.
    """
    if plan.privacy is not None or units is None or not units.scales.size:
        return []
    dictionary = plan.dictionary
    owners = {column.name: column.variable for column in dictionary.columns()}
    intercept = "none" if plan.preparation is None else plan.preparation.intercept
    within = " at their site" if intercept == "site" else ""
    counts = {
        name: max(round(rows * _rarer_share(scale**2, is_mean_square=intercept == "none")), 1)
        for name, scale in zip(columns, units.scales.tolist(), strict=True)
        if name in owners and dictionary[owners[name]].is_indicator
    }
    rare = [f"{name!r} (about {count})" for name, count in counts.items() if count < FEW_ROWS]
    if not rare:
        return []
    return [
        f"fewer than {FEW_ROWS} of {rows:,} rows have the value that is rarer{within} of {first_few(rare)}: an edge, "
        "an interval or an effect there may come from these rows alone; merge the level with another, or do not "
        "interpret it"
    ]


def _rarer_share(variance: float, *, is_mean_square: bool) -> float:
    """The share p <= 1/2 of zeros or of ones with this variance, p (1 - p), or this mean square, the share of ones."""
    if is_mean_square:
        return min(variance, abs(1.0 - variance))
    return (1.0 - math.sqrt(max(1.0 - 4.0 * variance, 0.0))) / 2.0


def of_hidden_scales(plan: Plan, columns: Sequence[str], mean_squares: Matrix) -> list[str]:
    """Columns of a private run whose spread the noise of the statistics hides, by released numbers alone.

    Parameters
    ----------
    mean_squares
        (d,) released variances in units of the scales; below 1 where a scale is the size of the noise instead.
    """
    if plan.privacy is None or plan.preparation is None or plan.moments_rounds or not mean_squares.size:
        return []  # residual moments tell no edge at them: see `unused`
    hidden = [name for name, share in zip(columns, mean_squares.tolist(), strict=True) if share < 1.0 - _ROUNDING]
    if not hidden:
        return []
    return [
        f"the noise of the statistics hides how much {first_few(map(repr, hidden))} vary: they were divided by the "
        "size of the noise instead. Their weights without units mislead, and faint edges are lost; narrower ranges in "
        "the data dictionary, more rows or a larger epsilon would tell"
    ]


def of_required_in_vain(plan: Plan, edges: Sequence[Mapping[str, Any]]) -> list[str]:
    """Required edges whose coefficient may as well be 0, of variables with one column.

    Parameters
    ----------
    edges
        Named edges with their numbers of confidence.
    """
    required = set(plan.knowledge.required)
    idle = [
        f"{edge['source']} -> {edge['target']}"
        for edge in edges
        if (edge["source"], edge["target"]) in required
        and "coefficients" not in edge
        and edge.get("interval")
        and edge["interval"][0] <= 0.0 <= edge["interval"][1]
    ]
    if not idle:
        return []
    return [f"the plan requires {first_few(idle, 4)}, but the data do not show it: 0 is in the coefficient's interval"]


def of_clipped_levels(plan: Plan, targets: Collection[str]) -> list[str]:
    """Weights of private moments rounds that are biased: those of edges into targets with levels."""
    if plan.privacy is None or not plan.moments_rounds:
        return []
    levels = [name for name, entry in plan.dictionary.items() if entry.has_levels and name in targets]
    if not levels:
        return []
    return [
        f"records are clipped before their moments are released, rare ones most: weights of edges into "
        f"{first_few(map(repr, levels))} come out too large or too small; take from them that there is an edge and its "
        "sign, not its size"
    ]


def of_withheld_weights(graph: ConsensusGraph | None) -> list[str]:
    """Weights of a private run that are not told, by their edges."""
    if graph is None or not graph.withheld.any():
        return []
    columns = graph.mask.columns
    pairs: list[list[int]] = np.argwhere(columns.joined(graph.withheld)).tolist()
    edges = first_few((f"{columns.variables[v]} -> {columns.variables[w]}" for v, w in pairs), 4)
    return [
        f"{counted(int(graph.withheld.sum()), 'weight is', 'weights are')} withheld, at {edges}: noise went beyond "
        "what is possible, for a level changes no probability by more than 1, and no mean by more than its range; "
        "merge rare levels, or bring more rows or a larger epsilon"
    ]


def of_rarely_drawn(edges: Sequence[Sequence[str]]) -> list[str]:
    """Edges of a private run that were taken out, by names of their ends."""
    if not edges:
        return []
    named = first_few((f"{source} and {target}" for source, target in edges), 4)
    return [
        f"{counted(len(edges), 'edge was', 'edges were')} taken out, between {named}: fewer than 5 % of the bootstrap "
        "draws have them, so that noise may have made them"
    ]


def units_of_variances(plan: Plan, *, searched: bool) -> str:
    """In which units directions rest on equal residual variances, in words; empty: in the variables' own.

    A search compares variances in the units of the tables; ADMM sees the columns as they were prepared.
    """
    if plan.preparation is None:
        return ""
    if not searched and plan.preparation.scale == "pooled":
        return "without units, as shares of the columns' pooled variances"
    return "in the data dictionary's units, after its transforms" if plan.dictionary else "in the tables' units"


def of_unequal_variances(plan: Plan, columns: Sequence[str], variance: Matrix, units: Units | None = None) -> list[str]:
    """Directions that rest on (d,) residual variances which are not equal.

    Parameters
    ----------
    variance
        In squared units of the tables; (0,): they are unknown.
    units
        Of the run's columns.
    """
    if plan.graph_class == "cpdag":  # no direction rests on them
        return []
    searched = bool(plan.moments_rounds)
    if units is not None and not searched:
        variance = variance / units.scales**2 if variance.size else variance
    # The search of a private run tells them as equal, unless its releases contradict it.
    limit = 1.0 + _NEARLY if searched and plan.privacy else _UNEQUAL_VARIANCES
    if not variance.size or variance.max() <= limit * variance.min():
        return []
    low, high = (f"{columns[int(k)]} {variance[k]:.3g}" for k in (variance.argmin(), variance.argmax()))
    # A search takes its directions from the moments where these tell them.
    which = "directions that the moments leave open rest" if searched else "directions rest"
    noisy = ", from noisy moments," if plan.privacy else ""
    compared = units_of_variances(plan, searched=searched)
    between = f"{low}, {high}; {compared}" if compared else f"{low}, {high}"
    return [f"residual variances{noisy} differ ({between}): {which} on their being about equal"]
