"""Ready plans keep the settings that their figures were measured with, and state only what differs, with the reason."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.plan_file import tuned_epsilons
from fedbnsl.plan.preparation import Preparation
from fedbnsl.plan.ready_files import READY_PLANS

# What the project's figures and the paper's studies were run with. A change here changes results: never in passing.
DEFAULTS: dict[str, Any] = {
    "variables": [],
    "n_participants": 3,
    "quorum": 0,
    "rounds": 80,
    "consensus_penalty": 3.0,
    "acyclicity_schedule": "continuation",
    "acyclicity_penalty": 1.0,
    "acyclicity_growth": 1.2,
    "global_iterations": 20,
    "global_gain": 0.1,
    "local_solver": "pgcd",
    "l1_weight": 0.1,
    "step_size": 1.0,
    "local_steps": 100_000,
    "local_tol": 1e-4,
    "threshold": 0.3,
    "refit_rounds": 1,
    "refit_threshold": 0.05,
    "moments_rounds": 0,
    "counts_rounds": 0,
    "regressions_rounds": 0,
    "look_for_curves": False,
    "look_at_noise": False,
    "tell_means": False,
    "validation": "none",
    "neighbour_threshold": 0.01,
    "final_search": "none",
    "graph_class": "dag-equal-variance",
    "hidden_causes": "allowed",
    "search_seed": 0,
    "bootstrap": 100,
    "value_type": "float64",
    "send_tolerance": 0.0,
    "send_step": 0.0,
    "join_deadline_s": 600.0,
    "round_deadline_s": 600.0,
    "site_grace_s": 30.0,
    "run_deadline_s": 86_400.0,
    "rpc_timeout_s": 30.0,
    "knowledge": {"required": [], "forbidden": [], "tiers": []},
    "privacy": None,
    "preparation": None,
}
PRIVACY_DEFAULTS: dict[str, Any] = {
    "delta": 0.0,
    "clip": 10.0,
    "smoothness": "estimated",
    "feature_bounds": [],
    "second_moments": [],
    "smoothness_share": 0.2,
    "selection_share": 0.5,
    "moments_share": 0.7,
    "moments_norm_bound": 0.55,
    "row_norm_bound": 10.0,
}
PAPER = {
    "rounds": 100,
    "acyclicity_schedule": "augmented",
    "acyclicity_growth": 1.0,
    "global_gain": 0.0,
    "refit_rounds": 0,
}
LEAN = {
    "local_steps": 1_000_000,
    "rounds": 10,
    "local_tol": 0.01,
    "refit_rounds": 0,
    "moments_rounds": 1,
    "neighbour_threshold": 0.005,
    "value_type": "float32",
    "send_tolerance": 0.01,
    "send_step": 0.001953125,
}
PRIVATE_MOMENTS = {
    "n_participants": 8,
    "rounds": 0,
    "local_solver": "dp-pgcd",
    "local_steps": 1,
    "refit_rounds": 0,
    "moments_rounds": 4,
    "value_type": "float32",
    "privacy": {"epsilon": 1.0, "feature_bounds": [100.0], "smoothness_share": 0.05},
}
PRIVATE_STEPS = {
    "n_participants": 8,
    "local_solver": "dp-pgcd",
    "refit_rounds": 0,
    "acyclicity_schedule": "augmented",
    "final_search": "steps",
    "value_type": "float32",
}
# By epsilon: rounds, steps, lambda, rho_2, rho_1, its growth, tau; C, bound, shares for moments and for choosing.
STEPS_BY_EPSILON = {
    0.5: (80, 6, 0.099, 0.425, 10.0, 1.241, 0.4, 16.45, 50.0, 0.1, 0.7),
    1.0: (70, 6, 0.032, 1.04, 16.0, 1.1, 0.35, 10.8, 100.0, 0.1, 0.6),
    2.0: (136, 6, 0.032, 1.04, 16.0, 1.1, 0.3, 10.8, 100.0, 0.05, 0.6),
    5.0: (136, 15, 0.032, 1.04, 16.0, 1.1, 0.35, 12.0, 100.0, 0.1, 0.6),
    10.0: (80, 31, 0.032, 0.54, 0.067, 1.3, 0.4, 16.8, 100.0, 0.1, 0.35),
}


def private_steps(epsilon: float) -> dict[str, Any]:
    rounds, steps, lam, rho_2, rho_1, growth, tau, clip, bound, moments, choosing = STEPS_BY_EPSILON[epsilon]
    settings = {"rounds": rounds, "local_steps": steps, "l1_weight": lam, "consensus_penalty": rho_2, "threshold": tau}
    privacy = {"clip": clip, "feature_bounds": [bound], "smoothness_share": moments, "selection_share": choosing}
    schedule = {"acyclicity_penalty": rho_1, "acyclicity_growth": growth}
    return {**PRIVATE_STEPS, **settings, **schedule, "privacy": {"epsilon": epsilon, **privacy}}


FROZEN: list[tuple[str, float | None, dict[str, Any]]] = [
    ("fed-sparse", None, {}),
    ("lean", None, LEAN),
    (
        "paper-homogeneous",
        None,
        {**PAPER, "n_participants": 8, "consensus_penalty": 1.0, "acyclicity_penalty": 1000.0, "step_size": 0.5},
    ),
    (
        "paper-sachs",
        None,
        {**PAPER, "consensus_penalty": 5.0, "acyclicity_penalty": 1e4, "l1_weight": 1.0, "step_size": 0.1}
        | {"threshold": 0.1},
    ),
    ("private-moments", None, PRIVATE_MOMENTS),
    ("private-steps", None, private_steps(5.0)),
    *(("private-steps", epsilon, private_steps(epsilon)) for epsilon in STEPS_BY_EPSILON),
    (
        "standard",
        None,
        {
            **LEAN,
            "local_steps": 100_000,
            "send_step": 0.0,
            "l1_weight": 0.02,
            "moments_rounds": 2,
            "counts_rounds": 5,
            "regressions_rounds": 12,
            "look_for_curves": True,
            "look_at_noise": True,
            "tell_means": True,
            "validation": "sums",
            "graph_class": "cpdag",
            "threshold": 0.0,
        }
        | {"neighbour_threshold": 0.01, "preparation": Preparation(missing="em", outlying="missing").model_dump()},
    ),
    (
        "private",
        None,
        {**PRIVATE_MOMENTS, "graph_class": "cpdag", "threshold": 0.0, "preparation": Preparation().model_dump()}
        | {"look_for_curves": True, "tell_means": True, "validation": "at_site"}
        | {
            "privacy": {
                "epsilon": 1.0,
                "delta": 1e-8,
                "secure_aggregation": True,
                "smoothness_share": 0.1,
                "moments_norm_bound": 0.7,
            }
        },
    ),
]
each_name = pytest.mark.parametrize("name", sorted({name for name, _, _ in FROZEN}))


def file_of(name: str) -> str:
    return READY_PLANS.file(name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "epsilon", "differing"), FROZEN)
def test_a_ready_plan_has_the_very_settings_that_its_figures_were_measured_with(
    name: str, epsilon: float | None, differing: dict[str, Any]
) -> None:
    expected = {**DEFAULTS, **differing}
    if expected["privacy"]:
        expected["privacy"] = {**PRIVACY_DEFAULTS, **expected["privacy"]}
    found = Plan.load(name, epsilon=epsilon).model_dump(mode="json")
    assert found.pop("name") == name
    frozen = {key: value for key, value in found.items() if key in expected}
    if found["privacy"]:
        frozen["privacy"] = {key: found["privacy"][key] for key in expected["privacy"]}
    assert frozen == expected
    newer = Plan().model_dump(mode="json")
    assert all(value == newer[key] for key, value in found.items() if key not in expected), "a new setting"


def test_every_ready_plan_is_frozen_here() -> None:
    assert {name for name, _, _ in FROZEN} == set(READY_PLANS.names())
    assert tuned_epsilons("private-steps") == tuple(STEPS_BY_EPSILON)
    assert tuned_epsilons("lean") == ()


@each_name
def test_a_ready_plan_states_only_what_differs_from_the_defaults(name: str) -> None:
    stated = tomllib.loads(file_of(name))
    by_epsilon, privacy = stated.pop("by_epsilon", {}), stated.pop("privacy", {})
    default = {**DEFAULTS, "name": "default"}
    assert not [key for key, value in stated.items() if value == default[key]]
    assert not [key for key, value in privacy.items() if value == PRIVACY_DEFAULTS.get(key)]
    columns = {**by_epsilon.pop("privacy", {}), **{k: v for k, v in by_epsilon.items() if k != "epsilon"}}
    defaults = {**DEFAULTS, **PRIVACY_DEFAULTS}
    assert not [key for key, values in columns.items() if all(value == defaults[key] for value in values)]


@each_name
def test_every_line_of_a_ready_plan_has_its_reason_and_the_file_says_what_it_is_for(name: str) -> None:
    text = file_of(name)
    settings = [line for line in text.splitlines() if re.match(r"[\w.]+ = ", line)]
    silent = [line for line in settings if not re.search(r"  # .{4,}", line)]
    assert {line.partition(" = ")[0] for line in silent} <= {"name", "epsilon"}
    assert len(settings) <= 23
    assert re.fullmatch(r"# .{20,}\.", text.splitlines()[0])
    assert max(map(len, text.splitlines())) <= 120


# ---- settings by epsilon -------------------------------------------------------------------------------------------

BY_EPSILON = """
local_solver = "dp-pgcd"
refit_rounds = 0
[privacy]
epsilon = 2.0
feature_bounds = [4.0]
[by_epsilon]
epsilon = [1.0, 4.0]
rounds = [10, 40]
local_steps = [1, 4]
privacy.clip = [0.5, 2.0]
"""


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.toml"
    path.write_text(BY_EPSILON, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("epsilon", "rounds"), [(0.001, 10), (1.0, 10), (1.99, 10), (2.0, 10), (2.01, 40), (4.0, 40), (900.0, 40)]
)
def test_a_budget_has_the_settings_of_the_one_that_is_nearest_by_ratio(
    tuned: Path, epsilon: float, rounds: int
) -> None:
    plan = Plan.load(tuned, epsilon=epsilon)
    assert plan.privacy is not None
    assert (plan.rounds, plan.local_steps, plan.privacy.clip) == (rounds, rounds // 10, rounds / 20)
    assert (plan.privacy.epsilon, plan.privacy.feature_bounds) == (epsilon, (4.0,))


def test_however_epsilon_is_given_it_chooses_the_same_settings(tuned: Path) -> None:
    plan = Plan.load(tuned, epsilon=3.0)
    assert plan == Plan.load(tuned, ["privacy.epsilon=3.0"])
    assert plan == Plan.load(tuned, ["privacy={epsilon = 3.0, feature_bounds = [4.0], clip = 2.0}"])
    tuned.write_text(BY_EPSILON.replace("epsilon = 2.0", "epsilon = 3.0"), encoding="utf-8")
    assert plan == Plan.load(tuned)


def test_an_override_goes_before_the_settings_of_a_budget(tuned: Path) -> None:
    plan = Plan.load(tuned, ["rounds=7", "privacy.clip=9.0"], epsilon=4.0, delta=1e-6)
    assert plan.privacy is not None
    assert (plan.rounds, plan.local_steps) == (7, 4)
    assert (plan.privacy.epsilon, plan.privacy.delta, plan.privacy.clip) == (4.0, 1e-6, 9.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_an_epsilon_that_is_none_is_refused_with_its_rule(tuned: Path, epsilon: float) -> None:
    with pytest.raises(PlanError, match=r"privacy\.epsilon = "):
        Plan.load(tuned, epsilon=epsilon)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("by_epsilon = 3", "needs a list `epsilon` of positive numbers"),
        ("[by_epsilon]\nrounds = [1]", "needs a list `epsilon` of positive numbers"),
        ("[by_epsilon]\nepsilon = []", "needs a list `epsilon` of positive numbers"),
        ("[by_epsilon]\nepsilon = [1.0, -1.0]", "needs a list `epsilon` of positive numbers"),
        ("[by_epsilon]\nepsilon = [1.0, true]", "needs a list `epsilon` of positive numbers"),
        ("[by_epsilon]\nepsilon = [1.0, 2.0]\nrounds = [1]", "by_epsilon.rounds must list a value for each of the 2"),
        ("[by_epsilon]\nepsilon = [1.0, 2.0]\nrounds = 1", "by_epsilon.rounds must list a value for each of the 2"),
        ("[by_epsilon]\nepsilon = [1.0]\nround = [1]", "round = 1: no such setting; did you mean rounds?"),
        ("[by_epsilon]\nepsilon = [1.0]\nrounds.x = [1]\n[x]\n", "no such setting|not a table"),
    ],
)
def test_a_table_by_epsilon_that_does_not_fit_is_refused(tmp_path: Path, table: str, said: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(table, encoding="utf-8")
    with pytest.raises(PlanError, match=said):
        Plan.load(path)


@pytest.mark.parametrize("privacy", ["privacy = 3", "privacy.epsilon = 'much'", "privacy = {}"])
def test_impossible_privacy_is_refused_with_a_table_by_epsilon_too(tmp_path: Path, privacy: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"{privacy}\n[by_epsilon]\nepsilon = [1.0]\nrounds = [1]\n", encoding="utf-8")
    with pytest.raises(PlanError, match="privacy"):
        Plan.load(path)


# ---- names and paths -----------------------------------------------------------------------------------------------


def test_a_name_goes_before_a_file_of_that_name_and_a_path_is_never_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lean", "lean.toml", "own"):
        Path(name).write_text(f'name = "{name} in this folder"', encoding="utf-8")
    assert Plan.load("lean").name == "lean"
    for path in ("./lean", Path("lean")):
        assert Plan.load(path).name == "lean in this folder"
    assert Plan.load("lean.toml").name == "lean.toml in this folder"
    assert Plan.load("own").name == "own in this folder", "no ready plan has this name"


def test_a_name_that_is_none_is_answered_with_those_that_are_near() -> None:
    with pytest.raises(PlanError, match=r"'private-step' is neither .* did you mean private-steps .*plan list"):
        Plan.load("private-step")
    with pytest.raises(PlanError, match=r"'zzz' is neither a ready plan nor a file; fedbnsl plan list"):
        Plan.load("zzz")


@pytest.mark.parametrize(
    ("overrides", "given", "said"),
    [
        ((), {"epsilon": 1.0}, r"plan lean has no \[privacy\], and so no epsilon"),
        ((), {"delta": 1e-6}, r"plan lean has no \[privacy\], and so no delta"),
        (["privacy.epsilon=2"], {"epsilon": 1.0}, "privacy.epsilon is given twice, by --epsilon and by --set"),
        (["privacy={delta = 1e-5}"], {"delta": 1e-6}, "privacy.delta is given twice, by --delta and by --set"),
    ],
)
def test_a_budget_without_privacy_or_given_twice_is_refused(
    overrides: list[str], given: dict[str, float], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.load("lean", overrides, **given)


def test_overrides_may_make_a_plan_private_that_epsilon_belongs_to() -> None:
    overrides = ["local_solver=dp-pgcd", "local_steps=5", "privacy.feature_bounds=[4.0]", "refit_rounds=0"]
    plan = Plan.load("fed-sparse", overrides, epsilon=1.0)
    assert plan.privacy is not None
    assert plan.privacy.epsilon == 1.0
