"""The figures of private runs: accuracy by epsilon with exact and with estimated second moments, time of a step."""

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fedbnsl.compiled import exact_sums
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_client.privacy import randomness
from fedbnsl_client.solvers.dp_pgcd import DpPgcd
from fedbnsl_client.solvers.local_solver import private_solver
from fedbnsl_research.bench.generated import Generated
from fedbnsl_research.private_plans import EPSILONS, private_plan, private_plan_200
from fedbnsl_research.reproduce.private_study_plans import with_privacy
from fedbnsl_research.trials.harness import N_SAMPLES, Row, by_seed, mean_of, oracles, timed
from fedbnsl_workbench.tables.synthetic import synthesise

_EVALUATED = Generated(20, range(2, 12))


def privacy() -> Iterator[Row]:
    """Accuracy on graphs that nothing was tuned on, then the time of a step."""
    for epsilon in EPSILONS:
        yield _compared(private_plan(epsilon), _EVALUATED)
    exact = _accuracy(private_plan_200(), Generated(200, range(2, 4)))
    yield {"figure": "d=200, epsilon 10, exact second moments", **exact}
    yield _time_of_a_step()


def _compared(plan: Plan, data: Generated) -> Row:
    """The estimated mode against the exact mode, which knows the second moments and spends budget on steps only."""
    estimated, exact = _accuracy(plan, data), _accuracy(with_privacy(plan, smoothness="exact"), data)
    apart = estimated["mean SHD"] - exact["mean SHD"]
    return {
        "figure": f"private, d={data.d}, P={data.n_sites}, epsilon {plan.privacy.epsilon:g}" if plan.privacy else "",
        "seeds": data.seed_range,
        "SHD exact": f"{exact['mean SHD']} +- {exact['std']}",
        "SHD estimated": f"{estimated['mean SHD']} +- {estimated['std']}",
        "apart": f"{apart:+.2f}",
        "exact by seed": exact["SHD by seed"],
        "estimated by seed": estimated["SHD by seed"],
        "MB serialised": estimated["MB serialised"],
        "s a run": estimated["s a run"],
    }


def _accuracy(plan: Plan, data: Generated) -> Row:
    (rows,) = data.rows(plan)
    return {
        "mean SHD": mean_of(rows, "shd"),
        "std": round(statistics.stdev(row["shd"] for row in rows), 2),
        "SHD by seed": by_seed(rows, "shd"),
        "MB serialised": mean_of(rows, "mb_serialised"),
        "s a run": mean_of(rows, "seconds"),
    }


def _time_of_a_step() -> Row:
    """One private step at d=200, selection and noise from the operating system's entropy included.

    Against reading n x d doubles once from memory, and against a literal NumPy reading of Algorithm 2.
    """
    steps, literal_steps = 200, 2
    X = synthesise(200, 200, 1, N_SAMPLES, 2).tables[0]
    d = X.shape[1]
    plan = private_plan_200().with_settings(local_steps=steps)
    price, privacy = price_of(plan, n_samples=N_SAMPLES, n_variables=d), plan.privacy
    assert privacy is not None  # noqa: S101
    zero, allowed = np.zeros((d, d)), ~np.eye(d, dtype=bool)
    solve = private_solver(plan, privacy, price, X, allowed, None, randomness.system)
    assert isinstance(solve, DpPgcd)  # noqa: S101
    M = (X * X).mean(axis=0) + plan.consensus_penalty
    literal = partial(
        oracles().literal_dp_pgcd,
        X,
        zero,
        zero,
        zero,
        M=M,
        lam=plan.l1_weight,
        rho_2=plan.consensus_penalty,
        gamma=plan.step_size,
        steps=literal_steps,
        clip=privacy.clip,
        sharpness=price.sharpness,
        noise_multiplier=np.sqrt(price.update_variance) / 2**21,
        rng=np.random.default_rng(0),
    )
    large = np.ones(2**25)  # 256 MiB: more than any cache
    B = solve(zero, zero, zero)  # what is done once a run, and the compilation
    _read(large)
    ours: list[float] = []
    reading: list[float] = []
    theirs: list[float] = []
    for _ in range(5):
        seconds, B = timed(lambda: solve(B, zero, zero))  # noqa: B023
        ours.append(seconds / steps)
        seconds, _total = timed(lambda: _read(large))
        reading.append(seconds * X.size / large.size)
        seconds, _B = timed(literal)
        theirs.append(seconds / literal_steps)
    return {
        "figure": f"one private step at d=200, n={N_SAMPLES}",
        "ours / reading n x d doubles once": round(_median_ratio(ours, reading), 2),
        "literal NumPy / ours": round(_median_ratio(theirs, ours)),
        "us ours": round(1e6 * statistics.median(ours)),
        "us reading": round(1e6 * statistics.median(reading)),
        "us literal": round(1e6 * statistics.median(theirs)),
    }


def _median_ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


@exact_sums
def _read(values: Any) -> float:
    """Touch every double once, as fast as memory gives them."""
    total = 0.0
    for k in range(values.size):
        total += values[k]
    return total
