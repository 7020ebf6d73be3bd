"""A moments round at the coordinator: ask for second moments of neighbours, and search the best DAG with them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.family_moments import (
    asked_moments,
    forbidden_pairs,
    parent_candidates,
    symmetric,
    within_two_steps,
)
from fedbnsl.graphs.pag import Known
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.limits import LARGEST_SQUARE, LEAST_SQUARE
from fedbnsl.protocol.sparse import Index, Mask, Matrix, SparseMatrix
from fedbnsl.rounds.kinds import LARGEST, stage
from fedbnsl.rounds.moments import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState, over_columns
from fedbnsl_server.algorithm.completion import Completion, own_share
from fedbnsl_server.algorithm.consensus import RobustRule
from fedbnsl_server.algorithm.consensus_graph import graph_to_search, never_together
from fedbnsl_server.algorithm.influence import Compared, distances, pairs, variance_of_squares
from fedbnsl_server.inference.bootstrap import Draws, Shares
from fedbnsl_server.inference.confidence import Again, Evidence, confidence_of
from fedbnsl_server.inference.degenerate_columns import unused_columns
from fedbnsl_server.inference.experiments import MOST_VARIABLES, experiments
from fedbnsl_server.inference.hidden_causes import Pags
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.class_search import ClassSearch, edge_penalty
from fedbnsl_server.search.dependent_rows import DependentRows, of_sites
from fedbnsl_server.search.graph_search import FoundGraph, search
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments, fitted, pooled_accuracy
from fedbnsl_server.search.score import extended_penalty
from fedbnsl_server.search.space import Space
from fedbnsl_server.search.squared_residuals import SquaredResiduals

# A graph is better than another by more than this share of an edge's penalty: less is rounding.
_BETTER = 1e-3
# This share of an edge's penalty keeps no edge out that explains anything.
_NEARLY_NOTHING = 1e-3
# Where rows depend on each other, with fewer that count each time.
_MORE_SEARCHES = 2
# Of numbers that were rounded to single precision.
_ROUNDED_UP = 1.0 + 1e-5
# Edges that knowledge forbids and the tables show: so many are kept.
_MOST_AGAINST = 20

MOST_KEPT = 4_000_000
"""Moments of all sites that are kept for scores: 32 MB of a checkpoint."""


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The neighbours that the ADMM rounds found; later all pairs, or those within two steps in the last graph.

    In the last round also those that the plan's knowledge keeps apart: otherwise nothing could contradict it.
    """
    if state.refitted is None:
        near = (state.neighbours or SparseMatrix.zeros(state.global_weights.n_variables)).support()
    else:
        near = within_two_steps(state.refitted.support())
    last, residuals = stage(run.plan, state.round + 1, state.iterations).step == run.plan.moments_rounds, None
    if last:
        near, residuals = near | forbidden_pairs(run.mask), _residuals(state, run)
    return state, Task(SparseMatrix.on_support(near.astype(np.float64), near), residuals)


def _residuals(state: AdmmState, run: Run) -> SparseMatrix:
    """Weights of the graph so far between the columns that sites work with: the last search changes little of it."""
    weights = state.refitted or graph_to_search(state, run.plan, run.mask).as_sparse()
    if state.units is not None:
        weights = SparseMatrix.from_dense(state.units.weights_of_columns(weights.to_dense()))
    return weights.as_float32() if run.plan.value_type == "float32" else weights


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report a wrong number of moments, or impossible ones."""
    needed = _needed(task, run)
    if answer.moments.size != needed.sum():
        return f"has {answer.moments.size} moments; {needed.sum()} were asked for"
    levels = bool(run.plan.dictionary)  # a level need not occur at every site
    # In pooled units, a column may be far smaller at one site than at another.
    least = LEAST_SQUARE if run.plan.preparation is None else math.ulp(0.0)
    S = symmetric(answer.moments, needed)
    if not are_moments(S, constant_columns=levels, least=least):
        return "has numbers that cannot be second moments"
    if answer.squares.size != (0 if task.residuals is None else needed.sum()):
        return f"has {answer.squares.size} products of squares where {needed.sum()} or none were asked for"
    if not ((answer.squares >= 0.0) & (answer.squares <= _ROUNDED_UP * run.plan.max_rows)).all():
        return "has products of squares that no rows have"
    d = len(run.mask.allowed)
    if answer.means.size not in (0, d * (run.plan.tells_means and task.residuals is not None)):
        return f"has {answer.means.size} means where one of each column or none were asked for"
    if (np.abs(answer.means) > LARGEST).any():
        return f"has a mean beyond {LARGEST:g}"
    if not run.plan.sends_between_rows:
        return "has products between rows; none were asked for" if answer.between.size or answer.n_row_pairs else ""
    if answer.between.size != needed.sum():
        return f"has {answer.between.size} products between rows; {needed.sum()} were asked for"
    pairs_of_rows = answer.n_row_pairs <= run.plan.max_rows * (run.plan.max_rows - 1)
    possible = pairs_of_rows and bool((np.abs(answer.between) <= LARGEST).all())
    return "" if possible else "has products between rows that no rows have"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Search among neighbours, by the plan's class of graphs.

    A robust rule leaves out the sites whose moments are farthest from the others'. Applied entry by entry it would give
    a matrix that may have negative eigenvalues: with it, a graph of 20 edges had up to 18 wrong. Applied to the scores
    of families, it would prefer one direction by chance where the moments leave both open.
    """
    last = stage(run.plan, state.round + 1, state.iterations).step == run.plan.moments_rounds
    counts_follow = state.counts_follow(run.plan)
    if last and run.plan.tells_means:
        state = replace(state, means=_means(state, answers, run))
    after = _advanced(state, answers, task, run, gives_the_result=last and not counts_follow)
    scores_follow = last and keeps_moments(state, run)
    if not (counts_follow or (last and run.plan.looks_at_noise) or scores_follow):
        return after
    needed = _needed(task, run)
    told = {site: symmetric(answer.moments, needed) for site, answer in answers.items()}
    if not counts_follow and not run.plan.looks_at_noise:
        return replace(after, moments=told)
    if not counts_follow:
        return replace(after, moments=told, neighbours=task.neighbours)
    every = np.arange(len(run.mask.allowed))
    squares = _squares(answers, needed, every, task) if last else {}
    return replace(after, moments=told, neighbours=task.neighbours, squares=squares)


def keeps_moments(state: AdmmState, run: Run) -> bool:
    """Whether moments by site stay for the scores of the network."""
    return run.plan.sends_scores and len(state.sites) * len(run.mask.allowed) ** 2 <= MOST_KEPT


def _means(state: AdmmState, answers: Mapping[str, Answer], run: Run) -> Matrix:
    """(d,) means over the records of the sites that tell them and have a value; NaN where none has.

    Empty where no site tells them: it may withhold them, as the rule `least_cell` of its policy says.
    """
    answers = {site: answer for site, answer in answers.items() if answer.means.size}
    if not answers:
        return np.empty(0)
    told = np.stack([answer.means for answer in answers.values()])
    known: Mapping[str, Matrix] = {} if state.completion is None else state.completion.n_pairs
    every = np.ones(told.shape[1])
    rows = np.stack([known[site].diagonal() if site in known else run.n_samples[site] * every for site in answers])
    weights = rows if run.plan.weighs_rows else (rows > 0.0).astype(np.float64)
    total = weights.sum(axis=0)
    found = np.divide((weights * told).sum(axis=0), total, out=np.full(len(total), np.nan), where=total > 0.0)
    rule = run.rule(answers)
    return found if rule is None else rule(np.where(weights > 0.0, told, found))


def found_by_moments(state: AdmmState, run: Run) -> AdmmState:
    """The state with the graph of the last round of moments and confidence in it, where counts turn out not to follow.

    `state.squares` are between all columns.
    """
    after = _advanced(state, *_kept(state, run), run, gives_the_result=True, known_squares=state.squares)
    return replace(after, squares={})


def along_another_dag(state: AdmmState, dag: Mask, run: Run) -> AdmmState:
    """The state with a (V, V) DAG of the same class, between used variables: weights along it, and errors of these.

    What else the last round of moments and its draws have told holds for all DAGs of the class.
    """
    after = _advanced(state, *_kept(state, run), run, gives_the_result=True, given=FoundElsewhere(dag, None))
    if state.confidence is None or after.confidence is None:
        return after
    return replace(after, confidence=state.confidence.along_edges_of(after.confidence))


def _kept(state: AdmmState, run: Run) -> tuple[dict[str, Answer], Task]:
    """The answers to the last round of moments, and its task: `state.neighbours` are those that it had asked for."""
    task = Task(state.neighbours or SparseMatrix.zeros(state.global_weights.n_variables))
    needed = _needed(task, run)
    return {site: Answer(S[needed]) for site, S in state.moments.items()}, task


def _advanced(
    state: AdmmState,
    answers: Mapping[str, Answer],
    task: Task,
    run: Run,
    *,
    gives_the_result: bool,
    known_squares: Mapping[str, SquaredResiduals] | None = None,
    given: "FoundElsewhere | None" = None,
) -> AdmmState:
    """The state after a search with these answers; with confidence in its graph if this one is the result."""
    rows, rule, out = run.rows(answers), run.rule(answers), left_out(state, answers, task, run)
    needed, kept = _needed(task, run), [k for k, site in enumerate(answers) if site not in out]
    told = {site: symmetric(answer.moments, needed) for site, answer in answers.items() if site not in out}
    weights = (np.array(rows, dtype=np.float64) if rule is None else rule.weights)[kept]
    unused = unused_columns(np.average(list(told.values()), axis=0, weights=weights), run.mask.columns)
    used = unused.kept(run.mask.columns)
    columns = run.mask.columns.over(used)
    near = columns.spread(
        run.mask.columns.joined(task.neighbours.support())
    )  # also where an unused column has the edge
    state_used = over_columns(state, used)
    unknown = never_together(state_used, columns)
    if unknown is not None:
        near &= ~columns.spread(unknown)
    asked = {site: answers[site] for site in told}
    squares = _squares(asked, needed, used, task) if given is None else state.squares
    if known_squares is not None:
        squares = {site: one.over(used) for site, one in known_squares.items() if site in told}
    found = _searched(
        state_used,
        {site: S[np.ix_(used, used)] for site, S in told.items()},
        weights,
        Task(SparseMatrix.on_support(near.astype(np.float64), near)),
        replace(run, mask=EdgeMask(run.plan.knowledge, columns), unknown=unknown),
        _dependent_rows(asked, needed, used, run, state_used.completion),
        squares,
        given,
        gives_the_result=gives_the_result,
    )
    d, variance = len(run.mask.allowed), np.zeros(len(run.mask.allowed))
    variance[used] = found.residual_variance
    refitted = None if found.refitted is None else found.refitted.among(used, d)
    confidence = found.confidence
    if confidence is not None and confidence.odd_site:
        far = _farthest(RobustRule.of("median", rows), state, answers, task, run)
        confidence = replace(confidence, odd_left_out=confidence.odd_site in far)
    state = replace(state, refitted=refitted, residual_variance=variance, confidence=confidence, unused=unused)
    state = replace(state, directions=found.directions, experiments=found.experiments)
    follows = run.plan.searches_curves or run.plan.looks_at_noise
    return replace(state, squares=squares) if gives_the_result and follows else state


def _squares(answers: Mapping[str, Answer], needed: Mask, used: Index, task: Task) -> dict[str, SquaredResiduals]:
    """How squares of residuals go together at each site, in the used columns; empty where nothing was asked.

    A site that keeps counts of few rows to itself sends zeros.
    """
    if task.residuals is None:
        return {}
    W, both = task.residuals.over(used).to_dense(), np.ix_(used, used)
    told = {site: answer for site, answer in answers.items() if answer.squares.any()}
    return {site: SquaredResiduals(W, symmetric(answer.squares, needed)[both]) for site, answer in told.items()}


class FoundElsewhere(NamedTuple):
    """What other rounds have given, such as those of counts: a (V, V) DAG, and what its draws have."""

    dag: Mask
    shares: Shares | None


def fitted_by_moments(state: AdmmState, given: FoundElsewhere, run: Run) -> AdmmState:
    """The state with a graph that counts have given: its weights, and confidence in them, by the moments of before.

    What straight lines between categories leave unexplained, or how sites differ in it, is no sign against the graph.
    """
    d, used = len(run.mask.allowed), state.unused.kept(run.mask.columns)
    columns, of_used = run.mask.columns.over(used), over_columns(state, used)
    run = replace(run, mask=EdgeMask(run.plan.knowledge, columns))
    counted = state.moments.keys() if state.counted is None else state.counted.told.keys() & state.moments.keys()
    told = {site: np.nan_to_num(S[np.ix_(used, used)]) for site, S in state.moments.items() if site in counted}
    weights, nothing = np.array(run.rows(told), dtype=np.float64), Task(SparseMatrix.zeros(len(used)))
    found, variance = _searched(of_used, told, weights, nothing, run, {}, {}, given), np.zeros(d)
    variance[used] = found.residual_variance
    return replace(
        state,
        refitted=None if found.refitted is None else found.refitted.among(used, d),
        residual_variance=variance,
        confidence=None if found.confidence is None else found.confidence.without_tests_of_lines(),
        squares={},
    )


def saved_by_lines(state: AdmmState, fewer: Mask, dag: Mask, n_samples: float, run: Run) -> float:
    """Nats by which a (V, V) DAG describes so many rows better than one with fewer edges, by lines and the BIC."""
    used = state.unused.kept(run.mask.columns)
    columns, sites = run.mask.columns.over(used), list(state.moments)
    S = np.average([state.moments[site] for site in sites], axis=0, weights=np.array(run.rows(sites)))
    S = np.nan_to_num(S[np.ix_(used, used)])
    before, after = (fitted(one, S, columns).residual_covariance for one in (fewer, dag))
    gain = sum(
        float(np.linalg.slogdet(before[np.ix_(own, own)])[1] - np.linalg.slogdet(after[np.ix_(own, own)])[1])
        for own in columns.members()
        if own.size
    )
    edges = float(columns.sizes @ (dag & ~fewer) @ columns.sizes)
    return 0.5 * (n_samples * gain - edges * math.log(n_samples))


def _dependent_rows(
    answers: Mapping[str, Answer], needed: Mask, used: Index, run: Run, gaps: Completion | None
) -> dict[str, DependentRows]:
    """By site, how its rows depend on each other, in the used columns; empty where none does, or nothing was asked.

    Products of one site count as its mean squares allow for rows that are all alike. Larger ones are no fault: the
    patients with most rows may have the largest values.
    """
    if not run.plan.sends_between_rows:
        return {}
    products: dict[str, Matrix] = {}
    for site, answer in answers.items():
        size = np.sqrt(symmetric(answer.moments, needed).diagonal())
        most = size[:, None] * size
        products[site] = np.clip(symmetric(answer.between, needed), -most, most)[np.ix_(used, used)]
    n_pairs = {site: answer.n_row_pairs for site, answer in answers.items()}
    rows = dict(zip(answers, run.rows(answers), strict=True))
    shares = None if gaps is None else {site: gaps.rows_of_pairs(site) / n for site, n in rows.items()}
    return of_sites(products, n_pairs, rows, shares)


class _Searched(NamedTuple):
    accuracies: list[Accuracy]  # of each site's moments
    accuracy: Accuracy  # of the pooled ones
    found: FoundGraph
    again: ClassSearch | None  # None: a search for a DAG


def _searched(
    state: AdmmState,
    told: Mapping[str, Matrix],
    weights: Matrix,
    task: Task,
    run: Run,
    dependent: Mapping[str, DependentRows],
    squares: Mapping[str, SquaredResiduals],
    given: FoundElsewhere | None = None,
    *,
    gives_the_result: bool = True,
) -> AdmmState:
    """The state between used columns after a search, and the numbers of confidence in its graph if it is the result.

    `given`: the graph that other rounds have given; None: it is searched. Other rounds than the last only tell the
    next what to ask for.
    """
    plan = run.plan
    pooling = weights if plan.weighs_rows else np.ones(len(weights))
    pooled = np.average(list(told.values()), axis=0, weights=pooling)
    # Not the weights, which a robust rule may have capped.
    rows, gaps = np.array(run.free_rows(told), dtype=np.float64), state.completion
    if gaps is not None:  # what a site's completed sums have of its own, and how many rows they are worth
        known = np.array([gaps.known_share_of(site) for site in told])
        shares = np.array([own_share(S, pooled, share) for S, share in zip(told.values(), known, strict=True)])
        told = {site: _own_part(S, pooled, share) for (site, S), share in zip(told.items(), shares, strict=True)}
        weights, pooling, rows = weights * shares, pooling * shares, rows * known

    def searched(dependent: Mapping[str, DependentRows]) -> _Searched:
        accuracies = [Accuracy(n, dependent=dependent.get(site)) for site, n in zip(told, rows.tolist(), strict=True)]
        accuracy = pooled_accuracy(accuracies, pooling.tolist())
        if gaps is not None:
            n_samples = sum(run.rows(told)) * gaps.known_share
            accuracy = Accuracy(n_samples, widening=gaps.widening, dependent=accuracy.dependent)
        counted = weights * [one.counted / one.n_samples for one in accuracies]
        if given is not None:
            return _Searched(accuracies, accuracy, _without_search(given.dag, pooled, run), None)
        if plan.graph_class != "cpdag":
            found = _equal_variance(state, list(told.values()), counted, task, run)
            return _Searched(accuracies, accuracy, found, None)
        again = class_search(told if gaps is None else {}, counted, accuracy, task, run)
        return _Searched(accuracies, accuracy, again.found(pooled, progress=run.progress), again)

    dependent = {site: one.counting(one.excess(pooled), run.mask.columns) for site, one in dependent.items()}
    accuracies, accuracy, found, again = searched(dependent)
    for _ in range(_MORE_SEARCHES if dependent else 0):
        # What parents leave of a variable may depend on other rows more than the variable itself does.
        network = fitted(found.dag, pooled, run.mask.columns)
        if not any(one.is_more(network.excess(one), run.mask.columns) for one in dependent.values()):
            break
        dependent = {site: one.counting(network.excess(one), run.mask.columns) for site, one in dependent.items()}
        accuracies, accuracy, found, again = searched(dependent)
    best, rivals = found, None
    several = {
        site: SiteMoments(S, one, squares.get(site)) for (site, S), one in zip(told.items(), accuracies, strict=True)
    }
    is_mean = gaps is None or not gaps.lacks_columns  # whether the pooled moments are a mean of those of `several`
    if gaps is not None:
        several = {
            site: replace(one, moments=np.where(gaps.has(site), one.moments, np.nan)) for site, one in several.items()
        }
    if again is not None:
        if gives_the_result and plan.bootstrap:
            best, rivals = among_rivals(best, again, pooled, accuracy, run)
        state = replace(state, directions=(), experiments=None)
        if gives_the_result and not run.plan.no_experiments_because and gaps is None:
            state, best, rivals = _with_experiments(state, best, rivals, (pooled, accuracy), several, run)
        found = in_units(best, state)
    if given is not None:
        found = in_units(found, state)
    elif not gives_the_result:
        return with_graph(state, found, run)
    rng = np.random.default_rng(plan.search_seed)
    confidence = confidence_of(
        found.dag,
        Evidence(
            pooled,
            accuracy,
            sites=several,
            weights=pooling.tolist() if is_mean else (),
            level_variance=level_variance(pooled, state, run),
        ),
        run.mask.columns,
        None if again is None else Again(again, run.class_of, plan.bootstrap, rng, rivals),
        shares=None if given is None else given.shares,
        known=Known.of(run.mask) if given is None and plan.tells_hidden_causes else None,
        progress=run.progress,
    )
    if again is not None:
        confidence = replace(confidence, **cost_of_knowledge(best, again, pooled, task, run))
    return replace(with_graph(state, found, run), confidence=confidence)


def _with_experiments(
    state: AdmmState,
    best: FoundGraph,
    rivals: list[Mask] | None,
    of_pooled: tuple[Matrix, Accuracy],
    sites: Mapping[str, SiteMoments],
    run: Run,
) -> tuple[AdmmState, FoundGraph, list[Mask] | None]:
    """The state with directions that sites tell, and the best graph with these, which stands before its rivals."""
    S, accuracy = of_pooled
    columns, names = run.mask.columns, run.mask.columns.variables
    if not 1 < len(names) <= MOST_VARIABLES or len(sites) < 2 or any(one.squares is None for one in sites.values()):
        return state, best, rivals
    marks = run.class_of(best.dag)
    known = Known.of(run.mask) if run.plan.tells_hidden_causes else None
    pag = np.zeros((0, 0), dtype=np.int8) if known is None else Pags(accuracy, columns, known)(best.dag, S)
    units = np.ones(len(names)) if state.units is None else state.units.scales
    dag, directions, found = experiments(
        best.dag, marks, pag, S, sites, variables=names, units=units, set_at=run.plan.set_at
    )
    state = replace(state, directions=directions, experiments=found)
    if (dag == best.dag).all():
        return state, best, rivals
    other = replace(_without_search(dag, S, run), score=best.score)
    return state, other, None if rivals is None else [dag, *(one for one in rivals if (one != best.dag).any())]


def _own_part(S: Matrix, pooled: Matrix, share: float) -> Matrix:
    """Completed moments of a site without what is those of all sites; of a level that it has not, nothing is left."""
    found = pooled + (S - pooled) / share
    nothing = found.diagonal() <= 0.0
    found[nothing] = found[:, nothing] = 0.0
    return np.asarray(found)


def _without_search(dag: Mask, pooled: Matrix, run: Run) -> FoundGraph:
    network = fitted(dag, pooled, run.mask.columns)
    return FoundGraph(dag, network.weights, network.residual_variance, math.nan)


def with_graph(state: AdmmState, found: FoundGraph, run: Run) -> AdmmState:
    """The state with weights and residual variances, as the plan rounds them."""
    refitted = SparseMatrix.on_support(found.weights, run.mask.columns.spread(found.dag))
    return replace(
        state,
        refitted=refitted.as_float32() if run.plan.value_type == "float32" else refitted,
        residual_variance=found.residual_variance,
    )


def class_search(told: Mapping[str, Matrix], rows: Matrix, accuracy: Accuracy, task: Task, run: Run) -> ClassSearch:
    """A search among the neighbours, with the penalty that the sites choose where rows are few.

    Of each site no more rows count than a robust rule believes. Moments as exact as `accuracy` have the same penalty.
    Sites that are left out must know nothing of the others: completed sums do, and then no site is `told`.
    """
    plan, mask = run.plan, run.mask
    candidates, seed = parent_candidates(task.neighbours.support(), mask), plan.search_seed
    penalty = extended_penalty(accuracy.counted, len(candidates))
    if told:
        penalty = edge_penalty(
            list(told.values()), rows.tolist(), candidates=candidates, mask=mask, seed=seed,
            progress=run.progress,
        )  # fmt: skip
    return ClassSearch(candidates, mask, accuracy.counted, penalty, plan.threshold, seed)


def among_rivals(
    best: FoundGraph, search: ClassSearch, pooled: Matrix, accuracy: Accuracy, run: Run
) -> tuple[FoundGraph, list[Mask]]:
    """The best graph among this one and its rivals in draws of the bootstrap; and all of these, the best first.

    A search that starts at one place may end at a graph that is far from a better one, over graphs that are worse than
    either. Other moments have other barriers.
    """
    draws = Draws(
        network=fitted(best.dag, pooled, run.mask.columns),
        S=pooled,
        accuracy=accuracy,
        dag=best.dag,
        search=search,
        class_of=run.class_of,
        generators=np.random.default_rng(run.plan.search_seed).spawn(run.plan.bootstrap),
    )
    rivals, problem = draws.rivals(progress=run.progress), search.on(pooled, accuracy)
    nearest = rivals[int(np.argmin(problem.scores(rivals)))]
    other = problem.found(patience=0, start=nearest, progress=run.progress)
    if other.score > best.score - _BETTER * search.penalty:
        return best, rivals
    return other, [other.dag, *rivals]


def cost_of_knowledge(best: FoundGraph, search: ClassSearch, pooled: Matrix, task: Task, run: Run) -> dict[str, Any]:
    """What `Confidence` has of a search without the plan's knowledge; nothing where it was not searched to the end.

    Nor where knowledge keeps so many pairs apart that they were not asked for.
    """
    mask, anything = run.mask, EdgeMask(Knowledge(), replace(run.mask.columns, tiers=()))
    progress = run.progress
    between, near = mask.of_variables, mask.columns.joined(task.neighbours.support())
    near = near | near.T | between.required | between.required.T
    apart = ~(between.allowed | between.allowed.T) & anything.of_variables.allowed
    if (between.allowed == anything.of_variables.allowed).all() or (apart & ~near).any() or progress.is_enough:
        return {}
    progress.begin("searching without prior knowledge")
    free = replace(search, candidates=near & anything.of_variables.allowed, mask=anything)
    problem = free.on(pooled, Accuracy(search.n_samples))
    without = problem.found(start=best.dag, progress=progress)
    pairs = without.dag | without.dag.T
    same = replace(search, candidates=(pairs & between.allowed) | between.required)
    same = replace(same, penalty=_NEARLY_NOTHING * search.penalty)
    on_same = same.on(pooled, Accuracy(search.n_samples)).found(start=best.dag, progress=progress)
    if progress.is_enough:
        return {}
    nll = replace(problem, penalty=0.0).scores([on_same.dag, without.dag])
    marks = cpdag(without.dag)
    against = (marks & ~marks.T & ~between.allowed) | (marks & marks.T & apart)
    return {
        "cost_of_knowledge": max(search.n_samples * (best.score - without.score), 0.0),
        "cost_on_same_pairs": max(search.n_samples * float(nll[0] - nll[1]), 0.0),
        "against_knowledge": np.argwhere(against)[:_MOST_AGAINST],
    }


def in_units(found: FoundGraph, state: AdmmState) -> FoundGraph:
    """Weights and variances in the tables' own units."""
    units = state.units
    if units is None:
        return found
    variance = found.residual_variance * units.scales**2
    return replace(found, weights=units.weights_of_tables(found.weights), residual_variance=variance)


def _equal_variance(state: AdmmState, matrices: Sequence[Matrix], rows: Matrix, task: Task, run: Run) -> FoundGraph:
    """The DAG of least score with a prior for equal noise variances, in the tables' own units.

    Each site has regressions of its own, or, where sites weigh as their rows, one regression is that of all records.
    """
    plan, mask, n_samples, size = run.plan, run.mask, float(rows.mean()), None
    if state.units is not None:  # noise variances are compared, and weights told, in the tables' own units
        size = state.units.scales
        matrices = [S * size * size[:, None] for S in matrices]
    if plan.weighs_rows:
        matrices, n_samples = [np.average(matrices, axis=0, weights=rows)], float(rows.sum())
    return search(
        matrices,
        Space.of(parent_candidates(task.neighbours.support(), mask), mask),
        start=mask.columns.joined(graph_to_search(state, plan, mask).dag),
        n_samples=n_samples,
        threshold=plan.threshold,
        size=size,
        progress=run.progress,
    )


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Correlations, and mean squares where the statistics have not told those with spreads: they know heavy tails."""
    found = _beside_each_other(state, answers, task, run)
    return [found.between_variables() if run.plan.leaves_out_outlying else found]


def _beside_each_other(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> Compared:
    needed = _needed(task, run)
    moments, places = np.stack([answer.moments for answer in answers.values()]), pairs(needed)
    found = of_products(moments, places, state, answers, run)
    if dependent := _dependent_rows(answers, needed, np.arange(len(needed)), run, state.completion):
        pooled = symmetric(np.average(moments, axis=0, weights=run.rows(answers)), needed)
        i, j = places.T
        grows = np.array([1.0 + one.others * one.excess(pooled)[i, j] for one in dependent.values()])
        found = replace(found, variances=found.variances * grows)
    return found


def level_variance(S: Matrix, state: AdmmState, run: Run) -> Matrix:
    """(d,) variances of the columns of zeros and ones, in squared units of the tables; NaN: another column."""
    squares, preparation = S.diagonal() * (1.0 if state.units is None else state.units.scales**2), run.plan.preparation
    if preparation is None or preparation.intercept == "none":  # mean squares of zeros and ones are their means
        squares = squares * (1.0 - squares)
    return np.where(run.indicators, squares, np.nan)


def of_products(moments: Matrix, places: Index, state: AdmmState, sites: Iterable[str], run: Run) -> Compared:
    """(P, K) moments of the pairs of columns at (K, 2) places beside each other."""
    return Compared.of_products(
        moments,
        places,
        _spread_of_squares(state, run),
        run.rows(sites),
        linear=run.indicators,
        one_vote=not run.plan.weighs_rows,
    )


def _spread_of_squares(state: AdmmState, run: Run) -> Matrix:
    """(d,) n times the variance of a mean square in units of its size."""
    indicators = run.indicators
    if state.units is None or not indicators.any():
        return np.full(len(indicators), 2.0)
    return variance_of_squares(state.units.scales**2, indicators)


def left_out(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> tuple[str, ...]:
    """Those whose moments are farthest from the others', if there is a robust rule."""
    rule = run.rule(answers)
    return () if rule is None else _farthest(rule, state, answers, task, run)


def _farthest(
    rule: RobustRule, state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run
) -> tuple[str, ...]:
    kept = rule.nearest(distances(_beside_each_other(state, answers, task, run)))
    return tuple(site for k, site in enumerate(answers) if k not in kept)


def mean_squares(answer: Answer, task: Task, run: Run) -> Matrix:
    """(d,) of the columns of one site."""
    return np.asarray(symmetric(answer.moments, _needed(task, run)).diagonal())


def _needed(task: Task, run: Run) -> Mask:
    return asked_moments(task.neighbours.support(), run.mask)


def are_covariances(S: Matrix, squares: Matrix, *, rounding: float) -> bool:
    """Whether (d, d) S has no eigenvalue below 0, up to rounding, in units of the (d,) mean squares."""
    size = np.sqrt(np.where(squares > 0.0, squares, 1.0))
    if S[squares == 0.0].any():
        return False
    try:
        np.linalg.cholesky(S / size / size[:, None] + rounding * np.eye(len(S)))
    except np.linalg.LinAlgError:
        return False
    return True


def are_moments(S: Matrix, *, constant_columns: bool, least: float) -> bool:
    """Whether each known entry can be a mean of x_i x_j, given the means of x_i^2 and x_j^2, up to rounding.

    Sizes of raw columns are bounded, so that no weight between two variables is beyond float32: it is at most a ratio
    of two of them (1e28), times what a nearly singular regression may give (1e9 or so). Of constant columns a mean
    square may be zero, and with it all products; `least` bounds any other one.
    """
    squares = S.diagonal()
    constant = (squares == 0.0) & constant_columns
    if np.isinf(S).any() or not (constant | ((squares >= least) & (squares <= LARGEST_SQUARE))).all():
        return False
    if (np.nan_to_num(S[constant]) != 0.0).any():
        return False
    size = np.where(constant, 1.0, np.sqrt(squares))
    return not (np.abs(S / size[:, None] / size) > 1.0 + 1e-5).any()
