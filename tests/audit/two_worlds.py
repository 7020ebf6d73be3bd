"""Two tables that differ in one record, the real code on both, and the best test that knows everything else.

The test's statistic is the log-likelihood ratio of what was sent under the ideal mechanism, from audit.reference. If it
tells the tables apart better than (epsilon, delta) allows, beyond any doubt of sampling, the guarantee is broken.
"""

import math
from dataclasses import dataclass
from functools import cache
from unittest import mock

import numpy as np
from scipy import stats

from audit import reference
from audit.reference import LATTICE
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.admm import Task
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.rounds import kinds

N, ROUNDS, CLIP, MOMENT, GAMMA = 40, 3, 10.0, 1.0, 1e-6
# A delta so large makes the test sharp: the conversion from zCDP is tightest where the tails do not matter.
EPSILON, DELTA = 1.0, 0.05
CONFIDENCE = 0.99


def plan(selection_share: float = 0.5) -> Plan:
    return Plan.parse(
        {
            "variables": ("a", "b"),
            "local_solver": "dp-pgcd",
            "rounds": ROUNDS,
            "local_steps": 1,
            "l1_weight": 0.0,
            "step_size": GAMMA,
            "consensus_penalty": 1.0,
            "refit_rounds": 0,
            "privacy": {
                "epsilon": EPSILON,
                "delta": DELTA,
                "clip": CLIP,
                "smoothness": "public",
                "second_moments": [MOMENT],
                "selection_share": selection_share,
            },
        }
    )


def worlds() -> tuple[Matrix, Matrix]:
    """The last record pulls both gradients as far down, or as far up, as clipping lets it."""
    X = np.random.default_rng(6).normal(size=(N, 2)) * 0.5
    A, B = X.copy(), X.copy()
    A[-1], B[-1] = (1e4, 1e4), (1e4, -1e4)
    return A, B


# One entry pulls up, the other down: the record's two pushes then favour one and disfavour the other.
W = np.array([[0.0, 8.0], [-8.0, 0.0]])


def run(settings: Plan, X: Matrix, seed: str) -> list[Matrix]:
    """B_p as sent in every round."""
    site = Participant("site", Dataset(("a", "b"), X), settings, randbelow=randomness.seeded(seed))
    sent = SparseMatrix.from_dense(W)
    tasks = [RoundTask(t, Task(sent), t > 1) for t in range(1, ROUNDS + 1)]
    return [site.handle(task).content.weights.to_dense() for task in tasks]


@dataclass(frozen=True)
class Ideal:
    """The mechanism as it is meant, once for both worlds."""

    sharpness: float
    sigma: float
    M: Matrix
    clips: Matrix

    @classmethod
    def of(cls, settings: Plan) -> "Ideal":
        assert settings.privacy is not None
        share, M = settings.privacy.selection_share, np.full(2, MOMENT) + settings.consensus_penalty
        # By Gaussian DP all steps cost as much as so many single ones, by zCDP as ROUNDS; the run has the lesser noise.
        steps = reference.steps_and_selections(share, 1 - share, ROUNDS)
        step = max(reference.budget(EPSILON, DELTA) / ROUNDS, reference.gaussian_budget(EPSILON, DELTA) / steps)
        return cls(
            math.sqrt(2 * share * step),
            2 * LATTICE / math.sqrt(2 * (1 - share) * step),
            M,
            reference.thresholds(M, CLIP),
        )

    def log_likelihood(self, X: Matrix, sent: list[Matrix]) -> float:
        B, beta, logs = np.zeros((2, 2)), np.zeros((2, 2)), 0.0
        unit = self.clips / (N * LATTICE)
        # B hardly moves with so small a step, and only the huge record's residuals notice: it is clipped all the same.
        for new in sent:
            sums = _sums(X.tobytes(), tuple(self.clips))
            public = beta + (B - W)
            slopes = sums * unit[:, None] + public
            scores = np.abs(slopes) / np.sqrt(self.M)[:, None] / (2 * self.clips[0] / (N * math.sqrt(self.M[0])))
            if new[0, 1] != B[0, 1] and new[1, 0] != B[1, 0]:
                raise AssertionError("one step changed two entries")
            i, j = (0, 1) if new[0, 1] != B[0, 1] else (1, 0)
            logits = self.sharpness * np.array([scores[0, 1], scores[1, 0]])
            logs += logits[0 if i == 0 else 1] - np.logaddexp(*logits)
            total = ((B[i, j] - new[i, j]) * self.M[i] / GAMMA - public[i, j]) / unit[i]
            logs -= 0.5 * ((total - sums[i, j]) / self.sigma) ** 2
            B = new
            beta = beta + (B - W)
        return float(logs)


@cache
def _sums(table: bytes, clips: tuple[float, float]) -> Matrix:
    return reference.clipped_sums(np.frombuffer(table).reshape(N, 2), np.zeros((2, 2)), np.array(clips))


def statistics(n_runs: int, *, selection_share: float = 0.5) -> tuple[Matrix, Matrix]:
    """The log-likelihood ratio of every run in world A and of every run in world B."""
    settings = plan(selection_share)
    ideal, (A, B) = Ideal.of(settings), worlds()
    ratios = []
    # The price knows no data, and is most of the work of a run so small.
    with mock.patch.object(kinds, "price_of", cache(kinds.price_of)):
        for world, X in (("A", A), ("B", B)):
            runs = [run(settings, X, f"{world} {k}") for k in range(n_runs)]
            ratios.append(np.array([ideal.log_likelihood(A, sent) - ideal.log_likelihood(B, sent) for sent in runs]))
    return ratios[0], ratios[1]


# Fixed before any run. Where the likelihood ratio is e^epsilon, more cannot be gained from (epsilon, delta).
THRESHOLDS = (0.0, 0.4, 0.8)


def epsilon_at_least(in_A: Matrix, in_B: Matrix) -> float:
    """An epsilon below the true one, at DELTA, with 99 % confidence over all thresholds, in both directions."""
    error = (1 - CONFIDENCE) / (4 * len(THRESHOLDS))
    best = 0.0
    for true, false in ((in_A, in_B), (-in_B, -in_A)):
        for threshold in THRESHOLDS:
            hits, alarms = int((true > threshold).sum()), int((false > threshold).sum())
            tpr_low = float(stats.beta.ppf(error, hits, true.size - hits + 1)) if hits else 0.0
            fpr_high = float(stats.beta.ppf(1 - error, alarms + 1, false.size - alarms)) if alarms < false.size else 1.0
            if tpr_low > DELTA:
                best = max(best, math.log((tpr_low - DELTA) / fpr_high))
    return best


def check_bound(in_A: Matrix, in_B: Matrix) -> float:
    """The lower bound, which must not be above the claim."""
    found = epsilon_at_least(in_A, in_B)
    assert found <= EPSILON, f"at least epsilon {found:.2f} where {EPSILON:g} was claimed"
    return found


def check_law(in_A: Matrix, in_B: Matrix) -> None:
    """A likelihood ratio has mean 1 in the world of its denominator: if the code draws from another law, it has not."""
    for ratios in (np.exp(-in_A), np.exp(in_B)):
        off = (ratios.mean() - 1.0) / (ratios.std() / math.sqrt(ratios.size))
        assert abs(off) < 5.0, f"mean likelihood ratio {ratios.mean():.3f}, {off:.1f} standard errors from 1"
