"""Settings of private runs, found on generated graphs (seeds 100 and up) with d = 20, P = 8, 5000 rows a site."""

from collections.abc import Iterable
from typing import Any

from fedbnsl.plan.plan import Plan

_COMMON: dict[str, Any] = {
    "n_participants": 8,
    "local_solver": "dp-pgcd",
    "refit_rounds": 0,
    "acyclicity_schedule": "augmented",
}

# By epsilon: settings of the plan, then of its [privacy].
_TUNED: dict[float, tuple[dict[str, Any], dict[str, Any]]] = {
    0.5: (
        {"rounds": 80, "local_steps": 6, "l1_weight": 0.099, "consensus_penalty": 0.425, "threshold": 0.4}
        | {"acyclicity_penalty": 10.0, "acyclicity_growth": 1.241},
        {"clip": 16.45, "feature_bounds": [50.0], "smoothness_share": 0.1, "selection_share": 0.7},
    ),
    1.0: (
        {"rounds": 70, "local_steps": 6, "l1_weight": 0.032, "consensus_penalty": 1.04, "threshold": 0.35}
        | {"acyclicity_penalty": 16.0, "acyclicity_growth": 1.1},
        {"clip": 10.8, "feature_bounds": [100.0], "smoothness_share": 0.1, "selection_share": 0.6},
    ),
    2.0: (
        {"rounds": 136, "local_steps": 6, "l1_weight": 0.032, "consensus_penalty": 1.04, "threshold": 0.3}
        | {"acyclicity_penalty": 16.0, "acyclicity_growth": 1.1},
        {"clip": 10.8, "feature_bounds": [100.0], "smoothness_share": 0.05, "selection_share": 0.6},
    ),
    5.0: (
        {"rounds": 136, "local_steps": 15, "l1_weight": 0.032, "consensus_penalty": 1.04, "threshold": 0.35}
        | {"acyclicity_penalty": 16.0, "acyclicity_growth": 1.1},
        {"clip": 12.0, "feature_bounds": [100.0], "smoothness_share": 0.1, "selection_share": 0.6},
    ),
    10.0: (
        {"rounds": 80, "local_steps": 31, "l1_weight": 0.032, "consensus_penalty": 0.54, "threshold": 0.4}
        | {"acyclicity_penalty": 0.067, "acyclicity_growth": 1.3},
        {"clip": 16.8, "feature_bounds": [100.0], "smoothness_share": 0.1, "selection_share": 0.35},
    ),
}

EPSILONS = tuple(_TUNED)
"""Budgets for which there are settings."""


def private_plan(epsilon: float, overrides: Iterable[str] = ()) -> Plan:
    """The plan for one of the tuned budgets, as in plans/private-epsilon-*.toml."""
    settings, privacy = _TUNED[epsilon]
    name = f"private-epsilon-{epsilon:g}"
    return Plan.with_overrides(overrides, **_COMMON, name=name, **settings, privacy={"epsilon": epsilon, **privacy})


def private_plan_200() -> Plan:
    """Settings for d = 200 at epsilon 10 with exact second moments, found on such graphs (seeds 100 and 101)."""
    settings = {
        "rounds": 80,
        "local_steps": 40,
        "l1_weight": 0.04,
        "consensus_penalty": 0.8,
        "acyclicity_penalty": 1.0,
        "acyclicity_growth": 1.2,
        "threshold": 0.4,
    }
    privacy = {"epsilon": 10.0, "clip": 80.0, "selection_share": 0.6, "smoothness": "exact"}
    return Plan.parse({**_COMMON, "name": "private-d200-epsilon-10", **settings, "privacy": privacy})
