"""The state of Algorithm 1 at the coordinator, and the one function that moves it by a round."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedbnsl.errors import DivergenceError
from fedbnsl.graphs.graph import threshold
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.settings import LARGEST_PENALTY
from fedbnsl.protocol.messages import Covariances, Membership, SiteState, Units
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix, aligned
from fedbnsl_server.algorithm.acyclicity import acyclicity_of
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.algorithm.consensus import RobustRule
from fedbnsl_server.algorithm.global_step import Terms, global_step
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.curvature import Curvature
from fedbnsl_server.inference.curves import Curves
from fedbnsl_server.inference.degenerate_columns import NO_UNUSED, Unused
from fedbnsl_server.inference.directions import Direction
from fedbnsl_server.inference.experiments import Experiments
from fedbnsl_server.inference.noise import Noise
from fedbnsl_server.inference.regressions import Regression
from fedbnsl_server.inference.validation import Validation
from fedbnsl_server.search.counts.tables import Counted
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.search.squared_residuals import SquaredResiduals

# The continuation: the coefficient of h(W) grows geometrically over this share of the rounds, then by a factor a round.
_FIRST, _AT_TURN, _SHARE, _GROWTH = 0.1, 1000.0, 0.8, 1.3


@dataclass(frozen=True, eq=False)
class AdmmState:
    """Everything that the next round depends on."""

    round: int  # complete rounds
    global_weights: SparseMatrix  # W as the sites know it, (d, d)
    acyclicity_dual: float  # alpha (0 throughout in the continuation schedule)
    acyclicity: float  # tr exp(W o W) - d, whichever h the plan has
    contributed: frozenset[str]  # sites whose update entered the last round
    sites: Mapping[str, SiteState]  # B_p and beta_p of every participant, in the order of the names
    # mean of the sites' least-squares weights on the learned support, once a refit or moments round is complete
    refitted: SparseMatrix | None
    # (d,) mean over the sites in that round, in squared units of the variables; empty before. After private
    # moments rounds from noisy moments, and empty where the noise hides them.
    residual_variance: Matrix
    # What the next task tells of W if the plan sends changes: a zero for an entry that is gone. Otherwise None.
    change: SparseMatrix | None = None
    # W of the residuals x - W'x that the next private moments round asks for, between the run's columns; None:
    # those of the graph
    next_weights: SparseMatrix | None = None
    scales: Matrix = field(default_factory=lambda: np.empty(0))  # (d,) their scales; empty before
    # (d,) their standard deviations in units of these, by what was released; empty: all 1
    spreads: Matrix = field(default_factory=lambda: np.empty(0))
    # (d,) noisy mean squares of the variables over all sites' records, as released; empty before
    mean_squares: Matrix = field(default_factory=lambda: np.empty(0))
    # Entries above `neighbour_threshold` in W after the first or the last round; only for plans with a moments
    # round. The first W, still without acyclicity, shows dependences; the last one is what was learned.
    neighbours: SparseMatrix | None = None
    # rows without a missing value, by site, once the sites have told them; never in a private run
    complete_rows: Mapping[str, int] = field(default_factory=dict[str, int])
    means: Matrix = field(default_factory=lambda: np.empty(0))  # (d,) of the columns, in their units; empty: not told
    # (d,) in a private run, the share of all records that have a value, as far as noise lets it be told; empty: all
    value_shares: Matrix = field(default_factory=lambda: np.empty(0))
    releases: tuple[Release, ...] = ()  # what every private moments round so far has released, of all records
    # in the graph of the last search, between the used columns, in units of the run's columns; None before it,
    # and in plans without one
    confidence: Confidence | None = None
    # (N, 4) released private steps of each site that counted, in their order: see `ReleasedSteps.of_site`; only
    # for plans that search the graph that explains them
    steps: Mapping[str, Matrix] = field(default_factory=dict[str, Matrix])
    unused: Unused = NO_UNUSED  # which columns the result is not about
    # (d,) of each site, values of each column that lie far apart from all others, and count as missing; empty: none
    outlying: Mapping[str, list[int]] = field(default_factory=dict[str, list[int]])
    completion: Completion | None = None  # of rows with gaps; None: no row has one, or the plan does not use them
    curves: Curves | None = None  # which numbers have effects that bend; None: not looked for
    curvature: Curvature | None = None  # whether lines and hinges describe the graph; None: not tested
    # (d, d) second moments by site, as it sent them in the last round of moments; only where rounds of counts follow,
    # or one that looks at noise
    moments: Mapping[str, Matrix] = field(default_factory=dict[str, Matrix])
    # by site, between used columns, as it told in the last round of moments; only where a round of hinges follows,
    # or one that looks at noise
    squares: Mapping[str, SquaredResiduals] = field(default_factory=dict[str, SquaredResiduals])
    counted: Counted | None = None  # where the rounds of counts stand; None: before the first, or there are none
    regressions: tuple[Regression, ...] = ()  # of children with levels and of counts, once the graph is found
    noise: Noise | None = None  # what the shape of noise says of edges that the class leaves open; None: not asked
    # of edges that the class of the last graph leaves open, see `inference.directions`; the graph has these arrows
    directions: tuple[Direction, ...] = ()
    validation: Validation | None = None  # how well the network describes rows of the sites; None: not asked
    experiments: Experiments | None = None  # what sites tell as experiments; None: they were not taken for any

    @property
    def units(self) -> Units | None:
        """Of the run's columns; None: raw columns, or not yet known."""
        return next((one.units for one in self.sites.values()), None)

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """All sites with their keys for secure aggregation; empty: not yet known, or none."""
        return next((one.memberships for one in self.sites.values()), ())

    @property
    def iterations(self) -> dict[str, int]:
        """Rounds so far of the iterated kinds, see `fedbnsl.rounds.kinds`."""
        return {
            "completion": 0 if self.completion is None else self.completion.iterations,
            "regressions": max((one.rounds for one in self.regressions), default=0),
        }

    @property
    def iterations_with_next(self) -> dict[str, int]:
        """These, and one more of each kind that goes on."""
        goes_on = {
            "completion": self.completion is not None and not self.completion.done,
            "regressions": any(one.goes_on for one in self.regressions),
        }
        return {kind: n + goes_on[kind] for kind, n in self.iterations.items()}

    def counts_follow(self, plan: Plan) -> bool:
        """Whether counts decide about the graph of a run of the plan.

        Only where rows without a gap can stand for all; nor where sites withhold tables of the families that moments
        have given, or straight effects of grades have turned out to describe the tables better.
        """
        fit = self.completion is None or not self.completion.unfit
        return plan.counted and fit and (self.counted is None or self.counted.decides)

    def without_gaps(self, rows: Mapping[str, int]) -> Mapping[str, int]:
        """Of the rows of each site, those that lack no value; all of one that has not told, as it was away."""
        told: Mapping[str, int] = {} if self.completion is None else self.completion.complete_rows
        return {site: told.get(site, n) for site, n in rows.items()}

    @property
    def whole_rows(self) -> Mapping[str, int]:
        """Rows that lack no value, of the sites that have told; none in a private run."""
        return self.complete_rows if self.completion is None else self.completion.complete_rows

    @property
    def completed_by(self) -> Covariances | None:
        """What completes rows with gaps in all later rounds; None: not yet known, or no row has one."""
        return next((one.completed_by for one in self.sites.values()), None)

    @property
    def message(self) -> SparseMatrix:
        """What the next task tells of W: W itself, or its changes."""
        return self.global_weights if self.change is None else self.change


def initial_state(n_variables: int, sites: Sequence[str], *, sends_changes: bool = False) -> AdmmState:
    """Alg. 1, line 1: everything zero."""
    zero = SparseMatrix.zeros(n_variables)
    change = zero if sends_changes else None
    start = {site: SiteState(zero, zero, change) for site in sorted(sites)}
    return AdmmState(0, zero, 0.0, 0.0, frozenset(), start, None, np.empty(0), change)


def without(state: AdmmState, sites: Collection[str]) -> AdmmState:
    """The state with nothing of these sites in the steps to come; W stays as they helped to find it."""
    left = {site: one for site, one in state.sites.items() if site not in sites}
    steps = {site: told for site, told in state.steps.items() if site not in sites}
    outlying = {site: counts for site, counts in state.outlying.items() if site not in sites}
    moments = {site: told for site, told in state.moments.items() if site not in sites}
    squares = {site: told for site, told in state.squares.items() if site not in sites}
    counted = None if state.counted is None else state.counted.without(sites)
    contributed = state.contributed - set(sites)
    completion = None if state.completion is None else state.completion.without(sites)
    validation = None if state.validation is None else state.validation.without(sites)
    state = replace(
        state, validation=validation, steps=steps, moments=moments, squares=squares, counted=counted, outlying=outlying
    )
    return replace(state, sites=left, contributed=contributed, completion=completion)


def over_columns(state: AdmmState, kept: Index) -> AdmmState:
    """What the state says of some of its columns, for the search and the result of the run."""

    def of(numbers: Matrix) -> Matrix:
        return numbers[kept] if numbers.size else numbers

    units = state.units
    shown = replace(
        state,
        global_weights=state.global_weights.over(kept),
        neighbours=None if state.neighbours is None else state.neighbours.over(kept),
        refitted=None if state.refitted is None else state.refitted.over(kept),
        residual_variance=of(state.residual_variance),
        next_weights=None if state.next_weights is None else state.next_weights.over(kept),
        scales=of(state.scales),
        spreads=of(state.spreads),
        value_shares=of(state.value_shares),
        means=of(state.means),
        mean_squares=of(state.mean_squares),
        unused=NO_UNUSED,
        completion=None if state.completion is None else state.completion.over(kept),
        curves=None
        if state.curves is None
        else replace(state.curves, residual_variance=of(state.curves.residual_variance)),
    )
    places: list[int] = kept.tolist()
    outlying = {site: [counts[k] for k in places] for site, counts in state.outlying.items()}
    shown = replace(shown, outlying=outlying)
    return in_units(shown, None if units is None else Units(of(units.centres), of(units.scales), of(units.limits.T).T))


def of_result(state: AdmmState, columns: Columns) -> tuple[AdmmState, tuple[str, ...]]:
    """What the result of a run is about: the state between its used columns, and their names.

    Residual variances are NaN where noise hides a variable: the search had stand-ins for them.
    """
    used = state.unused.kept(columns)
    shown, hidden = over_columns(state, used), np.isin(used, state.unused.hidden)
    if shown.residual_variance.size and hidden.any():
        shown = replace(shown, residual_variance=np.where(hidden, np.nan, shown.residual_variance))
        if shown.curves is not None and shown.curves.residual_variance.size:
            left = np.where(hidden, np.nan, shown.curves.residual_variance)
            shown = replace(shown, curves=replace(shown.curves, residual_variance=left))
    return shown, columns.over(used).names


def in_units(state: AdmmState, units: Units | None) -> AdmmState:
    """The state of a run whose columns have these units."""
    return replace(state, sites={site: replace(one, units=units) for site, one in state.sites.items()})


def completed_by(state: AdmmState, told: Covariances | None) -> AdmmState:
    """The state of a run whose sites complete rows with gaps by these in all later rounds; None: not yet."""
    return replace(state, sites={site: replace(one, completed_by=told) for site, one in state.sites.items()})


def with_memberships(state: AdmmState, memberships: tuple[Membership, ...]) -> AdmmState:
    """The state of a run whose sites have these keys for secure aggregation."""
    return replace(state, sites={site: replace(one, memberships=memberships) for site, one in state.sites.items()})


def acyclicity_coefficients(plan: Plan, t: int, acyclicity_dual: float) -> tuple[float, float]:
    """Coefficients (alpha, rho_1) of h and h^2 / 2 in the global step of round t, counted from 1."""
    if plan.acyclicity_schedule == "augmented":
        return acyclicity_dual, _grown(plan.acyclicity_penalty, plan.acyclicity_growth, t - 1)
    turn = max(1.0, _SHARE * plan.rounds)
    progress = min(1.0, (t - 1) / max(1.0, turn - 1))
    return _grown(_FIRST * (_AT_TURN / _FIRST) ** progress, _GROWTH, max(0.0, t - turn)), 0.0


def _grown(start: float, factor: float, times: float) -> float:
    """Value start * factor^times, at most the largest; in logarithms, where nothing overflows."""
    logarithm = math.log(start) + times * math.log(factor)
    return LARGEST_PENALTY if logarithm >= math.log(LARGEST_PENALTY) else start * factor**times


def advance_admm(
    state: AdmmState,
    sent: Mapping[str, SparseMatrix],
    plan: Plan,
    mask: EdgeMask,
    *,
    step: int,
    rule: RobustRule | None = None,
    rows: Sequence[int] | None = None,
) -> AdmmState:
    """One round of Algorithm 1 at the coordinator: W, alpha and the duals of the sites that contributed.

    A site that sent nothing keeps its last B_p and beta_p in the global step, and its dual stays.

    Parameters
    ----------
    sent
        B_p, or its changes, by site.
    step
        The number of the round among those of the algorithm, from 1.
    rule
        What replaces the mean over all sites, in the order of their names; None: nothing.
    rows
        Weights of the sites in that mean, in the same order; None: one each. With beta_p in units of its site's weight,
        W is that of the pooled rows once the sites agree, and nothing else in a round depends on the weights.
    """
    rho_2 = plan.consensus_penalty
    B = {site: _told(old.local_weights, sent.get(site), plan) for site, old in state.sites.items()}
    beta = {site: before.consensus_dual for site, before in state.sites.items()}
    if rule is None:
        index, (mean, dual) = aligned(mean_of(B.values(), rows), mean_of(beta.values(), rows))
        A = SparseMatrix(mask.allowed.shape[0], index, mean + dual / rho_2)
    else:
        A = _robust_sum(rule, list(B.values()), list(beta.values()), rho_2)
    alpha, rho_1 = acyclicity_coefficients(plan, step, state.acyclicity_dual)
    W = global_step(
        A,
        state.global_weights,
        Terms(len(state.sites), rho_2, alpha, rho_1, plan.l1_weight if plan.dense_messages else 0.0),
        allowed=mask.allowed,
        max_iterations=plan.global_iterations,
        least_gain=plan.global_gain,
    )
    seen_now = plan.moments_rounds and step in (1, plan.rounds)
    neighbours = _with_neighbours(state.neighbours, W, plan) if seen_now else state.neighbours
    told = W
    if plan.send_step:
        told = W.rounded_to(plan.send_step).without_zeros()
    if plan.value_type == "float32":
        told = told.as_float32()
    change = None
    if plan.sends_changes:
        change = state.global_weights.change_to(told, plan.send_tolerance)
        told = state.global_weights.changed_by(change)
    h = acyclicity_of(told)
    seen = None if change is None else told
    sites = {
        site: replace(
            before,
            local_weights=B[site],
            consensus_dual=before.consensus_dual.plus(rho_2, B[site], told) if site in sent else before.consensus_dual,
            global_weights=seen,
        )
        for site, before in state.sites.items()
    }
    alpha_next = 0.0
    if plan.acyclicity_schedule == "augmented":
        alpha_next = alpha + rho_1 * h  # Eq. alpha
        if not math.isfinite(alpha_next):
            raise DivergenceError("the ADMM diverged: alpha is not finite")
    return replace(
        state,
        global_weights=told,
        change=change,
        acyclicity_dual=alpha_next,
        acyclicity=h,
        sites=sites,
        neighbours=neighbours,
    )


def _with_neighbours(known: SparseMatrix | None, W: SparseMatrix, plan: Plan) -> SparseMatrix:
    found = W.keep(threshold(W.value, plan.neighbour_threshold))
    if known is None:
        return found
    index, _ = aligned(found, known)
    return SparseMatrix(W.n_variables, index, W.at(index))


def _told(before: SparseMatrix, sent: SparseMatrix | None, plan: Plan) -> SparseMatrix:
    """B_p of a site after what it sent, if anything."""
    if sent is None:
        return before
    return before.changed_by(sent) if plan.sends_changes else sent


def _robust_sum(
    rule: RobustRule, B: Sequence[SparseMatrix], beta: Sequence[SparseMatrix], rho_2: float
) -> SparseMatrix:
    """(d, d): B_p + beta_p / rho_2, which is what a site pulls W to, by a robust rule over the sites."""
    index, values = aligned(*B, *beta)
    return SparseMatrix(B[0].n_variables, index, rule(values[: len(B)] + values[len(B) :] / rho_2))


def mean_of(matrices: Iterable[SparseMatrix], weights: Sequence[float] | None = None) -> SparseMatrix:
    """(d, d) mean, weighted if weights are given; summed in the order given, with the entries of all matrices."""
    terms = list(matrices)
    d = terms[0].n_variables
    total, stored = np.zeros(d * d), np.zeros(d * d, dtype=bool)
    for matrix, weight in zip(terms, weights or [1.0] * len(terms), strict=True):
        total[matrix.index] += weight * matrix.value
        stored[matrix.index] = True
    index = np.flatnonzero(stored)
    return SparseMatrix(d, index, total[index] / (sum(weights) if weights else len(terms)))
