"""The command that a report prints to repeat its run: typed in the run's folder, it makes the same graph."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager

import click
import pytest

from command_line import run_command
from fedbnsl.cli import fedbnsl as root
from federation_folder import enrol, make_federation
from free_port import free_port
from report_runs import PRIVATE, Page, make_run

TINY = "name = 'tiny'\nrounds = 3\nthreshold = 0.05\n"
PRIVATE_TOML = """local_solver = "dp-pgcd"
refit_rounds = 0
local_steps = 4
threshold = 0.1
rounds = 3
[privacy]
epsilon = 50.0
feature_bounds = [50.0]
"""


@pytest.fixture
def fedbnsl(fedbnsl, monkeypatch, tmp_path):
    """Run a command line that ends well."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        outcome = fedbnsl(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    return run


def printed(run, fedbnsl, monkeypatch):
    """The lines of the command, and the words of the report."""
    monkeypatch.setattr("fedbnsl_workbench.report.charts.as_svg", lambda figure: "<svg></svg>")
    fedbnsl("report", run)
    html = (run / "report.html").read_text(encoding="utf-8")
    (block,) = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)
    return Page(f"<pre>{block}</pre>").text, Page(html).text


@pytest.mark.parametrize(
    ("plan", "command"),
    [
        (TINY, ["simulate", "plan.toml", "--data", "my tables", "--columns=X3,X1,X2"]),
        (PRIVATE_TOML, ["simulate", "plan.toml", "--data", "my tables", "--public-data", "--noise-seed=4"]),
        (TINY, ["demo", "--plan", "plan.toml", "--data", "my tables", "--columns=X3,X1,X2"]),
        (TINY, ["demo", "--plan", "plan.toml", "--sites=1", "--seed=5", "--columns=X03,X01,X02,X15"]),
    ],
    ids=["simulate", "private simulate", "demo", "demo with generated tables"],
)
def test_the_printed_command_repeats_the_run(plan, command, fedbnsl, monkeypatch, tmp_path):
    (tmp_path / "plan.toml").write_text(plan, encoding="utf-8")
    fedbnsl("data", "synth", "--nodes=4", "--edges=4", "--sites=2", "--rows=300", "--out", "my tables")
    run = tmp_path / "a run"
    fedbnsl(*command, "--out", run)
    line, _ = printed(run, fedbnsl, monkeypatch)
    monkeypatch.chdir(run)
    program, *words = shlex.split(line)
    assert program == "fedbnsl"
    fedbnsl(*words)
    for name in ("edges.csv", "plan.toml"):
        assert (tmp_path / "a run-again" / name).read_bytes() == (run / name).read_bytes()
    assert len((run / "edges.csv").read_text(encoding="utf-8").splitlines()) > 1


def test_a_simulation_in_a_notebook_keeps_no_tables_and_the_page_says_what_to_fill_in(fedbnsl, monkeypatch, tmp_path):
    run = make_run(tmp_path, ["a", "b", "c", "d"], **PRIVATE)
    line, text = printed(run, fedbnsl, monkeypatch)
    assert "TABLES : the folder with the tables" in text
    monkeypatch.chdir(run)
    fedbnsl(*shlex.split(line.replace("TABLES", "../tables"))[1:])
    assert (run.with_name(f"{run.name}-again") / "edges.csv").read_bytes() == (run / "edges.csv").read_bytes()


def test_of_a_networked_run_the_page_prints_what_both_sides_type(fedbnsl, monkeypatch, capsys, tmp_path):
    run = make_run(tmp_path, ["a", "b", "c", "d"])
    (run / "run.json").write_text("{}", encoding="utf-8")
    lines, text = printed(run, fedbnsl, monkeypatch)
    assert "FEDERATION : the folder that" in text
    assert "SITE_FOLDER : the site's own folder" in text
    federation = make_federation(tmp_path / "federation", name="lab", port=9)
    own = tmp_path / "own"
    fedbnsl("participant", "init", own, "--site=north", "--data", tmp_path / "tables" / "site-1.csv", "--dataset=d",
            "--max-epsilon=10", "--coordinator=127.0.0.1:9")  # fmt: skip
    enrol(federation, own)
    serve, join, _ = re.findall(r"fedbnsl (.*?)(?= fedbnsl |  *#|$)", lines)
    group, name, *options = shlex.split(serve.replace("FEDERATION", str(federation.folder)))
    monkeypatch.chdir(run)
    context = click.Context(root, **root.context_settings)
    coordinator = root.get_command(context, group)
    # Only parsed: a coordinator that serves would wait for sites.
    coordinator.get_command(context, name).make_context(name, options, parent=context)
    outcome = run_command(capsys, *shlex.split(join.replace("SITE_FOLDER", str(own))), "--patience=0")
    assert outcome.code == 6, "the command is right; nobody answers"


@contextmanager
def processes(*commands, cwd):
    """Command lines that run beside each other, in a folder."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        yield started
        for process in started:
            said = process.communicate(timeout=280)[0]  # a busy machine is no failure
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("listen", [False, True], ids=["the enrolled port", "another port"])
def test_what_the_page_of_a_run_over_tls_prints_repeats_it_when_it_is_typed(listen, fedbnsl, monkeypatch, tmp_path):
    fedbnsl("data", "synth", "--nodes=4", "--edges=4", "--sites=2", "--rows=300", "--out", "tables")
    (tmp_path / "plan.toml").write_text(f"{TINY}n_participants = 2\n", encoding="utf-8")
    federation = make_federation(tmp_path / "federation", name="lab", port=free_port())
    for site in ("a", "b"):
        enrol(federation, tmp_path / site, site)
    data = {"a": tmp_path / "tables" / "site-1.csv", "b": tmp_path / "tables" / "site-2.csv"}
    address = f"127.0.0.1:{free_port()}" if listen else federation.address
    serve = ("fedbnsl", "coordinator", "serve", "plan.toml", "--federation", "federation", "--out=run")
    serve += ("--variables", data["a"], "--sites=a,b", f"--listen={address}")
    join = ("fedbnsl", "participant", "join", address, "--public-data")
    with processes(serve, *((*join, "--identity", site, "--data", data[site]) for site in data), cwd=tmp_path):
        pass
    text, page = printed(tmp_path / "run", fedbnsl, monkeypatch)
    again, under_a_policy, public = re.findall(r"fedbnsl .*?(?= +(?:# or: )?fedbnsl |$)", text.strip())
    assert under_a_policy.endswith("--policy SITE_FOLDER")
    assert "TABLE : the site's table" in page
    typed = [
        shlex.split(public.replace("SITE_FOLDER", str(tmp_path / site)).replace("TABLE", str(data[site])))
        for site in data
    ]
    with processes(shlex.split(again), *typed, cwd=tmp_path / "run"):
        pass
    assert (tmp_path / "run-again" / "edges.csv").read_bytes() == (tmp_path / "run" / "edges.csv").read_bytes()
    assert len((tmp_path / "run" / "edges.csv").read_text(encoding="utf-8").splitlines()) > 1


def test_a_run_that_did_not_begin_leaves_no_command(capsys, tmp_path):
    outcome = run_command(capsys, "simulate", __file__, "--data", tmp_path, "--out", tmp_path / "run")
    assert outcome.code == 3
    assert not (tmp_path / "run").exists()
