"""The table of total effects on the page, against effects counted on paper."""

from typing import get_args, get_type_hints

import numpy as np
import pytest

from class_runs import NAMES, complete, copied_without_charts, edge, small_run
from fedbnsl.graphs.files import LearnedGraph, write_all
from fedbnsl_server.results.effect_report import effect_of
from fedbnsl_server.results.hidden_effects import IfHidden
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_workbench.report import effects
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.run_files import read_run
from report_runs import Page

WEIGHTS = {("a", "c"): 0.9, ("b", "c"): -0.7, ("c", "d"): 0.5, ("e", "f"): 0.25}
EDGES = [edge(*pair, weight, 1.0, "nobody" if "e" in pair else "data") for pair, weight in WEIGHTS.items()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Unit noise; e - f without a direction: 0.25 one way, and 0.25 / (1 + 0.25^2) the other."""
    run = small_run(tmp_path_factory.mktemp("effects"), edges=EDGES, unsure=[])
    W = np.array([[WEIGHTS.get((s, t), 0.0) for t in NAMES] for s in NAMES])
    write_all(LearnedGraph(tuple(NAMES), W != 0, W, np.ones(len(NAMES))), run)
    complete(run, edges=EDGES, paths=None)
    return run


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    return copied_without_charts(made, tmp_path / "run", monkeypatch)


def page_of(run):
    return Page(write_report(run).read_text(encoding="utf-8"))


def rows_of(page):
    return {(row["from"], row["to"]): row for row in page.rows("effects")}


def test_every_pair_with_a_possible_effect_has_its_value_or_its_range(run):
    rows = rows_of(page_of(run))
    first = {pair: row["effect"].replace("\u00a0", " ") for pair, row in rows.items()}
    assert set(first) == {("a", "c"), ("b", "c"), ("c", "d"), ("a", "d"), ("b", "d"), ("e", "f"), ("f", "e")}
    for pair, value in ((("a", "c"), "+0.900"), (("a", "d"), "+0.450"), (("b", "d"), "-0.350")):
        assert first[pair].startswith(value)
        assert rows[pair]["what the graph tells"] == "identified"
    assert first["e", "f"].startswith("0.000 to 0.250")
    assert first["f", "e"].startswith("0.000 to 0.235")
    assert rows["e", "f"]["what the graph tells"] == rows["f", "e"]["what the graph tells"] == "not identified"


def test_an_effect_on_lines_that_the_data_contradict_has_no_interval(run):
    sentence = "a line or a curve which the data contradict"
    assert sentence not in page_of(run).text
    result = complete(run)
    complete(run, verdict={**result["verdict"], "not_described": [["a", "c"]]})
    with_interval = {(row.source, row.target) for row in effects.effect_table(read_run(run)).rows if row.interval}
    assert with_interval == {("c", "d"), ("b", "d"), ("b", "c"), ("e", "f"), ("f", "e")}
    assert sentence in page_of(run).text
    rests = effect_of(read_network(run), ["a"], "d")["effects"][0]["values"][0]
    assert rests["interval"] is None


def test_the_page_names_pairs_without_an_edge_that_depend_along_a_curve(run):
    words = "depend on each other more than the graph explains"
    result = complete(run, verdict={**complete(run)["verdict"], "not_described": [["a", "c"]]})
    assert words not in page_of(run).text
    complete(run, verdict={**result["verdict"], "not_described": [["a", "e"]]})
    assert f"a and e: {words}" in page_of(run).text


def test_the_page_tells_of_an_effect_what_the_command_tells(run):
    """No path of the class leads from d to a, and 30 draws of 100 have one; c -> d is undecided."""
    open_edges = [
        {**one, "directed_by": "undecided", "directed": False} if one["target"] == "d" else one for one in EDGES
    ]
    result = complete(run, edges=open_edges, paths={"d": {"a": 0.3}})
    complete(run, verdict={**result["verdict"], "draws": 100, "majority": 0.75})
    told = {pair: row["what the graph tells"] for pair, row in rows_of(page_of(run)).items()}
    for (source, target), words in told.items():
        verdict = effect_of(read_network(run), [source], target)["verdict"]
        assert words.partition(":")[0] == verdict, (source, target)
    assert told["a", "d"] == told["c", "d"] == "not identified: a direction is open"
    assert told["a", "c"] == "identified"


def test_each_reason_not_to_tell_an_effect_has_words_beside_it():
    assert set(effects.BECAUSE) == {*get_args(get_type_hints(IfHidden)["because"])} - {""}


def test_an_effect_along_one_edge_has_the_interval_of_its_coefficient(run):
    """Whatever the run has made of it: here by half more than 900 rows would give."""
    page = page_of(run)
    (edge,) = [row for row in page.rows("edges") if (row["source"], row["target"]) == ("a", "c")]
    of_edge, of_effect = (
        cell.split(" ", 1)[1].strip() for cell in (edge["estimate, 95 %"], rows_of(page)["a", "c"]["effect"])
    )
    assert of_effect == of_edge == "0.80 to 1.00"


def test_intervals_have_the_same_digits_in_both_tables(run):
    """Of e and f, which the effects give as a range, the other way round as well."""
    page = page_of(run)
    edges = {(row["source"], row["target"]): row["estimate, 95 %"] for row in page.rows("edges")}
    effects = {pair: row["effect"] for pair, row in rows_of(page).items()}
    for row in (edges["a", "c"], effects["a", "c"], effects["e", "f"]):
        ends = row.split("\u00a0")[0].split(" ", 1)[1] if "to" not in row.split(" ")[1] else row.split(" ", 3)[3]
        assert all(len(end.strip("-").split(".")[1]) == 2 for end in ends.strip().split(" to ")), row


def test_the_largest_are_shown_and_the_others_counted(run, monkeypatch):
    monkeypatch.setattr(effects, "MOST_SHOWN", 2)
    page = page_of(run)
    assert len(page.rows("effects")) == 2
    assert "The 2 largest without units; 5 other pairs with a possible effect are left out." in page.text
    assert "fedbnsl effect RUN --from A --to B" in page.text


def test_variables_beyond_the_bound_on_the_work_are_named(run, monkeypatch):
    monkeypatch.setattr(effects, "_MOST_WORK", 1)
    page = page_of(run)
    assert {source for source, _ in rows_of(page)} == {"a"}
    assert "Effects of 5 variables are not in the table" in page.text
    assert "b, c, d, e, f" in page.text


def test_without_a_network_the_page_says_why_there_are_no_effects(run):
    (run / "lgbn.json").unlink()
    complete(run, not_written={"lgbn.json": "the moments are not known"})
    page = page_of(run)
    assert "effects" not in page.tables
    assert "This report has no table of effects: the moments are not known." in page.text


def test_a_head_of_the_table_sorts_by_it(made, browser):
    page = browser.new_page()
    page.goto(write_report(made).as_uri())
    page.locator("#effects thead th").nth(2).get_by_role("button").click()
    shown = page.locator("#effects tbody tr td:nth-child(3)").all()
    values = [float(cell.get_attribute("data-sort")) for cell in shown]
    assert len(values) == 7
    assert values == sorted(values, reverse=True)
    page.locator("#effects thead th").nth(2).get_by_role("button").click()
    again = page.locator("#effects tbody tr td:nth-child(3)").all()
    assert [float(cell.get_attribute("data-sort")) for cell in again] == sorted(values)
