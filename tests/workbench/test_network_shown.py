"""What `fedbnsl network show` says of a run: variables, edges, tables of categories, and what contradicts it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from class_runs import small_run
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.networks.cli import network
from fedbnsl_workbench.simulate import simulate

DICTIONARY: dict[str, Any] = {
    "smo [k] er": {"kind": "binary", "levels": ["no", "yes"], "tier": 1},
    "stage": {"kind": "nominal", "levels": ["I", "II", "III"], "tier": 2},
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of smokers half have stage III, of others a tenth."""
    rng, tables = np.random.default_rng(5), {}
    plan = Plan.load("standard").with_settings(bootstrap=5, n_participants=2, dictionary=DICTIONARY)
    for site in ("x", "y"):
        smokes = (rng.random(1000) < 0.4).astype(float)
        third = rng.random(1000) < np.where(smokes, 0.5, 0.1)
        stage = np.where(third, 2.0, rng.integers(0, 2, 1000))
        codes = np.column_stack([smokes, stage])
        tables[site] = Dataset.of_values(list(DICTIONARY), codes, origin=site, dictionary=plan.dictionary, warn=False)
    out = tmp_path_factory.mktemp("counted") / "run"
    simulate(plan, tables, out)
    return out


def shown(run: Path, *options: str) -> str:
    result = CliRunner().invoke(network, ["show", str(run), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_variables_are_told_with_kinds_levels_and_means(counted: Path) -> None:
    (smokes, stage) = json.loads(shown(counted, "--json"))["variables"]
    assert (smokes["kind"], smokes["levels"]) == ("binary", ["no", "yes"])
    assert smokes["means"] == {"smo [k] er": pytest.approx(0.4, abs=0.04)}
    assert stage["means"]["stage=III"] == pytest.approx(0.4 * 0.5 + 0.6 * 0.1, abs=0.04)
    text = " ".join(shown(counted).split())
    assert text.startswith("2 variables; 1 edge")
    assert "smo [k] er │ binary, levels no, yes │ share of yes 0.4" in text


def test_tables_of_categories_are_shown_with_their_records(counted: Path) -> None:
    text = shown(counted)
    (row,) = (line for line in text.splitlines() if line.startswith("│ yes") and line.count("│") == 6)
    smoker, *shares, records = (cell.strip() for cell in row.strip("│").split("│"))
    assert smoker == "yes"
    assert float(shares[-1]) == pytest.approx(0.5, abs=0.05)
    assert sum(map(float, shares)) == pytest.approx(1.0, abs=0.002)
    assert float(records) == pytest.approx(800, abs=80)


def test_edges_and_what_contradicts_them_are_those_of_the_result(tmp_path: Path) -> None:
    run = small_run(tmp_path / "first")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result["verdict"]["contradicted"] = ["sites differ in everything"]
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    told = json.loads(shown(run, "--json"))
    assert [one["source"] for one in told["edges"]] == [one["source"] for one in result["edges"]]
    assert told["doubts"] == ["the data contradict what was assumed: Sites differ in everything."]
    text = " ".join(shown(run).split())
    assert "6 variables; 4 directed edges, 1 undirected" in text
    assert "the data contradict what was assumed: Sites differ in everything." in text
    assert "│ d │ -- │ f │" in text


def test_of_many_variables_the_first_are_shown_and_json_has_all(tmp_path: Path) -> None:
    rng, names = np.random.default_rng(1), tuple(f"v{k}" for k in range(60))
    tables = {site: Dataset(names, rng.standard_normal((200, 60))) for site in ("x", "y")}
    simulate(Plan.load("standard").with_settings(bootstrap=0, n_participants=2), tables, tmp_path / "run")
    text = shown(tmp_path / "run")
    assert "... 20 more" in text
    assert "v39" in text
    assert "v40" not in text.partition("more")[0]
    assert len(json.loads(shown(tmp_path / "run", "--json"))["variables"]) == 60
