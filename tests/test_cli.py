"""The command `fedbnsl` as a person or a script meets it: help, exit codes, JSON, messages."""

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from importlib.metadata import entry_points
from pathlib import Path, PosixPath

import click
import numpy as np
import pytest

from command_line import Outcome, run_unread
from fedbnsl import cli, errors
from fedbnsl.cli import fedbnsl as root
from fedbnsl.cli import main
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.cli import data
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.observe import terminal as run_display
from fedbnsl_workbench.tables import synthetic

CHECKOUT = Path(__file__).parents[1]


VARIABLES = "--variables=X1,X2,X3,X4,X5"


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('name = "tiny"\nrounds = 3\n', encoding="utf-8")
    return path


@pytest.fixture
def tables(tmp_path, fedbnsl):
    assert (
        fedbnsl("data", "synth", "--nodes=5", "--edges=5", "--sites=2", "--rows=60", "--out", tmp_path / "data").code
        == 0
    )
    return tmp_path / "data"


@pytest.fixture
def run(plan, tables, tmp_path, fedbnsl):
    assert fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def strict_json(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- the tree of commands --------------------------------------------------------------------------------------


def commands(command, *words):
    """(words, command) of a command and everything below it."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from commands(inner, *words, name)


TREE = dict(commands(root))
each_command = pytest.mark.parametrize("words", TREE, ids=lambda words: " ".join(("fedbnsl", *words)))


def test_every_command_of_the_project_is_installed_and_no_other(fedbnsl):
    declared = set[tuple[str, str]]()
    for folder in ("client", ".", "research"):
        with (CHECKOUT / folder / "pyproject.toml").open("rb") as file:
            declared |= set(tomllib.load(file)["project"]["entry-points"]["fedbnsl.commands"].items())
    assert {(entry.name, entry.value) for entry in entry_points(group="fedbnsl.commands")} == declared
    assert {words[0] for words in TREE if words} == {name for name, _ in declared}
    leaves = {" ".join(words) for words, command in TREE.items() if not isinstance(command, click.Group)}
    assert leaves == {
        *(
            "coordinator serve",
            "coordinator runs serve",
            "coordinator runs list",
            "coordinator runs show",
            "coordinator runs start",
            "coordinator runs pause",
            "coordinator runs stop",
            "coordinator runs remove",
            "participant join",
            "participant refit",
            "data synth",
            "data split",
            "data hospital",
            "data dictionary",
        ),
        *("participant init", "participant register", "participant approve", "participant ledger"),
        *("coordinator init", "coordinator approve", "coordinator revoke", "coordinator renew", "coordinator enrolled"),
        *("coordinator status", "coordinator watch", "coordinator healthcheck"),
        *("coordinator audit-log", "participant audit-log", "coordinator eject"),
        *("participant request", "participant enrol", "participant check", "participant leave"),
        *("participant peers", "participant agent", "participant runs", "participant withdraw"),
        *("simulate", "demo", "effect", "evaluate", "bench", "privacy price", "report", "reproduce", "tune"),
        *("plan list", "plan show"),
    }
    listed = fedbnsl("--help").out
    for name, _ in declared:
        assert re.search(rf"^  {name} +\w", listed, re.MULTILINE), name


def test_commands_of_a_distribution_that_is_not_installed_are_not_listed_and_said_to_be_of_another(
    fedbnsl, monkeypatch
):
    site = {
        name: own
        for name, entries in cli._entries().items()
        if (own := [entry for entry in entries if entry.module.startswith(("fedbnsl.", "fedbnsl_client"))])
    }
    monkeypatch.setattr(cli, "_entries", lambda: site)
    listed = re.findall(r"^  ([a-z]+) +\w", fedbnsl("--help").out.partition("Commands:")[2], re.MULTILINE)
    assert listed == ["data", "participant", "plan", "privacy"]
    refused(
        fedbnsl("coordinator", "serve", "plan.toml"),
        2,
        "'coordinator' is a command of fedbnsl\n",
        "Install fedbnsl from the project's wheels",
    )
    refused(
        fedbnsl("tune"),
        2,
        "'tune' is a command of fedbnsl-research",
        "Install fedbnsl-research from the project's wheels",
    )


def test_every_command_is_known_to_belong_to_a_distribution():
    elsewhere = {name for names in cli._ELSEWHERE.values() for name in names}
    of_a_site = {"data", "participant", "plan", "privacy"}
    assert {name for name in elsewhere if " " not in name} | of_a_site == set(cli._entries())
    assert {f"data {name}" for name in data.commands} - elsewhere == {"data dictionary"}


@each_command
def test_help_explains_every_option_with_its_default(words, fedbnsl):
    outcome = fedbnsl(*words, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    shown = " ".join(outcome.out.split())
    assert shown.startswith("Usage: fedbnsl " + " ".join(words))
    assert TREE[words].help
    assert TREE[words].help.split("\n")[0] in shown
    for option in TREE[words].params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        name = option.opts[-1]
        assert option.help, name
        assert " ".join(option.help.split()) in shown, name
        text = shown.partition(f" {name} ")[2].partition(" --")[0]
        if option.required:
            assert re.search(r"\[([^][]*; )?required\]", text), name
        elif not option.is_flag and type(option.default) in (int, float, str, PosixPath):
            assert f"[default: {option.default}" in text, name
    assert fedbnsl(*words, "-h").out == outcome.out


@pytest.mark.parametrize(
    ("words", "option", "unit"),
    [
        ("participant join", "--patience", "Seconds"),
        ("participant join", "--max-file-mib", "MiB"),
        ("participant refit", "--min-rows", "rows"),
        ("data synth", "--rows", "Rows of each site"),
        ("data synth", "--edges", "Expected number of edges"),
        ("data synth", "--heterogeneous", "variance"),
        ("evaluate", "--threshold", "absolute value"),
    ],
)
def test_help_says_what_a_quantity_counts(words, option, unit):
    (found,) = [entry for entry in TREE[tuple(words.split())].params if option in entry.opts]
    assert unit in found.help


def test_version_is_that_of_the_package(fedbnsl):
    from fedbnsl import __version__

    assert fedbnsl("--version").out == f"fedbnsl, version {__version__}\n"


# ---- exit codes ------------------------------------------------------------------------------------------------


def subclasses(kind):
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from subclasses(inner)


def test_every_exit_code_is_documented_and_every_documented_one_exists(fedbnsl):
    documented = {int(code) for code in re.findall(r"^ +(\d+)  \w", fedbnsl("--help").out, re.MULTILINE)}
    of_errors = {kind.exit_code for kind in subclasses(errors.FedbnslError)}
    assert documented == {0, 2} | of_errors


def test_errors_that_differ_in_blame_differ_in_exit_code():
    direct = [errors.FedbnslError, *errors.FedbnslError.__subclasses__()]
    own = [kind for kind in direct if kind.__module__ == errors.__name__]
    assert len({kind.exit_code for kind in own}) == len(own)
    for kind in subclasses(errors.ProtocolError):
        assert kind.exit_code == errors.ProtocolError.exit_code


def refused(outcome, code, *said):
    """One error, its words, a remedy, nothing on standard output, and no traceback."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert len(re.findall("^error: ", outcome.err, re.MULTILINE)) == 1
    for words in said:
        assert words in outcome.err
    assert len(outcome.err.strip().splitlines()) >= 2, "a remedy follows"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("cheese=1", "cheese = 1: no such setting"),
        ("knowledge.cheese=1", "knowledge.cheese = 1: no such setting"),
        ("rounds=-1", "rounds = -1: input should be greater than or equal to 0"),
        ("step_size=1.5", "step_size = 1.5: input should be less than or equal to 1"),
        ("local_solver=magic", "local_solver = 'magic': input should be 'pgcd'"),
        ("quorum=4", "quorum = 4: must be at most n_participants"),
        ("l1_weight=nan", "l1_weight = nan: input should be a finite number"),
        ("rounds", "--set 'rounds': expected key=value"),
        ("rounds.t=5", "'rounds' is a setting, not a table"),
    ],
)
def test_3_an_unknown_or_impossible_setting_is_named_with_its_value_and_the_rule(
    setting, said, fedbnsl, plan, tables, tmp_path
):
    outcome = fedbnsl("simulate", plan, "--data", tables, "--set", setting, "--out", tmp_path / "run")
    refused(outcome, 3, said, "Correct the named setting")
    assert not (tmp_path / "run").exists()


def test_3_all_faults_of_a_plan_file_are_named_at_once(fedbnsl, plan, tables, tmp_path):
    plan.write_text('rounds = -1\ncheese = "blue"\nthreshold = -0.5\n', encoding="utf-8")
    refused(
        fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run"),
        3, f"{plan} cannot be used", "rounds = -1", "cheese = 'blue': no such setting", "threshold = -0.5",
    )  # fmt: skip


@pytest.mark.parametrize("command", ["simulate", "coordinator serve"])
def test_3_a_plan_that_is_no_toml_is_named(command, fedbnsl, plan, tables, tmp_path):
    plan.write_text("rounds = = 3\n", encoding="utf-8")
    options = ["--data", tables] if command == "simulate" else ["--insecure"]
    refused(fedbnsl(*command.split(), plan, *options, "--out", tmp_path / "run"), 3, "is not valid TOML")


def test_4_a_table_that_cannot_be_used_is_named_with_column_and_count(fedbnsl, plan, tables, tmp_path):
    table = tables / "site-2.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    for k in (3, 7):
        lines[k] = "high," + lines[k].partition(",")[2]
    table.write_text("\n".join(lines), encoding="utf-8")
    said = "column 'X1': 2 row(s) are not numbers"
    refused(fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run"), 4, "site-2.csv", said)
    refused(fedbnsl("participant", "refit", tables / "truth.csv", "--data", table, "--out", tmp_path / "own"), 4, said)
    join = ("participant", "join", "127.0.0.1:9", "--insecure", "--site=s", "--public-data", "--data", table)
    refused(fedbnsl(*join), 4, said, "a data dictionary says what they stand for: --dictionary FILE", "was sent")
    words = tmp_path / "words.toml"
    words.write_text('[X1]\nkind = "continuous"\n[X2]\nkind = "continuous"\n', encoding="utf-8")
    described = fedbnsl(*join, "--dictionary", words)
    refused(described, 4, said, "nothing of it was sent")
    assert "--dictionary FILE" not in described.err


@pytest.mark.parametrize("command", [["simulate", "fed-sparse"], ["demo"]])
@pytest.mark.parametrize("second", ["empty", "bars"])
def test_4_all_tables_that_cannot_be_used_are_named_with_lines_before_anything_runs(
    command, second, fedbnsl, tables, tmp_path
):
    for table in tables.glob("site-*.csv"):
        lines = table.read_text(encoding="utf-8").splitlines()
        lines[4] = "," + lines[4].partition(",")[2]
        text = "\n".join(lines)
        if second == "bars" and table.name == "site-2.csv":
            text = text.replace(",", "|")
        table.write_text(text, encoding="utf-8")
    refused(
        fedbnsl(*command, "--data", tables, "--out", tmp_path / "run"),
        4, "2 of 2 tables cannot be used", "site-1.csv: of ", "1 row(s) are left out, which lack a value: 'X1' 1",
        "site-2.csv: of " if second == "empty" else "site-2.csv: one column",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_warnings_of_several_tables_say_whose_they_are(fedbnsl, plan, tables, tmp_path):
    for table in tables.glob("site-*.csv"):
        header, *lines = table.read_text(encoding="utf-8").splitlines()
        moved = [f"{float(line.partition(',')[0]) + 50}," + line.partition(",")[2] for line in lines]
        table.write_text("\n".join([header, *moved]), encoding="utf-8")
    said = fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run").err
    assert said.count("column(s) 'X1'") == 1
    assert "warning: every site: column(s) 'X1'" in said


def test_4_too_few_rows_and_missing_tables_are_data_errors(fedbnsl, plan, tables, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "north.csv").write_text("a,b\n", encoding="utf-8")
    for command in (["simulate", plan], ["demo"]):
        start = [*command, "--out", tmp_path / "run", "--data"]
        refused(
            fedbnsl(*start, empty),
            4,
            "holds no site-*.csv (it holds north.csv)",
            "for each site: site-1.csv, site-2.csv",
        )
        refused(fedbnsl(*start, tmp_path / "nowhere"), 4, "holds no site-*.csv (there is no such folder)")
        wrong = fedbnsl(*command, "--data", tables, "--set", "n_participants=7", "--out", tmp_path / "run")
        refused(wrong, 2, "--set n_participants=7: there are 2 tables, and every table is a site")
    split = ("data", "split", tables / "site-1.csv", "--sites=61", "--out", tmp_path / "parts")
    refused(fedbnsl(*split), 4, "60 rows cannot be split over 61 sites")
    refit = ("participant", "refit", tables / "truth.csv", "--data", tables / "site-1.csv", "--out", tmp_path / "own")
    refused(fedbnsl(*refit, "--min-rows=61"), 4, "60 rows; at least 61 are needed")
    refused(fedbnsl(*refit, "--columns=X1,X9"), 4, "no column 'X9'")


def test_2_plaintext_must_be_asked_for(fedbnsl, plan, tables, tmp_path):
    join = ("participant", "join", "127.0.0.1:9", "--site=s", "--public-data", "--data", tables / "site-1.csv")
    refused(fedbnsl(*join), 2, "without --insecure", "certificate")
    serve = (
        "coordinator",
        "serve",
        plan,
        "--listen=127.0.0.1:0",
        "--set=join_deadline_s=0.1",
        "--out",
        tmp_path / "run",
    )
    refused(fedbnsl(*serve), 2, "--federation", "--insecure")
    assert not (tmp_path / "run").exists()


def test_2_a_coordinator_is_told_the_variables_before_any_site_calls(fedbnsl, plan, tables, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}")
    refused(fedbnsl(*serve), 2, "does not name its variables", "--variables a,b,c", "`variables` in the plan")
    refused(fedbnsl(*serve, VARIABLES, "--sites=a,b"), 3, "sites", "as many names as n_participants")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ['"X 1",X2', "names.csv"])
def test_variables_and_sites_of_a_run_are_named_on_the_command_line(given, fedbnsl, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.csv").write_text('"X 1", X2\n1,2\n', encoding="utf-8-sig")
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out=run", "--sites=a,b,c")
    assert fedbnsl(*serve, f"--variables={given}", "--set=join_deadline_s=0.01").code == 7
    served = Plan.load(tmp_path / "run" / "plan.toml")
    assert (served.variables, served.sites) == (("X 1", "X2"), ("a", "b", "c"))


@pytest.mark.parametrize(
    "header",
    ['"X 1";X2;"HDL, mg/dl"', '"X 1"\tX2\t"HDL, mg/dl"', 'sep=;\n"X 1";X2;"HDL, mg/dl"', '"X 1",X2,"HDL, mg/dl"'],
)
def test_a_file_of_variables_is_read_as_a_table_is(header, fedbnsl, plan, tmp_path):
    (tmp_path / "names.csv").write_text(f"{header}\n", encoding="utf-8-sig")
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out", tmp_path / "run")
    assert fedbnsl(*serve, "--variables", tmp_path / "names.csv", "--set=join_deadline_s=0.01").code == 7
    assert Plan.load(tmp_path / "run" / "plan.toml").variables == ("X 1", "X2", "HDL, mg/dl")


@pytest.mark.parametrize("given", ["absent.csv", "a,Names.TXT", "tables/names"])
def test_2_a_file_of_variables_that_does_not_exist_is_no_name_of_a_variable(given, fedbnsl, plan, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out", tmp_path / "run")
    serve += ("--set=join_deadline_s=0.01",)
    refused(fedbnsl(*serve, "--variables", given), 2, f"no such file: {given.rpartition(',')[2]}", "first line")
    assert not (tmp_path / "run").exists()


def test_a_variable_may_have_a_slash_in_its_name(fedbnsl, plan, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--out", tmp_path / "run")
    assert fedbnsl(*serve, "--variables=HDL/LDL,age", "--set=join_deadline_s=0.01").code == 7
    assert Plan.load(tmp_path / "run" / "plan.toml").variables == ("HDL/LDL", "age")


def test_a_coordinator_goes_on_though_nobody_reads_what_it_says(plan, tmp_path):
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--out={tmp_path / 'run'}", VARIABLES)
    ended = run_unread(*serve, "--set=join_deadline_s=0.01")
    assert (ended.code, "Bring the named sites back" in ended.err) == (7, True), ended


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "0.0.0.0:0", "[::]:0"])
def test_2_plaintext_does_not_leave_this_machine(address, fedbnsl, plan, tables, tmp_path):
    join = ("participant", "join", address, "--insecure", "--site=s", "--public-data", "--data", tables / "site-1.csv")
    refused(fedbnsl(*join), 2, address, "is not on this machine")
    serve = ("coordinator", "serve", plan, "--insecure", "--listen", address, "--set=join_deadline_s=0.1")
    refused(fedbnsl(*serve, "--out", tmp_path / "run"), 2, address, "is not on this machine")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:port", ":50051", "127.0.0.1:70000"])
def test_2_an_address_without_host_or_port_is_refused_with_an_example(address, fedbnsl, tables):
    join = ("participant", "join", address, "--insecure", "--site=s", "--public-data", "--data", tables / "site-1.csv")
    refused(fedbnsl(*join), 2, repr(address), "expected host:port, such as 127.0.0.1:50051")


def test_2_a_port_in_use_is_named_and_the_folder_left_free(fedbnsl, plan, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        serve = ("coordinator", "serve", plan, "--insecure", "--listen", listen, VARIABLES, "--out", tmp_path / "run")
        refused(fedbnsl(*serve), 2, f"cannot listen on {listen}: the port is in use")
    assert not (tmp_path / "run").exists()


def test_2_a_site_needs_a_name_that_can_name_a_file(fedbnsl, tables):
    join = ("participant", "join", "127.0.0.1:9", "--insecure", "--public-data", "--data", tables / "site-1.csv")
    for name in ("", "../here", "a b", "-x"):
        refused(fedbnsl(*join, f"--site={name}"), 2, f"--site {name!r}")


def test_5_sites_with_different_columns_do_not_fit_each_other(fedbnsl, plan, tables, tmp_path):
    table = tables / "site-2.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("X4", "weight", 1), encoding="utf-8")
    outcome = fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run")
    refused(outcome, 5, "site-2", "missing: X4", "not in the run: weight", "choose them with --columns")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["simulate", "demo"])
def test_columns_chooses_among_those_of_the_tables_before_anything_is_started(command, fedbnsl, plan, tables, tmp_path):
    start = ["simulate", plan] if command == "simulate" else ["demo", "--plan", plan]
    start += ["--data", tables, "--out", tmp_path / "run"]
    said = "no column 'X9' among the 5 of the header: 'X1', 'X2', 'X3', 'X4', 'X5'"
    refused(fedbnsl(*start, "--columns=X2,X9"), 4, "site-1.csv", said)
    refused(
        fedbnsl(*start, "--columns=X2,X2,X1"), 2, "--columns X2,X2,X1: expected at least two names, each of them once"
    )
    for empty in ("", "X1,,X2"):
        refused(fedbnsl(*start, f"--columns={empty}"), 2, "a name is empty")
    refused(fedbnsl(*start, "--columns=X2"), 2, "expected at least two names")
    fixed = ["--set", 'variables=["X1","X2"]', "--columns=X2,X3"]
    refused(fedbnsl(*start, *fixed), 2, "--columns names other columns than the plan, whose `variables` are X1, X2")
    (tables / "site-2.csv").write_text((tables / "site-2.csv").read_text(encoding="utf-8").replace("X4", "X7"))
    refused(fedbnsl(*start), 5, "site-2: ", "missing: X4; not in the run: X7", "choose them with --columns")
    assert not (tmp_path / "run").exists()
    if command == "simulate":
        outcome = fedbnsl(*start, "--columns", "X5, X1 ,X2", "--json")
        assert strict_json(outcome.out)["variables"] == ["X5", "X1", "X2"], outcome.err
        summary = fedbnsl(*start[:-1], tmp_path / "again", "--columns", "X5, X1,X2").out
        said = "only the 2 variables that the run and the truth have in common are scored"
        assert said in " ".join(summary.split()), "the truth has edges among X2, X3 and X5"
        assert "not written" not in summary


def test_6_a_coordinator_that_is_not_there_is_called_for_no_longer_than_the_patience(fedbnsl, tables):
    with socket.create_server(("127.0.0.1", 0)) as once:
        address = f"127.0.0.1:{once.getsockname()[1]}"
    join = (
        "participant",
        "join",
        address,
        "--insecure",
        "--site=s",
        "--public-data",
        "--data",
        tables / "site-1.csv",
        "--patience=0",
    )
    refused(fedbnsl(*join), 6, f"the coordinator at {address} did not answer", "Check the address")


def test_5_7_and_10_a_refused_site_and_a_run_for_which_too_few_join_end_at_both_ends(fedbnsl, plan, tables, tmp_path):
    address_file, out = tmp_path / "address", tmp_path / "run"
    serve = ["coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--address-file={address_file}"]
    deadline = ["--set=join_deadline_s=4", "--set=n_participants=2", f"--out={out}", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedbnsl", *serve, *deadline, VARIABLES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as coordinator:
        try:
            while not address_file.exists():
                assert coordinator.poll() is None, coordinator.stderr.read()
                time.sleep(0.02)
            address = address_file.read_text(encoding="utf-8")
            join = ("participant", "join", address, "--insecure", "--public-data", "--data", tables / "site-1.csv")
            misfit = fedbnsl(*join, "--site=nll", "--columns=X1,X2,X3")
            joined = fedbnsl(*join, "--site=here", "--out", tmp_path / "here")
            said = coordinator.communicate(timeout=30)
            served = Outcome(coordinator.returncode, *said)
        finally:
            coordinator.kill()
    refused(misfit, 5, "the coordinator refused", "missing: X4, X5", "choose them with --columns")
    refused(joined, 10, "too few sites answered in time", "Ask the coordinator's operator")
    refused(served, 7, "1 of 2 sites joined within join_deadline_s = 4 s (here)", "Bring the named sites back")
    assert strict_json((out / "result.json").read_text(encoding="utf-8"))["state"] == "failed"


def test_8_a_diverging_run_ends_with_the_settings_to_look_at(fedbnsl, plan, tables, tmp_path):
    explosive = ["--set=local_solver=closed-form", "--set=consensus_penalty=1e308"]
    outcome = fedbnsl("simulate", plan, "--data", tables, *explosive, "--out", tmp_path / "run", "--json")
    refused(outcome, 8, "the global step diverged", "`acyclicity_penalty`")
    assert strict_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["state"] == "failed"


def test_9_a_folder_that_is_no_run_and_files_that_are_no_graph_are_named(fedbnsl, run, tables, tmp_path):
    truth = tables / "truth.csv"
    refused(fedbnsl("evaluate", tables, "--truth", truth), 9, f"{tables} is no run folder")
    refused(fedbnsl("evaluate", run, "--truth", tmp_path / "no.csv"), 9, "no.csv cannot be read")
    for command in ("evaluate", "report"):
        refused(
            fedbnsl(command, run, "--truth", tables / "site-1.csv"), 9, "lacks the header source,target", "Give a CSV"
        )
        said = "is no run folder with a result"
        refused(fedbnsl(command, tables / "site-1.csv", "--truth", tables / "truth.csv"), 9, said)
    cyclic = tmp_path / "cyclic.csv"
    cyclic.write_text("source,target,weight\nX1,X2,1\nX2,X1,1\n", encoding="utf-8")
    refit = ("participant", "refit", cyclic, "--data", tables / "site-1.csv", "--out", tmp_path / "own")
    refused(fedbnsl(*refit), 9, "a Bayesian network has no cycle")
    refused(fedbnsl("data", "synth", "--out", tables), 9, "holds site tables already")
    refused(fedbnsl("data", "split", tables / "site-1.csv", "--out", tables), 9, "holds site tables already")


def test_1_a_bug_is_told_from_a_mistake_and_asks_to_be_reported(fedbnsl, tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(synthetic, "synthesise", broken)
    outcome = fedbnsl("data", "synth", "--out", tmp_path / "data")
    refused(outcome, 1, "unexpected ZeroDivisionError: by nought", "please report it", "--debug")


def test_2_a_package_that_only_experiments_need_is_named_with_the_way_to_install_it(fedbnsl, tmp_path, monkeypatch):
    def lacks_jinja2(*arguments, **options):
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr(synthetic, "synthesise", lacks_jinja2)
    outcome = fedbnsl("data", "synth", "--out", tmp_path / "data")
    refused(outcome, 2, "needs the package jinja2", "Install fedbnsl with all")


def test_1_a_missing_module_of_our_own_is_a_bug(fedbnsl, tmp_path, monkeypatch):
    def lacks_ours(*arguments, **options):
        raise ModuleNotFoundError("No module named 'fedbnsl.gone'", name="fedbnsl.gone")

    monkeypatch.setattr(synthetic, "synthesise", lacks_ours)
    refused(fedbnsl("data", "synth", "--out", tmp_path / "data"), 1, "unexpected ModuleNotFoundError")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_130_an_interrupted_run_keeps_what_it_has(which, fedbnsl, plan, tables, tmp_path, monkeypatch):
    asked, rounds = [], 20_000
    plan.write_text(f"rounds = {rounds}\n", encoding="utf-8")

    def interrupt(self, status):
        if status.round and not asked:
            asked.append(status.round)
            os.kill(os.getpid(), which)

    outside = signal.getsignal(which)
    monkeypatch.setattr(run_display.RunDisplay, "show", interrupt)
    outcome = fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run", "--json")
    assert signal.getsignal(which) is outside, "the handler of whoever called is back"
    refused(
        outcome,
        130,
        f"interrupted by {which.name}",
        f"What its complete rounds learned is in {tmp_path / 'run'}; the same command with another --out begins anew.",
    )
    result = strict_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["state"] == "interrupted"
    assert asked[0] <= len(result["rounds"]) < rounds, "what was learned is kept, and no more is learned"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cheese"], "No such command 'cheese'"),
        (["data", "cheese"], "No such command 'cheese'"),
        (["simulat"], "No such command 'simulat'. Did you mean 'simulate'?"),
        (["data", "splitt"], "No such command 'splitt'. Did you mean 'split'?"),
        (["coordinator", "serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["simulate", "--threds=2"], "No such option '--threds'. Did you mean '--threads'?"),
        (["evaluate", "RUN"], "Missing option '--truth'"),
        (["simulate", "no-such.toml", "--data", "D"], "'no-such.toml' does not exist"),
        (["data", "synth", "--nodes=1", "--out=D"], "1 is not in the range"),
        (["data", "synth", "--nodes=3", "--edges=4", "--out=D"], "3 nodes have at most 3 edges"),
        (["data", "synth", "--edges=nan", "--out=D"], "'nan' is not a finite number"),
        (["data", "synth", "--heterogeneous=inf", "--out=D"], "'inf' is not a finite number"),
        (["evaluate", "RUN", "--truth=T", "--threshold=nan"], "'nan' is not a finite number"),
        (["data", "split", "F", "--contiguous", "--seed=0", "--out=D"], "it cannot go with --seed"),
        (["demo", "--data=D", "--sites=3"], "--sites goes with generated data"),
        (["demo", "--private", "--min-rows=10"], "--min-rows goes without --private"),
        (["bench", "cheese"], "cheese: choose from accuracy, sachs, bytes, load, attacks"),
    ],
)
def test_2_wrong_usage_is_answered_with_the_way_to_help(arguments, said, fedbnsl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = fedbnsl(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert said in " ".join(outcome.err.split())
    assert "--help' for help" in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", [0, 1, 2, 4])
def test_debug_adds_the_traceback_wherever_it_stands_on_the_line(where, fedbnsl, tmp_path):
    line = ["evaluate", str(tmp_path), "--truth", "truth.csv"]
    quiet = fedbnsl(*line)
    refused(quiet, 9)
    loud = fedbnsl(*line[:where], "--debug", *line[where:])
    assert loud.code == 9
    assert loud.out == ""
    assert loud.err.startswith("Traceback (most recent call last):")
    assert "in read_result" in loud.err
    assert loud.err.endswith(quiet.err)


def test_debug_shows_where_a_bug_arose(fedbnsl, tmp_path, monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(synthetic, "synthesise", broken)
    outcome = fedbnsl("data", "synth", "--out", tmp_path / "data", "--debug")
    assert outcome.code == 1
    assert "ZeroDivisionError: by nought" in outcome.err
    assert "in broken" in outcome.err


def test_debug_changes_nothing_where_nothing_is_wrong(fedbnsl, plan, tables, tmp_path):
    outcome = fedbnsl("--debug", "simulate", plan, "--data", tables, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0
    assert strict_json(outcome.out)["state"] == "finished"


# ---- JSON for scripts ------------------------------------------------------------------------------------------


def test_data_synth_as_json_says_what_was_written(fedbnsl, tmp_path):
    out = tmp_path / "data"
    outcome = fedbnsl(
        "data", "synth", "--nodes=6", "--sites=2", "--rows=30", "--edges=7", "--seed=9", "--out", out, "--json"
    )
    said = strict_json(outcome.out)
    n_edges = len((out / "truth.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert n_edges > 0
    assert said == {"folder": str(out), "sites": 2, "rows": 30, "edges": n_edges, "seed": 9}


@pytest.mark.parametrize("how", ["--contiguous", "--seed=4"])
def test_data_split_as_json_counts_the_rows_of_each_site(how, fedbnsl, tables, tmp_path):
    outcome = fedbnsl("data", "split", tables / "site-1.csv", "--sites=7", how, "--out", tmp_path / "parts", "--json")
    said = strict_json(outcome.out)
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in (tmp_path / "parts").iterdir()}
    assert said == {"folder": str(tmp_path / "parts"), "rows": {site: n - 1 for site, n in lines.items()}}
    assert sum(said["rows"].values()) == 60


def test_simulate_as_json_prints_the_result_of_the_folder(fedbnsl, plan, tables, tmp_path):
    outcome = fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run", "--set", "rounds=4", "--json")
    said = strict_json(outcome.out)
    assert said == strict_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert len(said["rounds"]) == 5
    assert "round 5/5" in outcome.err, "progress is for people"


@pytest.mark.parametrize("threshold", [[], ["--threshold=0.1"], ["--threshold=1e300"]])
def test_evaluate_as_json_gives_scores_beside_the_controls(threshold, fedbnsl, run, tables):
    outcome = fedbnsl("evaluate", run, "--truth", tables / "truth.csv", *threshold, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    said = strict_json(outcome.out)
    assert {"scores", "empty_graph", "random_dag", "warnings", "threshold"} <= said.keys()
    assert said["threshold"] == (float(threshold[0].partition("=")[2]) if threshold else None)
    if threshold == ["--threshold=1e300"]:
        assert said["scores"] == said["empty_graph"]


def test_participant_refit_as_json_prints_the_network_of_its_folder(fedbnsl, run, tables, tmp_path):
    refit = ("participant", "refit", run / "edges.csv", "--data", tables / "site-2.csv", "--out", tmp_path / "own")
    outcome = fedbnsl(*refit, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    said = strict_json(outcome.out)
    assert outcome.out == (tmp_path / "own" / "lgbn.json").read_text(encoding="utf-8")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "own").iterdir()} == {0o600}
    rows = np.loadtxt(tables / "site-2.csv", delimiter=",", skiprows=1)
    column = {f"X{k + 1}": rows[:, k] for k in range(5)}
    assert sum(len(cpd["parents"]) for cpd in said["cpds"].values()) > 0
    for name, cpd in said["cpds"].items():
        residue = column[name]
        if cpd["parents"]:
            sources = np.column_stack([column[parent] for parent in cpd["parents"]])
            fitted = np.linalg.lstsq(sources, column[name], rcond=None)[0]
            assert [cpd["coefficients"][parent][0] for parent in cpd["parents"]] == pytest.approx(fitted.tolist())
            residue = column[name] - sources @ fitted
        assert cpd["variance"] == [pytest.approx(np.mean(residue**2))]


def test_demo_as_json_prints_the_result_of_the_folder(fedbnsl, tables, tmp_path):
    outcome = fedbnsl("demo", "--data", tables, "--set=rounds=2", "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert strict_json(outcome.out) == strict_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    ran = Plan.load(tmp_path / "run" / "plan.toml").with_settings(variables=())
    assert ran == Plan.load("lean", ["rounds=2", "n_participants=2"])


def test_demo_takes_tables_of_few_rows_if_it_is_told_to(fedbnsl, tables, tmp_path):
    for table in tables.glob("site-*.csv"):
        table.write_text("".join(table.read_text(encoding="utf-8").splitlines(keepends=True)[:13]), encoding="utf-8")
    start = ("demo", "--data", tables, "--set=rounds=2", "--out", tmp_path / "run", "--json")
    refused(fedbnsl(*start), 4, "12 rows; at least 20 are needed")
    outcome = fedbnsl(*start, "--min-rows=10")
    assert outcome.code == 0, outcome.err
    assert "--min-rows=10" in (tmp_path / "run" / "command.txt").read_text(encoding="utf-8")


def test_without_json_the_summary_names_edges_score_bytes_and_folder(fedbnsl, plan, tables, tmp_path):
    outcome = fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run")
    edges = (tmp_path / "run" / "edges.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert f"edges learned: {len(edges)}" in outcome.out
    for words in ("SHD", "bytes, formula", "bytes, serialised", "seconds", str(tmp_path / "run")):
        assert words in outcome.out


# ---- nothing is overwritten ------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_refused_before_any_table_is_read(fedbnsl, run, plan, tables, monkeypatch):
    def untouchable(*arguments, **options):
        raise AssertionError("a table was read")

    monkeypatch.setattr(Dataset, "read", untouchable)
    monkeypatch.setattr(synthetic, "synthesise", untouchable)
    before = contents(run)
    for command in (["simulate", plan, "--data", tables], ["demo", "--data", tables], ["demo"]):
        refused(fedbnsl(*command, "--out", run), 9, f"folder {run} holds a run already", "--out")
    assert contents(run) == before


def test_a_folder_with_a_run_is_refused_before_a_site_can_call(fedbnsl, run, plan, tmp_path):
    before = contents(run)
    address = tmp_path / "address"
    serve = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", f"--address-file={address}")
    refused(fedbnsl(*serve, VARIABLES, "--out", run), 9, f"folder {run} holds a run already")
    assert not address.exists()
    assert contents(run) == before


def test_a_private_demo_of_generated_tables_leaves_nothing_in_the_users_state_directory(fedbnsl, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    small = ("--sites=2", "--set=rounds=1", "--set=local_steps=2", "--set=quorum=2")
    outcome = fedbnsl("demo", "--private", "--epsilon=2", *small, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert set(strict_json(outcome.out)["ledgers"]) == {"site-1", "site-2"}
    given = ["n_participants=2", "rounds=1", "local_steps=2", "quorum=2"]
    ran = Plan.load(tmp_path / "run" / "plan.toml").with_settings(variables=())
    assert ran == Plan.load("private-steps", given, epsilon=2.0)
    assert not (tmp_path / "state").exists()
    assert len(list((tmp_path / "run" / "state" / "fedbnsl").glob("*.json"))) == 2
    assert "budgets again" in (tmp_path / "run" / "command.txt").read_text(encoding="utf-8")


# ---- a run that is interrupted before its first round, and repeated ------------------------------------------------


def signalled(number, *arguments):
    """Exit code and lines of a coordinator that is sent a signal once sites can call it."""
    coordinator = subprocess.Popen(
        [sys.executable, "-u", "-m", "fedbnsl", "coordinator", "serve", "--insecure", "--listen=127.0.0.1:0"]
        + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [""]
    try:
        while not lines[-1].startswith("listening on "):
            lines.append(coordinator.stdout.readline())
            assert lines[-1], lines
        coordinator.send_signal(number)
        lines += coordinator.communicate(timeout=30)[0].splitlines(keepends=True)
    finally:
        coordinator.kill()
    return coordinator.returncode, [line.rstrip("\n") for line in lines[1:]]


def test_130_of_a_run_without_a_round_nothing_was_learned_and_both_sides_can_repeat_it(fedbnsl, tables, tmp_path):
    run = tmp_path / "my run"
    code, lines = signalled(signal.SIGINT, "private-moments", "--epsilon=1", "--variables=x,y,z", f"--out={run}")
    said, address = "\n".join(lines), lines[0].removeprefix("listening on ").partition(";")[0]
    assert code == 130, said
    assert f"No round was finished; continue with: fedbnsl coordinator serve '{run}' --insecure" in said
    assert "What was learned" not in said
    serve, join, spends = (run / "command.txt").read_text(encoding="utf-8").splitlines()
    assert serve == f"fedbnsl coordinator serve plan.toml --insecure --listen {address} --out '../my run-again'"
    assert "spends the sites' privacy budgets again" in spends
    own = tmp_path / "own"
    assert fedbnsl("participant", "init", own, "--site=n", "--data", tables / "site-1.csv", "--dataset=d").code == 0
    words = shlex.split(join.replace("SITE_FOLDER", str(own)))
    outcome = fedbnsl(*words[1:], "--patience=0")
    assert (outcome.code, address in outcome.err) == (6, True), "the command is right; nobody answers"


# ---- a run that is paused and gone on with -------------------------------------------------------------------------


def test_0_a_paused_coordinator_says_how_to_go_on_and_a_run_takes_no_other_settings(fedbnsl, plan, tmp_path):
    run = tmp_path / "my run"
    for life, settings in enumerate(
        ([plan, VARIABLES, f"--out={run}", "--seed=data=5"], [run], [plan, VARIABLES, f"--out={run}"])
    ):
        code, lines = signalled(signal.SIGTERM, *settings)
        assert code == 0, lines
        if life:
            assert lines[0].startswith("continuing run ")
            assert "before round 1" in lines[0]
        assert lines[min(life, 1)].startswith("listening on ")
        again = f"fedbnsl coordinator serve '{run}' --insecure --listen 127.0.0.1:0"
        assert lines[-1] == f"paused before round 1; continue with: {again}"
        result = strict_json((run / "result.json").read_text(encoding="utf-8"))
        assert (result["state"], len(result["manifest"]["resumed_at"])) == ("interrupted", life)
        assert result["manifest"]["seeds"] == {"data": 5}
    for option in ("--set=rounds=3", f"--out={tmp_path / 'other'}", "--seed=data=6", VARIABLES, "--sites=a"):
        refused(fedbnsl("coordinator", "serve", run, "--insecure", option), 2, "continues with its own settings")
    refused(fedbnsl("coordinator", "serve", tmp_path, "--insecure"), 9, "holds no run that can be continued")
    other = ("coordinator", "serve", plan, "--insecure", "--listen=127.0.0.1:0", "--set=rounds=9", VARIABLES)
    refused(fedbnsl(*other, "--out", run), 9, "holds the run of another plan")


def test_letters_that_the_terminal_lacks_are_written_as_escapes_and_end_no_command(tmp_path, monkeypatch):
    """As in a Windows console, or with its output in a file there."""
    path = tmp_path / "plan.toml"
    path.write_text('name = "Ω → δ"\nrounds = 3\n', encoding="utf-8")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    with pytest.raises(SystemExit) as ended:
        main(["plan", "show", str(path), "--all"])
    sys.stdout.flush()
    assert ended.value.code == 0
    assert r'"\u03a9 \u2192 \u03b4"' in written.getvalue().decode("cp1252"), "TOML and JSON read it back"
