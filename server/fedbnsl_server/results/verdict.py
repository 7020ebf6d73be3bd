"""The verdict of a run in words: what its graph assumes, what in the data contradicts it, who directs its edges."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.draws import MAJORITY
from fedbnsl_server.inference.heterogeneity import chi_square_tails, holm
from fedbnsl_server.results.confidence import inconsistency
from fedbnsl_server.results.learned_graph import directions
from fedbnsl_server.results.warnings import units_of_variances

# Chance of a false alarm, of each of the three tests.
_LEVEL = 0.01
# True knowledge hardly costs so much by chance, an edge turned around mostly costs more.
_DEAR = 5.0
# A reversed collider costs one more edge, which is less at any number of rows, and its likelihood on the same pairs is
# far smaller. Tables of 100 random networks with true tiers exceed both limits in none (1.5 parents a variable) to 3 of
# 100 (2.5 parents), where effects nearly cancel; those of a reversed collider in 4 of 5 with 600 rows.
_DOUBTFUL, _UNLIKELY = 3.5, 20.0
# What no run can see in the sums that sites send; the first of them matters most.
_NOT_TESTABLE = (
    "common causes that no table has, which add edges and turn arrows",
    "effects that are not linear",
    "rows that depend on each other, such as several of one person",
    "rows that were chosen by what the variables say",
    "records that several sites have (only equal numbers of whole tables are looked for, where sites send exact "
    "moments of measured variables)",
)
_DIFFERING = "the differences between sites, "


def verdict_of(
    plan: Plan,
    columns: Columns,
    edges: Sequence[Mapping[str, Any]],
    confidence: Confidence | None,
    residual_variance: Matrix,
    *,
    incomplete: Sequence[str] = (),
    few_rows: Sequence[str] = (),
) -> dict[str, Any]:
    """What result.json has under `verdict`.

    Parameters
    ----------
    edges
        Named edges with `directed` and `directed_by`.
    confidence
        None: the plan has no search over moments, or it is still to come; then nothing is tested.
    residual_variance
        (d,) in squared units of the tables; empty: not known, and so not tested.
    incomplete
        Which searches were ended early, in words.
    few_rows
        A warning of few rows, if they are.
    """
    contradicted: list[str] = []
    if confidence is not None:
        contradicted += _related(columns, confidence)  # first: what it names makes other alarms, too
        if plan.graph_class == "dag-equal-variance" and residual_variance.size > 1:
            contradicted += _unequal_variances(plan, columns, confidence, residual_variance)
        differing = list(_sites_that_differ(columns, confidence, edges))
        contradicted += [*differing, *_unexplained(plan, columns, confidence, also="" if not differing else _DIFFERING)]
        contradicted += _dear_knowledge(columns, confidence)
    return {
        "assumed": list(_assumed(plan)),
        "tested": list(_tested(plan, columns, confidence, residual_variance)),
        "contradicted": contradicted,
        "not_testable": list(_NOT_TESTABLE),
        "functions": []
        if confidence is None
        else [
            [columns.variables[v] for v in np.unique(columns.variable_of[one]).tolist()]
            for one in confidence.related[confidence.exact]
        ],
        "directed_by": directions(edges),
        "draws": 0 if confidence is None else confidence.draws,
        "majority": MAJORITY,
        "incomplete": list(incomplete),
        "few_rows": list(few_rows),
    }


def _assumed(plan: Plan) -> Iterator[str]:
    yield "effects are linear, noise is Gaussian, and no common cause of two variables is missing"
    if plan.preparation is None:
        yield "every variable has mean zero at every site: regressions have no intercept"
    own = plan.preparation is not None and plan.preparation.intercept == "site"
    yield "every site has the same network" + (", with means of its own" if own else "")
    if plan.graph_class == "dag-equal-variance":
        where = units_of_variances(plan, searched=bool(plan.moments_rounds))
        yield (
            "noise variances are equal" + (f" {where}" if where else "") + ": directions that the data leave open "
            "rest on it"
        )
    else:
        yield "nothing about noise variances: an edge is directed where the data or knowledge tell the direction"
        yield "effects along several paths between two variables do not cancel"
    knowledge = plan.knowledge
    given = {
        "required edge": len(knowledge.required),
        "forbidden edge": len(knowledge.forbidden),
        "tier": len(knowledge.tiers),
    }
    known = [f"{n} {what}{'s' * (n != 1)}" for what, n in given.items() if n]
    if known:
        yield f"the plan's knowledge is true: {', '.join(known)}"


def _tested(plan: Plan, columns: Columns, confidence: Confidence | None, residual_variance: Matrix) -> Iterator[str]:
    """What `contradicted` would tell."""
    if confidence is None:
        return
    if confidence.n_apart:
        yield "whether residuals are correlated beyond chance where there is no edge"
    yield from _tested_between_sites(columns, confidence)
    if plan.graph_class == "dag-equal-variance" and residual_variance.size > 1:
        yield "whether noise variances are equal"
    if not math.isnan(confidence.cost_of_knowledge):
        yield "whether a graph without the plan's knowledge fits better"


def _tested_between_sites(columns: Columns, confidence: Confidence) -> Iterator[str]:
    named = [f"{_variable(columns, i)} -- {_variable(columns, j)}" for i, j in confidence.edges.tolist()]
    told = (confidence.degrees > 0) & ~_arbitrary(confidence, confidence.edges)
    tested = {name for name, is_told in zip(named, told.tolist(), strict=True) if is_told}
    untested = [name for name in named if name not in tested] if len(confidence.sites) > 1 else []
    why = "too few rows of a site are expected to have the rarer value"
    if confidence.related.size:
        why += ", or a variable is a function of others"
    if tested:
        yield "whether the sites' coefficients differ" + (
            f" (not of {first_few(untested, 4)}: {why})" if untested else ""
        )
    elif untested:
        yield f"not whether the sites' coefficients differ: {why}"


def _dear_knowledge(columns: Columns, confidence: Confidence) -> Iterator[str]:
    """Knowledge without which a graph would be far better, or which holds only where effects cancel."""
    cost, names = confidence.cost_of_knowledge, columns.variables
    edges = [(i, j) for i, j in confidence.against_knowledge.tolist()]
    told = [(i, "--" if (j, i) in edges else "->", j) for i, j in edges if i < j or (j, i) not in edges]
    named = first_few((f"{names[i]} {mark} {names[j]}" for i, mark, j in told), 4)
    instead = f"; without it, the data give {named}" if told else ""
    if cost > _DEAR:
        yield (
            "the plan's knowledge does not fit the data: without it, the logarithm of the likelihood, less what edges "
            f"cost, would be larger by {cost:.3g} (more than {_DEAR:g} is not by chance){instead}"
        )
    elif cost > _DOUBTFUL and confidence.cost_on_same_pairs > _UNLIKELY:
        yield (
            "the plan's knowledge fits the data only if effects along several paths cancel: a graph without it has "
            f"fewer edges (better by {cost:.3g}), and with edges between the same variables alone, the logarithm of "
            f"the likelihood is smaller by {confidence.cost_on_same_pairs:.3g} with this knowledge{instead}"
        )


def _related(columns: Columns, confidence: Confidence) -> Iterator[str]:
    """Sets of variables that are functions of each other: one regression is as good as another among them."""
    for members, exact in zip(confidence.related, confidence.exact.tolist(), strict=True):
        names = first_few(_in_words(columns, members), 12)
        has_levels = bool((columns.sizes[columns.variable_of[members]] > 1).any())
        if exact:
            yield (
                f"{names} are functions of each other{', at least in some levels,' if has_levels else ''} but for "
                "rounding, such as a sum, a code or another unit: edges, directions and effects among them and next to "
                f"them are arbitrary; leave one of them out{' or merge such levels' if has_levels else ''}, and run "
                "again"
            )
        else:
            yield (
                f"{names} are nearly functions of each other (less than a thousandth of their variation is left): "
                "small errors of measurement decide edges and directions among them, which are arbitrary; leave all "
                "but one of them out, or replace them by one, and run again"
            )


def _in_words(columns: Columns, members: Mask) -> Iterator[str]:
    """The variables of these columns; of one with at most half of its columns among them, which levels."""
    for name, own in zip(columns.variables, columns.members(), strict=True):
        inside = own[members[own]]
        if 0 < inside.size <= own.size / 2:
            places: list[int] = inside.tolist()
            levels = first_few((repr(columns.names[c].removeprefix(f"{name}=")) for c in places), 4)
            yield f"{name!r} (level{'s' * (inside.size > 1)} {levels})"
        elif inside.size:
            yield repr(name)


def _unequal_variances(plan: Plan, columns: Columns, confidence: Confidence, variance: Matrix) -> Iterator[str]:
    """A chi-square test that the logarithms of all residual variances, in units of the tables, are equal."""
    logs, weights = np.log(variance), 1.0 / confidence.log_variance_error**2
    q = float(weights @ (logs - weights @ logs / weights.sum()) ** 2)
    p = float(chi_square_tails(np.array([q]), np.array([variance.size - 1]))[0])
    if p >= _LEVEL:
        return
    low, high = int(variance.argmin()), int(variance.argmax())
    where = units_of_variances(plan, searched=True)
    yield (
        f"residual variances differ more than chance{_noisy(confidence)} gives, by a factor of up to "
        f"{variance[high] / variance[low]:.3g} ({columns.names[low]} {variance[low]:.3g}, {columns.names[high]} "
        f"{variance[high]:.3g}{'; ' + where if where else ''}; {_chance(p)}): directions that the data leave open "
        "rest on their being equal"
    )


def _arbitrary(confidence: Confidence, pairs: Index) -> Mask:
    """(k,) which of (k, 2) pairs have a column that is a function of others: rounding decides their coefficients."""
    of_functions = np.flatnonzero(confidence.related.any(axis=0)) if confidence.related.size else np.empty(0, np.int64)
    return np.asarray(np.isin(pairs, of_functions).any(axis=1))


def _sites_that_differ(columns: Columns, confidence: Confidence, edges: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Edges whose coefficients differ between sites, by Cochran's Q with Holm's correction."""
    tested = np.flatnonzero((confidence.degrees > 0) & ~_arbitrary(confidence, confidence.edges))
    q, degrees = confidence.q[tested], confidence.degrees[tested]
    p = holm(chi_square_tails(q, degrees))
    undirected = {(edge["source"], edge["target"]) for edge in edges if not edge["directed"]}
    order = np.argsort(-q / degrees, kind="stable")
    found: dict[str, float] = {}
    for k in order[p[order] < _LEVEL].tolist():
        i, j = confidence.edges[tested[k]].tolist()
        ends = _variable(columns, i), _variable(columns, j)
        mark = "--" if ends in undirected else "->"
        found.setdefault(f"{ends[0]} {mark} {ends[1]}", inconsistency(float(q[k]), int(degrees[k])))
    if found:
        named = first_few((f"{edge} (I^2 {i2:.2f})" for edge, i2 in found.items()), 4)
        yield (
            f"sites differ more than chance{_noisy(confidence)} gives in the coefficients of {named}: there the graph "
            "tells a mean of what differs"
        )
    pairs = confidence.differ_apart[~_arbitrary(confidence, confidence.differ_apart)]
    apart = [f"{_variable(columns, i)} and {_variable(columns, j)}" for i, j in pairs.tolist()]
    if apart:
        yield (
            f"sites differ more than chance{_noisy(confidence)} gives in how {first_few(apart, 4)} vary together, "
            "which have no edge: some sites may have one"
        )


def _unexplained(plan: Plan, columns: Columns, confidence: Confidence, *, also: str) -> Iterator[str]:
    if not confidence.n_unexplained:
        return
    (i, j), r = confidence.unexplained[0].tolist(), float(confidence.unexplained_correlation[0])
    others = confidence.n_unexplained - 1
    if abs(r) > 1.0:
        yield (
            f"{columns.names[i]} and {columns.names[j]}, which have no edge, vary together by more than is left of "
            "their variances: one of them is nearly an exact function of other variables, or too small to be told "
            "from noise; what the graph says about it is arbitrary"
        )
        return
    more = f"; so are {others} more such pairs" if others > 1 else "; so is one more such pair" if others else ""
    allowed = EdgeMask(plan.knowledge, columns).allowed
    edge = "a faint edge" if allowed[i, j] or allowed[j, i] else "an edge that the plan forbids"
    yield (
        f"residuals of {columns.names[i]} and {columns.names[j]}, which have no edge, are correlated by {r:.2g}, more "
        f"than chance{_noisy(confidence)} gives{more}: perhaps {also}a common cause that no table has, an effect that "
        f"is not linear, or {edge}"
    )


def _noisy(confidence: Confidence) -> str:
    return " and the noise of privacy" if confidence.noise_std else ""


def _chance(p: float) -> str:
    return f"p = {p:.1g}" if p > 1e-12 and math.isfinite(p) else "p < 1e-12"


def _variable(columns: Columns, column: int) -> str:
    return columns.variables[int(columns.variable_of[column])]
