"""Bugs, wrong usage and terminals that lack letters: told from mistakes, each with its exit code."""

import io
import sys

import pytest

from command_line import refused
from fedbnsl.cli import main
from fedbnsl_workbench.tables import synthetic


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cheese"], "No such command 'cheese'"),
        (["data", "cheese"], "No such command 'cheese'"),
        (["simulat"], "No such command 'simulat'. Did you mean 'simulate'?"),
        (["data", "splitt"], "No such command 'splitt'. Did you mean 'split'?"),
        (["coordinator", "servee"], "No such command 'servee'. Did you mean 'serve'?"),
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
