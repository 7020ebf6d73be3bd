"""Runs over tables in which a common cause is missing: the result says what holds with it."""

import csv
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results.hidden_effects import EffectsIfHidden
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_server.results.result_schema import HiddenCauses
from fedbnsl_server.results.sentences import checks_in_words, hidden_causes_in_words
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.simulate import simulate

NAMES = ("diet", "weight", "pressure", "salt")
PLAN = Plan.load("standard").with_settings(n_participants=3, bootstrap=20)


def tables() -> dict[str, Dataset]:
    """Diet acts on weight, salt on pressure, and something that no table has on weight and pressure."""
    rng, found = np.random.default_rng(2), {}
    for site in ("a", "b", "c"):
        diet, salt, hidden, of_weight, of_pressure = rng.standard_normal((5, 1500))
        weight = 0.8 * diet + hidden + 0.5 * of_weight
        pressure = 0.8 * salt - hidden + 0.5 * of_pressure
        found[site] = Dataset.of_values(NAMES, np.column_stack([diet, weight, pressure, salt]), origin=site, warn=False)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden") / "run"
    simulate(PLAN, tables(), folder)
    return folder


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def test_a_hidden_cause_is_said_and_the_edge_that_only_a_dag_needs_is_gone(run: Path) -> None:
    result = read(run)
    assert len(result["edges"]) > 3, "the class needs more edges than there are"
    told = result["hidden_causes"]
    said = {(one["source"], one["target"]): one for one in told["links"]}
    assert set(said) == {("diet", "weight"), ("weight", "pressure"), ("salt", "pressure")}
    hidden = said["weight", "pressure"]
    assert (hidden["mark_source"], hidden["mark_target"]) == ("arrow", "arrow")
    assert hidden["bootstrap"]["hidden_cause"] > 0.5
    assert said["diet", "weight"]["says"] == "'diet' acts on 'weight', or both have a hidden cause"
    assert [set(pair) for pair in told["gone"]] in ([{"diet", "pressure"}], [{"weight", "salt"}])
    assert "0 of 3 links say that one variable acts on another" in result["verdict"]["not_testable"][0]
    assert "a hidden cause: weight <-> pressure" in hidden_causes_in_words(HiddenCauses.model_validate(told))


def test_the_files_have_the_marks_of_the_result(run: Path) -> None:
    told = {frozenset((one["source"], one["target"])): one for one in read(run)["hidden_causes"]["links"]}
    with (run / "edges.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > len(told)
    for row in rows:
        one = told.get(frozenset((row["source"], row["target"])))
        ends = {row["source"]: row["mark_source"], row["target"]: row["mark_target"]}
        if one is None:
            assert set(ends.values()) == {"none"}
            continue
        assert ends == {one["source"]: one["mark_source"], one["target"]: one["mark_target"]}
        share = one["bootstrap"]["mark_target" if row["source"] == one["source"] else "mark_source"]
        assert float(row["mark_target_share"]) == share
    with (run / "pag.csv").open(encoding="utf-8") as file:
        matrix = {row["amat.pag"]: row for row in csv.DictReader(file)}
    assert matrix["weight"]["pressure"] == matrix["pressure"]["weight"] == "2"
    assert matrix["diet"]["weight"] == "2"
    assert matrix["weight"]["diet"] == "1"


def summary(result: dict[str, Any], *, no_hidden_causes: bool = False) -> str:
    text = StringIO()
    console = Console(file=text, width=160)
    print_summary(result, Path("run"), console, no_hidden_causes=no_hidden_causes, seconds=1.0)
    return text.getvalue()


def table_of(text: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line]
    return {(row[0], row[2]): [row[1], *row[3:]] for row in rows}


def test_the_table_on_the_terminal_has_the_marks(run: Path) -> None:
    result = read(run)
    text = summary(result)
    table, told = table_of(text), {(one["source"], one["target"]): one for one in result["hidden_causes"]["links"]}
    assert {frozenset(pair) for pair in table} == {frozenset(pair) for pair in told}, "no edge that only a DAG needs"
    assert table["diet", "weight"][0] == table["salt", "pressure"][0] == "o->"
    (pair,) = table.keys() & {("weight", "pressure"), ("pressure", "weight")}
    assert table[pair][0].rstrip("?") == "<->"
    shares = told["weight", "pressure"]["bootstrap"]
    assert table[pair][-1].split()[-1] == f"{100 * shares['hidden_cause']:.0f}"
    assert "o-> acts on, or both have a hidden cause" in text
    assert "the graph needs an edge there only if no common cause is hidden" in text


def with_marks_turned(result: dict[str, Any]) -> tuple[str, str]:
    """An edge of the class, whose link is told with its one arrowhead at the edge's source from now on."""
    pairs = {(one["source"], one["target"]) for one in result["edges"]}
    (link, *_) = (one for one in result["hidden_causes"]["links"] if (one["source"], one["target"]) in pairs)
    pair = link["source"], link["target"]
    link |= {"source": pair[1], "target": pair[0], "mark_source": "circle", "mark_target": "arrow"}
    return pair


def test_a_weight_stands_on_the_terminal_only_along_the_marks(run: Path) -> None:
    result = read(run)
    kept, (source, target) = table_of(summary(result)), with_marks_turned(result)
    assert kept[source, target][1], "the weight of the class"
    table = table_of(summary(result))
    assert (source, target) not in table
    mark, *numbers, _ = table[target, source]
    assert mark.rstrip("?") == "o->", "the arrowhead is at the target"
    assert not any(numbers), "the class has the numbers of the other direction"
    (hidden,) = table.keys() & {("weight", "pressure"), ("pressure", "weight")}
    assert not any(table[hidden][1:-1]), "neither acts on the other"
    (other,) = table.keys() & {("diet", "weight"), ("salt", "pressure")}
    assert all(table[other]), "this one is along the marks"


def test_the_page_says_which_weights_hold_only_if_nothing_is_hidden(run: Path, tmp_path: Path) -> None:
    rows = re.findall(
        r"<tr>.*?</tr>", write_report(run).read_text().split('<table id="edges"')[1].split("</table>")[0], re.DOTALL
    )
    allowed = {("diet", "weight"), ("salt", "pressure")}
    for edge in read(run)["edges"]:
        (row,) = (
            row for row in rows if re.findall(r'class="name[^>]*>([a-z]+)<', row) == [edge["source"], edge["target"]]
        )
        assert ("<small>not by the marks" in row) == ((edge["source"], edge["target"]) not in allowed)


def test_marks_that_few_draws_agree_with_have_a_question_mark(run: Path) -> None:
    result = read(run)
    for one in result["hidden_causes"]["links"]:
        one["bootstrap"] |= {"adjacent": 0.8, "mark_source": 0.75, "mark_target": 0.8}
    (link,) = (one for one in result["hidden_causes"]["links"] if one["source"] == "diet")
    assert "?" not in summary(result), "three of four draws"
    link["bootstrap"]["mark_target"] = 0.74
    text = summary(result)
    assert [pair for pair, cells in table_of(text).items() if "?" in cells[0]] == [("diet", "weight")]
    assert "? less than 75% of the draws have the link with the same marks" in text


def test_the_table_has_the_class_where_it_is_asked_for(run: Path) -> None:
    result = read(run)
    text = summary(result, no_hidden_causes=True)
    marks = {pair: cells[0] for pair, cells in table_of(text).items()}
    assert marks == {(e["source"], e["target"]): "->" if e["directed"] else "--" for e in result["edges"]}
    assert f"edges learned: {len(marks)}" in text
    assert "if no common cause is hidden" in text
    assert "a hidden cause: weight <-> pressure" in text, "what holds without that is said all the same"


def test_a_notebook_has_the_marks_as_a_data_frame(run: Path, tmp_path: Path) -> None:
    told = {(one["source"], one["target"]): one for one in read(run)["hidden_causes"]["links"]}
    frame = Network.load(run).hidden_causes
    assert frame is not None
    marks = {(row["source"], row["target"]): row for row in frame.to_dict("records")}
    assert marks.keys() == told.keys()
    assert marks["weight", "pressure"]["marks"] == "<->"
    assert marks["diet", "weight"]["says"] == told["diet", "weight"]["says"]
    drawn = {"linked": "adjacent", "same_source": "mark_source", "same_target": "mark_target"}
    for pair, row in marks.items():
        shares = told[pair]["bootstrap"]
        assert {key: row[name] for name, key in drawn.items()} == {key: shares[key] for key in drawn.values()}
        assert row["hidden_cause"] == shares["hidden_cause"]
    result = read(run)
    for one in result["hidden_causes"]["links"]:
        one["bootstrap"] = None
    undrawn = Network(tmp_path, result).hidden_causes
    assert undrawn is not None
    assert undrawn["linked"].isna().all()
    assert Network(tmp_path, {**result, "hidden_causes": None}).hidden_causes is None


def test_the_verdict_says_that_the_marks_contradict_that_nothing_is_hidden(run: Path) -> None:
    verdict = read(run)["verdict"]
    assert verdict["hidden_causes_seen"] == ["weight and pressure"]
    assert "the marks contradict that no common cause is missing" in checks_in_words(verdict)[0]


def test_the_page_has_the_marks(run: Path) -> None:
    page = write_report(run).read_text()
    assert "<td>&lt;-&gt;</td>" in page
    assert "&#39;weight&#39; and &#39;pressure&#39; have a hidden cause" in page
    assert "Edges above that only hold if no common cause is hidden" in page


def test_the_page_draws_the_marks_and_the_class_only_under_the_assumption(run: Path) -> None:
    page = write_report(run).read_text()
    switch = page.index('<input type="checkbox" id="none-hidden">')  # not checked
    marked, plain = page.index('<div class="if-hidden">'), page.index('<div class="wide plot none-hidden"')
    assert switch < marked < plain, "style sheets reach only what comes after the box"
    assert "#none-hidden:not(:checked) ~ .none-hidden { display: none; }" in page
    drawings = re.findall(r'<svg class="dag".*?</svg>', page, re.DOTALL)
    assert len(drawings) == 2
    edges = re.findall(r'<g class="edge .*?</g>', drawings[0], re.DOTALL)
    by_title = {re.search(r"<title>(.*?)\n", one)[1]: one for one in edges}
    assert set(by_title) == {"diet o-&gt; weight", "salt o-&gt; pressure", "weight &lt;-&gt; pressure"}
    n_heads = {name: (one.count("<circle"), one.count('z" fill=')) for name, one in by_title.items()}
    assert n_heads["weight &lt;-&gt; pressure"] == (0, 2)
    assert n_heads["diet o-&gt; weight"] == (1, 1)
    assert "hold only if no common cause of two variables is missing" in page
    assert ">no link</td>" in page, "the table of edges says it of the edge that only a DAG needs"


def test_a_plan_can_exclude_hidden_causes_and_the_result_says_that_arrows_rest_on_it(run: Path, tmp_path: Path) -> None:
    excluded = PLAN.with_settings(hidden_causes="excluded")
    result, allowed = simulate(excluded, tables(), tmp_path / "excluded"), read(run)
    assert result["edges"] == allowed["edges"], "the class does not depend on it"
    assert result["hidden_causes"] is None
    assert not list((tmp_path / "excluded").glob("pag*"))
    assert "no common cause of two variables is missing from the tables, as the plan says" in " ".join(
        result["verdict"]["assumed"]
    )
    assert "as the plan says" not in " ".join(allowed["verdict"]["assumed"])


def test_where_arrows_rest_on_assumptions_it_is_not_told(tmp_path: Path) -> None:
    equal = PLAN.with_settings(graph_class="dag-equal-variance", look_for_curves=False, counts_rounds=0)
    assert simulate(equal, tables(), tmp_path / "equal")["hidden_causes"] is None


@pytest.mark.parametrize("secure", [True, False])
def test_a_private_run_tells_marks_by_what_it_has_released(tmp_path: Path, secure: bool) -> None:
    ranges = {name: {"range": [-8.0, 8.0]} for name in NAMES}
    plan = Plan.load("private", [f"privacy.secure_aggregation={str(secure).lower()}"], epsilon=20.0)
    plan = plan.with_settings(n_participants=3, bootstrap=20, dictionary=ranges)
    result = simulate(plan, tables(), tmp_path / "private", noise_seed=1)
    told = result["hidden_causes"]
    said = {(one["source"], one["target"]): one for one in told["links"]}
    assert said["weight", "pressure"]["mark_source"] == said["weight", "pressure"]["mark_target"] == "arrow"
    assert {("diet", "weight"), ("salt", "pressure")} <= set(said)
    assert said["weight", "pressure"]["bootstrap"]["hidden_cause"] > 0.5
    assert "say that one variable acts on another" in result["verdict"]["not_testable"][0]


def test_where_noise_hides_what_edges_are_marks_are_not_told_and_the_verdict_says_why(tmp_path: Path) -> None:
    ranges = {name: {"range": [-8.0, 8.0]} for name in NAMES}
    plan = Plan.load("private", epsilon=0.5).with_settings(n_participants=3, bootstrap=0, dictionary=ranges)
    result = simulate(plan, tables(), tmp_path / "private", noise_seed=1)
    assert result["hidden_causes"] is None
    assert "noise hides correlations below 0." in result["verdict"]["not_testable"][0]


def test_an_effect_behind_which_nothing_can_be_hidden_is_told_with_the_share_of_the_draws(tmp_path: Path) -> None:
    rng, found = np.random.default_rng(3), dict[str, Dataset]()
    for site in ("a", "b", "c"):
        diet, salt, of_weight, of_pressure = rng.standard_normal((4, 1500))
        weight = 0.8 * diet + 0.7 * salt + 0.5 * of_weight
        pressure = 1.5 * weight + of_pressure
        values = np.column_stack([diet, weight, pressure, salt])
        found[site] = Dataset.of_values(NAMES, values, origin=site, warn=False)
    simulate(PLAN, found, tmp_path / "run")
    told = read(tmp_path / "run")["hidden_causes"]
    assert told["legal"]
    (effect,) = told["effects"]
    assert (effect["source"], effect["target"]) == ("weight", "pressure")
    assert effect["adjusted_for"] == ["diet", "salt"]
    assert effect["share"] >= 0.9
    network = read_network(tmp_path / "run")
    assert network.pag is not None
    value = EffectsIfHidden(network, network.pag).value([1], 2, [0, 3])
    assert value.standard_error is not None
    assert abs(value.value.item() - 1.5) < 5 * value.standard_error.item()
    page = write_report(tmp_path / "run").read_text()
    (row,) = [one for one in re.findall("<tr>.*?</tr>", page) if "<td>identified: +1.4" in one]
    assert "weight" in row
    assert "pressure" in row


def test_links_that_could_not_be_tested_are_named() -> None:
    told = HiddenCauses(links=[], gone=[], untested=[["a", "b"]], legal=False)
    assert hidden_causes_in_words(told) == [
        "not testable, and so perhaps no link: a and b; no other mark rests on it, no effect is told"
    ]


def test_tables_of_counts_tell_marks(tmp_path: Path) -> None:
    """As `tables`, of two and three levels."""
    levels = {"diet": 3, "weight": 2, "pressure": 2, "salt": 3}
    described = Dictionary.model_validate(
        {
            name: {"kind": "binary" if n == 2 else "nominal", "levels": [f"{name}{k}" for k in range(n)]}
            for name, n in levels.items()
        }
    )
    rng, found = np.random.default_rng(4), dict[str, Dataset]()
    for site in ("a", "b", "c"):
        diet, salt, hidden = rng.integers(0, 3, (3, 3000))
        weight, pressure = (rng.random(3000) < 0.1 + 0.2 * (cause + hidden) for cause in (diet, salt))
        values = np.column_stack([diet, weight, pressure, salt]).astype(float)
        found[site] = Dataset.of_values(NAMES, values, origin=site, dictionary=described, warn=False)
    result = simulate(PLAN.with_dictionary(described, origin="here"), found, tmp_path / "run")
    assert result["categories"], "counts decide"
    told = result["hidden_causes"]
    said = {(one["source"], one["target"]): one for one in told["links"]}
    assert set(said) == {("diet", "weight"), ("weight", "pressure"), ("salt", "pressure")}
    hidden_link = said["weight", "pressure"]
    assert (hidden_link["mark_source"], hidden_link["mark_target"]) == ("arrow", "arrow")
    assert hidden_link["bootstrap"] is None
    assert [set(pair) for pair in told["gone"]] in ([{"diet", "pressure"}], [{"weight", "salt"}])
    assert "<td>&lt;-&gt;</td>" in write_report(tmp_path / "run").read_text()
