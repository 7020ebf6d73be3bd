"""Plans of the private studies beside `private_plans`: larger budgets, more variables, the paper's settings, baselines.

All are the paper's method, without a search at the end. Found by `fedbnsl tune` with the ready grids private-*, never
on the graphs of an evaluation (seeds 2 to 11).
"""

from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy import zcdp
from fedbnsl_research.private_plans import EPSILONS, private_plan_200, steps_alone

STUDY_EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0)
"""The budgets of the paper's Figure 3."""

QUICK_EPSILONS = (0.5, 2.0, 10.0)

DIMENSIONS = (20, 50, 100, 200)
"""The numbers of variables of the paper's Figure 4."""

_COMMON: dict[str, Any] = {"n_participants": 8, "refit_rounds": 0, "acyclicity_schedule": "augmented"}


def with_privacy(plan: Plan, **changes: object) -> Plan:
    """A copy of a private plan with some settings of its [privacy] replaced."""
    return plan.with_settings(privacy={**plan.model_dump()["privacy"], **changes})


# The default: moments that are not released need no share of the budget.
_UNUSED_SHARE = Privacy.model_fields["smoothness_share"].default


def exactly(plan: Plan) -> Plan:
    """The same plan with exact second moments, which epsilon does not cover, as in the paper's main experiments."""
    return with_privacy(plan, smoothness="exact", feature_bounds=[], smoothness_share=_UNUSED_SHARE)


# Settings of the plan beyond those of `steps_alone`, then of its [privacy]: the same for epsilon 25 and 50.
_LARGE: tuple[dict[str, Any], dict[str, Any]] = (
    {"local_steps": 60, "l1_weight": 0.032, "threshold": 0.35},
    {"clip": 28.0},
)


def study_plan(epsilon: float) -> Plan:
    """Our plan for a budget of the study, d = 20, with privately estimated second moments."""
    if epsilon in EPSILONS:
        return steps_alone(epsilon)
    settings, privacy = _LARGE
    return with_privacy(steps_alone(epsilon).with_settings(**settings), **privacy)


# C, T and K by epsilon: the paper's table of tuned hyper-parameters. It has no row for 10; that one is the row for
# d = 20 of its dimensionality study, which has the same epsilon, lambda and gamma.
PAPER_SETTINGS: dict[float, tuple[float, int, int]] = {
    0.5: (10.0, 10, 10),
    1.0: (10.0, 10, 10),
    2.0: (5.0, 100, 10),
    5.0: (5.0, 100, 20),
    10.0: (10.0, 100, 30),
    25.0: (7.0, 100, 30),
    50.0: (5.0, 100, 50),
}


def _exact_plan(name: str, solver: str, epsilon: float, clip: float, **settings: float) -> Plan:
    """A plan with exact second moments."""
    privacy = {"epsilon": epsilon, "clip": clip, "smoothness": "exact"}
    own = {"name": f"{name}-epsilon-{epsilon:g}", "local_solver": solver, **settings}
    return Plan.parse({**_COMMON, **own, "privacy": privacy})


def paper_private_plan(epsilon: float) -> Plan:
    """The paper's hyper-parameters for a budget, under this program's mechanism and accounting."""
    clip, rounds, local_steps = PAPER_SETTINGS[epsilon]
    settings = {"l1_weight": 0.1, "step_size": 0.5, "consensus_penalty": 1.0, "threshold": 0.3}
    settings |= {"acyclicity_penalty": 1000.0, "acyclicity_growth": 1.0}
    return _exact_plan("paper", "dp-pgcd", epsilon, clip, rounds=rounds, local_steps=local_steps, **settings)


# By d at epsilon 10: settings, then those of [privacy]; 20 and 200 are in private_plans.
_WIDE: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {
    50: ({"local_steps": 31, "l1_weight": 0.032}, {"clip": 30.0}),
    100: ({"local_steps": 40}, {"clip": 40.0}),
}

# What estimating the second moments adds: bound on the squares, share of the budget.
_WIDE_ESTIMATES: dict[str, Any] = {"feature_bounds": [100.0], "smoothness_share": 0.1}


def wide_plan(d: int) -> Plan:
    """Our plan for d variables at epsilon 10, with privately estimated second moments."""
    if d == 20:
        return steps_alone(10.0)
    settings, privacy = _WIDE.get(d, ({}, {}))
    plan = private_plan_200().with_settings(name=f"private-d{d}-epsilon-10", **settings)
    return with_privacy(plan, smoothness="estimated", **privacy, **_WIDE_ESTIMATES)


# By d: settings, then row_norm_bound (b).
_COVARIANCE: dict[int, tuple[dict[str, Any], float]] = {
    20: ({"rounds": 60, "l1_weight": 0.01}, 15.0),
    50: ({"rounds": 50, "l1_weight": 0.3}, 15.0),
    100: ({"rounds": 50, "l1_weight": 0.3}, 17.0),
    200: ({"rounds": 100, "l1_weight": 0.03}, 14.0),
}


def covariance_plan(d: int) -> Plan:
    """DP-Fed-BNSL for d variables at epsilon 10."""
    settings, bound = _COVARIANCE[d]
    own = {"name": f"covariance-d{d}-epsilon-10", "local_solver": "noisy-covariance", **settings}
    return Plan.parse({**_COMMON, **own, "privacy": {"epsilon": 10.0, "row_norm_bound": bound}})


# By epsilon: T, K and C.
_LAPLACE: dict[float, tuple[int, int, float]] = {
    0.5: (20, 16, 8.0),
    1.0: (20, 4, 14.0),
    2.0: (40, 8, 14.0),
    5.0: (80, 16, 24.0),
    10.0: (80, 16, 14.0),
    25.0: (80, 16, 14.0),
    50.0: (80, 16, 24.0),
}


def laplace_plan(epsilon: float) -> Plan:
    """DP-PGCD of Mangold et al. with settings of its own, d = 20, exact second moments."""
    rounds, local_steps, clip = _LAPLACE[epsilon]
    settings = {"l1_weight": 0.06, "consensus_penalty": 0.6, "threshold": 0.35}
    settings |= {"acyclicity_penalty": 10.0, "acyclicity_growth": 1.2}
    return _exact_plan("laplace", "dp-pgcd-laplace", epsilon, clip, rounds=rounds, local_steps=local_steps, **settings)


def split_plan(share: float, n_samples: int) -> Plan:
    """Epsilon 5 with `share` of epsilon for the second moments, as the paper splits it.

    The second moments get the zCDP that share x 5 buys by itself at the same delta; the steps get all the rest of the
    zCDP of epsilon 5, which is more than (1 - share) x 5 would buy by itself.
    """
    plan = steps_alone(5.0)
    delta = 1.0 / n_samples**2
    part = zcdp.budget(share * 5.0, delta) / zcdp.budget(5.0, delta)
    return with_privacy(plan, smoothness_share=part)
