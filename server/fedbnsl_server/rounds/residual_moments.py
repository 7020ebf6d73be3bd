"""A private moments round at the coordinator: ask for noisy moments of residuals, and search the next DAG with them.

Squares of numbers are further columns where the noise of all columns would be small beside the sampling error. That
follows from the plan, its privacy cost and the rows of the sites: before the first release, and for the whole run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.graphs.pag import Known
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.privacy.calibration import (
    LATTICE,
    WHOLE_SHARE,
    Price,
    constant_residual,
    n_residuals,
    price_of,
)
from fedbnsl.privacy.site_shares import FAINT, site_shares
from fedbnsl.protocol.messages import Units, Yields
from fedbnsl.protocol.sparse import Index, Mask, Matrix, SparseMatrix
from fedbnsl.rounds.kinds import LARGEST, stage
from fedbnsl.rounds.residual_moments import Answer, Task, squared, with_squares
from fedbnsl_server.algorithm.admm import AdmmState, in_units, over_columns
from fedbnsl_server.algorithm.consensus_graph import graph_to_refit
from fedbnsl_server.algorithm.influence import Compared, counted_rows, pairs
from fedbnsl_server.inference.confidence import Again, Confidence, Evidence, confidence_of
from fedbnsl_server.inference.curves import Curves
from fedbnsl_server.inference.degenerate_columns import Unused
from fedbnsl_server.inference.squares import Bends
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.statistics import noise_of_variances, rare_levels
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.private.clipped_moments import records_worth, room
from fedbnsl_server.search.private.combined_releases import released
from fedbnsl_server.search.private.equal_variance_search import EqualVarianceSearch
from fedbnsl_server.search.private.gaps import as_if_whole, pair_shares, typical
from fedbnsl_server.search.private.noisy_class_search import Learned, NoisyClassSearch, next_residuals
from fedbnsl_server.search.private.pooled_moments import (
    NOISE_WIDTHS,
    PooledMoments,
    SiteRelease,
    mean_by_precision,
    mean_square_noise,
    noise_of_moments,
)
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.search.private.residual_variances import residual_variances

# Of residuals, in units of their scales: below it nothing completes a record.
_LEAST_SPREAD = 1e-3
# Squares are asked for if the noise is at most so many sampling errors: with more, it hides edges that lines show.
_MOST_NOISE_OF_SQUARES = 0.45


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """Ask for the residuals that the last search needs; in the first such round, for those under the graph of W."""
    weights = state.next_weights or _of_graph(state, run)
    # Once for the whole run, whichever sites it loses.
    if not state.releases and len(state.scales) == len(run.mask.allowed) and _shows_squares(run):
        base = squared(run.plan, run.mask.columns)
        ones = np.ones(len(base))  # nothing is known of them
        state = replace(
            state,
            scales=np.append(state.scales, ones),
            mean_squares=np.append(state.mean_squares, ones),
            value_shares=np.append(state.value_shares, state.value_shares[base]),
            means=np.append(state.means, np.full(len(base), np.nan)) if state.means.size else state.means,
        )
    asked, run = _between(state, run, len(state.scales))
    used = asked.unused.kept(run.mask.columns)  # those of ADMM rounds may have others
    weights = weights.among(np.arange(weights.n_variables), len(state.scales))
    weights = weights.over(used).among(used, weights.n_variables)
    wider = _room(asked, run)
    return state, Task(weights, state.scales * wider, _spreads(asked) / wider)


def _with_squares(run: Run) -> Run:
    of = squared(run.plan, run.mask.columns)
    return replace(run, mask=EdgeMask(run.plan.knowledge, with_squares(run.mask.columns, of)), n_squares=len(of))


def _shows_squares(run: Run) -> bool:
    """Whether sites are asked for squares, too: from public numbers alone."""
    asked, most = _with_squares(run), _MOST_NOISE_OF_SQUARES / math.sqrt(sum(run.n_samples.values()))
    return asked.n_squares > 0 and _noise(asked) <= most


def _between(state: AdmmState, run: Run, n_columns: int) -> tuple[AdmmState, Run]:
    """The state and the run between the columns of a task, of which there are so many."""
    if n_columns == len(run.mask.allowed):
        return state, run
    asked, units, hidden = _with_squares(run), state.units, list(state.unused.hidden)
    base = squared(run.plan, run.mask.columns)
    hidden += (len(run.mask.allowed) + np.flatnonzero(np.isin(base, hidden))).tolist()
    state = replace(
        state,
        global_weights=SparseMatrix.zeros(n_columns),
        neighbours=None,
        refitted=None,
        residual_variance=np.empty(0),
        unused=replace(state.unused, hidden=tuple(hidden)),
    )
    if units is not None:
        state = in_units(state, Units(units.centres, np.append(units.scales, np.ones(len(base))), units.limits))
    return state, asked


def _spreads(state: AdmmState) -> Matrix:
    """(d,) of the residuals, in units of their scales without room; at first those of the columns themselves.

    Empty where nothing prepares columns.
    """
    if state.spreads.size or state.units is None:
        return state.spreads
    spreads = np.sqrt(np.clip(state.mean_squares, _LEAST_SPREAD**2, 1.0))
    spreads[list(state.unused.hidden)] = _LEAST_SPREAD  # else their gaps would tell what the noise said
    return spreads


def _of_graph(state: AdmmState, run: Run) -> SparseMatrix:
    """Weights of the graph so far, between the columns that sites work with."""
    weights = state.refitted or graph_to_refit(state, run.plan, run.mask).as_sparse()
    if state.units is None:
        return weights
    W = SparseMatrix.from_dense(state.units.weights_of_columns(weights.to_dense()))
    return W.as_float32() if run.plan.value_type == "float32" else W


def _room(state: AdmmState, run: Run) -> float:
    """How much wider than the residuals' own spread scales are: from prices and rows, and released numbers."""
    if run.plan.graph_class != "cpdag":
        return 1.0
    d = len(run.mask.allowed)
    return room(
        _noise(run),
        sum(run.n_samples.values()) * typical(_pair_shares(state, run), run.mask.columns.variable_of),
        d=d,
        norm_bound=run.privacy.residual_norm_bound(d),
        constant=constant_residual(d) if n_residuals(run.plan, d) > d else 0.0,
        levels=_has_levels(run),
    )


def _noise(run: Run) -> float:
    """Standard deviation of an entry off the diagonal, by all rounds together, for residuals of variance 1."""
    n, rule = run.rows(run.n_samples), run.rule(run.n_samples)
    norm_bound = run.privacy.residual_norm_bound(len(run.mask.allowed))
    variances = [price.moments_variance for price in run.prices(run.n_samples).values()]
    if rule is None:
        noise_std = math.sqrt(sum(variances) / 2.0) * norm_bound**2 / (LATTICE * sum(n))
    else:
        noise_std = noise_of_moments(n, variances, norm_bound, rule)
    return noise_std / math.sqrt(run.plan.moments_rounds)


def _pair_shares(state: AdmmState, run: Run) -> Matrix:
    """(d, d) see `pair_shares`."""
    columns, d = run.mask.columns, len(run.mask.allowed)
    if not state.value_shares.size:
        return np.ones((d, d))
    n_samples = np.array(list(run.n_samples.values()), dtype=np.float64)
    return pair_shares(state.value_shares, _present(list(run.n_samples), run), n_samples, columns.variable_of)


def _present(sites: Sequence[str], run: Run) -> Mask:
    """(P, d) which columns these sites have, as the plan says."""
    columns, absent = run.mask.columns, [run.plan.absent.of(site) for site in sites]
    there = np.array([[name not in lacking for name in columns.variables] for lacking in absent])
    return there[:, columns.variable_of]


def _has_levels(run: Run) -> bool:
    dictionary = run.plan.dictionary
    return any(name in dictionary and dictionary[name].has_levels for name in run.mask.columns.variables)


def n_summands(task: Task, run: Run) -> int:
    """Numbers that are summed: with prepared columns sites take off their own means, and one more is the weight."""
    d = len(task.scales)
    return d * (d + 1) // 2 + (run.plan.preparation is not None)


def of_sums(sums: Sequence[int], task: Task, run: Run) -> Answer:
    """What all sites together released; products with the constant, which stay at the sites, are zero."""
    d, run = len(task.scales), _of_task(task, run)
    shares = zip(run.n_samples.values(), _shares(run.n_samples, run), strict=True)
    rows = [n * share / WHOLE_SHARE for n, share in shares]
    unit = run.privacy.residual_norm_bound(d) ** 2 / (LATTICE * sum(rows))
    k, numbers = n_residuals(run.plan, d), np.array(sums, dtype=np.float64) * unit
    moments = np.zeros((k, k))
    moments[np.triu_indices(d)] = numbers[: d * (d + 1) // 2]
    moments[-1, -1] = numbers[-1]
    return Answer(moments[np.triu_indices(k)], task.digest)


def _of_task(task: Task, run: Run) -> Run:
    """The run between the columns of a task."""
    return run if len(task.scales) == len(run.mask.allowed) else _with_squares(run)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report a wrong number of moments, or moments of other residuals."""
    k = n_residuals(run.plan, len(task.scales))
    if answer.moments.size != k * (k + 1) // 2:
        return f"has {answer.moments.size} moments; {k * (k + 1) // 2} were asked for"
    if (np.abs(answer.moments) > LARGEST).any():
        return f"has moments beyond {LARGEST:g}"
    same = answer.task_digest == task.digest
    return "" if same else "is a kept answer to moments of other residuals, which cannot be used"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Search a DAG with the noisy moments, for the next round's residuals or as the answer of the run."""
    plan, d, D = run.plan, len(run.mask.allowed), len(task.scales)
    last = stage(plan, state.round + 1).step == plan.moments_rounds
    release, all_sites, hidden = _released(*_between(state, run, D), answers, task)
    if not state.releases:
        state = replace(state, unused=_still_hidden(state, release, run))
    asked, wide = _between(state, run, D)
    columns = wide.mask.columns
    releases, used = (*state.releases, release), asked.unused.kept(columns)
    apart = np.isin(used, asked.unused.hidden)
    small = _Problem(
        over_columns(asked, used),
        Task(task.weights.over(used), task.scales[used]),
        replace(wide, mask=wide.mask.over(used), n_squares=int((used >= d).sum())),
        [one.over(used, apart) for one in releases],
        all_sites,
        used,
        apart,
    )
    found = (_class if plan.graph_class == "cpdag" else _equal_variance)(small, last=last)
    lines, scales = small.of_lines, state.scales.copy()
    W, units, support = found.found.weights, lines.state.units, lines.run.mask.columns.spread(found.found.dag)

    def sent(W: Matrix, support: Mask, used: Index, n_columns: int) -> SparseMatrix:
        kept = SparseMatrix.on_support(W, support).among(used, n_columns)
        return kept.as_float32() if plan.value_type == "float32" else kept

    scales[used] = np.where(apart, scales[used], found.scales)
    spreads = _spreads(asked).copy()
    if found.spreads is not None and spreads.size:
        spreads[used] = np.where(apart, spreads[used], found.spreads)
    variance = np.zeros(d)
    of_used = _residual_variances(lines, found, _when_scales_were_told(state, run), answers)
    variance[lines.used] = of_used if of_used.size else 0.0
    next_weights = found.next_weights
    return replace(
        state,
        refitted=sent(W if units is None else units.weights_of_tables(W), support, lines.used, d),
        next_weights=None if next_weights is None else sent(next_weights, next_weights != 0.0, used, D),
        scales=scales,
        spreads=spreads,
        residual_variance=variance if of_used.size else of_used,
        releases=releases,
        confidence=None if found.confidence is None else replace(found.confidence, uncounted=hidden),
        curves=None if found.bends is None else _curves(found.bends, lines, of_used, run),
    )


def _curves(bends: Bends, lines: "_Problem", variance: Matrix, run: Run) -> Curves:
    """What bends, in the units of the tables."""
    left = np.zeros(len(run.mask.allowed) if variance.size else 0)
    if variance.size:
        left[lines.used] = variance * bends.share_left
    scales = np.ones(len(lines.used)) if lines.state.units is None else lines.state.units.scales
    effects = bends.effects(scales)
    if variance.size and not lines.apart.all():
        # Moments are right but for one factor, which variances have; some of these are raised to the noise's.
        relative = np.maximum(bends.lines.residual_variance * scales**2, np.finfo(float).tiny)
        unit = float(np.sqrt((variance / relative)[~lines.apart].min()))
        effects = tuple(one._replace(spread=None if one.spread is None else one.spread * unit) for one in effects)
    else:
        effects = tuple(one._replace(spread=None) for one in effects)
    return Curves(sum(run.n_samples.values()), lines.used[bends.bent], left, effects)


def _still_hidden(state: AdmmState, release: Release, run: Run) -> Unused:
    """Of the columns that the statistics have hidden: rare levels, and what the first release of residuals hides."""
    hidden = state.unused.hidden
    if state.units is None or not hidden:
        return state.unused
    # Their mean squares were divided by their shares, and the noise with them.
    d = len(run.mask.allowed)
    shares = state.value_shares[:d]
    told = release.moments.diagonal()[:d] * shares > NOISE_WIDTHS * math.sqrt(2.0) * release.noise_std
    n_values = sum(run.rows(run.n_samples)) * shares
    rare = rare_levels(state.mean_squares[:d] * state.units.scales**2, n_values, run)
    return replace(state.unused, hidden=tuple(k for k in hidden if rare[k] or not told[k]))


class _Problem(NamedTuple):
    """What was released, between the columns that the result is about."""

    # state, task, run: of these columns alone
    state: AdmmState
    task: Task
    run: Run
    # releases, all_sites: all releases, and the last one as of one site
    releases: Sequence[Release]
    all_sites: SiteRelease
    used: Index  # (k,) places of these columns
    apart: Mask  # (k,) those of variables whose spread the noise hides: they have no edge

    @property
    def of_lines(self) -> "_Problem":
        """Without squares, of which the result tells no weights; releases and task stay as they are."""
        if not self.run.n_squares:
            return self
        at = np.arange(len(self.used) - self.run.n_squares)
        run = replace(self.run, mask=self.run.mask.over(at), n_squares=0)
        return self._replace(state=over_columns(self.state, at), run=run, used=self.used[at], apart=self.apart[at])


def _residual_variances(small: _Problem, found: "_Searched", then: Run, answers: Iterable[str]) -> Matrix:
    """In squared units of the tables; where the noise hides a column's spread, that of the noise. Empty: not known.

    `then` is the whole run when scales were told.
    """
    state, run, units = small.state, small.run, small.state.units
    if units is None:
        setup = [price.setup_variance for price in then.prices(answers).values()]
        noise_std, bounds = mean_square_noise(setup, then.rows(answers), run.rule(answers)), then.feature_bounds
    else:
        noise_std = noise_of_variances(then, answers)
        # Of fewer values a variance is noisier, as if its range were wider.
        bounds = (then.half_ranges[small.used] / units.scales) ** 2 / state.value_shares
    together = np.where(small.apart | small.apart[:, None], 0.0, found.pooled.moments)
    variance = residual_variances(
        found.found.residual_variance,
        replace(found.pooled, moments=together),
        found.asked,
        mean_squares=state.mean_squares,
        bounds=bounds,
        noise_std=noise_std,
        cut_off=units is None,
    )
    if units is None or not variance.size:
        return variance
    return np.asarray(np.where(small.apart, 1.0, variance) * units.scales**2)


def _when_scales_were_told(state: AdmmState, run: Run) -> Run:
    """The run with the sites whose scales were summed: secure aggregation may have lost one since."""
    if not run.summed:
        return run
    before = {loss.site for loss in run.lost if stage(run.plan, loss.round).yields is not Yields.GRAPH}
    rows = {membership.site: membership.n_samples for membership in state.memberships if membership.site not in before}
    return replace(run, n_samples=dict.fromkeys(run.n_samples, sum(rows.values())), summed=rows)


class _Searched(NamedTuple):
    """A graph, the moments that it was found in, the scales of residuals that these were pooled in, and the next ones.

    In the end, how sure the graph is; before, the weights of the next residuals, if they are not those of the graph.
    All but the scales, spreads and weights of the next residuals is of columns without their squares.
    """

    found: FoundGraph
    pooled: PooledMoments
    asked: Matrix
    scales: Matrix
    confidence: Confidence | None = None
    next_weights: Matrix | None = None
    spreads: Matrix | None = None  # of the next residuals, in units of their scales
    bends: Bends | None = None  # in the end, where there are squares


def _equal_variance(small: _Problem, *, last: bool) -> _Searched:
    """The DAG of equal noise variances, from all releases."""
    run, task = small.run, small.task
    size = None if small.state.units is None else small.state.units.scales
    search = EqualVarianceSearch(run.mask, run.plan.threshold, last, size)
    found = search.found(
        small.releases,
        small.all_sites.n_samples,
        task.weights.support(),
        task.scales,
        progress=run.progress,
    )
    return _Searched(found.graph, found.pooled, found.asked, found.scales)


def _class(small: _Problem, *, last: bool) -> _Searched:
    """The class of least BIC, from all releases."""
    state, task, run, releases, all_sites, _, apart = small
    plan, d, release, n_samples = run.plan, len(run.mask.allowed), releases[-1], all_sites.n_samples
    if _has_levels(run):
        lost = 1.0 - release.weight
        n_samples = records_worth(n_samples, min(max(lost, 0.0), 1.0) if math.isfinite(lost) else 1.0)
    threshold = plan.threshold if last else 0.0
    search = NoisyClassSearch(run.mask, threshold, plan.search_seed, _of_squares(run), _curved(run) & ~apart)
    learned = search.found(releases, n_samples, progress=run.progress)
    found, of_residuals, u = learned.graph, learned.seen, d - run.n_squares
    pooled = PooledMoments(of_residuals.of_columns[:u, :u], of_residuals.noise_std, np.zeros((u, u), dtype=bool))
    asked = 1.0 / of_residuals.A.diagonal()[:u]
    if not last:
        next_weights, scales = next_residuals(found.dag, learned.moments, release, run.mask.columns)
        wider = float(np.median(task.scales / state.scales))  # than the residuals' own spread
        apart_from = np.eye(d) - next_weights
        spreads = np.sqrt((apart_from.T @ learned.moments @ apart_from).diagonal()) / scales
        spreads = np.clip(spreads, _LEAST_SPREAD, 1.0)
        found = _bends(learned, run, apart).lines if run.n_squares else found
        return _Searched(found, pooled, asked, scales / wider, next_weights=next_weights, spreads=spreads)
    confidence = _confidence(learned, search, run)
    rare = confidence.rarely_drawn(found.dag) & ~run.mask.of_variables.required
    if rare.any():
        learned = learned.without(rare, run.mask.columns)
        confidence = replace(
            _confidence(learned, None, run),
            draws=confidence.draws,
            pairs=confidence.pairs,
            counts=confidence.counts,
            leading=confidence.leading,
            led=confidence.led,
            pag_counts=confidence.pag_counts,
            pag_headed=confidence.pag_headed,
            taken_out=np.argwhere(rare),
        )
    if not run.n_squares:
        return _Searched(learned.graph, pooled, asked, state.scales, confidence.without_edges_at(apart))
    bends = _bends(learned, run, apart)
    confidence = bends.of_lines(confidence).without_edges_at(apart[:u])
    return _Searched(bends.lines, pooled, asked, state.scales, confidence, bends=bends)


def _of_squares(run: Run) -> Index:
    """(m,) the columns that the last ones are squares of."""
    of = run.mask.columns.variable_of
    return np.unique(of, return_index=True)[1][of[len(of) - run.n_squares :]]


def _bends(learned: Learned, run: Run, apart: Mask) -> Bends:
    """Of a graph in all columns, squares among them; columns that are `apart` do not bend."""
    u = len(run.mask.allowed) - run.n_squares
    return Bends(learned, run.mask, u, run.class_of, (_curved(run) & ~apart)[:u])


def _curved(run: Run) -> Mask:
    """(d,) columns of numbers that are said to bend."""
    return run.plan.has_shape(run.mask.columns, "curved") & run.plan.numbers(run.mask.columns)


def _confidence(learned: Learned, search: NoisyClassSearch | None, run: Run) -> Confidence:
    """In a graph, between the columns that it was searched in; without draws, if nothing can search them."""
    rng, columns, kept = np.random.default_rng(run.plan.search_seed), run.mask.columns, learned.searched
    d, both, scales = len(run.mask.allowed), np.ix_(kept, kept), learned.accuracy.scales
    evidence = Evidence(
        learned.moments[both],
        replace(learned.accuracy, scales=None if scales is None else scales[kept]),
        learned.weight_error,
        learned.seen.of_columns[both],
        lines=kept < d - run.n_squares,
    )
    return confidence_of(
        learned.graph.dag,
        evidence,
        columns.over(kept),
        None if search is None else Again(search.over(kept), run.class_of, run.plan.bootstrap, rng),
        known=Known.of(run.mask) if run.plan.tells_hidden_causes else None,
        progress=run.progress,
    )


def _released(
    state: AdmmState, run: Run, answers: Mapping[str, Answer], task: Task
) -> tuple[Release, SiteRelease, tuple[str, ...]]:
    """What the round has released over all records, all sites as one, and the names of those that noise hides."""
    d = len(run.mask.allowed)
    all_sites, hidden = _pooled(answers, run)
    all_sites = as_if_whole(
        all_sites,
        _pair_shares(state, run),
        run.mask.columns.variable_of,
        np.array(state.unused.hidden, dtype=np.int64),
    )
    release = released(
        all_sites.moments,
        noise_std=all_sites.noise_std,
        W=task.weights.to_dense(),
        scales=task.scales,
        weight=all_sites.weight,
        norm_bound=run.privacy.residual_norm_bound(d),
        constant=constant_residual(d) if n_residuals(run.plan, d) > d else 0.0,
    )
    return release, all_sites, hidden


def _of_sites(answers: Mapping[str, Answer], run: Run) -> list[SiteRelease]:
    """What each site released, about its mean if its records have the constant."""
    d = len(run.mask.allowed)
    k, unit = n_residuals(run.plan, d), run.privacy.residual_norm_bound(d) ** 2 / LATTICE
    everything = np.triu(np.ones((k, k), dtype=bool))
    found: list[SiteRelease] = []
    for answer, n, free, price in zip(
        answers.values(), run.rows(answers), run.free_rows(answers), run.prices(answers).values(), strict=True
    ):
        S, noise_std = symmetric(answer.moments, everything), math.sqrt(price.moments_variance / 2.0) * unit / n
        if k == d:
            found.append(SiteRelease.plain(S, noise_std=noise_std, n_samples=free))
        elif run.plan.secure_aggregation:
            found.append(_of_sum(S, price, run))
        else:
            constant = constant_residual(d)
            found.append(SiteRelease.about_mean(S, noise_std=noise_std, constant=constant, n_samples=free))
    return found


def _of_sum(S: Matrix, price: Price, run: Run) -> SiteRelease:
    """What all sites released together, each about its own means, and by its share."""
    d, rows = len(run.mask.allowed), np.array(list(run.summed.values()), dtype=np.float64)
    unit = run.privacy.residual_norm_bound(d) ** 2 / LATTICE
    share = np.array(_shares(run.summed, run)) / WHOLE_SHARE
    n = float(share @ rows)
    return SiteRelease.about_own_means(
        S,
        noise_std=math.sqrt(price.moments_variance / 2.0) * unit / n,
        of_means=price.means_variance * unit**2 / n * float(np.sqrt(np.square(share / rows).sum())),
        constant=constant_residual(d),
        n_samples=max(n**2 / float(np.square(share) @ rows) - len(rows), 1.0),
    )


def _shares(n_samples: Mapping[str, int], run: Run) -> list[int]:
    """How much each site counts in secure aggregation, in parts of WHOLE_SHARE."""
    d, m = len(run.mask.allowed), run.n_squares
    price = price_of(
        run.plan, n_samples=1, n_variables=d - m, n_squares=m
    )  # secure aggregation has a delta: rows do not matter
    return site_shares(price, list(n_samples.values()), run.privacy.residual_norm_bound(d))


def _pooled(answers: Mapping[str, Answer], run: Run) -> tuple[SiteRelease, tuple[str, ...]]:
    """All sites as one, and the names of those that noise hides; under a robust rule each has its vote."""
    sites, rule = _of_sites(answers, run), run.rule(answers)
    if rule is None:
        return mean_by_precision(sites), _hidden(answers, sites, run)
    norm_bound = run.privacy.residual_norm_bound(len(run.mask.allowed))
    variances = [price.moments_variance for price in run.prices(answers).values()]
    whole = SiteRelease(
        rule(np.stack([one.moments for one in sites])),
        noise_of_moments(run.rows(answers), variances, norm_bound, rule),
        float(rule(np.array([one.weight for one in sites]))),
        sum(run.free_rows(answers)),
    )
    return whole, ()


def _hidden(answers: Mapping[str, Answer], sites: Sequence[SiteRelease], run: Run) -> tuple[str, ...]:
    """Sites that noise hides; in secure aggregation those that hardly count, by their rows."""
    if run.summed and math.isfinite(sites[0].noise_std):
        return tuple(site for site, share in zip(run.summed, _shares(run.summed, run), strict=True) if share < FAINT)
    names = run.summed or answers
    return tuple(site for k, site in enumerate(names) if math.isinf(sites[0 if run.summed else k].noise_std))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Released moments, with the variance of sampling and of the noise: half of that on the diagonal lies beside it.

    A site tells nothing of pairs that it does not have, and how much its gaps keep of the others' nobody knows.
    """
    n_columns, run = len(run.mask.allowed), _of_task(task, run)
    d = len(run.mask.allowed)
    places = pairs(np.triu(np.ones((n_columns, n_columns), dtype=bool)))
    of_one = places[:, 0] == places[:, 1]
    moments = np.stack([one.moments[places[:, 0], places[:, 1]] for one in _of_sites(answers, run)])
    there = _present(list(answers), run)
    both = there[:, places[:, 0]] & there[:, places[:, 1]]
    typical_moments = np.nanmedian(np.where(both | ~both.any(axis=0), moments, np.nan), axis=0)
    moments = np.where(both, moments, typical_moments)
    kept_away = np.where(of_one, 0.0, (1.0 - _pair_shares(state, run)[places[:, 0], places[:, 1]]) * typical_moments)
    unit = run.privacy.residual_norm_bound(d) ** 2 / LATTICE
    rows = counted_rows(run.rows(answers))
    noise = np.array([[float(price.moments_variance)] for price in run.prices(answers).values()]) * (unit / rows) ** 2
    size = np.maximum(np.median(moments, axis=0), 0.0)[of_one]
    squared = size[places[:, 0]] * size[places[:, 1]] * np.where(of_one, 2.0, 1.0)
    variances = squared / rows + noise * np.where(of_one, 1.0, 0.5) + kept_away**2
    return [Compared(moments, variances, places, one_vote=False)]
