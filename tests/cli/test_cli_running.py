"""`simulate` and `demo` as a person or a script meets them: results, interruptions, folders that are kept."""

import os
import signal

import pytest

from command_line import contents, refused, strict_json
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.observe import terminal as run_display
from fedbnsl_workbench.tables import synthetic


def test_8_a_diverging_run_ends_with_the_settings_to_look_at(fedbnsl, plan, tables, tmp_path):
    explosive = ["--set=local_solver=closed-form", "--set=consensus_penalty=1e308"]
    outcome = fedbnsl("simulate", plan, "--data", tables, *explosive, "--out", tmp_path / "run", "--json")
    refused(outcome, 8, "the global step diverged", "`acyclicity_penalty`")
    assert strict_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["state"] == "failed"


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


def test_debug_changes_nothing_where_nothing_is_wrong(fedbnsl, plan, tables, tmp_path):
    outcome = fedbnsl("--debug", "simulate", plan, "--data", tables, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0
    assert strict_json(outcome.out)["state"] == "finished"


def test_simulate_as_json_prints_the_result_of_the_folder(fedbnsl, plan, tables, tmp_path):
    outcome = fedbnsl("simulate", plan, "--data", tables, "--out", tmp_path / "run", "--set", "rounds=4", "--json")
    said = strict_json(outcome.out)
    assert said == strict_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert len(said["rounds"]) == 5
    assert "round 5/5" in outcome.err, "progress is for people"


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


def test_a_folder_with_a_run_is_refused_before_any_table_is_read(fedbnsl, run, plan, tables, monkeypatch):
    def untouchable(*arguments, **options):
        raise AssertionError("a table was read")

    monkeypatch.setattr(Dataset, "read", untouchable)
    monkeypatch.setattr(synthetic, "synthesise", untouchable)
    before = contents(run)
    for command in (["simulate", plan, "--data", tables], ["demo", "--data", tables], ["demo"]):
        refused(fedbnsl(*command, "--out", run), 9, f"folder {run} holds a run already", "--out")
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
