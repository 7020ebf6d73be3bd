"""What a graph assumes, which of that was tested, what contradicts it, and who directs its edges (`verdict`)."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from fedbnsl.console.wording import counted
from fedbnsl.graphs.pag import ARROW, TAIL
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.limits import MOST_HINGE_NUMBERS
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl.rounds.hinges import FEWEST_ROWS, Task, n_moments
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.curvature import Curvature
from fedbnsl_server.inference.draws import MAJORITY
from fedbnsl_server.inference.heterogeneity import chi_square_tails, holm
from fedbnsl_server.inference.hidden_causes import least_shown, tells_enough
from fedbnsl_server.inference.noise import Noise
from fedbnsl_server.results.confidence import inconsistency
from fedbnsl_server.results.curves import clearly_bent
from fedbnsl_server.results.learned_graph import directions
from fedbnsl_server.results.likely_reasons import likely_reasons, set_at_sites
from fedbnsl_server.results.noise import noise_contradictions, noise_tests
from fedbnsl_server.results.sentences import Note, note
from fedbnsl_server.results.warnings import units_of_variances
from fedbnsl_server.search.counts.tables import Choice
from fedbnsl_server.search.linear_network import Accuracy

# Chance of a false alarm, of each of the three tests.
_LEVEL = 0.01
# True knowledge hardly costs this much by chance, a reversed edge mostly costs more.
_DEAR = 5.0
# A reversed collider costs one more edge, which is less at any number of rows, and its likelihood on the same pairs is
# far smaller. Tables of 100 random networks with true tiers exceed both limits in none (1.5 parents a variable) to 3 of
# 100 (2.5 parents), where effects nearly cancel; those of a reversed collider in 4 of 5 with 600 rows.
_DOUBTFUL, _UNLIKELY = 3.5, 20.0


def assumption_checks(
    plan: Plan,
    columns: Columns,
    edges: Sequence[Mapping[str, Any]],
    confidence: Confidence | None,
    residual_variance: Matrix,
    *,
    unused: Sequence[Mapping[str, Any]] = (),
    rows_left_out: int = 0,
    completion: Completion | None = None,
    regressions: Sequence[Mapping[str, Any]] = (),
    curvature: Curvature | None = None,
    noise: Noise | None = None,
    withheld: bool = False,
    choice: Choice | None = None,
    curves: Mapping[str, Any] | None = None,
    categories: Mapping[str, Any] | None = None,
    experiments: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What result.json has under `verdict`, with notes in place of its sentences.

    Parameters
    ----------
    edges
        Named edges with `directed` and `directed_by`.
    confidence
        None: the plan has no search over moments, or it is still to come; then nothing is tested.
    residual_variance
        (d,) in squared units of the tables; empty: not known, and so not tested; NaN: hidden by noise.
    unused
        Variables that the result is not about, as result.json has them.
    rows_left_out
        Since they lack a value.
    completion
        Of rows with gaps, by EM; None: no row has one, or none was used.
    regressions
        As result.json has them. Where their test was made, it takes the place of that of
        linear coefficients: straight lines for probabilities differ where shares of levels do.
    curvature
        What a test of straight lines says; None: there was none.
    noise
        What tests of the shape of noise say; None: there were none.
    withheld
        Whether categories were not counted since sites keep tables to themselves.
    choice
        Between the graphs of counts and of moments, where a variable is ordinal.
    curves, categories, experiments
        As result.json has them; but for notes in place of sentences.
    """
    by_tables = {name: float(one["agreement"]["p"]) for name, one in (categories or {}).items() if one["agreement"]}
    by_ratios = {
        one["child"]: float(one["agreement"]["p"])
        for one in regressions
        if one["agreement"] and one["child"] not in by_tables
    }
    contradicted: list[Note] = []
    reasons: list[Note] = []
    tested: list[Note] = []
    not_tested: list[Note] = []
    functions: list[list[str]] = []
    bent: list[str] = curves["variables"] if curves else []
    unfit = "" if completion is None else completion.unfit
    by_counts = plan.counted and not unfit and not withheld and (choice is None or choice.counts)
    if confidence is not None:
        equal_variances, known = plan.graph_class == "dag-equal-variance", np.isfinite(residual_variance).sum() > 1
        for is_tested, one in (
            *_tests_of_residuals(columns, confidence, unused),
            *[(False, note("no_lines"))] * by_counts,
            *_tests_between_sites(columns, confidence, completion, by_ratios, categories if by_counts else None),
            *_ratios_tested_in_part([one for one in regressions if one["child"] in by_ratios]),
            *[(known, note("tests_variances"))] * equal_variances,
            *[(True, note("tests_knowledge"))] * (not math.isnan(confidence.cost_of_knowledge)),
            *_tests_of_lines(plan, curvature),
            *noise_tests(plan, noise),
            *[(False, note("inherited_bends", names=bent))] * bool(bent),
            *[(False, note("left_out_untested", rows=rows_left_out))] * bool(rows_left_out),
            *[(False, note("outlying_untested", em=not plan.completes))]
            * (plan.privacy is None and plan.preparation is not None and not plan.leaves_out_outlying),
            *[(False, _curves_not_searched(plan, columns, confidence, completion))]
            * (plan.searches_curves and curves is None),
        ):
            (tested if is_tested else not_tested).append(one)
        contradicted += _related(columns, confidence)  # first: what it names makes other alarms, too
        if equal_variances and known:
            contradicted += _unequal_variances(plan, columns, confidence, residual_variance)
        contradicted += _differing("tables_differ", by_tables)
        mechanisms: list[Mapping[str, Any]] = experiments["mechanisms"] if experiments else []
        contradicted += [note("mechanisms_differ", mechanisms=[one["says"] for one in mechanisms])] * bool(mechanisms)
        contradicted += _sites_that_differ(
            plan, columns, confidence, edges, by_ratios, {one["variable"] for one in mechanisms}
        )
        contradicted += _unexplained(columns, confidence)
        contradicted += _dear_knowledge(columns, confidence, bent=bool(curvature and curvature.curves))
        contradicted += _curved(curvature, edges, drawn=bool(bent), gaps=completion is not None)
        contradicted += noise_contradictions(noise, edges, bent)
        codes = [one.code for one in contradicted]
        reasons += likely_reasons(plan, columns, confidence, codes, lines_tested=curvature is not None)
        functions = [
            [columns.variables[v] for v in np.unique(columns.variable_of[one]).tolist()]
            for one in confidence.related[confidence.exact]
        ]
    if plan.privacy is not None and plan.no_curves_because != "levels":
        not_tested.append(note("private_curves_untested" if curves is None else "private_parabolas_only"))
    return {
        "assumed": [
            *_assumed(
                plan,
                columns,
                confidence,
                completion,
                by_counts=by_counts,
                withheld=withheld,
                choice=choice,
                curves=curves,
            ),
            *[note("missing_at_random")] * (completion is not None or plan.completes_privately),
        ],
        "tested": tested,
        "not_tested": not_tested,
        "contradicted": contradicted,
        "reasons": reasons,
        "not_testable": list(_not_testable(plan, columns, confidence, curvature, by_counts=by_counts)),
        "hidden_causes_seen": [] if confidence is None else list(_seen_hidden(confidence, columns)),
        "functions": functions,
        "not_described": [[one.source, one.target] for one in curvature.curves] if curvature is not None else [],
        "unexplained": [] if confidence is None else _pairs_unexplained(columns, confidence),
        "directed_by": directions(edges),
        "draws": 0 if confidence is None else confidence.draws,
        "majority": MAJORITY,
    }


def _assumed(
    plan: Plan,
    columns: Columns,
    confidence: Confidence | None,
    completion: Completion | None,
    *,
    by_counts: bool,
    withheld: bool,
    choice: Choice | None,
    curves: Mapping[str, Any] | None,
) -> Iterator[Note]:
    if plan.hidden_causes == "excluded":
        yield note("hidden_causes_excluded")
    short = confidence is None or len(confidence.sites) < 2  # what several sites tell of uneven scatter is allowed for
    if curves and curves["variables"]:
        gaps = completion is not None
        bent = {one["source"] for one in clearly_bent(curves)} or curves["variables"]
        names = [name for name in curves["variables"] if name in bent]
        straight = [name for name in curves["variables"] if name not in bent]
        yield note("bent", names=names, straight=straight, rows=curves["rows"], gaps=gaps, short=short)
    elif by_counts:
        yield note("by_counts", rows=sum(completion.complete_rows.values()) if completion else 0)
    else:
        yield note("linear_gaussian")
    if choice is not None:
        yield _chosen(choice)
    elif plan.counted and not by_counts:
        yield (
            note("withheld_not_counted") if withheld else note("gaps_not_counted", why=_why_unfit(completion, columns))
        )
    if plan.not_counted:
        yield note("not_counted", names=plan.uncountable, one=len(plan.uncountable) == 1)
    if plan.privacy is not None and plan.has_categories:
        yield note("private_not_counted")
    if plan.preparation is None:
        yield note("mean_zero")
    own_means = plan.preparation is not None and plan.preparation.intercept == "site"
    yield note("same_network", own_means=own_means and not by_counts)
    if plan.graph_class == "dag-equal-variance":
        yield note("equal_variances", units=units_of_variances(plan, searched=bool(plan.moments_rounds)))
    else:
        yield note("no_variances")
        yield note("no_cancelling")
    rows = plan.dictionary.rows
    if plan.sends_between_rows and (confidence is None or confidence.others):
        yield note("rows_alike", group=rows.group)
    if rows.lags:
        yield note("nothing_lasts", group=rows.group)
    knowledge = plan.knowledge
    given = {
        "required edge": len(knowledge.required),
        "forbidden edge": len(knowledge.forbidden),
        "tier": len(knowledge.tiers) + len(set(plan.dictionary.tiers.values())),
    }
    of_time = ["that nothing causes what was before it"] * bool(rows.lags)
    of_time += [f"that nothing causes {rows.time!r}"] * (rows.time in plan.dictionary)
    if known := [*(counted(n, what) for what, n in given.items() if n), *of_time]:
        yield note("knowledge", given=known)
    if plan.interventions:
        yield note("set_at_sites", told=list(set_at_sites(plan)))


def _agreed(confidence: Confidence) -> Mask:
    """(V, V) marks of the partial ancestral graph that enough of the draws have."""
    if (same := confidence.pag_same) is None:
        return np.ones(confidence.pag.shape, dtype=bool)
    return np.asarray(same >= MAJORITY * confidence.draws)  # whole numbers: shares would be rounded


def _seen_hidden(confidence: Confidence, columns: Columns) -> Iterator[str]:
    heads = (confidence.pag == ARROW) & _agreed(confidence)
    for i, j in np.argwhere(np.triu(heads & heads.T)).tolist():
        yield f"{columns.variables[i]} and {columns.variables[j]}"


def _chosen(choice: Choice) -> Note:
    code = "tables_chosen" if choice.counts else "lines_chosen"
    return note(code, tables=round(choice.by_tables), lines=round(choice.by_lines))


def _not_testable(
    plan: Plan, columns: Columns, confidence: Confidence | None, curvature: Curvature | None, *, by_counts: bool
) -> Iterator[Note]:
    """What no run can see in the sums that sites send; the first matters most."""
    marks = np.zeros((0, 0)) if confidence is None else confidence.pag
    accuracy = None if confidence is None else Accuracy(confidence.n_samples, confidence.noise_std)
    if accuracy is not None and plan.tells_hidden_causes and not tells_enough(accuracy):
        yield note("hidden_causes_in_noise", hides=least_shown(accuracy))
    else:
        agreed = np.ones(marks.shape, dtype=bool) if confidence is None else _agreed(confidence)
        n, held = np.count_nonzero(marks) // 2, np.count_nonzero((marks == TAIL) & agreed & agreed.T)
        yield note("hidden_causes", told=marks.size > 0, n=n, held=held)
    if by_counts:
        yield from map(note, ("chosen_rows", "independent_rows"))
        return
    if levels := [name for name in columns.variables if name in plan.dictionary and plan.dictionary[name].has_levels]:
        yield note("levels", variables=levels)
    rows = plan.dictionary.rows
    if curvature is None or not curvature.n_tested:
        yield note("not_linear")
    elif levels:
        yield note("not_linear_of_levels")
    yield note("dependent_rows", lags=rows.lags, family=rows.averages or plan.sends_between_rows)
    yield from map(note, ("chosen_rows", "shared_records"))


def _tests_of_residuals(
    columns: Columns, confidence: Confidence, unused: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[bool, Note]]:
    """Whether pairs without an edge were looked at; of a private run, what its noise hides of them."""
    if not confidence.n_apart:
        return
    hidden = [one["variable"] for one in unused if one["why"] == "hidden"]
    if len(columns.variables) - len(hidden) < 2:
        yield False, note("residuals_untested", hidden=hidden)
        return
    least = 0.0
    if confidence.noise_std**2 > 1.0 / confidence.n_samples:  # the noise hides more than chance does
        widths = NormalDist().inv_cdf(1.0 - _LEVEL / (2 * confidence.n_apart))
        least = widths * math.hypot(confidence.noise_std, confidence.n_samples**-0.5)
    yield True, note("tests_residuals", hidden=hidden, one=len(hidden) == 1, least=least)


def _tests_between_sites(
    columns: Columns,
    confidence: Confidence,
    completion: Completion | None,
    by_ratios: Mapping[str, float],
    categories: Mapping[str, Any] | None,
) -> Iterator[tuple[bool, Note]]:
    if categories:
        few = [name for name, one in categories.items() if one["parents"] and not one["agreement"]]
        is_tested = any(one["agreement"] for one in categories.values())
        if len(confidence.sites) < 2:
            yield False, note("sites_untested", why=note("no_moments_of_sites"))
        elif is_tested or few:
            yield is_tested, note("tests_tables", few=few)
        return
    named = [f"{_variable(columns, i)} -- {_variable(columns, j)}" for i, j in confidence.edges.tolist()]
    told = (confidence.degrees > 0) & ~_arbitrary(confidence, confidence.edges) | _into(columns, confidence, by_ratios)
    tested = {name for name, is_told in zip(named, told.tolist(), strict=True) if is_told}
    several = len(confidence.sites) > 1
    scattered = _scattered(confidence, completion) & ~told
    few = [name for name, apart in zip(named, scattered.tolist(), strict=True) if name not in tested and not apart]
    why = note("too_few_events", functions=confidence.related.size) if several else note("no_moments_of_sites")
    if tested:
        yield True, note("tests_sites", untested=few if several else [], why=why)
    elif named:
        yield False, note("sites_untested", why=note("no_family_twice") if scattered.all() else why)
    if tested and scattered.any():
        yield False, note("families_untested", families=list(_families(columns, confidence.edges, scattered)))
    lacking = [] if completion is None else list(_lacking(columns, completion, confidence.sites))
    if lacking:
        yield False, note("sites_uncompared", lacking=lacking)


def _tests_of_lines(plan: Plan, curvature: Curvature | None) -> Iterator[tuple[bool, Note]]:
    if curvature is not None and curvature.n_tested:
        yield True, note("tests_curves", pairs=curvature.n_tested)
        if left := curvature.n_possible - curvature.n_tested:
            yield False, note("curves_of_pairs_untested", pairs=left)
    elif plan.look_for_curves and plan.no_curves_because in ("consensus", "groups"):
        yield False, note("curves_untested", groups=plan.no_curves_because == "groups")


def _why_unfit(completion: Completion | None, columns: Columns) -> Note:
    """Why rows without a gap do not stand for all, and what some site has no value of."""
    why = "" if completion is None else completion.unfit
    has: list[Mask] = [] if completion is None else [n.diagonal() > 0.0 for n in completion.n_pairs.values()]
    lacked = sorted(
        {columns.variables[int(columns.variable_of[c])] for own in has for c in np.flatnonzero(~own).tolist()}
    )
    reason = "lacked" if why == "columns" and lacked else why
    return note(
        "unfit", names=lacked, **{one: reason == one for one in ("columns", "lacked", "few", "differ", "unknown")}
    )


def _curves_not_searched(plan: Plan, columns: Columns, confidence: Confidence, completion: Completion | None) -> Note:
    """Why no hinges were asked for; or they were, and sites told those of too few rows."""
    few, unfit = confidence.n_samples < FEWEST_ROWS, completion is not None and completion.unfit
    if unfit and not few:
        return note("curves_not_searched", why=_why_unfit(completion, columns))
    asked = Task(np.flatnonzero(plan.numbers(columns) & ~plan.has_shape(columns, "linear")))
    none, many = not asked.columns.size, n_moments(asked, len(columns.names)) > MOST_HINGE_NUMBERS
    withheld = not (few or none or many)
    why = note("no_curves_found_out", few=few, none=none and not few, many=many and not few, withheld=withheld)
    return note("curves_not_searched", why=why)


def _curved(
    curvature: Curvature | None, edges: Sequence[Mapping[str, Any]], *, drawn: bool, gaps: bool
) -> Iterator[Note]:
    """Pairs that no straight line describes; by themselves those of children whose parents the data leave open."""
    if curvature is None:
        return
    pairs = {frozenset((edge["source"], edge["target"])) for edge in edges}
    at_open = {name for edge in edges if not edge["directed"] for name in (edge["source"], edge["target"])}
    for code, is_open in (("curved", False), ("curved_or_open", True)):
        found = [one for one in curvature.curves if (one.target in at_open) == is_open]
        if found:
            apart = [frozenset((one.source, one.target)) not in pairs for one in found]
            curves = [note("curve", **one._asdict(), apart=a) for one, a in zip(found, apart, strict=True)]
            yield note(code, curves=curves, gaps=gaps, **({"drawn": drawn} if code == "curved" else {}))


def _scattered(confidence: Confidence, completion: Completion | None) -> Mask:
    """(E,) edges at a child whose family fewer than two sites have rows of: of each pair of its columns.

    None of them where the sites are not known, or have no gaps.
    """
    edges, found = confidence.edges, np.zeros(len(confidence.edges), dtype=bool)
    if completion is None or len(confidence.sites) < 2:
        return found
    for c in np.unique(edges[:, 1]).tolist():
        family = np.append(edges[edges[:, 1] == c, 0], c)
        whole = sum(bool(completion.has(site)[np.ix_(family, family)].all()) for site in confidence.sites)
        found[edges[:, 1] == c] = whole < 2
    return found


def _families(columns: Columns, edges: Index, at: Mask) -> Iterator[Note]:
    """The children of some of the (E, 2) edges, each with its parents."""
    of_variables = columns.variable_of[edges]
    for v in np.unique(of_variables[at, 1]).tolist():
        parents: list[int] = np.unique(of_variables[of_variables[:, 1] == v, 0]).tolist()
        yield note("family", child=columns.variables[v], parents=[columns.variables[w] for w in parents])


def _lacking(columns: Columns, completion: Completion, sites: Collection[str]) -> Iterator[Note]:
    """By site, variables of which it has no value, or pairs of which no row of it has both; none of ejected sites."""
    first = [int(own[0]) for own in columns.members()]  # a row has all columns of a variable, or none
    for site in [site for site in completion.n_pairs if site in sites]:
        absent = completion.n_pairs[site][np.ix_(first, first)] == 0.0
        none = absent.diagonal()
        pairs: list[list[int]] = np.argwhere(np.triu(absent, k=1)).tolist()
        if none.any():
            yield note("site_lacks", site=site, names=[columns.variables[v] for v in np.flatnonzero(none).tolist()])
        elif pairs:
            told = [f"{columns.variables[i]!r} and {columns.variables[j]!r}" for i, j in pairs]
            yield note("site_lacks_pairs", site=site, pairs=told)


def _dear_knowledge(columns: Columns, confidence: Confidence, *, bent: bool) -> Iterator[Note]:
    """Knowledge without which a graph would be far better, or which holds only where effects cancel."""
    cost, same_pairs, names = confidence.cost_of_knowledge, confidence.cost_on_same_pairs, columns.variables
    edges = [(i, j) for i, j in confidence.against_knowledge.tolist()]
    told = [(i, "--" if (j, i) in edges else "->", j) for i, j in edges if i < j or (j, i) not in edges]
    instead = [f"{names[i]} {mark} {names[j]}" for i, mark, j in told]
    if cost > _DEAR:
        yield note("knowledge_does_not_fit", cost=cost, limit=_DEAR, instead=instead, bent=bent)
    elif cost > _DOUBTFUL and same_pairs > _UNLIKELY:
        yield note("knowledge_cancels", cost=cost, same_pairs=same_pairs, instead=instead, bent=bent)


def _related(columns: Columns, confidence: Confidence) -> Iterator[Note]:
    """Sets of variables that are functions of each other: one regression is as good as another among them."""
    for members, exact in zip(confidence.related, confidence.exact.tolist(), strict=True):
        levels = bool((columns.sizes[columns.variable_of[members]] > 1).any())
        code = "functions" if exact else "nearly_functions"
        yield note(code, names=list(_of_columns(columns, members)), levels=levels)


def _chance(p: float) -> str:
    return f"p = {p:.1g}" if p > 1e-12 else "p < 1e-12"


def _of_columns(columns: Columns, members: Mask) -> Iterator[Note | str]:
    """The variables of these columns; of one with at most half of its columns among them, which levels."""
    for name, own in zip(columns.variables, columns.members(), strict=True):
        inside = own[members[own]]
        if 0 < inside.size <= own.size / 2:
            places: list[int] = inside.tolist()
            levels = [columns.names[c].removeprefix(f"{name}=") for c in places]
            yield note("levels_of", name=name, levels=levels, several=inside.size > 1)
        elif inside.size:
            yield repr(name)


def _unequal_variances(plan: Plan, columns: Columns, confidence: Confidence, variance: Matrix) -> Iterator[Note]:
    """A chi-square test that the logarithms of all known residual variances, in units of the tables, are equal."""
    told = np.flatnonzero(np.isfinite(variance))
    logs, weights = np.log(variance[told]), 1.0 / confidence.log_variance_error[told] ** 2
    q = float(weights @ (logs - weights @ logs / weights.sum()) ** 2)
    p = float(chi_square_tails(np.array([q]), np.array([told.size - 1]))[0])
    if p >= _LEVEL:
        return
    low, high = int(np.nanargmin(variance)), int(np.nanargmax(variance))
    yield note(
        "variances_differ",
        noisy=confidence.noise_std,
        ratio=variance[high] / variance[low],
        low=f"{columns.names[low]} {variance[low]:.3g}",
        high=f"{columns.names[high]} {variance[high]:.3g}",
        units=units_of_variances(plan, searched=True),
        chance=_chance(p),
    )


def _arbitrary(confidence: Confidence, pairs: Index) -> Mask:
    """(k,) which of (k, 2) pairs have a column that is a function of others: rounding decides their coefficients."""
    of_functions = np.flatnonzero(confidence.related.any(axis=0)) if confidence.related.size else np.empty(0, np.int64)
    return np.asarray(np.isin(pairs, of_functions).any(axis=1))


def _ratios_tested_in_part(ratios: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bool, Note]]:
    """Children of whose ratios, all of them tested, fewer degrees of freedom were tested than sites and ratios have."""
    whole = [(len(one["sites"]) - 1) * sum(each["interval"] is not None for each in one["estimates"]) for one in ratios]
    names = [one["child"] for one, n in zip(ratios, whole, strict=True) if one["agreement"]["degrees"] < n - 0.5]
    if names:
        yield False, note("ratios_tested_in_part", names=names)


def _into(columns: Columns, confidence: Confidence, children: Iterable[str]) -> Mask:
    """(E,) edges of the coefficients into the columns of these variables."""
    places = [columns.variables.index(child) for child in children]
    return np.asarray(np.isin(columns.variable_of[confidence.edges[:, 1]], places))


def _sites_that_differ(
    plan: Plan,
    columns: Columns,
    confidence: Confidence,
    edges: Sequence[Mapping[str, Any]],
    by_ratios: Mapping[str, float],
    named: Collection[str],
) -> Iterator[Note]:
    """Ratios that differ between sites, and edges whose coefficients do, by Cochran's Q; with Holm's correction.

    Edges into the variables that are `named` already are left out.
    """
    yield from _differing("ratios_differ", by_ratios)
    linear = (confidence.degrees > 0) & ~_arbitrary(confidence, confidence.edges)
    tested = np.flatnonzero(linear & ~_into(columns, confidence, by_ratios))
    q, degrees = confidence.q[tested], confidence.degrees[tested]
    p = holm(chi_square_tails(q, degrees))
    undirected = {(edge["source"], edge["target"]) for edge in edges if not edge["directed"]}
    order = np.argsort(-q / degrees, kind="stable")
    found: dict[str, float] = {}
    differing: set[str] = set()
    for k in order[p[order] < _LEVEL].tolist():
        i, j = confidence.edges[tested[k]].tolist()
        ends = _variable(columns, i), _variable(columns, j)
        mark = "--" if ends in undirected else "->"
        if mark == "->" and ends[1] in named:
            continue
        found.setdefault(f"{ends[0]} {mark} {ends[1]}", inconsistency(float(q[k]), int(degrees[k])))
        differing |= {*(ends if mark == "--" else ends[1:])}
    if found:
        named = [f"{edge} (I^2 {i2:.2f})" for edge, i2 in found.items()]
        told = list(set_at_sites(plan, variables=differing))
        yield note("sites_differ", noisy=confidence.noise_std, edges=named, told=told)
    pairs = confidence.differ_apart[~_arbitrary(confidence, confidence.differ_apart)]
    of_ratios = [columns.variables.index(child) for child in by_ratios]
    pairs = pairs[~np.isin(columns.variable_of[pairs], of_ratios).any(axis=1)]
    apart = [f"{_variable(columns, i)} and {_variable(columns, j)}" for i, j in pairs.tolist()]
    if apart:
        yield note("sites_differ_apart", noisy=confidence.noise_std, pairs=apart)


def _differing(code: str, p_values: Mapping[str, float]) -> Iterator[Note]:
    """The children, of these p-values, at which sites differ; with Holm's correction."""
    adjusted = zip(p_values, holm(np.array(list(p_values.values()))).tolist(), strict=True)
    if told := [note("child_p", child=child, chance=_chance(p)) for child, p in adjusted if p < _LEVEL]:
        yield note(code, children=told)


def _unexplained(columns: Columns, confidence: Confidence) -> Iterator[Note]:
    if not confidence.n_unexplained:
        return
    (i, j), r = confidence.unexplained[0].tolist(), float(confidence.unexplained_correlation[0])
    ends: dict[str, Any] = {"one": columns.names[i], "other": columns.names[j]}
    if abs(r) > 1.0:
        yield note("no_variance_left", **ends)
        return
    others = confidence.n_unexplained - 1
    yield note(
        "unexplained", **ends, r=r, noisy=confidence.noise_std, others=others, many=others > 1, single=others == 1
    )


def _pairs_unexplained(columns: Columns, confidence: Confidence) -> list[list[str]]:
    """Variables without an edge whose residuals are correlated beyond chance, the strongest first."""
    found = [(_variable(columns, i), _variable(columns, j)) for i, j in confidence.unexplained.tolist()]
    return [list(pair) for pair in dict.fromkeys(found)]


def _variable(columns: Columns, column: int) -> str:
    return columns.variables[int(columns.variable_of[column])]
