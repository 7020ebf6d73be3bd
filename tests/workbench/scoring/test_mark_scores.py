"""What marks say rightly, counted on paper, and runs with marks against graphs, classes and files of marks."""

import json
from io import StringIO

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.graphs.pag import ARROW, CIRCLE, TAIL, Known
from fedbnsl.graphs.pag_formats import PAG_FORMATS
from fedbnsl_workbench.scoring.evaluation import evaluate, print_report
from fedbnsl_workbench.scoring.mark_scores import TrueMarks, as_marks, mark_scores
from least_result import LEAST_RESULT

NAMES = ("diet", "weight", "pressure", "salt", "pulse")
HIDDEN_GRAPH = [("diet", "weight"), ("U", "weight"), ("U", "pressure"), ("salt", "pressure"), ("pressure", "pulse")]
# Its partial ancestral graph: pressure has arrowheads of weight and salt, and pulse is linked to it alone.
PAG = [
    ("diet", "weight", CIRCLE, ARROW),
    ("weight", "pressure", ARROW, ARROW),
    ("salt", "pressure", CIRCLE, ARROW),
    ("pressure", "pulse", TAIL, ARROW),
]
MARK = {TAIL: "tail", ARROW: "arrow", CIRCLE: "circle"}
NOTHING = Known(*np.zeros((2, 5, 5), bool))


def matrix(*links):
    found = np.zeros((5, 5), dtype=np.int8)
    for a, b, at_a, at_b in links:
        i, j = NAMES.index(a), NAMES.index(b)
        found[j, i], found[i, j] = at_a, at_b
    return found


def counts(told=0, right=0, *, open_=0, of=0, found=0):
    return {"told": told, "right": right, "open": open_, "of_reference": of, "found": found}


def hidden_graph():
    names = (*NAMES, "U")
    dag = np.zeros((6, 6), bool)
    for a, b in HIDDEN_GRAPH:
        dag[names.index(a), names.index(b)] = True
    return dag


def test_a_hidden_variable_becomes_a_two_headed_edge_and_right_marks_are_all_right():
    true = TrueMarks.of_graph(hidden_graph(), 5, NOTHING)
    assert np.array_equal(true.to_find, matrix(*PAG))
    assert true.said[1, 2] == true.said[2, 1] == ARROW
    assert mark_scores(true.to_find, true) == {
        "links": counts(4, 4, of=4, found=4),
        "arrowheads": counts(5, 5, of=5, found=5),
        "tails": counts(1, 1, of=1, found=1),
        "acts_on": counts(1, 1, of=1, found=1),
        "hidden_cause": counts(1, 1, of=1, found=1),
    }


def test_marks_are_judged_by_what_they_say_of_cause_and_effect():
    told = matrix(
        ("diet", "pulse", TAIL, ARROW),  # no link: diet acts on weight alone
        ("pulse", "pressure", TAIL, ARROW),  # the other way round
        ("salt", "pulse", TAIL, ARROW),  # no link, but salt does act on pulse
        ("salt", "pressure", ARROW, ARROW),  # salt acts on it
    )
    assert mark_scores(told, TrueMarks.of_graph(hidden_graph(), 5, NOTHING)) == {
        "links": counts(4, 2, of=4, found=2),
        # pulse is no cause of diet or salt, and pressure none of salt; but salt is one of pressure, pressure of pulse.
        "arrowheads": counts(5, 3, of=5, found=1),
        "tails": counts(3, 1, of=1, found=0),
        "acts_on": counts(3, 1, of=1, found=0),
        "hidden_cause": counts(1, 0, of=1, found=0),
    }


def test_what_a_reference_of_marks_leaves_open_is_neither_right_nor_wrong():
    true = TrueMarks.of_marks(matrix(("diet", "weight", CIRCLE, ARROW), ("salt", "pressure", CIRCLE, CIRCLE)))
    told = matrix(("diet", "weight", TAIL, ARROW), ("salt", "pressure", ARROW, ARROW))
    assert mark_scores(told, true) == {
        "links": counts(2, 2, of=2, found=2),
        "arrowheads": counts(3, 1, open_=2, of=1, found=1),
        "tails": counts(1, 0, open_=1),
        "acts_on": counts(1, 0, open_=1),
        "hidden_cause": counts(1, 0, open_=1),
    }


def test_a_class_says_that_no_cause_is_hidden():
    dag = np.zeros((5, 5), bool)
    dag[0, 1] = True
    true = TrueMarks.of_class(dag | dag.T, dag, NOTHING)
    scores = mark_scores(matrix(("diet", "weight", ARROW, ARROW)), true)
    assert scores["hidden_cause"] == counts(1, 0)
    assert scores["arrowheads"] == counts(2, 0, open_=2)
    assert np.array_equal(true.to_find, matrix(("diet", "weight", CIRCLE, CIRCLE)))
    assert np.array_equal(as_marks(dag), matrix(("diet", "weight", TAIL, ARROW)))


def test_knowledge_of_the_plan_counts_as_far_as_the_truth_keeps_it():
    no_cause, cause = np.zeros((2, 5, 5), bool)
    no_cause[0, 1] = no_cause[3, 2] = True  # but diet acts on weight, and salt on pressure
    true = TrueMarks.of_graph(hidden_graph(), 5, Known(no_cause, cause))
    assert np.array_equal(true.to_find, matrix(*PAG))
    cause[3, 2] = True
    true = TrueMarks.of_graph(hidden_graph(), 5, Known(no_cause, cause))
    assert (true.to_find[2, 3], true.to_find[3, 2]) == (TAIL, ARROW)


# ---- runs ----------------------------------------------------------------------------------------------------------


def edge(a, b, *, directed=True, by="data"):
    return {"source": a, "target": b, "weight": 1.0, "directed": directed, "directed_by": by}


@pytest.fixture
def run(tmp_path):
    """A class that needs an edge more, and marks that are all right."""
    folder = tmp_path / "run"
    folder.mkdir()
    links = [
        {"source": a, "target": b, "mark_source": MARK[at_a], "mark_target": MARK[at_b], "says": ""}
        for a, b, at_a, at_b in PAG
    ]
    result = {
        **LEAST_RESULT,
        "variables": list(NAMES),
        "graph_class": "cpdag",
        "edges": [
            edge("diet", "weight", directed=False, by="undecided"),
            edge("weight", "pressure"),
            edge("salt", "pressure"),
            edge("diet", "pressure"),
            edge("pressure", "pulse"),
        ],
        "hidden_causes": {"links": links, "gone": [["diet", "pressure"]]},
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def write(path, edges):
    path.write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in edges), encoding="utf-8")
    return path


@pytest.mark.parametrize("hidden", [(), ("U",)])
def test_a_run_is_scored_against_a_graph_with_a_hidden_variable(hidden, run, tmp_path):
    report = evaluate(run, write(tmp_path / "truth.csv", HIDDEN_GRAPH), tau=None, hidden=hidden)
    marks = report["mark_scores"]
    assert (marks["reference"], marks["hidden"]) == ("graph", ["U"])
    assert marks["run"]["hidden_cause"] == counts(1, 1, of=1, found=1)
    # diet -- weight is undecided; weight -> pressure and diet -> pressure are wrong, salt and pulse right.
    assert marks["class"]["acts_on"] == counts(4, 2, of=1, found=1)
    assert marks["class"]["links"] == counts(5, 4, of=4, found=4)
    assert report["left_out"]["truth"] == ([] if hidden else ["U"])
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    text = StringIO()
    print_report(report, Console(file=text, width=200))
    (line,) = [line for line in text.getvalue().splitlines() if "--> acts on" in line]
    assert [cell.strip() for cell in line.split("│")[2:-1]] == ["1 of 1", "1 of 1", "2 of 4", "1 of 1"]
    assert "hidden: U" in text.getvalue()


def test_marks_that_too_few_draws_agree_with_count_as_circles(run, tmp_path):
    truth, result = write(tmp_path / "truth.csv", HIDDEN_GRAPH), json.loads((run / "result.json").read_text())
    before = evaluate(run, truth, tau=None)
    (acts_on,) = [one for one in result["hidden_causes"]["links"] if one["mark_source"] == "tail"]
    acts_on["bootstrap"] = {"adjacent": 1.0, "mark_source": 0.6, "mark_target": 1.0, "hidden_cause": 0.0}
    (run / "result.json").write_text(json.dumps(result))
    after = evaluate(run, truth, tau=None)
    assert before["mark_scores"]["run"]["acts_on"]["told"] == 1
    assert after["mark_scores"]["run"]["acts_on"]["told"] == 0
    assert after["mark_scores"]["run"]["links"] == before["mark_scores"]["run"]["links"]
    assert "1 link with a ? after the marks: these count as circles here" in after["warnings"]


def test_a_named_hidden_variable_leaves_those_without_an_edge_in(run, tmp_path):
    truth = write(tmp_path / "truth.csv", [one for one in HIDDEN_GRAPH if "pulse" not in one])
    assert evaluate(run, truth, tau=None, hidden=["U"])["n_variables"] == 5
    assert evaluate(run, truth, tau=None)["n_variables"] == 4


@pytest.mark.parametrize(("name", "why"), [("V", "does not name it"), ("salt", "the run has it")])
def test_a_hidden_variable_must_be_one_of_the_truth_alone(name, why, run, tmp_path):
    with pytest.raises(ResultError, match=why):
        evaluate(run, write(tmp_path / "truth.csv", HIDDEN_GRAPH), tau=None, hidden=[name])


@pytest.mark.parametrize("form", PAG_FORMATS)
def test_a_run_is_scored_against_each_form_of_marks(form, run, tmp_path):
    reference = matrix(*PAG[:3], ("pressure", "pulse", CIRCLE, ARROW))
    path = tmp_path / form
    path.write_text(PAG_FORMATS[form](NAMES, reference), encoding="utf-8")
    report = evaluate(run, path, tau=None)
    assert report["scores"] is report["class_scores"] is None
    assert report["mark_scores"]["reference"] == "pag"
    assert report["mark_scores"]["run"]["acts_on"] == counts(1, 0, open_=1)
    assert report["mark_scores"]["run"]["arrowheads"] == counts(5, 5, of=5, found=5)
    text = StringIO()
    print_report(report, Console(file=text, width=200))
    assert "SHD" not in text.getvalue()
    assert "open in the truth" in text.getvalue()
    with pytest.raises(SetupError, match="is a file of marks"):
        evaluate(run, path, tau=0.3)
    done = CliRunner().invoke(fedbnsl, ["evaluate", str(run), "--truth", str(path), "--json"])
    assert json.loads(done.output)["mark_scores"] == report["mark_scores"]


def test_a_file_of_marks_with_other_variables_is_refused(run, tmp_path):
    path = tmp_path / "pag.csv"
    path.write_text(PAG_FORMATS["pag.csv"]((*NAMES[:4], "sleep"), matrix(*PAG[:3])), encoding="utf-8")
    with pytest.raises(ResultError, match="'sleep', which the run has not"):
        evaluate(run, path, tau=None)
    path.write_text("amat.pag,salt,diet\nsalt,0,2\ndiet,0,0\n", encoding="utf-8")
    with pytest.raises(ResultError, match=r"pag\.csv cannot be read as marks: an edge has a mark at one end alone"):
        evaluate(run, path, tau=None)


def test_a_run_is_scored_against_a_class(run, tmp_path):
    path = tmp_path / "class.csv"
    path.write_text(
        "source,target,directed\ndiet,weight,0\nweight,pressure,1\nsalt,pressure,1\npressure,pulse,1\n",
        encoding="utf-8",
    )
    marks = evaluate(run, path, tau=None)["mark_scores"]
    assert marks["reference"] == "class"
    assert marks["run"]["hidden_cause"] == counts(1, 0)
    assert marks["run"]["acts_on"] == counts(1, 1, of=1, found=1)
    assert marks["run"]["arrowheads"] == counts(5, 3, open_=1, of=3, found=3)


def test_marks_are_not_scored_where_neither_has_any_or_weights_are_cut(run, tmp_path):
    truth = write(tmp_path / "truth.csv", [one for one in HIDDEN_GRAPH if "U" not in one])
    result = json.loads((run / "result.json").read_text())
    assert evaluate(run, truth, tau=None)["mark_scores"] is not None
    (run / "result.json").write_text(json.dumps({**result, "hidden_causes": None}), encoding="utf-8")
    assert evaluate(run, truth, tau=None)["mark_scores"] is None
    path = tmp_path / "pag.csv"
    path.write_text(PAG_FORMATS["pag.csv"](NAMES, matrix(*PAG)), encoding="utf-8")
    report = evaluate(run, path, tau=None)
    assert report["mark_scores"]["run"] is None
    assert "its class alone is scored" in report["warnings"][0]


def test_a_cycle_says_nothing_of_marks(run, tmp_path):
    truth = write(tmp_path / "truth.csv", [*HIDDEN_GRAPH, ("pulse", "U")])
    report = evaluate(run, truth, tau=None)
    assert report["mark_scores"] is None
    assert "marks are not scored: the reference has a directed cycle" in report["warnings"]
