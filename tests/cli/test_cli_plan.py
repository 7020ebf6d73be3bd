"""Plans on the command line: listed, shown, and taken by name or by path, from a checkout and from a wheel."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.plan.ready_files import READY_PLANS
from fedbnsl_client.budget.ledger import Ledger
from private_site import make_site

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """In a folder with nothing of the project in it."""
    monkeypatch.chdir(tmp_path)


def shown(fedbnsl, *arguments):
    outcome = fedbnsl("plan", "show", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


# ---- plan list, plan show ------------------------------------------------------------------------------------------


def test_the_list_names_every_ready_plan_with_its_purpose(fedbnsl):
    listed = json.loads(fedbnsl("plan", "list", "--json").out)
    assert [plan["name"] for plan in listed] == READY_PLANS.names()
    assert {plan["name"] for plan in listed if plan["private"]} == {"private-moments", "private-steps", "private"}
    text = fedbnsl("plan", "list").out
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    assert [[plan["name"], "yes" if plan["private"] else "no", plan["for"]] for plan in listed] == [
        [name, private, purpose.strip()] for name, private, purpose in lines[1:]
    ]


def test_shown_is_what_differs_from_the_defaults_and_who_says_so(fedbnsl):
    table = shown(fedbnsl, "private-steps", "--epsilon", "1.9", "--delta", "1e-6", "--set", "rounds=9")
    settings = table["settings"]
    assert table["private"] is True
    plan = Plan.load("private-steps", ["rounds=9"], epsilon=1.9, delta=1e-6)
    assert (table["name"], table["digest"]) == ("private-steps", plan.digest().hex())
    assert {name: setting["from"] for name, setting in settings.items()} == {
        **dict.fromkeys(("name", "n_participants", "local_solver", "refit_rounds", "acyclicity_schedule"), "plan"),
        **dict.fromkeys(("local_steps", "l1_weight", "consensus_penalty", "acyclicity_penalty"), "plan, epsilon 2"),
        **dict.fromkeys(("acyclicity_growth", "privacy.clip", "privacy.feature_bounds"), "plan, epsilon 2"),
        **dict.fromkeys(("privacy.smoothness_share", "privacy.selection_share"), "plan, epsilon 2"),
        "final_search": "plan",
        "value_type": "plan",
        "rounds": "--set",
        "privacy.epsilon": "--epsilon",
        "privacy.delta": "--delta",
    }, "a threshold of 0.3 is the default"
    assert settings["rounds"] == {
        "value": 9, "default": 80, "unit": "rounds", "from": "--set",
        "meaning": Plan.model_fields["rounds"].description,
    }  # fmt: skip
    assert settings["privacy.epsilon"]["default"] is None, "required"


def test_all_settings_are_shown_with_their_units_and_defaults(fedbnsl):
    settings = shown(fedbnsl, "lean", "--all")["settings"]
    tables = {"absent", "knowledge", "dictionary", "preparation", "privacy"}
    assert {name for name in settings if "." not in name} == set(Plan.model_fields) - tables
    assert {name for name in settings if "." in name} == {
        "knowledge.required", "knowledge.forbidden", "knowledge.tiers"
    }  # fmt: skip
    defaults = Plan().model_dump(mode="json")
    assert {name: s["default"] for name, s in settings.items() if "." not in name} == {
        name: value for name, value in defaults.items() if name not in tables
    }
    assert {name for name, s in settings.items() if s["unit"] == "s"} == {
        name for name in settings if name[-2:] == "_s"
    }
    assert all(setting["meaning"] for setting in settings.values())
    assert settings["quorum"] | {"meaning": ""} == {
        "value": 0, "default": 0, "unit": "sites", "from": "default", "meaning": ""
    }  # fmt: skip
    private = shown(fedbnsl, "private-moments", "--all")["settings"]
    assert private["privacy.clip"]["unit"] == "squared units"


def test_the_text_has_a_line_for_every_setting_that_differs(fedbnsl):
    text = fedbnsl("plan", "show", "lean").out
    first, columns, *lines = text.splitlines()
    assert first == f"plan lean, not private; digest {Plan.load('lean').digest().hex()}"
    assert columns.split() == ["setting", "value", "default", "unit", "from", "meaning"]
    assert any(line.split()[:5] == ["rounds", "10", "80", "rounds", "plan"] for line in lines)
    assert "--all" in lines[-1]
    assert not any(line.startswith("quorum") for line in lines)
    assert any(line.startswith("quorum") for line in fedbnsl("plan", "show", "lean", "--all").out.splitlines())


# ---- wherever a plan is taken --------------------------------------------------------------------------------------

TAKES_A_PLAN = {
    "plan show": (),
    "privacy price": ("--rows", "100"),
    "simulate": ("--data", "nowhere"),
    "coordinator serve": ("--insecure",),
    "participant approve": (".",),
    "tune": ("--grid", "example", "--out", "tuned"),
}


@pytest.mark.parametrize("command", TAKES_A_PLAN)
def test_every_command_answers_a_name_that_is_none_with_those_that_are_near(fedbnsl, command):
    outcome = fedbnsl(*command.split(), "laen", *TAKES_A_PLAN[command])
    assert outcome.code == 2
    said = " ".join(outcome.err.split())
    assert "'laen' is neither a ready plan nor a file; did you mean lean?; fedbnsl plan list lists" in said


@pytest.mark.parametrize("command", [*TAKES_A_PLAN, "demo"])
def test_every_command_refuses_a_budget_for_a_plan_without_privacy_before_anything_else(fedbnsl, command):
    plan = ("--plan", "lean") if command == "demo" else ("lean",)
    outcome = fedbnsl(*command.split(), *plan, *TAKES_A_PLAN.get(command, ()), "--epsilon", "1")
    assert outcome.code == 3
    assert "plan lean has no [privacy], and so no epsilon" in outcome.err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("command", TAKES_A_PLAN)
def test_every_command_says_how_names_and_paths_differ(fedbnsl, command):
    said = " ".join(fedbnsl(*command.split(), "--help").out.split())
    assert "text with a separator or ending in .toml is a path, such as ./lean" in said


def test_a_path_that_does_not_exist_is_refused_as_a_path(fedbnsl):
    outcome = fedbnsl("plan", "show", "lean.toml")
    assert outcome.code == 2
    assert "'lean.toml' does not exist" in outcome.err


def test_a_plan_is_simulated_by_name_with_its_budget(fedbnsl, tmp_path):
    fedbnsl("data", "synth", "--nodes=5", "--edges=5", "--sites=2", "--rows=60", "--out", "data")
    given = ("--set", "rounds=2", "--epsilon", "2", "--delta", "1e-5")
    outcome = fedbnsl("simulate", "private-steps", "--data", "data", "--public-data", *given, "--out", "run")
    assert outcome.code == 0, outcome.err
    ran = Plan.load(tmp_path / "run" / "plan.toml")
    assert ran == Plan.load("private-steps", ["rounds=2", "n_participants=2"], epsilon=2.0, delta=1e-5)
    assert "as the plan says" not in outcome.err
    unsaid = fedbnsl("simulate", "private-steps", "--data", "data", "--public-data", "--set=rounds=2", "--out", "other")
    assert f"epsilon {Plan.load('private-steps').privacy.epsilon:g}, as the plan says" in unsaid.err


def test_a_site_approves_by_name_what_a_coordinator_serves_with_the_same_options(fedbnsl, tmp_path):
    make_site(tmp_path / "own")
    given = ("--epsilon", "2", "--delta", "1e-6", "--set", "n_participants=2")
    outcome = fedbnsl("participant", "approve", "private-steps", "own", *given, "--yes")
    assert outcome.code == 0, outcome.err
    digest = Plan.load("private-steps", ["n_participants=2"], epsilon=2.0, delta=1e-6).digest()
    assert f"approved: {digest.hex()}" in outcome.out
    with Ledger.open(tmp_path / "own" / "ledger.db") as ledger:
        assert digest.hex() in ledger.approvals.current()


def test_an_approval_says_that_names_added_to_the_plan_change_its_digest_and_holds_for_it(fedbnsl, tmp_path):
    make_site(tmp_path / "own")
    given = ("--epsilon", "2", "--delta", "1e-6", "--set", "n_participants=2")
    outcome = fedbnsl("participant", "approve", "private-steps", "own", *given, "--yes")
    assert "names of sites or variables that the coordinator adds change the digest" in outcome.out
    run = Plan.load("private-steps", ["n_participants=2", "sites=['a', 'b']"], epsilon=2.0, delta=1e-6)
    with Ledger.open(tmp_path / "own" / "ledger.db") as ledger:
        assert run.digest().hex() not in ledger.approvals.current(), "the run has another digest"
        assert any(digest.hex() in ledger.approvals.current() for digest in run.approvable_digests())


def test_a_run_folder_goes_on_with_its_own_budget(fedbnsl, tmp_path):
    (tmp_path / "run").mkdir()
    outcome = fedbnsl("coordinator", "serve", "run", "--insecure", "--epsilon", "1")
    assert outcome.code == 2
    assert "run is a run: it continues with its own settings; omit --set, --epsilon" in outcome.err


def test_a_grid_is_taken_by_name_and_an_unknown_one_is_answered_with_the_names(fedbnsl):
    outcome = fedbnsl("tune", "fed-sparse", "--grid", "exampel", "--out", "tuned")
    assert outcome.code == 2
    said = " ".join(outcome.err.split())
    assert "'exampel' is neither a ready grid nor a file; did you mean example?; ready are example, fed-bnsl" in said


# ---- a wheel -------------------------------------------------------------------------------------------------------


def test_a_wheel_has_every_plan_and_reads_them_without_a_checkout(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=CHECKOUT / "client", check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert {path.stem for path in held if path.parent == Path("fedbnsl/plan/ready")} == set(READY_PLANS.names())
    # Not even unpacked: packages inside the archive are imported as they lie there.
    code = "import fedbnsl, fedbnsl.cli as c; assert '.whl' in fedbnsl.__file__; c.main(['plan', 'list', '--json'])"
    listed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        check=True,
        capture_output=True,
    )
    assert [plan["name"] for plan in json.loads(listed.stdout)] == READY_PLANS.names()


def test_show_says_how_tables_are_prepared_and_by_which_dictionary(fedbnsl, tmp_path: Path) -> None:
    path = tmp_path / "dictionary.toml"
    path.write_text('[age]\nrange = [0, 110]\n[sex]\nkind = "binary"\nlevels = ["f", "m"]\n', encoding="utf-8")
    shown = " ".join(fedbnsl("plan", "show", "private", "--dictionary", str(path)).out.split())
    assert "every site takes its own noisy means off its columns" in shown
    assert "what was released completes records with a missing value" in shown
    assert "1 continuous, 1 binary" in shown
    assert "dictionary.age.range [0.0, 110.0] required --dictionary" in shown
    plain = " ".join(fedbnsl("plan", "show", "standard").out.split())
    assert "rows with a missing value are used: their sums are completed by the covariances of all sites" in plain
    complete = fedbnsl("plan", "show", "standard", "--set", "preparation.missing=complete-cases").out
    assert "rows with a missing value are left out, at most 50% of them" in " ".join(complete.split())
    assert "prepared:" not in fedbnsl("plan", "show", "lean").out
