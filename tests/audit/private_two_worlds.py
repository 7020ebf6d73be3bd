"""A whole `private` run in two worlds: statistics, own means, shares, masks, a colluding site, a pretended loss.

Three real participants answer a coordinator that colludes with one of them. At the end it says that this one is lost,
so that the last round is asked again. One record of another site differs. The judge knows every table, and is told all
that the price counts as released: the statistics and own means of that site, which stay there, and the sums of the
masked words without what the colluding site put in. The statistic is the log-likelihood ratio of all of it under the
ideal mechanism. With persons, a record of that site is a person of one to five rows, all of which differ.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE, WHOLE_SHARE, Price, price_of
from fedbnsl.protocol.messages import Content, Loss, MaskedSum, Membership, RoundTask, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import keys as keys_round
from fedbnsl.rounds import residual_moments as moments_round
from fedbnsl.rounds import statistics as statistics_round
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.rounds import kinds, residual_moments

SITES, HONEST, COLLUDING = ("east", "north", "west"), ("east", "north"), "west"
ROWS = {"east": 300, "north": 400, "west": 400}  # so that east does not count in full
NAMES, D, R, HALF = ("a", "b"), 2, 2, 10.0
CONFIDENCE = 0.99
# Of the last record: one variable at the other end of its range, so that the products of the two have another sign.
RECORDS = (HALF, HALF), (-HALF, HALF)
SCALE = 1.5  # of the residuals that are asked for: those of the last record are clipped


@cache
def plan(*, persons: bool = False) -> Plan:
    entries = {name: {"range": [-HALF, HALF]} for name in NAMES} | ({"patient": {"kind": "group"}} if persons else {})
    by_rows = ["privacy.persons_by = 'rows'"] if persons else []
    return Plan.load("private", by_rows, epsilon=2.0, delta=0.05).with_settings(
        n_participants=len(SITES), dictionary=entries, moments_rounds=R, look_for_curves=False, value_type="float64"
    )


@cache
def price() -> Price:
    return price_of(plan(), n_samples=ROWS["east"], n_variables=D)


@cache
def tables() -> tuple[dict[str, Matrix], Matrix]:
    """All tables in the one world, and that of east in the other."""
    source = np.random.default_rng(8)
    found = {site: source.normal(size=(n, D)) for site, n in ROWS.items()}
    found["east"][-1] = RECORDS[0]
    other = found["east"].copy()
    other[-1] = RECORDS[1]
    return found, other


@cache
def persons() -> tuple[PersonRows, PersonRows]:
    """Those of east in the two worlds; all rows of the last one differ."""
    source = np.random.default_rng(9)
    sizes = source.integers(1, 6, ROWS["east"])
    sizes[-1] = 5
    worlds = np.repeat(source.normal(size=(1, int(sizes.sum()), D)), 2, axis=0)
    worlds[:, -5:] = np.array(RECORDS)[:, None]
    return PersonRows(worlds[0], sizes), PersonRows(worlds[1], sizes)


def datasets(*, other_world: bool, of_persons: bool) -> dict[str, Dataset]:
    """What the sites hold."""
    found, other = tables()
    sites = {site: Dataset(NAMES, other if other_world and site == "east" else X) for site, X in found.items()}
    if of_persons:
        rows = persons()[other_world]
        starts = np.cumsum(rows.sizes) - rows.sizes
        sites["east"] = Dataset(NAMES, np.add.reduceat(rows.X, starts) / rows.sizes[:, None], rows=rows)
    return sites


@dataclass(frozen=True)
class Asked:
    """What a site was asked for, and what it put into the sum, its noise and all."""

    rest: tuple[Any, ...]
    own_means: Matrix
    sums: Matrix
    numbers: list[int]


def exact(X: Table, asked: Asked) -> tuple[Matrix, Matrix]:
    """The sums and own means without any noise."""
    none = mock.patch.object(private_moments, "rounded_gaussian", return_value=0)
    nothing = mock.patch.object(
        private_moments, "rounded_gaussians", lambda variances, which, randbelow: np.zeros(len(which), dtype=np.int64)
    )
    with none, nothing:
        return private_moments.residual_sums(X, *asked.rest)


def _summed(sums: Matrix) -> Matrix:
    """Of the sums, what is sent."""
    return np.append(sums[:D, :D][np.triu_indices(D)], sums[-1, -1])


VARIANCE_SHARES = np.append(np.where(np.eye(D, dtype=bool), 1.0, 0.5)[np.triu_indices(D)], 1.0)


class Judge:
    """Adds up the log-likelihood ratio of one run, and by part the squares of its noise in units of the paid width."""

    def __init__(self, world: int) -> None:
        self._world, self.log_ratio, self.squares = world, 0.0, defaultdict[str, list[float]](list)

    def told(self, part: str, told: Matrix, worlds: list[Matrix], variance: Any) -> None:
        squares = [(told - world) ** 2 / variance for world in worlds]
        self.log_ratio += float((squares[1] - squares[0]).sum()) / 2.0
        self.squares[part] += squares[self._world].tolist()


def judged(other_world: bool, seed: str, *, of_persons: bool = False) -> Judge:
    """What was released in one run, judged."""
    judge = Judge(int(other_world))
    of_sites, other = tables()
    in_A, in_B = persons() if of_persons else (of_sites["east"], other)
    sites = {
        site: Participant(site, table, plan(persons=of_persons), run=1, randbelow=randomness.seeded(f"{seed} {site}"))
        for site, table in datasets(other_world=other_world, of_persons=of_persons).items()
    }
    drawn: dict[str, Any] = {}
    asked: dict[str, list[Asked]] = defaultdict(list)
    genuine_sums, genuine_masked = private_moments.residual_sums, kinds.LocalProblem.masked

    def sums(X: Table, *rest: Any) -> tuple[Matrix, Matrix]:
        drawn["release"] = rest, *genuine_sums(X, *rest)
        return drawn["release"][1:]

    def masked(problem: kinds.LocalProblem, task: RoundTask, numbers: list[int]) -> MaskedSum:
        if task.content.kind == "residual_moments":
            rest, of_site, own = drawn["release"]
            assert problem.member is not None
            asked[problem.member.site].append(Asked(rest, own, of_site, numbers))
        return genuine_masked(problem, task, numbers)

    memberships = tuple(Membership(site, n) for site, n in ROWS.items())
    answered = {s: one.handle(RoundTask(1, keys_round.Task(memberships), False)) for s, one in sites.items()}
    with_keys = tuple(
        Membership(one.site, one.n_samples, public_key=answered[one.site].content.public_key)  # type: ignore[attr-defined]
        for one in memberships
    )
    for one in sites.values():
        one.handle(RoundTask(2, statistics_round.Task(), False, memberships=with_keys))
    problem = sites["east"]._problem
    released = np.asarray(problem.setup) * LATTICE
    bounds = problem.bounds
    of_world = []
    with mock.patch.object(private_moments, "rounded_gaussian", return_value=0):
        for X in (in_A, in_B):
            columns = problem.mask.columns.variable_of
            told = private_moments.release_statistics(X, *bounds, columns, price().setup_variance, problem.randbelow)
            of_world.append(told * LATTICE)
    judge.told("statistics", released, of_world, price().setup_variance)

    content: Content = moments_round.Task(SparseMatrix.zeros(D), np.full(D, SCALE), np.ones(D))
    first, last = 3, 2 + R
    with (
        mock.patch.object(residual_moments, "residual_sums", sums),
        mock.patch.object(kinds.LocalProblem, "masked", masked),
    ):
        for t, lost in [*((t, ()) for t in range(first, last + 1)), (last, (Loss(COLLUDING, last),))]:
            units = Units(np.empty(0), np.ones(D)) if t == first else None
            words = np.zeros(1, dtype=np.uint64)
            there = HONEST if lost else SITES
            for site in there:
                sent = sites[site].handle(RoundTask(t, content, False, units=units, lost=lost)).content
                assert isinstance(sent, MaskedSum)
                words = words + sent.numbers
            east, north = asked["east"][-1], asked["north"][-1]
            known = [] if lost else [asked[COLLUDING][-1].numbers]
            total = words.view(np.int64).astype(float) - np.sum(known, axis=0)
            # What is public or the judge's own comes off: the other site's records, and squares of own means.
            noise_of_north = _summed(north.sums) - _summed(exact(of_sites["north"], north)[0])
            total -= np.array(north.numbers, dtype=float) - noise_of_north
            taken_off = _summed(east.sums) - np.array(east.numbers, dtype=float)
            worlds = [exact(X, east) for X in (in_A, in_B)]
            assert east.rest[-1].share < WHOLE_SHARE, "a share is at work"
            variance = price().of_sum(len(HONEST)).moments_variance * VARIANCE_SHARES
            judge.told("sums", total + taken_off, [_summed(of_east) for of_east, _ in worlds], variance)
            judge.told("own means", east.own_means, [means for _, means in worlds], price().means_variance)
    return judge


def statistics(n_runs: int, *, of_persons: bool = False) -> tuple[Matrix, Matrix, dict[str, Matrix]]:
    """The log-likelihood ratios of the runs in the one world and in the other, and the squares of all noise by part."""
    # The price knows no data, and is most of the work of a run so small.
    with (
        mock.patch.object(kinds, "price_of", cached := cache(kinds.price_of)),
        mock.patch.object(residual_moments, "price_of", cached),
    ):
        of_worlds = [
            [judged(world, f"{world} {k}", of_persons=of_persons) for k in range(n_runs)] for world in (False, True)
        ]
    one, other = (np.array([judge.log_ratio for judge in runs]) for runs in of_worlds)
    every = [judge for runs in of_worlds for judge in runs]
    return one, other, {part: np.concatenate([judge.squares[part] for judge in every]) for part in every[0].squares}


def claimed_mu() -> float:
    """What the price of a run says, its retry included."""
    return math.sqrt(2e-12 * price().units)


def reached_mu(in_A: Matrix, in_B: Matrix) -> float:
    """How far apart the laws are, in standard deviations."""
    return float((in_A.mean() - in_B.mean()) / math.sqrt((in_A.var() + in_B.var()) / 2.0))


def mu_at_least(in_A: Matrix, in_B: Matrix) -> float:
    """A mu below the true one with 99 % confidence, by the test at 0."""
    low = partial(stats.beta.ppf, (1.0 - CONFIDENCE) / 2.0)
    hits, passes = int((in_A > 0.0).sum()), int((in_B <= 0.0).sum())
    power, level = (float(low(k, n - k + 1)) for k, n in ((hits, in_A.size), (passes, in_B.size)))
    return float(stats.norm.ppf(power) + stats.norm.ppf(level))


def check_bound(in_A: Matrix, in_B: Matrix) -> float:
    """The lower bound, which must not be above the claim."""
    found = mu_at_least(in_A, in_B)
    assert found <= claimed_mu(), f"at least mu {found:.3f} where {claimed_mu():.3f} was claimed"
    return found


def check_widths(squares: dict[str, Matrix]) -> None:
    """All noise is as wide as the price says, also that by which hardly anything of a record is told."""
    for part, found in squares.items():
        off = (found.mean() - 1.0) / math.sqrt(2.0 / found.size)
        assert abs(off) < 5.0, f"{part}: {found.mean():.3f} times the variance that was paid for"
