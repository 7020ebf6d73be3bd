"""Which rounds a run of a plan may have."""

from pathlib import Path

import pytest

import fedbnsl.plan
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import KINDS, may_be, most_iterations, n_rounds

READY = sorted(file.stem for file in (Path(fedbnsl.plan.__file__).parent / "ready").glob("*.toml"))
CATEGORIES = {name: {"kind": "binary", "levels": ["no", "yes"]} for name in "ab"}
PLANS = [
    *(Plan.load(name) for name in READY),
    Plan.load("standard", ["counts_rounds=0", "regressions_rounds=0", "look_for_curves=false"]),
    Plan.load("standard").with_settings(dictionary=CATEGORIES),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_run_may_have_rounds_of_the_kinds_of_its_plan_and_of_no_other(plan: Plan) -> None:
    """The kinds by every number of iterations, one run after another."""
    in_some_run = {(t, kind) for run in _runs(plan) for t, kind in enumerate(run, start=1)}
    rounds = range(1, n_rounds(plan) + most_iterations(plan) + 1)
    assert {(t, kind) for t in rounds for kind in KINDS if may_be(plan, t, kind)} == in_some_run


def _runs(plan: Plan) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for name, kind in KINDS.items():
        most = kind.most_iterations(plan) if hasattr(kind, "most_iterations") else 0
        own = kind.n_rounds(plan)
        runs = [[*run, *[name] * (own + k)] for run in runs for k in range(most + 1)]
    return runs
