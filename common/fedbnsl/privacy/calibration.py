"""The privacy cost of a run at one site, and every noise scale that follows: from the plan and public counts alone.

Nothing here looks at data: the cost is known, or the run refused, before the first record is read.

All noise is drawn on an integer fixed-point grid. A record's clipped gradient lies in [-LATTICE, LATTICE], its clipped
square in [0, LATTICE]: how far one record can move a sum is known exactly, whatever the units of the variables are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from fedbnsl import __version__
from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy import gaussian_dp, zcdp

LATTICE = 2**20

WHOLE_SHARE = 256
"""The share of a site in secure aggregation that counts in full; see `fedbnsl.privacy.site_shares`."""

MOST_COLUMNS_IN_SHARES = math.isqrt(2 * (LATTICE // WHOLE_SHARE) ** 2) - 1
"""With more columns d, rounding a site's scaled sums may move them by more than scaling takes off: by d + 1, where a
record moves sums by sqrt(2) LATTICE, and the largest share below the whole makes that sqrt(2) LATTICE / WHOLE_SHARE
less."""

# For Laplace noise on scores: one record moves a score by LATTICE; rounding before and after adds less than 4.
SCORE_SENSITIVITY = LATTICE + 4

# Least variance of a site's part of the noise of secure aggregation, in fixed-point grid units squared, for each site
# that shares it: rounding then changes no probability by more than a factor 1 + exp(-1e6)
# (docs/explanation/secure-aggregation.md).
_FINE = 2**16

# Parts of a budget are made slightly smaller, so that rounding never makes their sum exceed the whole.
_SHORT = 1.0 - 2.0**-40


@dataclass(frozen=True)
class Price:
    """The privacy cost of a private run for one site, in units of 1e-12 zCDP, and the noise that it pays for.

    Variances are in fixed-point grid units squared. With secure aggregation they are one site's part of the noise, but
    for statistics, by which a site takes off its own means; and a round of keys comes before all others.
    """

    epsilon: float
    delta: float
    """Of the guarantee that the plan asks for, with the delta of this site."""
    rounds: int
    local_steps: int
    setup_units: int = 0
    """Of what is released once: the second moments, the statistics of the columns, or the whole covariance."""
    round_units: int = 0
    """Of one ADMM round."""
    setup_variance: int = 0
    """Of the Gaussian noise on the sums of the setup; 0 without a setup."""
    update_variance: int = 0
    """dp-pgcd: of the Gaussian noise on the gradient coordinate of a step, discrete unless `gaussian`."""
    update_scale: int = 0
    """dp-pgcd-laplace: scale of the discrete Laplace noise on that coordinate, in fixed-point grid units."""
    sharpness: float = 0.0
    """Sensitivity of a score / scale of the noise that selects among the scores."""
    n_samples: int = 0
    n_variables: int = 0
    """Columns of residual moments, squares of numbers among them."""
    moments_rounds: int = 0
    """R: round T + 1 sends the setup again, for scales, unless columns are prepared; R rounds of residual moments
    follow."""
    moments_units: int = 0
    """Of one of them."""
    moments_variance: int = 0
    """Of the Gaussian noise on the diagonal of their sums, half of it off the diagonal."""
    prepared: bool = False
    """Whether the first round sends statistics of columns, which the setup has paid for."""
    gaussian: bool = False
    """Whether the run is counted by Gaussian DP: every release is Gaussian, or a selection that the surcharge covers.
    Then the units are those of `gaussian_dp.budget`, otherwise of `zcdp.budget`."""
    n_honest: int = 1
    """Sites that share the noise of secure aggregation; 1 without it."""
    means_units: int = 0
    """With secure aggregation and prepared columns: the part of `moments_units` for a site's own noisy means."""
    means_variance: int = 0
    """Of the noise on these means, which is the site's alone."""
    retries: int = 0
    """Rounds that may be asked again, as secure aggregation lost a site; each is paid again, at most the dearest."""
    sites_per_person: int = 1
    """k: a person may have a record at so many sites; epsilon and delta hold for all of these together."""
    surcharge_units: int = 0
    """Where private steps are counted by Gaussian DP: what their selections cost beyond the sum of all rounds. It is
    paid whole, with the first of the run's ADMM rounds that a site pays for."""

    def of_sum(self, n_sites: int) -> "Price":
        """The same cost with the noise of a sum over `n_sites` sites."""
        return replace(
            self, setup_variance=n_sites * self.setup_variance, moments_variance=n_sites * self.moments_variance
        )

    @property
    def share_units(self) -> int:
        """Cost of the whole run against everybody else together: see `share_units_of`."""
        return self._whole(self.share_units_of)

    def share_units_of(self, t: int) -> int:
        """Cost of round t against everybody else together, who can take off all noise but this site's part.

        Where columns are prepared, the noise of the setup is the site's own, as is that of its own means.
        """
        return self._weighed(t, in_sum=self.n_honest, own=1)

    @property
    def person_units(self) -> int:
        """Cost of the whole run for a person at as many sites as the plan says."""
        return self.units_at(self.sites_per_person)

    def units_at(self, n_sites: int) -> int:
        """Cost of the whole run for a person who has a record at each of `n_sites` sites, all of them replaced at once.

        Releases of several sites compose: their costs add up. A sum over sites has one noise, and moves by up to
        `n_sites` times as much: mu is as many times as large, and the cost its square. Noise that is a site's own, of
        statistics and of its means, counts as released by each.
        """
        if self.n_honest == 1:
            return n_sites * self.units
        return self._whole(partial(self._weighed, in_sum=n_sites**2, own=n_sites))

    def _weighed(self, t: int, *, in_sum: int, own: int) -> int:
        """Cost of round t if what has its noise in a sum over sites costs `in_sum` times as much, all else `own`."""
        shared = self.in_sums_of(t)
        return in_sum * shared + own * (self.units_of(t) - shared)

    def in_sums_of(self, t: int) -> int:
        """The part of the cost of round t that pays for noise in a sum over sites."""
        units = self.units_of(t)
        if self.n_honest == 1 or not units:
            return 0
        if t == 0:
            return 0 if self.prepared else units
        return units - self.means_units

    @property
    def in_sums(self) -> int:
        """That part of the cost of the whole run."""
        return self._whole(self.in_sums_of) if self.n_honest > 1 else 0

    @property
    def accounting(self) -> str:
        """What the whole run is counted by."""
        return "Gaussian" if self.gaussian else "zCDP"

    @property
    def units(self) -> int:
        """Cost of the whole run."""
        return self._whole(self.units_of)

    @property
    def reserve(self) -> int:
        """Part of `units` that is kept for rounds that are asked again."""
        return self.units - self.surcharge_units - sum(map(self.units_of, range(self.last_round + 1)))

    def _whole(self, units_of: Callable[[int], int]) -> int:
        of_rounds = [units_of(t) for t in range(self.last_round + 1)]
        return sum(of_rounds) + self.retries * max(of_rounds) + self.surcharge_units

    @property
    def step_rounds(self) -> range:
        """The ADMM rounds."""
        first = 1 + (1 if self.prepared else 0) + (1 if self.n_honest > 1 else 0)
        return range(first, first + self.rounds)

    def surcharge_of(self, rounds: Iterable[int]) -> int:
        """The surcharge, which is due once if any of these rounds takes private steps."""
        return self.surcharge_units if any(t in self.step_rounds for t in rounds) else 0

    @property
    def last_round(self) -> int:
        """T, or one more for statistics or scales, and R."""
        extra = (1 if self.moments_rounds or self.prepared else 0) + (1 if self.n_honest > 1 else 0)
        return self.rounds + self.moments_rounds + extra

    def units_of(self, t: int) -> int:
        """Cost of round t, without the surcharge; round 0 is the setup; raises PlanError if there is no such round."""
        if not 0 <= t <= self.last_round:
            raise PlanError(f"round {t} has no privacy cost: the plan has {self.last_round} rounds")
        if not t:
            return self.setup_units
        t -= 1 if self.n_honest > 1 else 0  # round 0 is now that of the keys
        free = 1 if self.prepared else self.rounds + 1  # releases nothing new; without residual moments there is none
        if t in (0, free):
            return 0
        return self.round_units if t <= self.rounds + (1 if self.prepared else 0) else self.moments_units


def n_residuals(plan: Plan, n_columns: int) -> int:
    """How many residuals a record has in a private moments round: with prepared columns a constant is one more."""
    return n_columns + (0 if plan.preparation is None else 1)


def constant_residual(n_columns: int) -> float:
    """The constant that prepared records have as their last residual.

    Its products with the others tell their means, with noise that falls by as much as it is large. Of more than ten
    columns it adds a tenth to the squared norm of residuals of variance 1.
    """
    return max(1.0, math.sqrt(0.1 * n_columns))


def price_of(plan: Plan, *, n_samples: int, n_variables: int, n_squares: int = 0) -> Price:
    """The privacy cost of a plan for a site with n_samples rows, which are public, and d columns.

    `n_squares`: columns that residual moments have besides. The cost is the same with any number of them; the noise
    that it pays for is not, as more products are rounded.

    Raises
    ------
    PlanError
        If the plan is not private, or if its budget is too small to be split.
    """
    privacy = plan.privacy
    if privacy is None:
        raise PlanError("the plan has no [privacy]: its runs give no guarantee, and so have no privacy cost")
    delta = privacy.delta or 1.0 / n_samples**2
    if delta >= 0.5:
        raise PlanError(f"privacy.delta = {delta:g} for a site of {n_samples} rows: must be below 0.5")
    how = {"noisy-covariance": _covariance, "dp-pgcd-laplace": _laplace, "dp-pgcd": _exponential}[plan.local_solver]
    price = how(plan, privacy, delta, n_variables, n_squares)
    steps = plan.local_solver != "noisy-covariance"
    setup = not steps or privacy.smoothness == "estimated"
    if (  # a budget of zero must not be read as no noise and no cost
        (steps and plan.rounds and price.sharpness <= 0.0)
        or (setup and price.setup_units == 0)
        or (plan.moments_rounds and price.moments_units == 0)
    ):
        rounds = f"{plan.rounds} rounds of {plan.local_steps} steps"
        moments = f" and {plan.moments_rounds} of residual moments" if plan.moments_rounds else ""
        raise PlanError(f"privacy.epsilon = {privacy.epsilon:g} is too small for {rounds}{moments}")
    shared = _shared(price, plan)
    n_columns = n_variables + n_squares
    if shared.n_honest > 1 and price.means_variance and n_columns > MOST_COLUMNS_IN_SHARES:
        raise PlanError(
            f"{n_columns} columns are too many for secure aggregation of moments: at most "
            f"{MOST_COLUMNS_IN_SHARES} are possible, levels of nominal variables counted one by one. Leave some out, "
            "or set privacy.secure_aggregation=false"
        )
    return replace(shared, n_samples=n_samples, n_variables=n_columns)


def _shared(price: Price, plan: Plan) -> Price:
    """The cost with the variances of one site's part in secure aggregation, rounded up to whole, even numbers."""
    honest = plan.n_honest
    if honest == 1:
        return price
    setup = price.setup_variance if price.prepared else -(-price.setup_variance // honest)
    if min(setup, price.moments_variance // (2 * honest)) < _FINE * honest:
        raise PlanError(
            f"privacy.epsilon = {price.epsilon:g} is too large for secure aggregation: the fixed-point grid would be "
            "too coarse for its noise"
        )
    return replace(
        price,
        n_honest=honest,
        setup_variance=setup,
        moments_variance=2 * -(-price.moments_variance // (2 * honest)),
    )


def recipe(plan: Plan, price: Price) -> dict[str, object]:
    """Every public quantity that a cost is computed from, for the ledger."""
    settings = plan.privacy.model_dump(mode="json") if plan.privacy else {}
    return {
        "solver": plan.local_solver,
        "privacy": settings,
        "price": vars(price).copy(),
        "version": __version__,
    }


def has_price_of(price: Price, recipe: Mapping[str, Any]) -> bool:
    """Whether the recipe is for this cost; what an older version did not know has its default."""
    defaults = {field.name: field.default for field in fields(Price)}
    return {**defaults, **recipe.get("price", {})} == vars(price)


def _exponential(plan: Plan, privacy: Privacy, delta: float, d: int, n_squares: int) -> Price:
    """DP-PGCD: one budget for the second moments, all selections, all updates and all residual moments."""
    parts = _split(plan, privacy, delta, gaussian=True)
    if plan.rounds:  # zCDP, where so few steps are taken that the surcharge costs more than Gaussian DP saves
        parts = max(parts, _split(plan, privacy, delta, gaussian=False), key=lambda parts: parts.round_units)
    setup, step = zcdp.zcdp_of(parts.setup_units), zcdp.zcdp_of(parts.round_units) / plan.local_steps * _SHORT
    means, D = parts.means_units, d + n_squares
    of_means = own_means_sensitivity(privacy.residual_norm_bound(D), D) if means else 0.0
    return replace(
        parts,
        setup_variance=_moments_variance(setup, d)
        if plan.preparation is None
        else _statistics_variance(plan, setup, d),
        update_variance=_variance((2 * LATTICE) ** 2, (1.0 - privacy.selection_share) * step),
        sharpness=zcdp.selection_sharpness(privacy.selection_share * step) if step else 0.0,
        moments_variance=_matrix_variance(parts.moments_units - means, n_residuals(plan, D)),
        means_variance=_variance(math.ceil(of_means**2 * (1.0 + 2.0**-40)), zcdp.zcdp_of(means) * _SHORT),
    )


def _split(plan: Plan, privacy: Privacy, delta: float, *, gaussian: bool) -> Price:
    """The budget of a person, split by releases: what one costs a record, without any noise; see `Price.units_at`."""
    k, prepared, shared = privacy.sites_per_person, plan.preparation is not None, privacy.secure_aggregation
    whole = zcdp.units_within((gaussian_dp if gaussian else zcdp).budget(privacy.epsilon, delta))
    whole //= 1 if shared else k
    setup = math.floor(privacy.smoothness_share * whole) if privacy.smoothness == "estimated" else 0
    left, times = whole - setup, plan.moments_rounds
    share = privacy.moments_share if plan.rounds else 1.0
    a_release = _a_release(math.floor(share * left), setup, times, privacy.retries) if times else 0
    a_round, surcharge, left = 0, 0, left - times * a_release
    if plan.rounds and gaussian:
        steps = plan.rounds * plan.local_steps
        more = gaussian_dp.surcharge(privacy.selection_share, steps) / plan.local_steps  # in costs of one round
        a_round = max(math.floor((left - 1) / (plan.rounds + more) * _SHORT), 0)
        surcharge = math.ceil(a_round * more)
    elif plan.rounds:
        a_round = left // plan.rounds
    means = math.floor(privacy.own_means_share * a_release) if shared and prepared else 0
    if shared:
        setup //= k if prepared else k * k
        a_release = (a_release - means) // (k * k) + means // k
        means //= k
    return Price(
        privacy.epsilon,
        delta,
        plan.rounds,
        plan.local_steps,
        setup_units=setup,
        round_units=a_round,
        surcharge_units=surcharge,
        moments_rounds=times,
        moments_units=a_release,
        prepared=prepared,
        gaussian=gaussian,
        means_units=means,
        retries=privacy.retries,
        sites_per_person=k,
    )


def _a_release(left: int, setup: int, times: int, retries: int) -> int:
    """Cost of one of the moments rounds, where the setup, or one of them, may have to be paid again `retries` times."""
    even = left // (times + retries)
    return even if even >= setup else max(left - retries * setup, 0) // times


def _laplace(plan: Plan, privacy: Privacy, delta: float, d: int, _: int) -> Price:
    """DP-PGCD of Mangold et al.: epsilon by advanced composition; the ledger is charged epsilon^2 / 2 a mechanism.

    Estimated second moments get a share of epsilon and half of delta.
    """
    from scipy.optimize import brentq  # here: as in `zcdp`

    epsilon, setup, k = privacy.epsilon, 0, privacy.sites_per_person
    if privacy.smoothness == "estimated":
        delta_left = delta / 2
        setup = zcdp.units_within(zcdp.budget(privacy.smoothness_share * epsilon, delta_left)) // k
        epsilon *= 1.0 - privacy.smoothness_share
    else:
        delta_left = delta
    times = plan.rounds * plan.local_steps * k

    def split(each: float) -> tuple[float, float]:
        """Epsilon of a selection and of an update; equal shares give both the same."""
        share = privacy.selection_share
        return each * math.sqrt(2.0 * share), each * math.sqrt(2.0 * (1.0 - share))

    def excess(log_each: float) -> float:
        select, update = split(math.exp(log_each))
        return zcdp.advanced_composition([(select, times), (update, times)], delta_left) - epsilon

    select, update = split(math.exp(float(brentq(excess, math.log(epsilon / times) - 20.0, 3.0))) * _SHORT)
    cost = plan.local_steps * (zcdp.pure(select) + zcdp.pure(update))
    return Price(
        epsilon=privacy.epsilon,
        delta=delta,
        rounds=plan.rounds,
        local_steps=plan.local_steps,
        setup_units=setup,
        round_units=math.ceil(cost * zcdp.UNITS_PER_ZCDP),
        setup_variance=_moments_variance(zcdp.zcdp_of(setup), d),
        update_scale=math.ceil(2 * LATTICE / update),
        sites_per_person=k,
        sharpness=select / 2.0,  # noisy max with Laplace noise: 2 x sensitivity / scale under replace-one
    )


def _covariance(plan: Plan, privacy: Privacy, delta: float, d: int, _: int) -> Price:
    """The covariance once, by the Gaussian mechanism; everything after it is post-processing."""
    setup = zcdp.units_within(gaussian_dp.budget(privacy.epsilon, delta)) // privacy.sites_per_person
    return Price(
        epsilon=privacy.epsilon,
        delta=delta,
        rounds=plan.rounds,
        local_steps=0,
        setup_units=setup,
        setup_variance=_matrix_variance(setup, d),
        sites_per_person=privacy.sites_per_person,
        gaussian=True,
    )


def _moments_variance(cost: float, d: int) -> int:
    return _variance(d * LATTICE**2, cost * _SHORT) if cost else 0


def statistics_sensitivity(blocks: Sequence[int]) -> float:
    """How far one record can move the sums of a statistics round, in fixed-point grid units, as a Euclidean distance.

    A record adds (1, u, u^2) for each variable, its columns u mapped into [-1, 1] by public bounds, or zeros where it
    has no value. Two values of one column lie at most (2, 0) apart: (u - v)^2 (1 + (u + v)^2) <= 4. Of a block of
    indicators (as large as `blocks` says), two columns differ at most. A value of k columns and none lie at most
    sqrt(1 + 2 k) apart: nearer than two values, unless k is at least 4. The variables of a record differ as they like.
    Each number is rounded.

    It also holds where indicators are shares of a group's rows, which sum to at most 1. Then all columns of a block may
    differ, but no further in all: of shares s and t, u = 2 s - 1, the squared distance is f = 4 (s - t)^2 (1 + 4 (s + t
    - 1)^2) <= 4 (s + t). For s + t >= 1 as f <= 4; else as f <= 4 w^2 (1 + 4 (1 - w)^2) <= 4 w with w = s + t, since
    (1 - w) (1 - 2 w)^2 >= 0. So a block adds at most 8, as two columns do. Rounding then moves its 2 k numbers, by
    sqrt(2 k) in all: no more than what two columns are given, 2 each, or else k is so large that a value and none lie
    further apart.

    And where the mean counts of what the rows of a person would add by themselves: such means lie between what rows
    add, and no further apart. Their numbers of values are rounded, too, but differ by at most LATTICE.
    """

    def furthest(size: int) -> int:
        return max(min(size, 2) * (2 * LATTICE + 2) ** 2, LATTICE**2 + size * 2 * (LATTICE + 1) ** 2)

    return math.sqrt(sum(map(furthest, blocks)))


def own_means_sensitivity(norm_bound: float, n_columns: int) -> float:
    """How far one record can move its products with the constant, in fixed-point grid units, as a Euclidean distance.

    A record (z, c), clipped to the norm R by a factor f <= 1, adds f c times f (z, c), which is no longer than
    min(c, R) R. Two of them lie at most twice as far apart. Each of the numbers is rounded. A person of several rows
    adds c (z, c) of the mean z, shortened by the norm of the mean product of the rows, which is at least |(z, c)|^2.
    """
    constant = min(constant_residual(n_columns) / norm_bound, 1.0)
    return 2.0 * constant * LATTICE + n_columns + 1


def _statistics_variance(plan: Plan, cost: float, d: int) -> int:
    blocks = plan.columns([column.name for column in plan.require_ranges(d)]).sizes.tolist()
    squared = math.ceil(statistics_sensitivity(blocks) ** 2 * (1.0 + 2.0**-40))
    return _variance(squared, cost * _SHORT) if cost else 0


def _matrix_variance(units: int, d: int) -> int:
    """Variance on the diagonal of a (d, d) sum of products on the grid: even, as half of it goes on other entries.

    Replacing a record z of norm at most r moves Z'Z by at most sqrt(2) r^2 in Frobenius norm. On the fixed-point grid,
    where r^2 is LATTICE, rounding a record's d^2 products adds at most d. An entry off the diagonal stands for two. The
    same holds of the mean product of a person's rows, shortened to r^2 in Frobenius norm: two positive semidefinite
    matrices so small lie at most sqrt(2) r^2 apart.
    """
    if not units:
        return 0
    sensitivity = math.sqrt(2.0) * LATTICE + d
    multiplier = zcdp.gaussian_multiplier(zcdp.zcdp_of(units) * _SHORT)
    return 2 * math.ceil((sensitivity * multiplier) ** 2 / 2.0 * (1.0 + 2.0**-40))


def _variance(squared_sensitivity: int, cost: float) -> int:
    """The integer variance, rounded up, of Gaussian noise that costs this much zCDP."""
    return math.ceil(squared_sensitivity / (2.0 * cost)) if cost else 0
