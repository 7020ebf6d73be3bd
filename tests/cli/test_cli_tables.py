"""Plans, tables and columns on the command line: what is refused, and what is printed."""

import numpy as np
import pytest

from command_line import refused, strict_json


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
