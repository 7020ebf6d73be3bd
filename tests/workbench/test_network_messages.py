"""What commands that use a network say of a wrong --out, and of what contradicts the network."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from class_runs import small_run
from fedbnsl.errors import SetupError
from fedbnsl_workbench.networks.asking import in_short
from fedbnsl_workbench.networks.cli import network


@pytest.mark.parametrize("command", [["sample"], ["predict", "TABLE", "--target", "a"], ["export", "--as", "json"]])
def test_a_file_whose_folder_is_missing_is_refused_before_any_work(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    name, *options = [str(tmp_path / "rows.csv") if one == "TABLE" else one for one in command]
    out = tmp_path / "no such" / "out.csv"
    done = CliRunner().invoke(network, [name, str(tmp_path / "no run"), *options, "--out", str(out)])
    assert isinstance(done.exception, SetupError), done.output
    assert str(done.exception) == f"{out}: there is no folder {out.parent}"
    assert done.exception.remedy == f"Make it (mkdir -p '{out.parent}'), or give another --out."


def test_long_findings_are_one_line_that_says_where_they_stand() -> None:
    long, short = "a finding that goes on " * 20, "noise is in all numbers"
    assert in_short([short], "there") == [short]
    (first, last) = in_short([long, short, long], "there")
    assert last == short
    assert len(first) < 170
    assert first.startswith("a finding that goes on a finding")
    assert first.endswith("... and 1 more; whole: there")


def test_answers_have_findings_in_short_and_json_has_them_whole(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    content = json.loads((run / "result.json").read_text(encoding="utf-8"))
    content["verdict"]["contradicted"] = ["sites differ " * 30]
    (run / "result.json").write_text(json.dumps(content), encoding="utf-8")
    asked = CliRunner().invoke(network, ["ask", str(run), "--target", "a"])
    assert asked.exception is None, asked.exception
    first, *_ = asked.stdout.splitlines()
    assert first.startswith("be careful: sites differ sites differ")
    assert first.endswith(f"...; whole: fedbnsl network show {run}")
    assert len(first) < 180 + len(str(run))
    told = json.loads(CliRunner().invoke(network, ["ask", str(run), "--target", "a", "--json"]).stdout)
    assert told["doubts"] == content["verdict"]["contradicted"]
