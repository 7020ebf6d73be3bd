"""Plans of the methods that are compared without privacy, and what a page says about them.

The paper's settings are those of its appendix on hyper-parameters. What is called tuned here was found on seeds 1, 100
and 400, by the ready grids of `fedbnsl tune`.
"""

from collections.abc import Mapping
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_research.reproduce.study import Settings
from fedbnsl_research.trials.plan_digest import short_digest
from fedbnsl_research.trials.trials import Trial

PAPER_CHOICE = "the paper's appendix on hyper-parameters: lowest SHD on its graph of seed 1"

_PAPER: dict[str, Any] = {
    "rounds": 100,
    "acyclicity_schedule": "augmented",
    "acyclicity_growth": 1.0,
    "consensus_penalty": 1.0,
    "refit_rounds": 0,
}


def paper_plan() -> Plan:
    """Fed-Sparse-BNSL with the paper's settings, which are the same for homogeneous and heterogeneous data."""
    settings = {"acyclicity_penalty": 1000.0, "l1_weight": 0.1, "step_size": 0.5}
    return Plan.parse({**_PAPER, "name": "paper, Fed-Sparse-BNSL", **settings})


def paper_fed_bnsl(*, heterogeneous: bool = False) -> Plan:
    """Fed-BNSL with the paper's settings."""
    rho_1, lam = (100.0, 0.1) if heterogeneous else (1000.0, 0.01)
    solver = {"local_solver": "closed-form", "acyclicity_penalty": rho_1, "l1_weight": lam}
    return Plan.parse({**_PAPER, "name": "paper, Fed-BNSL", **solver})


def tuned_fed_bnsl() -> Plan:
    """Fed-BNSL with all other settings of fed-sparse, such as schedule, refit, rho_2 and lambda."""
    return Plan.load("fed-sparse").with_settings(name="tuned, Fed-BNSL", local_solver="closed-form")


def paper_fed_bnsl_fw(local_steps: int) -> Plan:
    """Fed-BNSL-FW with the settings of Fed-Sparse-BNSL, since the paper gives none, and this many steps per round."""
    solver = {"name": "paper, Fed-BNSL-FW", "local_solver": "frank-wolfe", "local_steps": local_steps, "step_size": 1.0}
    return paper_plan().with_settings(**solver)


def own_settings(plan: Plan) -> dict[str, Any]:
    """The settings of a plan that are not the default ones, as plain values: `Plan.parse` makes the plan of them."""
    default, values = Plan().model_dump(mode="json"), plan.model_dump(mode="json")
    return {key: value for key, value in values.items() if value != default[key]}


def plan_trials(head: Trial, plans: Mapping[str, tuple[Plan, str]]) -> list[Trial]:
    """A trial for each method's plan: another default makes another digest, and so another trial."""
    return [
        {**head, "method": method, "plan": own_settings(plan), "digest": short_digest(plan)}
        for method, (plan, _) in plans.items()
    ]


def plan_settings(plans: Mapping[str, tuple[Plan, str]], *, data: str = "") -> list[Settings]:
    """What a page says about each method's plan and how it was chosen; `data` is appended to the method's name."""
    return [Settings(method + data, shown_settings(plan), chosen) for method, (plan, chosen) in plans.items()]


def shown_settings(plan: Plan) -> dict[str, Any]:
    """What a reader needs to run a method again: the settings that count for it, and all that are not the default."""
    names = ["local_solver", "rounds", "consensus_penalty", "l1_weight", "acyclicity_schedule"]
    if plan.acyclicity_schedule == "augmented":
        names += ["acyclicity_penalty", "acyclicity_growth"]
    if plan.local_solver == "pgcd":
        names += ["step_size", "local_tol"]
    elif plan.local_solver == "frank-wolfe":
        names += ["local_steps", "local_tol"]
    names += ["threshold", "refit_rounds"]
    values = plan.model_dump(mode="json")
    return {name: values[name] for name in dict.fromkeys([*names, *own_settings(plan)]) if name != "name"}
