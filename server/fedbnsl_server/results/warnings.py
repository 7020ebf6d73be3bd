"""What a person should know before believing the edges of a run and their directions: notes for `sentences`."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbnsl import __version__
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.messages import Units
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.degenerate_columns import FEW_ROWS
from fedbnsl_server.results.sentences import AFTER_THE_SEARCH, Note, note
from fedbnsl_server.search.private.pooled_moments import NOISE_WIDTHS, least_noise

# Correlations of residuals that people look for in their tables.
_FAINT = 0.1
# Of a ratio of equal numbers; in single precision, and after several steps.
_ROUNDING, _NEARLY = 1e-9, 1e-4
# With fewer rows for each column of the tables, results are warned of.
_ROWS_A_COLUMN = 5
# The largest residual variance over the smallest, beyond which a result warns.
_UNEQUAL_VARIANCES = 2.0


def of_ended_searches(plan: Plan, rounds: Sequence[Mapping[str, Any]], draws: int | None) -> list[Note]:
    """Searches that the coordinator's operator has ended before they were complete.

    `rounds` are their entries in the result, `draws` those of the bootstrap (None: there is none yet).
    """
    ended = [(entry["round"], part) for entry in rounds if (part := entry.get("ended_in"))]
    lacks = draws is not None and plan.graph_class == "cpdag" and draws < plan.bootstrap
    return [
        note(
            "search_ended",
            round=t,
            part=part,
            lost=AFTER_THE_SEARCH.get(part, ""),
            draws=draws,
            planned=plan.bootstrap if lacks and k == len(ended) else 0,  # said once
        )
        for k, (t, part) in enumerate(ended, 1)
    ]


def of_sites_not_counted(state: AdmmState | None) -> Iterator[Note]:
    """Sites that are in no table of categories: each of their rows has a gap, or they missed a round of counts."""
    if state is None or state.counted is None or not state.counted.told or not state.counted.decides:
        return
    missed = [site for site in state.sites if site not in state.counted.told]
    whole = state.without_gaps(dict.fromkeys(missed, 1))
    for gaps in (True, False):
        if sites := [site for site in missed if gaps == (not whole[site])]:
            yield note("sites_not_counted", sites=sites, gaps=gaps)


def of_empty_columns(plan: Plan, state: AdmmState, columns: Columns) -> Iterator[Note]:
    """Sites without any value of variables that the plan does not call absent there; a private run does not know."""
    if plan.privacy is not None or state.completion is None:
        return
    for site, n_pairs in state.completion.n_pairs.items():
        empty = [columns.variables[int(columns.variable_of[c])] for c in np.flatnonzero(n_pairs.diagonal() == 0.0)]
        if names := [name for name in dict.fromkeys(empty) if name not in plan.absent.of(site)]:
            yield note("no_value_at_site", site=site, names=names, one=len(names) == 1)


def of_withheld_tables(state: AdmmState | None) -> Iterator[Note]:
    """Sites that keep tables of counts to themselves, and what the result lacks therefore."""
    if state is None or state.counted is None or not (withheld := state.counted.withheld):
        return
    n, asked = len({one for sets in withheld.values() for one in sets}), len(state.counted.sets)
    code = "tables_withheld" if state.counted.given_up else "some_tables_withheld"
    yield note(code, sites=sorted(withheld), one=len(withheld) == 1, n=n, asked=asked)


def of_other_versions(site_versions: Mapping[str, Mapping[str, str]]) -> Iterator[Note]:
    """Sites with another fedbnsl, or one that told none: then the results need not be the same bit for bit."""
    other = [
        f"{site} {told.get('fedbnsl', 'unknown')}"
        for site, told in sorted(site_versions.items())
        if told.get("fedbnsl") != __version__
    ]
    if other:
        yield note("other_versions", coordinator=__version__, sites=other)


def of_too_much_noise(plan: Plan, rows: Sequence[int], d: int, n_squares: int = 0) -> Iterator[Note]:
    """Warn if the noise of private moments hides edges that the plan looks for, by public numbers alone.

    `n_squares`: how many squares of numbers were asked for besides the d columns.
    """
    if plan.privacy is None or not plan.moments_rounds or not rows:
        return
    prices = [price_of(plan, n_samples=n, n_variables=d, n_squares=n_squares) for n in rows]
    variances = [price.moments_variance for price in prices]
    hidden = NOISE_WIDTHS * least_noise(variances, rows, d + n_squares, plan.moments_rounds)
    if plan.graph_class == "cpdag" and plan.threshold < hidden:  # the score decides, which knows the noise
        if hidden > _FAINT:
            yield note("faint_edges_hidden", hidden=hidden)
    elif hidden > plan.threshold:
        yield note("edges_hidden", hidden=hidden, threshold=plan.threshold)


def of_few_rows(rows: int, n_columns: int) -> list[Note]:
    """Rows of all sites together, those that were used, which are too few to choose among so many edges."""
    needed = _ROWS_A_COLUMN * n_columns
    if rows >= needed:
        return []
    return [note("few_rows", rows=rows, columns=n_columns, each=_ROWS_A_COLUMN, needed=needed)]


def of_uncounted_sites(sites: Sequence[str]) -> Iterator[Note]:
    """Sites of a private run whose last release is in no number of the result, by released numbers alone."""
    if sites:
        yield note("uncounted_sites", sites=sites, one=len(sites) == 1)


def of_rare_levels(plan: Plan, columns: Sequence[str], units: Units | None, rows: int) -> Iterator[Note]:
    """Columns of zeros and ones whose rarer value few of the rows that were used have, by the standard deviations.

    In a private run noise hides rare levels, which `unused` says.
    """
    averages = plan.dictionary.rows.averages  # variances of shares do not tell how many rows have a level
    if plan.privacy is not None or units is None or not units.scales.size or averages:
        return
    dictionary = plan.dictionary
    owners = {column.name: column.variable for column in dictionary.columns()}
    intercept = "none" if plan.preparation is None else plan.preparation.intercept
    counts = {
        name: max(round(rows * _rarer_share(scale**2, is_mean_square=intercept == "none")), 1)
        for name, scale in zip(columns, units.scales.tolist(), strict=True)
        if name in owners and dictionary[owners[name]].is_indicator
    }
    rare = [f"{name!r} (about {count})" for name, count in counts.items() if count < FEW_ROWS]
    if rare:
        yield note("rare_levels", rows=rows, within=intercept == "site", columns=rare)


def _rarer_share(variance: float, *, is_mean_square: bool) -> float:
    """The share p <= 1/2 of zeros or of ones with this variance, p (1 - p), or this mean square, the share of ones."""
    if is_mean_square:
        return min(variance, abs(1.0 - variance))
    return (1.0 - math.sqrt(max(1.0 - 4.0 * variance, 0.0))) / 2.0


def of_hidden_scales(plan: Plan, columns: Sequence[str], mean_squares: Matrix) -> Iterator[Note]:
    """Columns of a private run whose spread the noise of the statistics hides, by released numbers alone.

    (d,) `mean_squares` are in units of the scales; below 1 where a scale is the size of the noise instead.
    """
    if plan.privacy is None or plan.preparation is None or plan.moments_rounds or not mean_squares.size:
        return  # residual moments tell no edge at them: see `unused`
    hidden = [name for name, share in zip(columns, mean_squares.tolist(), strict=True) if share < 1.0 - _ROUNDING]
    if hidden:
        yield note("hidden_scales", columns=hidden)


def of_required_in_vain(
    plan: Plan, edges: Sequence[Mapping[str, Any]], curves: Mapping[str, Any] | None = None
) -> Iterator[Note]:
    """Required edges whose coefficient may as well be 0, of variables with one column; the line of a U may be flat."""
    bent = {(one["source"], one["target"]) for one in (curves["effects"] if curves else ())}
    required = set(plan.knowledge.required) - bent
    idle = [
        f"{edge['source']} -> {edge['target']}"
        for edge in edges
        if (edge["source"], edge["target"]) in required
        and "coefficients" not in edge
        and edge.get("interval")
        and edge["interval"][0] <= 0.0 <= edge["interval"][1]
    ]
    if idle:
        yield note("required_in_vain", edges=idle)


def of_clipped_levels(plan: Plan, targets: Collection[str]) -> Iterator[Note]:
    """Weights of private moments rounds that are biased: those of edges into targets with levels."""
    if levels := [name for name in clipped_levels(plan) if name in targets]:
        yield note("clipped_levels", variables=levels)


def clipped_levels(plan: Plan) -> list[str]:
    """Variables with levels of private moments rounds: what acts on them is biased."""
    private = plan.privacy is not None and plan.moments_rounds
    return [name for name, entry in plan.dictionary.items() if entry.has_levels] if private else []


def of_withheld_weights(graph: ConsensusGraph | None) -> Iterator[Note]:
    """Weights of a private run that are not told, by their edges."""
    if graph is None or not graph.withheld.any():
        return
    columns = graph.mask.columns
    pairs: list[list[int]] = np.argwhere(columns.joined(graph.withheld)).tolist()
    edges = [f"{columns.variables[v]} -> {columns.variables[w]}" for v, w in pairs]
    yield note("withheld_weights", n=int(graph.withheld.sum()), edges=edges)


def of_rarely_drawn(edges: Sequence[Sequence[str]]) -> Iterator[Note]:
    """Edges of a private run that were taken out, by names of their ends."""
    if edges:
        yield note("rarely_drawn", n=len(edges), edges=[f"{source} and {target}" for source, target in edges])


def units_of_variances(plan: Plan, *, searched: bool) -> str:
    """In which units directions rest on equal residual variances, one of `sentences.UNITS`.

    A search compares variances in the units of the tables; ADMM sees the columns as they were prepared.
    """
    if plan.preparation is None:
        return ""
    if not searched and plan.preparation.scale == "pooled":
        return "prepared"
    return "dictionary" if plan.dictionary else "tables"


def of_unequal_variances(
    plan: Plan, columns: Sequence[str], variance: Matrix, units: Units | None = None
) -> Iterator[Note]:
    """Directions that rest on unequal (d,) residual variances, in squared units of the tables; NaN: not known."""
    if plan.graph_class == "cpdag":  # no direction rests on them
        return
    searched, private = bool(plan.moments_rounds), plan.privacy is not None
    if units is not None and not searched:
        variance = variance / units.scales**2 if variance.size else variance
    # The search of a private run tells them as equal, unless its releases contradict it.
    limit = 1.0 + _NEARLY if searched and private else _UNEQUAL_VARIANCES
    if not variance.size or np.nanmax(variance) <= limit * np.nanmin(variance):
        return
    low, high = (f"{columns[int(k)]} {variance[k]:.3g}" for k in (np.nanargmin(variance), np.nanargmax(variance)))
    # A search takes its directions from the moments where these tell them.
    where = units_of_variances(plan, searched=searched)
    yield note("unequal_variances", private=private, searched=searched, low=low, high=high, units=where)
