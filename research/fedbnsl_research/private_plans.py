"""Settings of private runs, found on generated graphs (seeds 100 and up) with P = 8, 5000 rows a site."""

from fedbnsl.plan.plan import Plan
from fedbnsl.plan.plan_file import tuned_epsilons

EPSILONS = tuned_epsilons("private-steps")
"""Budgets for which there are settings at d = 20."""


def private_plan(epsilon: float) -> Plan:
    """Private steps for a budget, d = 20, with the settings of the nearest in `EPSILONS`."""
    return Plan.load("private-steps", epsilon=epsilon)


def steps_alone(epsilon: float) -> Plan:
    """The same as in the paper, without a search at the end: the graph is that of the last W."""
    return private_plan(epsilon).with_settings(final_search="none", value_type="float64")


def private_plan_200() -> Plan:
    """Settings for d = 200 at epsilon 10 with exact second moments, found on such graphs (seeds 100 and 101)."""
    settings = {
        "n_participants": 8,
        "local_solver": "dp-pgcd",
        "refit_rounds": 0,
        "acyclicity_schedule": "augmented",
        "rounds": 80,
        "local_steps": 40,
        "l1_weight": 0.04,
        "consensus_penalty": 0.8,
        "acyclicity_penalty": 1.0,
        "acyclicity_growth": 1.2,
        "threshold": 0.4,
    }
    privacy = {"epsilon": 10.0, "clip": 80.0, "selection_share": 0.6, "smoothness": "exact"}
    return Plan.parse({"name": "private-d200-epsilon-10", **settings, "privacy": privacy})
