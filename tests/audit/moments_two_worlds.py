"""Two tables that differ in one record, the real release of residual moments on both, and the best test there is.

As two_worlds does for whole rounds of steps: the statistic is the log-likelihood ratio under the ideal mechanism.
"""

import math

import numpy as np

from audit import reference
from audit.reference import LATTICE
from audit.two_worlds import DELTA, EPSILON
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import calibration as pricing
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.privacy import private_moments, randomness

N, D = 20, 2
W = np.array([[0.0, 1.5], [0.0, 0.0]])
SCALES = np.array([2.0, 0.5])
SHARE = 1.0 - 1e-9


def plan() -> Plan:
    """All but nothing of the budget goes into one release."""
    privacy = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "feature_bounds": [1.0],
        "smoothness_share": 1.0 - SHARE,
        "moments_share": SHARE,
        "moments_norm_bound": 1.0,
    }
    given = {"local_solver": "dp-pgcd", "rounds": 1, "local_steps": 1, "refit_rounds": 0, "moments_rounds": 1}
    return Plan.parse({**given, "privacy": privacy})


def worlds() -> tuple[Matrix, Matrix]:
    """The residuals of the last record are as long as they count, and in one world orthogonal to those in the other."""
    X = np.random.default_rng(6).normal(size=(N, D))
    A, B = X.copy(), X.copy()
    A[-1], B[-1] = (0.0, 1e6), (1e6, 1.5e6)
    return A, B


def statistics(n_runs: int = 2000) -> tuple[Matrix, Matrix]:
    """The log-likelihood ratio of every release in world A and of every release in world B."""
    settings = plan()
    assert settings.privacy is not None
    bound = settings.privacy.residual_norm_bound(D)
    price = pricing.price_of(settings, n_samples=N, n_variables=D)
    in_A, in_B = (reference.moment_sums(X, W, SCALES, bound) for X in worlds())
    ideal = (math.sqrt(2) * LATTICE + D) ** 2 / (2 * reference.budget(EPSILON, DELTA))
    variance = np.where(np.eye(D, dtype=bool), ideal, ideal / 2)

    def ratio(X: Matrix, seed: str) -> float:
        released = private_moments.release_residual_moments(
            X, W, SCALES, bound, price.moments_variance, randomness.seeded(seed)
        )
        y = released * N * LATTICE / bound**2
        return float(np.triu(((y - in_B) ** 2 - (y - in_A) ** 2) / (2 * variance)).sum())

    A, B = worlds()
    return (
        np.array([ratio(A, f"moments A {k}") for k in range(n_runs)]),
        np.array([ratio(B, f"moments B {k}") for k in range(n_runs)]),
    )
