"""What `fedbnsl network show` says of a run: variables, edges, tables of categories, and what contradicts it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from class_runs import small_run
from fedbnsl.cli import fedbnsl as root
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
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
    result = CliRunner().invoke(root, ["network", "show", str(run), *options])
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
    assert "stage a table of shares by 2 combinations of its parents' levels" in text


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


@pytest.mark.parametrize("tell_means", [True, False])
def test_formulas_have_the_numbers_that_rows_were_made_by(tmp_path: Path, tell_means: bool) -> None:
    rng, tables = np.random.default_rng(2), {}
    described: dict[str, Any] = {
        "dose": {"range": [0, 20], "tier": 1},
        "pain": {"kind": "ordinal", "levels": ["none", "some", "much"], "tier": 2},
        "crp level": {"transform": "log", "tier": 2},
        "visits": {"kind": "count", "tier": 2},
        "dead": {"kind": "binary", "levels": ["no", "yes"], "tier": 2},
    }
    plan = Plan.load("standard").with_settings(
        bootstrap=0, n_participants=2, dictionary=described, tell_means=tell_means
    )
    for site in ("x", "y"):
        dose = np.clip(rng.normal(10.0, 2.0, 4000), 0.0, 20.0)
        z = dose - 10.0
        pain = np.digitize(0.6 * z + rng.logistic(size=4000), [-1.0, 1.0])
        crp = np.exp(1.0 + 0.2 * z + rng.normal(0.0, 0.5, 4000))
        dead = rng.random(4000) < 1.0 / (1.0 + np.exp(-0.5 * z))
        codes = np.column_stack([dose, pain, crp, rng.poisson(np.exp(1.0 + 0.15 * z)), dead])
        tables[site] = Dataset.of_values(list(described), codes, origin=site, dictionary=plan.dictionary, warn=False)
    simulate(plan, tables, tmp_path / "run")
    told = json.loads(shown(tmp_path / "run", "--json"))
    text = " ".join(shown(tmp_path / "run").split())
    if not tell_means:
        assert told["families"] is None
        assert told["no_families_because"].startswith("formulas are not known: the run does not tell the means")
        assert told["no_families_because"] in text
        return
    words = told["families_in_words"]
    assert words["dose"].startswith("dose is normal with mean ")
    assert words["dose"].endswith(", within 0 to 20")
    assert numbers(words["dose"])[:2] == pytest.approx([10.0, 2.0], abs=0.1)
    start, slope, noise = numbers(words["crp level"])
    assert words["crp level"].startswith("log('crp level') = ")
    assert (slope, noise) == pytest.approx((0.2, 0.5), abs=0.03)
    assert start + 10.0 * slope == pytest.approx(1.0, abs=0.05)
    start, slope, *_ = numbers(words["visits"])
    assert words["visits"].startswith("log(rate) = ")
    assert (start + 10.0 * slope, slope) == pytest.approx((1.0, 0.15), abs=0.05)
    start, slope = numbers(words["dead"])
    assert words["dead"].startswith("log odds against no: yes ")
    assert (start + 10.0 * slope, slope) == pytest.approx((0.0, 0.5), abs=0.1)
    low, high, slope = numbers(words["pain"])
    assert words["pain"].startswith("log odds of a level above none: ")
    assert slope == pytest.approx(0.6, abs=0.08)
    assert (low + 10.0 * slope, high + 10.0 * slope) == pytest.approx((1.0, -1.0), abs=0.15)
    assert words["dead"] in text
    assert told["families"]["dead"]["weights"][0][0] == pytest.approx(0.5, abs=0.05)


def numbers(words: str) -> list[float]:
    """Those of a formula, with the sign that stands before each."""
    found = re.findall(r"([-+] ?)?(\d+(?:\.\d+)?(?:e[-+]\d+)?)", words)
    return [(-1.0 if sign.startswith("-") else 1.0) * float(number) for sign, number in found]
