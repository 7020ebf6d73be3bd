"""What commands that use a network say of a wrong --out, and of what contradicts the network."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from class_runs import small_run
from fedbnsl.cli import fedbnsl as root
from fedbnsl.errors import SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.networks.asking import in_short
from fedbnsl_workbench.simulate import simulate

DICTIONARY: dict[str, Any] = {
    "age": {"range": [0, 100], "tier": 1},
    "gr=ade": {"kind": "ordinal", "levels": ["low", "middle", "high"], "tier": 2},
    "ward": {"kind": "nominal", "levels": ["A", "B", "C"], "tier": 2},
}


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the rows are of ward B; the grade grows with age."""
    rng, tables = np.random.default_rng(4), {}
    plan = Plan.load("standard").with_settings(bootstrap=5, n_participants=2, dictionary=DICTIONARY)
    for site in ("x", "y"):
        age = np.clip(rng.normal(50.0, 10.0, 1500), 0.0, 100.0)
        grade = np.clip(np.rint(1.0 + 0.05 * (age - 50.0) + rng.normal(0.0, 0.5, 1500)), 0, 2)
        X = np.column_stack([age, grade, rng.choice(3, 1500, p=[0.3, 0.5, 0.2])])
        tables[site] = Dataset.of_values(list(DICTIONARY), X, origin=site, dictionary=plan.dictionary, warn=False)
    out = tmp_path_factory.mktemp("described") / "run"
    simulate(plan, tables, out)
    return out


@pytest.mark.parametrize("command", [["sample"], ["predict", "TABLE", "--target", "a"], ["export", "--as", "json"]])
def test_a_file_whose_folder_is_missing_is_refused_before_any_work(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    name, *options = [str(tmp_path / "rows.csv") if one == "TABLE" else one for one in command]
    out = tmp_path / "no such" / "out.csv"
    done = CliRunner().invoke(root, ["network", name, str(tmp_path / "no run"), *options, "--out", str(out)])
    assert isinstance(done.exception, SetupError), done.output
    assert str(done.exception) == f"{out}: there is no folder {out.parent}"
    assert done.exception.remedy == f"Make it (mkdir -p '{out.parent}'), or give another --out."


def test_long_findings_are_a_short_line_each_those_about_the_question_first() -> None:
    long, short = "a finding that goes on " * 20, "noise is in all numbers"
    about = f"straight lines do not describe how 'age' acts on 'frailty': {long}"
    assert in_short([short], "there") == [short]
    first, second, third = in_short([long, short, about], "there", ["age"])
    assert first.startswith("straight lines do not describe how 'age' acts on 'frailty'")
    assert first.endswith("...")
    assert second.endswith("...; whole: there")
    assert third == short
    assert max(map(len, (first, second))) < 150


def test_answers_have_findings_in_short_and_json_has_them_whole(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    content = json.loads((run / "result.json").read_text(encoding="utf-8"))
    content["verdict"]["contradicted"] = ["sites differ " * 30]
    (run / "result.json").write_text(json.dumps(content), encoding="utf-8")
    asked = CliRunner().invoke(root, ["network", "ask", str(run), "--target", "a"])
    assert asked.exception is None, asked.exception
    first, *_ = asked.stdout.splitlines()
    assert first.startswith("be careful: sites differ sites differ")
    assert first.endswith(f"...; whole: fedbnsl network show {run}")
    assert len(first) < 180 + len(str(run))
    told = json.loads(CliRunner().invoke(root, ["network", "ask", str(run), "--target", "a", "--json"]).stdout)
    assert told["doubts"] == content["verdict"]["contradicted"]


def test_drawn_rows_are_compared_in_all_columns_levels_and_pairs(described: Path, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("rows.csv", "comparison.csv")]
    arguments = ["sample", str(described), "--rows", "3000", "--out", files[0], "--comparison", files[1]]
    told = json.loads(CliRunner().invoke(root, ["network", *arguments, "--json"]).stdout)
    with open(files[0], encoding="utf-8") as file:
        file.readline()
        rows = list(csv.DictReader(file))
    for level in ("low", "middle", "high"):
        drawn = np.mean([row["gr=ade"] == level for row in rows])
        assert told["levels"]["gr=ade"][level]["drawn"] == pytest.approx(drawn)
        assert told["levels"]["gr=ade"][level]["share"] is None, "a run tells no shares of grades"
    of_ward = told["levels"]["ward"]
    assert of_ward["B"]["share"] == pytest.approx(0.5, abs=0.03)
    assert of_ward["B"]["drawn"] == pytest.approx(np.mean([row["ward"] == "B" for row in rows]))
    assert sum(of["share"] for of in of_ward.values()) == pytest.approx(1.0)
    assert len(told["correlations"]) == 4 * 3 / 2
    assert told["pairs_left_out"] == 0
    off = [abs(one["drawn"] - one["of_network"]) for one in told["correlations"]]
    assert off == sorted(off, reverse=True)
    with open(files[1], encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert Counter(row["what"] for row in table) == {
        "mean": 4, "standard deviation": 4, "share of level": 6, "correlation": 6
    }  # fmt: skip
    again = CliRunner().invoke(root, ["network", *arguments[:4], "--out", str(tmp_path / "more.csv")]).stdout
    assert "ward: B" in again
    assert "... 1 nearer" in again
    assert "gr=ade " not in again.partition("shares of levels")[0]
    refused = CliRunner().invoke(
        root, ["network", *arguments[:4], "--out", str(tmp_path / "x.csv"), "--comparison", files[1]]
    )
    assert isinstance(refused.exception, SetupError)
    assert not (tmp_path / "x.csv").exists()
