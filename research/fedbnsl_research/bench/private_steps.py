"""Time of private steps, against a literal version that draws the same integers: what late column weights save.

Processor time of the fastest turn: other work on the machine would hide a ratio near 1.
"""

import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import ExponentialMechanism, Selection
from fedbnsl_client.solvers.dp_pgcd import DpPgcd
from fedbnsl_client.solvers.local_solver import update_noise
from fedbnsl_client.solvers.settings import Settings
from fedbnsl_research.private_plans import private_plan, private_plan_200
from fedbnsl_research.trials.harness import N_SAMPLES, Row, oracles
from fedbnsl_workbench.tables.synthetic import synthesise

_TURNS = 40
_SEED = 2


def private_steps() -> Iterator[Row]:
    """A site's private round: columns weighed late and together, against weights computed at once, entry by entry."""
    literal = oracles().LiteralExponentialMechanism
    for d, plan in ((20, private_plan(10.0)), (200, private_plan_200())):
        X = synthesise(d, d, 1, N_SAMPLES, _SEED).tables[0]
        ours, before = (_solver(plan, X, mechanism) for mechanism in (ExponentialMechanism, literal))
        B = B_before = np.zeros((X.shape[1], X.shape[1]))
        least = least_before = math.inf  # of the least disturbed turn; never the first, with what is done once a run
        for _ in range(_TURNS):
            taken, B = _round(ours, B)
            least = min(least, taken)
            taken, B_before = _round(before, B_before)
            least_before = min(least_before, taken)
        yield {
            "figure": f"private round at d={d}, n={N_SAMPLES}, {plan.local_steps} steps: weights entry by entry / ours",
            "ratio": round(least_before / least, 2),
            "the same bits": np.array_equal(B, B_before),
            "us a step, ours": round(1e6 * least / plan.local_steps),
            "us a step, entry by entry": round(1e6 * least_before / plan.local_steps),
        }


def _round(solver: DpPgcd, B: Matrix) -> tuple[float, Matrix]:
    """Seconds of a local solve from B, and its result."""
    zero, started = np.zeros_like(B), time.thread_time()
    B = solver(B, zero, zero)
    return time.thread_time() - started, B


def _solver(plan: Plan, X: Matrix, mechanism: Callable[..., Selection]) -> DpPgcd:
    """The solver of a private plan with exact second moments and seeded noise, whatever picks its coordinates."""
    privacy, allowed = plan.privacy, ~np.eye(X.shape[1], dtype=bool)
    assert privacy is not None  # noqa: S101
    price = price_of(plan, n_samples=X.shape[0], n_variables=X.shape[1])
    return DpPgcd(
        X,
        (X * X).mean(axis=0) + plan.consensus_penalty,
        Settings.of(plan, allowed),
        clip=privacy.clip,
        selection=mechanism(price.sharpness, allowed),
        noise=update_noise(price),
        randbelow=randomness.seeded("private steps"),
    )
