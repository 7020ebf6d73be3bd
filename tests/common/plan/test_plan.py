"""A plan means the same to everybody, and a wrong one says what is wrong with it."""

import hashlib
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnsl.console.shown import shown
from fedbnsl.errors import LocalProtocolError, PlanError
from fedbnsl.plan.absent import Absent
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.earlier_versions import GONE
from fedbnsl.plan.knowledge import Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import Preparation
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.plan.settings import PRIVATE_SOLVERS
from fedbnsl.protocol.messages import is_variable_name
from fedbnsl.rounds.kinds import n_rounds, stage

PRIVATE = {"local_solver": "dp-pgcd", "refit_rounds": 0, "local_steps": 10}
BOUNDED = {"epsilon": 1.0, "feature_bounds": [4.0]}

# Setting -> values other than the default that are fine by themselves.
OTHER_VALUES: dict[str, list[Any]] = {
    "name": ["another", ""],
    "variables": [("x", "y"), ("y", "x")],
    "n_participants": [1, 4, 10_000],
    "quorum": [1, 3],
    "sites": [("a", "b", "c")],
    "max_rows": [1, 500],
    "consensus": ["median", "trimmed-mean"],
    "rounds": [1, 99, 100_000],
    "consensus_penalty": [0.5, 1e-300],
    "acyclicity_schedule": ["augmented"],
    "acyclicity_penalty": [2.0, 1e12],
    "acyclicity_growth": [1.0, 10.0],
    "global_iterations": [1, 21],
    "global_gain": [0.0, 0.2],
    "moments_rounds": [],
    "counts_rounds": [1, 20],
    "regressions_rounds": [1, 50],
    "look_for_curves": [True],
    "look_at_noise": [True],
    "tell_means": [True],
    "validation": ["sums", "at_site"],
    "graph_class": [],
    "hidden_causes": ["excluded"],
    "neighbour_threshold": [0.0, 0.2],
    "final_search": [],
    "search_seed": [1, 2**63 - 1],
    "bootstrap": [0, 20],
    "local_solver": ["closed-form", "frank-wolfe"],
    "l1_weight": [0.0, 0.07],
    "step_size": [0.5],
    "local_steps": [1, 10**9],
    "local_tol": [0.0, 1e-5],
    "threshold": [0.05, 0.4],
    "refit_rounds": [0, 10],
    "refit_threshold": [0.0, 0.3],
    "value_type": ["float32"],
    "send_tolerance": [0.01],
    "send_step": [2.0**-32, 0.001953125, 1.0],
    "join_deadline_s": [0.1],
    "round_deadline_s": [0.1],
    "site_grace_s": [0.1],
    "run_deadline_s": [0.1],
    "rpc_timeout_s": [0.1],
    "privacy": [
        BOUNDED,
        {**BOUNDED, "epsilon": 2.0},
        {**BOUNDED, "delta": 1e-6},
        {**BOUNDED, "clip": 1.0},
        {**BOUNDED, "smoothness": "exact"},
        {**BOUNDED, "feature_bounds": [5.0]},
        {**BOUNDED, "second_moments": [1.0]},
        {**BOUNDED, "smoothness_share": 0.3},
        {**BOUNDED, "selection_share": 0.3},
        {**BOUNDED, "row_norm_bound": 3.0},
    ],
    "preparation": [
        {"scale": "none"},
        {"scale": "none", "intercept": "common"},
        {"scale": "none", "missing": "refuse"},
        {"scale": "none", "missing_most": 0.1},
        {"scale": "none", "weighting": "sites"},
        {},
    ],
    "dictionary": [
        {"x": {"range": [0.0, 1.0]}, "y": {}},
        {"x": {"kind": "nominal", "levels": ["a", "b", "c"]}, "y": {"kind": "count", "unit": "days"}},
    ],
    "absent": [],
    "interventions": [],
    "knowledge": [
        {"required": [["x", "y"]]},
        {"forbidden": [["x", "y"]]},
        {"tiers": [["x"], ["y"]]},
        {"tiers": [["y"], ["x"]]},
    ],
}

# (setting, impossible value, words of the rule in the message). None: no value, only the rule is looked for.
IMPOSSIBLE: list[tuple[str, Any, str]] = [
    ("name", "n" * 201, "at most 200 characters"),
    ("name", 3, "valid string"),
    ("variables", ["x"], "at least two names"),
    ("variables", ["x", "x"], "without repetition"),
    ("variables", [1, 2], "valid string"),
    ("n_participants", 0, "greater than or equal to 1"),
    ("n_participants", 10_001, "less than or equal to 10000"),
    ("quorum", -1, "greater than or equal to 0"),
    ("quorum", 4, "at most n_participants"),
    ("sites", ["a", "b"], "as many names as n_participants"),
    ("sites", ["a", "b", "b"], "names without repetition"),
    ("sites", ["a", "b", "../c"], "letters, digits"),
    ("max_rows", 0, "greater than or equal to 1"),
    ("max_rows", 10**13, "less than or equal to"),
    ("consensus", "vote", "'mean', 'median' or 'trimmed-mean'"),
    ("rounds", 0, "at least 1 without private moments_rounds"),
    ("rounds", 100_001, "less than or equal to 100000"),
    ("rounds", 1.5, "integer"),
    ("rounds", "many", "integer"),
    ("consensus_penalty", 0.0, "greater than 0"),
    ("consensus_penalty", math.inf, "finite"),
    ("acyclicity_schedule", "linear", "'continuation' or 'augmented'"),
    ("acyclicity_penalty", 0.0, "greater than 0"),
    ("acyclicity_penalty", 1.1e12, "less than or equal to 1000000000000"),
    ("acyclicity_growth", 0.99, "greater than or equal to 1"),
    ("acyclicity_growth", math.nan, "finite"),
    ("global_iterations", 0, "greater than or equal to 1"),
    ("global_gain", 1.0, "less than 1"),
    ("neighbour_threshold", -0.1, "greater than or equal to 0"),
    ("graph_class", "cpdag", "without moments_rounds"),
    ("graph_class", "dag", "input should be"),
    ("final_search", "moments", "input should be"),
    ("search_seed", -1, "greater than or equal to 0"),
    ("search_seed", 2**63, "less than or equal to"),
    ("bootstrap", -1, "greater than or equal to 0"),
    ("bootstrap", 10_001, "less than or equal to 10000"),
    ("local_solver", "newton", "'pgcd', 'closed-form', 'frank-wolfe'"),
    ("local_solver", "dp-pgcd", "without [privacy]"),
    ("privacy", 5.0, "should be a table"),
    ("l1_weight", -0.1, "greater than or equal to 0"),
    ("step_size", 0.0, "greater than 0"),
    ("step_size", 1.5, "less than or equal to 1"),
    ("local_steps", 0, "greater than or equal to 1"),
    ("local_tol", -1e-9, "greater than or equal to 0"),
    ("threshold", -0.1, "greater than or equal to 0"),
    ("refit_rounds", -1, "greater than or equal to 0"),
    ("refit_rounds", 11, "less than or equal to 10"),
    ("counts_rounds", -1, "greater than or equal to 0"),
    ("counts_rounds", 21, "less than or equal to 20"),
    ("moments_rounds", 11, "less than or equal to 10"),
    ("look_for_curves", 3, "valid boolean"),
    ("look_at_noise", 3, "valid boolean"),
    ("tell_means", 3, "valid boolean"),
    ("validation", "all", "'none', 'sums' or 'at_site'"),
    ("hidden_causes", "unlikely", "'allowed' or 'excluded'"),
    ("regressions_rounds", 51, "less than or equal to 50"),
    ("refit_threshold", 0.31, "at most threshold"),
    ("value_type", "float16", "'float64' or 'float32'"),
    ("send_tolerance", -0.01, "greater than or equal to 0"),
    ("send_step", 0.01, "a power of two"),
    ("send_step", 2.0, "a power of two from"),
    ("send_step", 2.0**-33, "a power of two from"),
    ("join_deadline_s", 0.0, "greater than 0"),
    ("round_deadline_s", -1.0, "greater than 0"),
    ("site_grace_s", math.inf, "finite"),
    ("run_deadline_s", 0.0, "greater than 0"),
    ("rpc_timeout_s", 0.0, "greater than 0"),
    ("preparation", 3, "should be a table"),
    ("dictionary", 3, "should be a table"),
    ("absent", 3, "should be a table"),
    ("interventions", 3, "valid array"),
    ("knowledge", 3, "should be a table"),
]
IMPOSSIBLE_KNOWLEDGE: list[tuple[str, Any, str]] = [
    ("knowledge.required.0", {"required": [["x"]]}, "field required"),
    ("knowledge.required.0", {"required": [["x", "y", "z"]]}, "at most 2 items"),
    ("knowledge.forbidden.0.1", {"forbidden": [["x", 2]]}, "2: input should be a valid string"),
    ("knowledge.tiers", {"tiers": "x"}, "valid array"),
    ("knowledge.banned", {"banned": []}, "no such setting"),
]

NAMES = st.text(min_size=1, max_size=6).filter(is_variable_name)
EDGES = st.lists(st.tuples(NAMES, NAMES), max_size=3)
POSITIVE = st.floats(min_value=1e-300, max_value=1e300)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans with every kind of setting drawn; knowledge of names at random where the variables are not named."""
    named = draw(st.lists(NAMES, unique=True, max_size=5).filter(lambda names: len(names) != 1))
    knowledge = (
        {}
        if named
        else {
            "required": draw(EDGES),
            "forbidden": draw(EDGES),
            "tiers": draw(st.lists(st.lists(NAMES, max_size=3), max_size=3)),
        }
    )
    return Plan.parse(
        {
            "name": draw(st.text(max_size=200).filter(lambda name: shown(name) == name)),
            "variables": named,
            "n_participants": draw(st.integers(5, 10_000)),
            "quorum": draw(st.integers(0, 5)),
            "rounds": draw(st.integers(1, 100_000)),
            "consensus_penalty": draw(POSITIVE),
            "acyclicity_schedule": draw(st.sampled_from(["continuation", "augmented"])),
            "local_solver": draw(st.sampled_from(["pgcd", "closed-form"])),
            "l1_weight": draw(st.floats(min_value=0, allow_infinity=False)),
            "threshold": draw(st.floats(min_value=0.05, allow_infinity=False)),
            "value_type": draw(st.sampled_from(["float64", "float32"])),
            "run_deadline_s": draw(POSITIVE),
            "knowledge": knowledge,
        }
    )


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text('name = "a file"\nrounds = 30\nn_participants = 8\n', encoding="utf-8")
    return path


def test_the_tables_of_this_file_cover_every_setting() -> None:
    assert set(OTHER_VALUES) == set(Plan.model_fields)
    assert {setting for setting, _, _ in IMPOSSIBLE} == set(Plan.model_fields)


# ---- TOML ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(plans())
@pytest.mark.long
def test_a_plan_survives_its_own_toml(plan: Plan) -> None:
    back = Plan.from_toml(plan.to_toml())
    assert back == plan
    assert back.digest() == plan.digest()


def test_the_toml_names_every_setting_and_says_what_each_means() -> None:
    text = Plan().to_toml()
    assert set(tomllib.loads(text)) == set(Plan.model_fields) - {"privacy", "preparation", "dictionary", "absent"}, (
        "what is absent is no table"
    )
    assert set(tomllib.loads(text)["knowledge"]) == set(Knowledge.model_fields)
    for field in (*Plan.model_fields.values(), *Knowledge.model_fields.values()):
        assert field.description
        if field.annotation not in (Knowledge, Privacy | None, Preparation | None, Dictionary, Absent):
            assert f"# {field.description}" in text


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 1\nrounds = 2", "[knowledge", "\x00"])
def test_text_that_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="my plan is not valid TOML"):
        Plan.from_toml(text, origin="my plan")


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "x = " + "{a=" * 100_000, ".".join("a" * 400_000) + " = 1", "#" * (2**20 + 1)],
    ids=["arrays", "tables", "a dotted key", "large"],
)
def test_a_plan_that_would_exhaust_its_reader_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="my plan is not valid TOML: it "):
        Plan.from_toml(text, origin="my plan")
    assert Plan.load("lean", [f"name={text[:100]}"]).name == text[:100].strip(), "an override is then a text"


@pytest.mark.parametrize("mark", ["\x1b[2J", "\x9b", "\u202e", "\u2066", "\u2028"])
def test_no_text_of_a_plan_steers_a_terminal(mark: str) -> None:
    for values, where in (
        ({"name": f"a{mark}"}, "name"),
        ({"variables": ["a", f"b{mark}"]}, "variables"),
        ({"knowledge": {"required": [["a", f"b{mark}"]]}}, "knowledge"),
        ({"knowledge": {"tiers": [["a"], [f"b{mark}"]]}}, "knowledge"),
        ({f"no{mark}": 1}, "no such setting"),
    ):
        with pytest.raises(PlanError, match=where) as refused:
            Plan.parse(values)
        assert mark not in str(refused.value)


def test_an_error_about_a_huge_value_stays_readable() -> None:
    with pytest.raises(PlanError) as refused:
        Plan.parse({"rounds": "9" * 100_000, "x" * 100_000: 1})
    assert len(str(refused.value)) < 1_000


def test_an_empty_file_is_the_default_plan() -> None:
    assert Plan.from_toml("") == Plan()


# ---- digest --------------------------------------------------------------------------------------------------------


def test_the_digest_does_not_depend_on_order_layout_or_comments() -> None:
    one = Plan.from_toml('rounds = 7\nname = "n"\nl1_weight = 0.5\nknowledge.required = [["a", "b"]]\n')
    other = Plan.from_toml(
        "# a comment\nl1_weight   = 5e-1  # half\nname='n'\nrounds=0x7\n\n[knowledge]\nrequired = [\n['a', 'b'],\n]\n"
    )
    assert one == other
    assert one.digest() == other.digest()


def test_a_whole_number_and_the_same_float_give_the_same_digest() -> None:
    assert Plan.from_toml("consensus_penalty = 2").digest() == Plan.from_toml("consensus_penalty = 2.0").digest()


def test_a_setting_left_out_and_its_default_written_down_give_the_same_digest() -> None:
    assert Plan.from_toml(Plan().to_toml()).digest() == Plan().digest()


@pytest.mark.parametrize("setting", sorted(OTHER_VALUES))
def test_every_change_of_a_setting_changes_the_digest(setting: str) -> None:
    given = PRIVATE if setting == "privacy" else {}
    alternatives = [Plan().with_settings(**given, **{setting: value}) for value in OTHER_VALUES[setting]]
    digests = {plan.digest() for plan in [Plan(), *alternatives]}
    assert len(digests) == 1 + len(alternatives)
    assert all(len(digest) == 32 for digest in digests)


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "value", "rule"), IMPOSSIBLE)
def test_an_impossible_setting_is_refused_by_name_value_and_rule(setting: str, value: object, rule: str) -> None:
    with pytest.raises(PlanError) as refusal:
        Plan.parse({setting: value}, origin="plan.toml")
    first, *lines = str(refusal.value).splitlines()
    assert first.startswith("plan.toml")
    (line,) = [text for text in lines if text.strip().startswith(setting)][:1]
    assert repr(value) in line or (isinstance(value, list) and repr(value[0]) in line)
    assert rule in line


@pytest.mark.parametrize(("where", "knowledge", "rule"), IMPOSSIBLE_KNOWLEDGE)
def test_impossible_knowledge_is_refused_with_its_place(where: str, knowledge: object, rule: str) -> None:
    with pytest.raises(PlanError) as refusal:
        Plan.parse({"knowledge": knowledge})
    assert where in str(refusal.value)
    assert rule in str(refusal.value)


def test_an_unknown_setting_is_refused_by_name_and_value() -> None:
    with pytest.raises(PlanError, match=r"round = 7: no such setting"):
        Plan.parse({"round": 7})


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ("continuation_growth=1.2", "leave it out; acyclicity_schedule = 'augmented'"),
        ("acyclicity=log-det", "leave it out; h"),
        ("acyclicity_penalty_max=1e9", "leave it out; 1e12"),
        ("edge_penalty=bic", "leave it out"),
        ("starts=[{l1_weight=0.1}]", "leave it out"),
        ("zero_tolerance=0.1", "leave it out"),
    ],
)
def test_a_setting_that_is_gone_is_refused_with_what_to_do(setting: str, remedy: str) -> None:
    with pytest.raises(PlanError, match=f"setting {setting.partition('=')[0]} is gone: {remedy}"):
        Plan.load("standard", [setting])


def test_a_plan_of_an_older_run_folder_which_has_every_setting_is_read() -> None:
    gone = {name: default for name, (default, _) in GONE.items()}
    assert Plan.parse({"rounds": 7, **gone}) == Plan(rounds=7)


def test_settings_of_an_older_run_folder_are_read_under_their_old_names_but_not_under_both() -> None:
    later = ["look_for_curves=false", "tell_means=false", "validation=none"]
    plan = Plan.load("private", [*later, "privacy.secure_aggregation_retries=2", "n_participants=8"])
    now = plan.model_dump()["privacy"]
    before = {name.replace("secure_aggregation", "secure_sum"): value for name, value in now.items()}
    assert before.keys() != now.keys()
    assert plan.with_settings(privacy=before) == plan
    settings = json.dumps(
        {
            **plan.model_dump(
                mode="json",
                exclude={
                    "absent": True,
                    "counts_rounds": True,
                    "regressions_rounds": True,
                    "look_for_curves": True,
                    "look_at_noise": True,
                    "tell_means": True,
                    "validation": True,
                    "hidden_causes": True,
                    "interventions": True,
                    "preparation": {"outlying"},
                },
            ),
            "privacy": {
                name: value for name, value in before.items() if name not in ("sites_per_person", "persons_by")
            },
        },
        sort_keys=True,
        separators=(",", ":"),
    )
    assert plan.digest() == hashlib.sha256(settings.encode()).digest(), "what older sites approved, and runs go on with"
    for both in ({**now, "secure_sum": False}, {"secure_sum": False, **now}):
        with pytest.raises(PlanError, match=r"privacy\.secure_sum = False: no such setting"):
            plan.with_settings(privacy=both)


@pytest.mark.parametrize("setting", ["rounds", "n_participants", "l1_weight", "consensus_penalty", "refit_rounds"])
@pytest.mark.parametrize("value", [True, "1"])
def test_a_number_in_another_guise_is_refused(setting: str, value: object) -> None:
    with pytest.raises(PlanError, match=f"{setting} = {value!r}"):
        Plan.parse({setting: value})


def test_all_problems_of_a_plan_are_reported_at_once() -> None:
    with pytest.raises(PlanError) as refusal:
        Plan.parse({"rounds": -1, "step_size": 2.0, "colour": "red"})
    text = str(refusal.value)
    assert all(part in text for part in ("rounds = -1", "step_size = 2.0", "colour = 'red'"))


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Plan().rounds = 5  # type: ignore[misc]


def test_a_copy_with_other_settings_is_checked_too() -> None:
    assert Plan().with_settings(rounds=5).rounds == 5
    with pytest.raises(PlanError, match="rounds = 0"):
        Plan().with_settings(rounds=0)
    with pytest.raises(PlanError, match="quorum = 4"):
        Plan().with_settings(quorum=4)


BUDGET = {"epsilon": 1.0, "feature_bounds": [4.0]}
SEARCHING = {"refit_rounds": 0, "moments_rounds": 1}
SPENDING = {"local_solver": "dp-pgcd", "local_steps": 5, "refit_rounds": 0, "privacy": BUDGET}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"consensus": "median", "n_participants": 2}, "consensus = 'median': must be mean with fewer than 3 sites"),
        ({"consensus": "trimmed-mean", "quorum": 2}, "consensus = 'trimmed-mean': must be mean with fewer than 3"),
        ({"moments_rounds": 1}, "refit_rounds = 1: must be 0 with moments_rounds"),
        ({**SEARCHING, "moments_rounds": 3}, "moments_rounds = 3: must be at most 2 without"),
        ({**SPENDING, "regressions_rounds": 12}, "regressions_rounds = 12: must be 0 with"),
        ({**SEARCHING, "rounds": 0}, "rounds = 0: must be at least 1"),
        ({**SPENDING, "rounds": 0}, "rounds = 0: must be at least 1"),
        ({"final_search": "steps"}, "local_solver = 'pgcd': must be dp-pgcd with final_search = 'steps'"),
        ({**SPENDING, "final_search": "steps", "moments_rounds": 1}, "moments_rounds = 1: must be 0 with final_search"),
        ({**SPENDING, "final_search": "steps", "consensus": "median"}, "consensus = 'median': must be mean with final"),
        ({**SPENDING, "final_search": "steps", "send_tolerance": 0.1}, "send_tolerance = 0.1: .* needs every step"),
        (
            {**SPENDING, "final_search": "steps", "preparation": {}, "privacy": {"epsilon": 1.0}},
            "preparation = {.*}: must be absent with final_search = 'steps'",
        ),
        ({**SPENDING, "moments_rounds": 2, "local_solver": "dp-pgcd-laplace"}, "moments_rounds = 2: must be 0 with"),
        (
            {**SPENDING, "moments_rounds": 2, "privacy": {**BUDGET, "smoothness": "exact"}},
            "moments_rounds = 2: must be 0",
        ),
        ({"local_solver": "closed-form", "send_tolerance": 0.1}, "send_tolerance = 0.1: must be 0 with closed-form"),
        ({"local_solver": "closed-form", "send_step": 0.5}, "send_step = 0.5: must be 0 with closed-form"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        Plan.parse(settings)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"epsilon": 2.0}, "did you mean privacy.epsilon?"),
        ({"l1_weigth": 0.2}, "did you mean l1_weight?"),
    ],
)
def test_a_setting_in_the_wrong_place_is_refused_with_a_hint(settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(PlanError, match=f"no such setting; {re.escape(hint)}"):
        Plan.parse(settings)


def test_the_rounds_of_a_plan_follow_each_other_by_kind() -> None:
    def stages(**settings: Any) -> list[tuple[str, int]]:
        plan = Plan.parse(settings)
        for beyond in (0, n_rounds(plan) + 1):
            with pytest.raises(LocalProtocolError):
                stage(plan, beyond)
        return [stage(plan, t) for t in range(1, n_rounds(plan) + 1)]

    assert stages(rounds=2, refit_rounds=2) == [("admm", 1), ("admm", 2), ("refit", 1), ("refit", 2)]
    assert stages(rounds=2, **SEARCHING) == [("admm", 1), ("admm", 2), ("moments", 1)]
    moments = [("scales", 1), ("residual_moments", 1), ("residual_moments", 2)]
    assert stages(**SPENDING, rounds=1, moments_rounds=2) == [("admm", 1), *moments]
    assert stages(**SPENDING, rounds=0, moments_rounds=2) == moments


def test_without_a_quorum_all_sites_are_needed() -> None:
    assert Plan(n_participants=5).needed == 5
    assert Plan(n_participants=5, quorum=2).needed == 2


# ---- files and overrides -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "setting", "value"),
    [
        ("rounds=50", "rounds", 50),
        (" rounds = 50", "rounds", 50),
        ("l1_weight=1e-2", "l1_weight", 0.01),
        ("value_type=float32", "value_type", "float32"),
        ('value_type="float32"', "value_type", "float32"),
        ("name=a = b", "name", "a = b"),
        ("name=", "name", ""),
        ('variables=["x", "y"]', "variables", ("x", "y")),
    ],
)
def test_an_override_replaces_what_the_file_says(plan_file: Path, override: str, setting: str, value: object) -> None:
    plan = Plan.load(plan_file, [override])
    assert getattr(plan, setting) == value
    expected = {"name": "a file", "rounds": 30, "n_participants": 8, setting: value}
    assert plan == Plan.parse(expected)


def test_an_override_reaches_into_a_table(plan_file: Path) -> None:
    overrides = ['knowledge.required=[["a", "b"]]', 'knowledge.tiers=[["a"], ["b"]]']
    knowledge = Plan.load(plan_file, overrides).knowledge
    assert knowledge.required == (("a", "b"),)
    assert knowledge.tiers == (("a",), ("b",))
    assert knowledge.forbidden == ()


def test_an_override_keeps_the_rest_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[knowledge]\nrequired = [["a", "b"]]\nforbidden = [["b", "a"]]\n', encoding="utf-8")
    knowledge = Plan.load(path, ["knowledge.forbidden=[]"]).knowledge
    assert knowledge.required == (("a", "b"),)
    assert knowledge.forbidden == ()


def test_the_last_override_of_a_setting_wins(plan_file: Path) -> None:
    assert Plan.load(plan_file, ["rounds=5", "rounds=6"]).rounds == 6


def test_overrides_together_may_mend_what_one_alone_would_break(plan_file: Path) -> None:
    assert Plan.load(plan_file, ["n_participants=2", "quorum=2", "n_participants=20"]).quorum == 2


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("rounds", "'rounds': expected key=value"),
        ("=5", "'=5': expected key=value"),
        ("", "expected key=value"),
        ("round=5", "round = 5: no such setting"),
        ("rounds=-1", "rounds = -1: input should be greater than or equal to 0"),
        ("rounds=fifty", "rounds = 'fifty': input should be a valid integer"),
        ("rounds.x=1", "'rounds' is a setting, not a table"),
        ("knowledge.banned=[]", "knowledge.banned = .*: no such setting"),
    ],
)
def test_a_wrong_override_is_refused(plan_file: Path, override: str, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Plan.load(plan_file, [override])


def test_a_plan_that_cannot_be_read_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"absent\.toml cannot be read"):
        Plan.load(tmp_path / "absent.toml")
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes('name = "Zürich"'.encode("latin-1"))
    with pytest.raises(PlanError, match=r"latin\.toml cannot be read"):
        Plan.load(tmp_path / "latin.toml")
    (tmp_path / "wrong.toml").write_text("rounds = 0", encoding="utf-8")
    with pytest.raises(PlanError, match=r"wrong\.toml"):
        Plan.load(tmp_path / "wrong.toml")


# ---- [privacy] -----------------------------------------------------------------------------------------------------


def private(solver: str = "dp-pgcd", **privacy: Any) -> dict[str, Any]:
    return {**SPENDING, "local_solver": solver, "privacy": {**BOUNDED, **privacy}}


@pytest.mark.parametrize("solver", PRIVATE_SOLVERS)
def test_a_private_plan_survives_its_own_toml_with_every_meaning(solver: str) -> None:
    plan = Plan.parse({**private(solver, delta=1e-7), "variables": ["x", "y"]})
    text = plan.to_toml()
    assert Plan.from_toml(text) == plan
    assert Plan.from_toml(text).digest() == plan.digest()
    assert set(tomllib.loads(text)["privacy"]) == set(Privacy.model_fields)
    for field in Privacy.model_fields.values():
        assert f"# {field.description}" in text


def test_frank_wolfe_without_an_l1_weight_is_refused() -> None:
    with pytest.raises(PlanError, match=r"l1_weight = 0.0: must be above 0 with frank-wolfe"):
        Plan.parse({"local_solver": "frank-wolfe", "l1_weight": 0.0})


@pytest.mark.parametrize("solver", ["pgcd", "closed-form", "frank-wolfe"])
def test_a_solver_that_protects_nobody_is_refused_with_privacy(solver: str) -> None:
    with pytest.raises(PlanError, match=rf"local_solver = '{solver}': must be one of .*with \[privacy\]"):
        Plan.parse(private(solver))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("epsilom", "epsilon"),
        ("clipp", "clip"),
        ("feature_bound", "feature_bounds"),
        ("selection_shares", "selection_share"),
    ],
)
def test_a_misspelt_privacy_setting_is_refused_with_the_one_that_was_meant(key: str, meant: str) -> None:
    with pytest.raises(PlanError, match=rf"privacy.{key} = 1: no such setting; did you mean {meant}\?"):
        Plan.parse(private(**{key: 1}))


@pytest.mark.parametrize("scale", ["sigma", "noise_multiplier", "noise_std", "selection_scale"])
def test_no_noise_scale_can_be_typed_in(scale: str) -> None:
    with pytest.raises(PlanError, match=f"privacy.{scale} = 0.1: no such setting"):
        Plan.parse(private(**{scale: 0.1}))


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("epsilon", 0.0, "greater than or equal to"),
        ("epsilon", -1.0, "greater than or equal to"),
        ("delta", 1e-101, "at least 1e-100"),
        ("epsilon", 1000.1, "less than or equal to 1000"),
        ("epsilon", True, "valid number"),
        ("epsilon", math.nan, "finite"),
        ("delta", -1e-9, "greater than or equal to 0"),
        ("delta", 1.0, "less than 1"),
        ("clip", 0.0, "greater than 0"),
        ("clip", math.inf, "finite"),
        ("smoothness", "guessed", "'estimated', 'public' or 'exact'"),
        ("smoothness_share", 0.0, "greater than 0"),
        ("smoothness_share", 1.0, "less than 1"),
        ("selection_share", 1.0, "less than 1"),
        ("row_norm_bound", 0.0, "greater than 0"),
    ],
)
def test_an_impossible_privacy_setting_is_refused(setting: str, value: object, rule: str) -> None:
    with pytest.raises(PlanError) as refusal:
        Plan.parse(private(**{setting: value}))
    assert f"privacy.{setting} = {value!r}: " in str(refusal.value)
    assert rule in str(refusal.value)


def test_privacy_without_epsilon_is_refused() -> None:
    with pytest.raises(PlanError, match=r"privacy\.epsilon.*field required"):
        Plan.parse({**SPENDING, "privacy": {"feature_bounds": [4.0]}})


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_private_plan_has_no_refit_since_a_refit_is_one_more_release(rounds: int) -> None:
    with pytest.raises(PlanError, match=f"refit_rounds = {rounds}: must be 0 with"):
        Plan.parse({**private(), "refit_rounds": rounds})


def test_a_private_plan_does_not_keep_the_many_steps_of_the_default() -> None:
    with pytest.raises(PlanError, match="local_steps = 100000: must be at most 10000"):
        Plan.parse({**private(), "local_steps": Plan().local_steps})


@pytest.mark.parametrize("setting", ["feature_bounds", "second_moments"])
def test_bounds_are_one_for_all_or_one_for_each_named_variable(setting: str) -> None:
    for fine in ([1.0], [1.0, 2.0]):
        Plan.parse({**private(**{setting: fine}), "variables": ["x", "y"]})
    for names in ([], ["x", "y", "z"]):
        with pytest.raises(
            PlanError, match=rf"privacy.{setting} = .*: must be one value for all, or one for each column"
        ):
            Plan.parse({**private(**{setting: [1.0, 2.0]}), "variables": names})
    with pytest.raises(PlanError, match=rf"privacy.{setting}.0 = 0.0: .*greater than 0"):
        Plan.parse(private(**{setting: [0.0]}))


@pytest.mark.parametrize(("smoothness", "needed"), [("estimated", "feature_bounds"), ("public", "second_moments")])
def test_each_way_to_know_the_second_moments_asks_for_its_own_numbers(smoothness: str, needed: str) -> None:
    with pytest.raises(PlanError, match=f"{needed} = .*must be given for smoothness = '{smoothness}'"):
        Plan.parse(private(smoothness=smoothness, feature_bounds=[], second_moments=[]))


def test_an_override_reaches_into_privacy(plan_file: Path) -> None:
    plan_file.write_text(Plan.parse(private()).to_toml(), encoding="utf-8")
    plan = Plan.load(plan_file, ["privacy.epsilon=5.0", "privacy.clip=2.5"])
    assert plan.privacy is not None
    assert (plan.privacy.epsilon, plan.privacy.clip) == (5.0, 2.5)
    assert Plan.load(plan_file, ["privacy.epsilon=5"]) == Plan.load(plan_file, ["privacy.epsilon=5.0"])


# ---- times --------------------------------------------------------------------------------------------------------


def test_a_plan_has_five_times_and_no_more() -> None:
    times = {name for name in Plan.model_fields if name.endswith("_s")}
    assert times == {"join_deadline_s", "round_deadline_s", "site_grace_s", "run_deadline_s", "rpc_timeout_s"}
    said = {name for name, field in Plan.model_fields.items() if (field.description or "").startswith("s ")}
    assert said == times, "a time under another name"


def test_what_float32_cannot_carry_is_refused_before_anything_is_paid_for() -> None:
    bound = {"feature_bounds": [1.0], "moments_norm_bound": 1e16}
    plan = {**SPENDING, "moments_rounds": 1, "privacy": {"epsilon": 1.0, **bound}}
    Plan.parse(plan)
    with pytest.raises(PlanError, match="value_type = 'float32': must be float64 with squared bounds above 1e\\+30"):
        Plan.parse({**plan, "value_type": "float32"})


@pytest.mark.parametrize("bound", [1.01e30, 0.99e-26])
def test_bounds_beyond_what_a_table_may_hold_are_refused_with_the_plan(bound: float) -> None:
    with pytest.raises(PlanError, match="must lie between 1e-26 and 1e\\+30"):
        Plan.parse({**SPENDING, "privacy": {"epsilon": 1.0, "feature_bounds": [bound]}})


def test_a_list_of_bare_words_is_refused_with_the_quotation_marks_that_it_lacks() -> None:
    with pytest.raises(PlanError, match="not valid TOML") as refused:
        Plan.load("standard", ["knowledge.tiers=[[sex],[age]]"])
    assert """'knowledge.tiers=[["age", "sex"], ["stage"]]'""" in refused.value.remedy


def test_an_epsilon_without_privacy_names_the_plan_for_tables_of_your_own() -> None:
    with pytest.raises(PlanError) as refused:
        Plan.load("standard", epsilon=1.0)
    assert "such as private (" in refused.value.remedy
