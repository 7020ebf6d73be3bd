"""The noise as the coordinator could see it if it knew the tables: released minus exact, from sent messages alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from audit import reference
from audit.reference import LATTICE
from fedbnsl.messages import LocalUpdate, RoundTask, SiteState, TaskKind
from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant

D, N = 3, 30
# Little budget: the noise is so wide that two equal draws are no accident.
EPSILON, DELTA, CLIP, MOMENT = 0.01, 1e-6, 10.0, 2.0
NAMES = tuple("abc")
FALSE_ALARM = 1e-7

Make = Callable[[str, Dataset, Plan, SiteState | None], Participant]


@dataclass(frozen=True)
class Released:
    """Noise in standard deviations, by site and by start of the participant, in order of the rounds."""

    noise: Mapping[tuple[str, int], Matrix]
    sigma: float


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


def genuine(site: str, dataset: Dataset, plan: Plan, snapshot: SiteState | None) -> Participant:
    """As in a real run, with the operating system's entropy."""
    return Participant(site, dataset, plan, snapshot)


def release(make: Make, *, rounds: int, starts: int = 2, sites: int = 2) -> Released:
    """Run sites through all rounds, each from a new Participant `starts` times, and take the exact sums away."""
    settings, rng = plan(rounds), np.random.default_rng(8)
    M = np.full(D, MOMENT) + settings.consensus_penalty
    clips = reference.thresholds(M, CLIP)
    step_cost = reference.budget(EPSILON, DELTA) / rounds
    sigma = 2 * LATTICE / math.sqrt(step_cost)  # half of a step's cost is the update's: (2 L)^2 / (2 sigma^2)
    seen: dict[tuple[str, int], Matrix] = {}
    for site in (f"site-{k}" for k in range(sites)):
        X = rng.normal(size=(N, D))
        B, beta = np.zeros((D, D)), np.zeros((D, D))
        for start in range(starts):
            snapshot = SiteState(SparseMatrix.from_dense(B), SparseMatrix.from_dense(beta))
            participant = make(site, Dataset(NAMES, X), settings, snapshot)
            found = []
            for t in range(start * rounds // starts + 1, (start + 1) * rounds // starts + 1):
                # W as a coordinator may choose it: it pulls far harder than any clipped gradient.
                W = B + rng.normal(size=(D, D)) * (1 - np.eye(D)) * 2000
                contributed = bool(found)
                if contributed:
                    beta = beta + settings.consensus_penalty * (B - W)
                update = participant.handle(RoundTask(t, TaskKind.ADMM, SparseMatrix.from_dense(W), contributed))
                new = update.local_weights.to_dense()
                ((i, j),) = np.argwhere(new != B)
                slope = (B[i, j] - new[i, j]) * M[i] / settings.step_size
                public = beta[i, j] + settings.consensus_penalty * (B[i, j] - W[i, j])
                total = (slope - public) / (clips[i] / (N * LATTICE))
                found.append((total - reference.clipped_sums(X, B, clips)[i, j]) / sigma)
                B = new
                assert isinstance(update, LocalUpdate)
            seen[site, start] = np.array(found)
    return Released(seen, sigma)


def check_released_noise(make: Make, *, rounds: int = 160, sites: int = 2) -> None:
    """Law, repetition and correlation of the noise over rounds, sites and restarts."""
    released = release(make, rounds=rounds, sites=sites)
    series = list(released.noise.values())
    whole = np.concatenate(series)
    # Rounding of a message shifts an integer a little: compare with a hundred lattice units of slack.
    gaps = np.diff(np.sort(whole)) * released.sigma
    assert gaps.min() > 100, f"{int((gaps <= 100).sum())} of {whole.size} draws of noise came twice"
    assert stats.kstest(whole, "norm").pvalue > FALSE_ALARM, f"spread {whole.std():.3f} of what was paid for"
    assert FALSE_ALARM < stats.chi2.cdf(np.sum(whole**2), whole.size) < 1 - FALSE_ALARM, f"spread {whole.std():.3f}"
    for one, first in enumerate(series):
        assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) * math.sqrt(first.size) < 5.5
        for second in series[one + 1 :]:
            assert abs(np.corrcoef(first, second)[0, 1]) * math.sqrt(first.size) < 5.5
