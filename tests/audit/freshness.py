"""No two releases share noise: not two sites, two runs, two rounds, nor what comes before a restart and after it.

Released less exact, from the messages and from what the journal keeps.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from unittest import mock

import numpy as np

from audit import accounts, noise_tests, reference
from audit.reference import LATTICE
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import calibration as pricing
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.kinds import n_rounds, stage
from fedbnsl_client import participant
from fedbnsl_client.data.dataset import Dataset

N, D, MOMENTS_ROUNDS = 1100, 20, 3
SITES = [f"site-{k}" for k in range(8)]
NAMES = tuple(f"x{k}" for k in range(D))
EPSILON, DELTA, FEATURE_BOUND, NORM_BOUND = 1e-3, 1e-6, 9.0, 4.0
TRIANGLE = np.triu_indices(D)


def plan_of_moments(rounds: int = 0) -> Plan:
    """Scales in the round after `rounds` of ADMM, residual moments in those after it."""
    privacy = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "feature_bounds": [FEATURE_BOUND],
        "moments_norm_bound": NORM_BOUND / math.sqrt(D),
    }
    settings = {"local_solver": "dp-pgcd", "rounds": rounds, "local_steps": 3, "refit_rounds": 0}
    return Plan.parse({**settings, "variables": NAMES, "moments_rounds": MOMENTS_ROUNDS, "privacy": privacy})


def plan_of_covariance() -> Plan:
    """So little noise that the covariance stays positive definite, and holds all of it."""
    privacy = {"epsilon": 1000.0, "delta": 0.4, "row_norm_bound": NORM_BOUND}
    settings = {"local_solver": "noisy-covariance", "rounds": 2, "local_steps": 1, "refit_rounds": 0}
    return Plan.parse({**settings, "variables": NAMES, "privacy": {**privacy, "second_moments": [1.0]}})


def plan_of_steps(rounds: int, solver: str = "dp-pgcd") -> Plan:
    """One private step a round, and no setup."""
    privacy = {"epsilon": EPSILON, "delta": DELTA, "smoothness": "public", "second_moments": [1.0]}
    settings = {"local_solver": solver, "rounds": rounds, "local_steps": 1, "refit_rounds": 0, "l1_weight": 0.0}
    return Plan.parse({**settings, "variables": NAMES, "privacy": privacy})


@cache
def table(site: str) -> Matrix:
    """Records of all lengths around the bound."""
    rng = np.random.default_rng(100 + SITES.index(site))
    return rng.normal(size=(N, D)) * 10 ** rng.uniform(-1.5, 0.5, size=(N, 1))


def task(plan: Plan, t: int) -> RoundTask:
    kind = stage(plan, t).kind
    if kind != "residual_moments":
        return RoundTask(t, accounts.content_of(kind, SparseMatrix.zeros(D), np.empty(0)), False)
    W, scales = asked(t)
    return RoundTask(t, accounts.content_of(kind, SparseMatrix.from_dense(W), scales), False)


@cache
def asked(t: int) -> tuple[Matrix, Matrix]:
    """Weights and scales of a round of residual moments."""
    rng = np.random.default_rng(t)
    return np.triu(rng.normal(size=(D, D)) * 0.2, 1), rng.uniform(0.5, 2.0, size=D)


@cache
def exact_residual_moments(site: str, t: int) -> Matrix:
    return reference.moment_sums(table(site), *asked(t), NORM_BOUND)[TRIANGLE]


@cache
def exact_second_moments(site: str) -> Matrix:
    return reference.square_sums(table(site), np.full(D, FEATURE_BOUND))


@cache
def exact_covariance(site: str) -> Matrix:
    return reference.moment_sums(table(site), np.zeros((D, D)), np.ones(D), NORM_BOUND)[TRIANGLE]


@dataclass(frozen=True)
class Run:
    """Payloads that a site kept, by round, and the moments that it sent."""

    kept: Mapping[int, bytes]
    sent: Mapping[int, Matrix]


def play(plan: Plan, site: str, run: int) -> Run:
    """All rounds; in the second run every one is answered by a participant of its own."""
    recorder, sent = accounts.Recorder(), dict[int, Matrix]()
    price = pricing.price_of(plan, n_samples=N, n_variables=D)

    def started() -> participant.Participant:
        journal = accounts.journal(recorder, plan, price, run=run, site=site)
        return participant.Participant(site, Dataset(NAMES, table(site)), plan, journal=journal, run=run)

    answering = started()
    for t in range(1, n_rounds(plan) + 1):
        answering = started() if run == 2 else answering
        content = answering.handle(task(plan, t)).content
        sent[t] = next((part for part in vars(content).values() if isinstance(part, np.ndarray)), np.empty(0))
    return Run(recorder.kept, sent)


def runs(plan: Plan, sites: int) -> Iterator[tuple[str, Run]]:
    """The second run twice, with an empty journal each time: the same site, table, rounds and numbers."""
    return ((site, play(plan, site, run)) for site in SITES[:sites] for run in (1, 2, 2))


def check_moments(sites: int = 2) -> None:
    """The noise of residual moments and of the scales, which tell the setup."""
    of_moments, of_setup = [], []
    for site, run in runs(plan_of_moments(), sites):
        of_setup.append(noise_tests.whole(run.sent[1] * N * LATTICE / FEATURE_BOUND - exact_second_moments(site)))
        for t in range(2, 2 + MOMENTS_ROUNDS):
            of_moments.append(
                noise_tests.whole(run.sent[t] * N * LATTICE / NORM_BOUND**2 - exact_residual_moments(site, t))
            )
    noise_tests.check_never_twice(of_moments + of_setup)
    noise_tests.check_uncorrelated(of_moments)
    cost = reference.gaussian_budget(EPSILON, DELTA)  # every release is Gaussian
    setup_share = 0.2
    sigma = (math.sqrt(2) * LATTICE + D) / math.sqrt(2 * cost * (1 - setup_share) / MOMENTS_ROUNDS)
    widths = np.where(TRIANGLE[0] == TRIANGLE[1], sigma, sigma / math.sqrt(2))
    noise_tests.check_gaussian(np.array(of_moments) / widths)
    noise_tests.check_gaussian(np.array(of_setup) / (math.sqrt(D) * LATTICE / math.sqrt(2 * cost * setup_share)))


def check_covariance(sites: int = 2) -> None:
    plan = plan_of_covariance()
    price = pricing.price_of(plan, n_samples=N, n_variables=D)
    widths = np.where(TRIANGLE[0] == TRIANGLE[1], 1.0, math.sqrt(0.5)) * math.sqrt(price.setup_variance)
    found = []
    for site, run in runs(plan, sites):
        released = np.frombuffer(run.kept[0]).reshape(D, D)[TRIANGLE]
        found.append(noise_tests.whole(released * N * LATTICE / NORM_BOUND**2 - exact_covariance(site)))
    noise_tests.check_uncorrelated(found)
    noise_tests.check_gaussian(np.array(found) / widths)


def check_selections(rounds: int = 40) -> None:
    """Scores that hardly differ, and noise that is far wider: two sites, or two starts, seldom pick one entry."""
    plan = plan_of_steps(rounds)
    picked = []
    for site in SITES[:2]:
        for _ in range(2):
            answering = participant.Participant(site, Dataset(NAMES, table(site)), plan)
            sent = [answering.handle(task(plan, t)).content.weights for t in range(1, rounds + 1)]
            picked.append([int(weights.index.item()) for weights in sent])
    alike = sum(a == b for one, other in itertools.combinations(picked, 2) for a, b in zip(one, other, strict=True))
    alike += sum(a == b for picks in picked for a, b in itertools.pairwise(picks))
    # 396 pairs, each alike with a chance of 1 / 380.
    assert alike <= 14, f"{alike} selections were those of another site, start or round"


# ---- where the noise comes from --------------------------------------------------------------------------------------


def check_source() -> None:
    """What a site sends is a function of the bytes that the system's source gives: no other source has a part in it.

    Together with noise that is fresh where a run is repeated, this leaves no room for a seed of any kind.
    """
    for plan in (
        plan_of_moments(rounds=2),
        plan_of_covariance(),
        plan_of_steps(2),
        plan_of_steps(2, "dp-pgcd-laplace"),
    ):
        assert sent_from_the_same_bytes(plan) == sent_from_the_same_bytes(plan), plan.local_solver


def sent_from_the_same_bytes(plan: Plan) -> list[bytes]:
    # All that `secrets` gives comes through here.
    with mock.patch.object(random, "_urandom", random.Random("bytes").randbytes):
        run = play(plan, SITES[0], 1)
    return list(run.kept.values())
