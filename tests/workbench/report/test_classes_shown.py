"""A class of graphs and its numbers of confidence, on page and terminal, against the result that they come from."""

import csv
import itertools
import json
import re
from io import StringIO

import networkx as nx
import numpy as np
import pytest
from rich.console import Console

from class_runs import SMALL, complete, copied_without_charts, edge, small_run
from fedbnsl_server.results.numbers import between, percent, signed
from fedbnsl_server.store.result_file import read_result
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from report_runs import Page

TRUTH = [("a", "c"), ("b", "c"), ("d", "c"), ("a", "b"), ("d", "e"), ("b", "f"), ("c", "f"), ("d", "f")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("class"))


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    return copied_without_charts(made, tmp_path / "run", monkeypatch)


def page_of(run, truth=None):
    path = None
    if truth is not None:
        path = run.parent / "truth.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("source", "target"), *truth])
    return Page(write_report(run, truth=path).read_text(encoding="utf-8"))


def rows_of(page, table="edges"):
    return {(row["source"], row["target"]): row for row in page.rows(table)}


def plain(text):
    return text.replace("\u00a0", " ")


def summary_of(run, width=200):
    text = StringIO()
    print_summary(read_result(run), run, Console(file=text, width=width), seconds=1.0)
    return text.getvalue()


# ---- the head ------------------------------------------------------------------------------------------------------


def test_page_and_terminal_say_what_was_assumed_and_who_directed_the_edges(run):
    for text in (page_of(run).text.split("Contents")[0], " ".join(summary_of(run).split())):
        assert "elations are linear with Gaussian noise, of any variance. No common cause of two variables" in text
        assert (
            "Tested: whether the sites' coefficients differ. None of these tests contradicts what is assumed. "
            "Not testable: common causes that no table has; effects that are not linear."
        ) in text
        assert (
            "Directed by the data: 3 of 5 edges; by knowledge: 1; by equal variances: none. "
            "Without a direction, as the data leave it open: 1."
        ) in text
        assert "contradict what" not in text
    assert "5 edges among 6 variables, 4 of them directed" in page_of(run).text


def test_the_terminal_has_the_graph_before_all_but_what_contradicts_it(run):
    complete(run, verdict={**SMALL["verdict"], "contradicted": ["it does"], "reasons": ["of old"]})
    text = summary_of(run)
    order = ["the data contradict", "likely reasons", "edges learned: 5", "directions ", "assumed ", "bytes, formula"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)


def test_few_rows_are_told_once_at_the_head(run):
    told = "60 rows are few for 50 columns"
    complete(run, verdict={**SMALL["verdict"], "few_rows": [told]}, warnings=[told])
    assert summary_of(run).splitlines()[0] == f"{told}."
    for text in (page_of(run).text, summary_of(run)):
        assert text.count(told) == 1
    assert told in page_of(run).text.split("Contents")[0]


def test_an_older_result_that_nothing_contradicts_says_what_was_not_testable_all_the_same(run):
    older = {key: value for key, value in SMALL["verdict"].items() if key not in ("not_testable", "tested")}
    complete(run, verdict=older, estimation={"n_samples": 10.0, "noise_std": 0.0, "draws": 0})
    for text in (page_of(run).text, " ".join(summary_of(run).split())):
        assert "tests contradict" not in text
        assert "Not testable: common causes that no table has." in text


def test_an_assumption_that_the_data_contradict_is_said_in_a_box_of_its_own(run):
    told = "residual variances differ by a factor of 31"
    complete(run, verdict={**SMALL["verdict"], "contradicted": [told]})
    page = page_of(run)
    boxes = [a for tag, a in page.tags if tag == "div" and "contradicted" in a.get("class", "")]
    assert len(boxes) == 1
    assert "The data contradict what was assumed. Residual variances differ by a factor of 31." in page.text
    assert "None of these tests contradicts" not in page.text
    lines = summary_of(run).splitlines()
    assert lines[0] == "the data contradict what was assumed: Residual variances differ by a factor of 31."
    assert "None of these tests contradicts" not in summary_of(run)


def test_arrows_and_squares_are_typeset_on_the_page_and_ascii_in_the_terminal(run):
    told = "sites differ more than chance gives in the coefficients of a -> c (I^2 0.91) and d -- f (I^2 0.90)"
    complete(run, verdict={**SMALL["verdict"], "contradicted": [told]})
    assert "in the coefficients of a \u2192 c (I\u00b2 0.91) and d \u2014 f (I\u00b2 0.90)." in page_of(run).text
    assert "of a -> c (I^2 0.91) and d -- f (I^2 0.90)." in " ".join(summary_of(run).split())


def test_what_was_not_tested_is_not_said_to_hold(run):
    complete(run, verdict={**SMALL["verdict"], "tested": []})
    for text in (page_of(run).text, " ".join(summary_of(run).split())):
        assert "Whether the data contradict it was not tested." in text
        assert "None of these tests" not in text


def test_an_older_result_has_no_verdict_and_no_column_for_what_it_does_not_know(run):
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    for key in SMALL:
        if key != "edges":
            result.pop(key)
    result["edges"] = [{"source": "a", "target": "b", "weight": 0.5}]
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    page = page_of(run)
    assert page.tables["edges"] == [["source", "target", "estimate"], ["a", "b", "+0.500"]]
    assert "Assumed" not in page.text
    assert "unsure" not in page.tables
    assert "fits" not in page.tables
    assert "No standard errors, bootstrap shares or comparisons of sites are given: its result.json has none." in (
        page.text
    )
    assert "assumed" not in summary_of(run)


# ---- the table of edges --------------------------------------------------------------------------------------------


def test_the_table_has_every_number_of_every_edge_and_says_what_is_not_known(run):
    rows = {ends: {key: plain(cell) for key, cell in row.items()} for ends, row in rows_of(page_of(run)).items()}
    shown = rows["a", "c"]
    assert shown["direction"] == "\u2192 data"
    assert shown["estimate, 95 %"] == "+0.900 0.80 to 1.00"  # the interval stands below the estimate
    assert shown["bootstrap share"] == "100 %"
    assert shown["directions in the draws"] == "\u2192 50 %, \u2190 25 %, \u2014 25 %"
    assert shown["sites differ"] == "I\u00b2 33 %, p = 0.22 site-1 +0.800 (SE 0.08) site-2 +0.900 (SE 0.1)"
    assert shown["without a site"] == "2 of 3"
    assert rows["e", "d"]["direction"] == "\u2192 knowledge"
    assert rows["d", "f"]["direction"] == "\u2014 data leave it open"
    lacking = {ends: {key for key, cell in row.items() if "not known" in cell} for ends, row in rows.items()}
    assert lacking == {
        ("a", "c"): set(),
        ("b", "c"): {"sites differ"},
        ("c", "d"): {"bootstrap share", "directions in the draws"},
        ("e", "d"): {"estimate, 95 %"},
        ("d", "f"): {"without a site"},
    }


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("interval", "Standard errors and intervals are not known in this run."),
        ("bootstrap", "There are no bootstrap shares"),
        ("sites", "Whether effects differ between sites is not known: that needs each site's own moments"),
        ("without_a_site", "How far the graph rests on one single site is not known"),
    ],
)
def test_what_no_edge_has_is_said_once_and_takes_no_column(key, said, run):
    assert said not in page_of(run).text
    wide = len(page_of(run).tables["edges"][0])
    complete(run, edges=[{**found, key: None} for found in SMALL["edges"]])
    page = page_of(run)
    assert page.text.count(said) == 1
    assert len(page.tables["edges"][0]) == wide - {"interval": 0, "bootstrap": 2}.get(key, 1)


def test_edges_of_blocks_keep_their_coefficients_beside_the_numbers_of_confidence(run):
    coefficients = [
        {"source": "a", "target": "c", "weight": 0.4, "interval": [0.3, 0.5]},
        {"source": "a", "target": "d", "weight": 0.2},
    ]
    complete(run, edges=[edge("a", "c", 0.4, 0.9, "data", coefficients=coefficients)])
    header, row, all_of_them = page_of(run).tables["edges"]
    assert len(row) == len(header)
    assert "All 2 coefficients of a \u2192 c" in all_of_them[0]
    assert "c: +0.400, 95 % 0.30 to 0.50" in plain(all_of_them[0])
    spans = [int(a["colspan"]) for tag, a in page_of(run).tags if tag == "td" and "colspan" in a]
    assert spans == [len(header)]


def test_pairs_that_are_not_in_the_graph_and_fits_of_variables_have_their_tables(run):
    page = page_of(run)
    unsure = [[plain(cell) for cell in row] for row in page.tables["unsure"][1:]]
    assert unsure == [["a", "b", "41 %", "\u2192 11 %, \u2190 30 %"], ["a", "f", "12 %", "\u2014 12 %"]]
    assert page.tables["fits"][1:] == [
        ["a", "0.00", "1.25", "1"],
        ["c", "0.57", "none in the model", "0.43"],
        ["d", "not known", "none in the model", "not known"],
    ]


# ---- the truth -----------------------------------------------------------------------------------------------------


def class_by_brute_force(edges):
    """Every ordered pair that some DAG of the truth's class has: all orientations with its colliders and no cycle."""

    def colliders(directed):
        linked = {frozenset(pair) for pair in directed}
        return {
            (frozenset((x, y)), z)
            for (x, z), (y, w) in itertools.permutations(directed, 2)
            if z == w and frozenset((x, y)) not in linked
        }

    found = set()
    for turns in itertools.product((False, True), repeat=len(edges)):
        turned = [pair[::-1] if turn else pair for pair, turn in zip(edges, turns, strict=True)]
        if nx.is_directed_acyclic_graph(nx.DiGraph(turned)) and colliders(turned) == colliders(edges):
            found |= set(turned)
    return found


def test_verdicts_on_a_class_compare_its_marks_with_the_class_of_the_truth(run):
    marks = class_by_brute_force(TRUTH)
    assert {("a", "b"), ("b", "a"), ("d", "e"), ("e", "d")} <= marks, "else open edges are not put to the test"
    wanted = {}
    for found in SMALL["edges"]:
        source, target, directed = found["source"], found["target"], found["directed"]
        there, back = (source, target) in marks, (target, source) in marks
        if not (there or back):
            wanted[source, target] = "extra"
        elif directed != (not (there and back)):
            wanted[source, target] = "open in the truth" if directed else "open here"
        else:
            wanted[source, target] = "correct" if there else "reversed"
    assert set(wanted.values()) == {"correct", "reversed", "open in the truth", "open here"}
    page = page_of(run, truth=TRUTH)
    assert {ends: row["verdict"] for ends, row in rows_of(page).items()} == wanted
    learned = {frozenset(pair) for pair in wanted}
    lacking = {frozenset(pair) for pair in marks} - learned
    missing = rows_of(page, "missing-edges")
    assert {frozenset(pair) for pair in missing} == lacking
    for (source, target), row in missing.items():
        assert row["direction"] == ("\u2014" if (target, source) in marks else "\u2192")
        assert (source, target) in marks
    wrong = sum(verdict != "correct" for verdict in wanted.values()) + len(lacking)
    assert f"(SHD {wrong})" in page.text.split("Contents")[0]
    kinds = [a["class"].removeprefix("edge ") for tag, a in page.tags if tag == "g" and "edge" in a.get("class", "")]
    drawn = [verdict.split()[0] for verdict in wanted.values()] + ["missing"] * len(lacking) + ["unsure"] * 2
    assert sorted(kinds) == sorted(drawn)


def test_an_undirected_edge_has_no_true_weight_to_differ_from(run):
    path = run.parent / "weighted.csv"
    path.write_text("source,target,weight\na,c,1.5\nb,c,1\nd,f,2\n", encoding="utf-8")
    rows = rows_of(Page(write_report(run, truth=path).read_text(encoding="utf-8")))
    assert rows["a", "c"]["truth"] == "+1.500"
    assert rows["d", "f"]["verdict"] == "correct"
    assert rows["d", "f"]["truth"] == rows["d", "f"]["difference"] == "\u2013"


def test_a_truth_with_a_cycle_has_no_class_and_is_compared_as_it_is(run):
    rows = rows_of(page_of(run, truth=[("a", "c"), ("c", "d"), ("d", "a"), ("f", "d")]))
    assert rows["a", "c"]["verdict"] == rows["c", "d"]["verdict"] == "correct"
    assert rows["d", "f"]["verdict"] == "open here"


# ---- words ---------------------------------------------------------------------------------------------------------


def test_the_page_of_a_class_says_that_no_direction_rests_on_variances(run):
    of_class = page_of(run)
    assert "perhaps other directions" not in of_class.text
    assert "Directions rest on no assumption about residual variances" in of_class.text
    assert "Equal error variances" not in of_class.text
    complete(run, graph_class="dag-equal-variance")
    assert "Equal error variances" in page_of(run).text


def test_the_drawing_says_of_an_edge_what_the_table_says(run):
    html = write_report(run).read_text(encoding="utf-8")
    titles = {
        title.split("\n")[0]: plain(title).split("\n")[1:]
        for title in re.findall(r"<title>(.*?)</title>", html, re.DOTALL)
    }
    assert titles["a \u2192 c"] == [
        "weight +0.900, 95 % 0.80 to 1.00",
        "directed by the data",
        "in 100 % of the draws: \u2192 50 %, \u2190 25 %, \u2014 25 %",
        "over the sites I\u00b2 33 %, p = 0.22",
        "kept in 2 of 3 searches without a site",
    ]
    assert titles["d \u2014 f"][1] == "no direction: the data leave it open"
    assert titles["a \u2014 b, not in the graph"] == ["in 41 % of the draws: \u2192 11 %, \u2190 30 %"]


def test_the_terminal_lists_edges_with_their_marks_intervals_and_shares(run):
    rows = [
        [plain(cell).strip() for cell in re.split("[\u2502\u2503]", line) if cell.strip()]
        for line in summary_of(run).splitlines()
    ]
    assert ["a", "->", "c", "+0.900", "0.80 to 1.00", "100  50  25"] in rows
    assert ["d", "--", "f", "+0.250", "0.15 to 0.35", "44  22  11"] in rows
    assert ["e", "->", "d", "+0.400", "not known", "62  31  16"] in rows


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((0.3823, 0.4431), "0.382 to 0.443"),
        ((101.27, 113.59), "101 to 114"),
        ((-0.00001234, 0.0000012), "-0.000012 to 0.000001"),
        ((-0.04, 0.96), "-0.04 to 0.96"),
        ((-1e-12, 0.96), "0.00 to 0.96"),
        ((0.0, 0.96), "0.00 to 0.96"),
        ((0.5, 0.5), "0.500 to 0.500"),
    ],
)
def test_an_interval_has_two_digits_of_its_width_and_shows_the_sign_of_its_ends(interval, words):
    assert between(interval) == words
    low, high = map(float, words.split(" to "))
    assert np.allclose([low, high], interval, atol=0.06 * (interval[1] - interval[0]))


def test_a_weight_has_as_many_decimals_as_its_interval_and_at_least_three():
    assert signed(0.00001234, (0.000011, 0.0000136)) == "+0.0000123"
    assert signed(0.9, (0.8, 1.0)) == signed(0.9) == "+0.900"
    assert signed(-0.0002, (-0.4, 0.4)) == "0.000"  # no sign that the value does not have


def test_a_small_share_is_not_called_nothing():
    assert [plain(percent(share)) for share in (0.0, 0.002, 0.01, 0.995, 1.0)] == [
        "0 %",
        "<1 %",
        "1 %",
        "100 %",
        "100 %",
    ]
