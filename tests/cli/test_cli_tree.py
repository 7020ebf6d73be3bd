"""The tree of commands: what is installed, how help reads, which exit codes there are."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path, PosixPath

import click
import pytest

from command_line import refused
from fedbnsl import cli, errors
from fedbnsl.cli import fedbnsl as root
from fedbnsl_client.data.cli import data

CHECKOUT = Path(__file__).parents[2]


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
            "coordinator runs resume",
            "coordinator runs wait",
            "coordinator runs fetch",
            "participant join",
            "participant refit",
            "data synth",
            "data split",
            "data hospital",
            "data dictionary",
        ),
        *("participant init", "participant register", "participant approve", "participant ledger"),
        *("coordinator init", "coordinator approve", "coordinator revoke", "coordinator renew", "coordinator enrolled"),
        *("coordinator roster", "participant moved", "participant retire", "coordinator forget"),
        *("coordinator backup", "participant backup"),
        *(f"{side} operators {do}" for side in ("coordinator", "participant") for do in ("add", "list", "remove")),
        *("coordinator status", "coordinator watch", "coordinator healthcheck"),
        *("coordinator audit-log", "participant audit-log", "coordinator eject"),
        *("participant request", "participant enrol", "participant check", "participant leave"),
        *("participant peers", "participant agent", "participant runs", "participant withdraw"),
        "participant predict",
        *("simulate", "demo", "effect", "evaluate", "bench", "privacy price", "report", "reproduce", "tune"),
        *("plan list", "plan show", "network show", "network sample", "network ask", "network predict"),
        *("network validate", "network diff", "network export"),
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
