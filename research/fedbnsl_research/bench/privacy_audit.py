"""An audit of released second moments at production size: thousands of canaries in one run, and a planted fault."""

import math
from collections.abc import Iterator

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE, price_of
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.private_moments import release_residual_moments
from fedbnsl_research.bench.one_run import is_refuted, least_mu
from fedbnsl_research.trials.harness import Row

_PLAN = "private-moments"
_COLUMNS = 300
_ROWS = 50_000
_EPSILONS = (1.0, 5.0)
_LEVEL = 0.05
_GUESSED = 0.05
"""Share of coins that are guessed: the surest. Of an ideal mechanism the bound is far lower if all of them are."""


def privacy_audit() -> Iterator[Row]:
    """The releases of a run as they are, and with a quarter of the variance, which must be flagged."""
    for epsilon in _EPSILONS:
        plan = Plan.load(_PLAN, epsilon=epsilon)
        for what, divisor in (("as it is", 1), ("planted: a quarter of the variance", 4)):
            yield audited(plan, d=_COLUMNS, n_rows=_ROWS, what=what, divisor=divisor)


def audited(plan: Plan, *, d: int, n_rows: int, what: str, divisor: int) -> Row:
    """One run's releases of residual moments, and what the guesses of its canaries' coins tell of mu.

    The coordinator asks for the same residuals in every round, and knows all but the coins. A canary has the residuals
    R (e_a + e_b) / sqrt(2) or R (e_a - e_b) / sqrt(2), by its coin: as far apart as two records can be. There is one
    for each pair (a, b), so that its coin moves an entry of the sums that no other one's coin does.
    """
    if plan.privacy is None:
        raise ValueError("a plan without privacy claims nothing")
    drawn, price = np.random.default_rng(d), price_of(plan, n_samples=n_rows, n_variables=d)
    R = plan.privacy.residual_norm_bound(d)
    a, b = np.triu_indices(d, 1)
    coins = drawn.choice([-1.0, 1.0], len(a))
    canaries = np.zeros((len(a), d))
    place = np.arange(len(a))
    canaries[place, a], canaries[place, b] = R / math.sqrt(2.0), coins * R / math.sqrt(2.0)
    Z = drawn.standard_normal((n_rows - len(a), d))
    W = np.triu(drawn.uniform(-1.0, 1.0, (d, d)) * (drawn.random((d, d)) < 2.0 / d), 1)
    scales = drawn.uniform(0.5, 2.0, d)
    X: Matrix = np.asarray(
        np.linalg.solve((np.eye(d) - W).T, (np.vstack([canaries, Z]) * scales).T).T, dtype=np.float64
    )
    known = _products(Z, R)  # and of the canaries 0 in the mean over coins
    told = np.zeros((d, d))
    for _ in range(plan.moments_rounds):
        released = release_residual_moments(X, W, scales, R, price.moments_variance // divisor, randomness.system)
        told += released * n_rows * LATTICE / R**2 - known
    score = told[a, b]
    sure = np.argsort(-np.abs(score))[: round(_GUESSED * len(a))]
    n_right = int((np.sign(score[sure]) == coins[sure]).sum())
    mu = (math.sqrt(2.0) * LATTICE + d) / math.sqrt(price.moments_variance) * math.sqrt(plan.moments_rounds)
    guessed = {"n_right": n_right, "n_guesses": len(sure), "n_canaries": len(a)}
    return {
        "figure": f"{plan.name}, epsilon {plan.privacy.epsilon:g}, d={d}, {n_rows:,} rows: {what}",
        "canaries": len(a),
        "guessed": len(sure),
        "right": n_right,
        "claimed mu": round(mu, 4),
        "mu at least (95 %)": round(least_mu(**guessed, level=_LEVEL), 4),
        "claim refuted at 5 %": is_refuted(mu, **guessed, level=_LEVEL),
    }


def _products(Z: Matrix, norm_bound: float) -> Matrix:
    """(d, d) sums of products of clipped records, in units of R^2 / LATTICE."""
    clipped = Z / np.maximum(np.linalg.norm(Z, axis=1), norm_bound)[:, None]
    return np.asarray(LATTICE * clipped.T @ clipped)
