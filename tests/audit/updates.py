"""The noise of private steps as a coordinator that knew the tables would see it: sent less exact."""

import math
from dataclasses import dataclass

import numpy as np

from audit import noise_tests, reference
from audit.reference import LATTICE
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.admm import Task
from fedbnsl_client import participant
from fedbnsl_client.data.dataset import Dataset

D, N = 20, 1100
# Little budget: the noise is so wide that two equal draws are no accident.
EPSILON, DELTA, CLIP, MOMENT = 0.01, 1e-6, 10.0, 2.0
NAMES = tuple(f"x{k}" for k in range(D))


def plan(rounds: int) -> Plan:
    """One step a round, no soft threshold: a message then tells its noisy gradient."""
    return Plan.parse(
        {
            "variables": NAMES,
            "local_solver": "dp-pgcd",
            "rounds": rounds,
            "local_steps": 1,
            "l1_weight": 0.0,
            "refit_rounds": 0,
            "privacy": {
                "epsilon": EPSILON,
                "delta": DELTA,
                "clip": CLIP,
                "smoothness": "public",
                "second_moments": [MOMENT],
            },
        }
    )


@dataclass(frozen=True)
class Released:
    """Noise in fixed-point grid units, one array for every start of a participant, in order of the rounds."""

    noise: list[Matrix]
    sigma: float


def release(*, rounds: int, starts: int = 2, sites: int = 2) -> Released:
    """Run sites through all rounds, each from a new Participant `starts` times, and take the exact sums away."""
    settings, rng = plan(rounds), np.random.default_rng(8)
    M = np.full(D, MOMENT) + settings.consensus_penalty
    clips = reference.thresholds(M, CLIP)
    more = reference.steps_and_selections(0.5, 0.5, rounds) / rounds  # a step costs this much by Gaussian DP, 1 by zCDP
    step_cost = max(reference.budget(EPSILON, DELTA), reference.gaussian_budget(EPSILON, DELTA) / more) / rounds
    sigma = 2 * LATTICE / math.sqrt(step_cost)  # half of a step's cost is the update's: (2 L)^2 / (2 sigma^2)
    seen: list[Matrix] = []
    for site in (
        "site-0",
        *(f"site-{k}" for k in range(sites)),
    ):  # one of them twice: a seed made of names would repeat
        X = rng.normal(size=(N, D))
        B, beta = np.zeros((D, D)), np.zeros((D, D))
        for start in range(starts):
            snapshot = SiteState(SparseMatrix.from_dense(B), SparseMatrix.from_dense(beta))
            started = participant.Participant(site, Dataset(NAMES, X), settings, snapshot)
            found: list[float] = []
            for t in range(start * rounds // starts + 1, (start + 1) * rounds // starts + 1):
                # W as a coordinator may choose it: the dual that it leads to is far larger than any clipped gradient.
                W = B + (beta - rng.normal(size=(D, D)) * (1 - np.eye(D)) * 200) / settings.consensus_penalty
                contributed = bool(found)
                if contributed:
                    beta = beta + settings.consensus_penalty * (B - W)
                update = started.handle(RoundTask(t, Task(SparseMatrix.from_dense(W)), contributed))
                new = update.content.weights.to_dense()
                ((i, j),) = np.argwhere(new != B)
                slope = (B[i, j] - new[i, j]) * M[i] / settings.step_size
                public = beta[i, j] + settings.consensus_penalty * (B[i, j] - W[i, j])
                total = (slope - public) / (clips[i] / (N * LATTICE))
                found.append(total - reference.clipped_sum(X, B, clips, i, j))
                B = new
            seen.append(noise_tests.whole(np.array(found)))
    return Released(seen, sigma)


def check_noise(*, rounds: int = 160, sites: int = 2) -> None:
    """Law, repetition and correlation of the noise over rounds, sites and restarts."""
    released = release(rounds=rounds, sites=sites)
    noise_tests.check_never_twice(released.noise)
    noise_tests.check_gaussian(np.concatenate(released.noise) / released.sigma)
    noise_tests.check_uncorrelated(released.noise)
