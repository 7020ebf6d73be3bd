"""Runs scored against references: run folders written by hand, scores counted on paper."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.errors import ResultError
from fedbnsl.graphs.files import LearnedGraph, write_all, write_weights
from fedbnsl.plan.plan import Plan
from fedbnsl_workbench.scoring.evaluation import evaluate, print_report, read_weights
from fedbnsl_workbench.scoring.reference import read_reference
from fedbnsl_workbench.scoring.structural_intervention import sid
from least_result import LEAST_RESULT

A, B, C, D = VARIABLES = ("NF-κB/p65", "IL 6", "c [mol/l]", 'the "d", quoted')

# The cycles A -> B -> C -> A and A -> B -> D -> A close with their weakest edges, C -> A and D -> A.
WEIGHTS = {(A, B): 0.9, (B, D): -0.8, (B, C): 0.4, (C, A): 0.35, (D, A): 0.2}
LEARNED = [(A, B), (B, D)]
TRUTH = [(A, B), (B, C), (D, B)]


def graph(*edges):
    mask = np.zeros((3, 3), dtype=bool)
    for edge in edges:
        mask[edge] = True
    return mask


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def write_truth(path, edges=TRUTH):
    path.write_text("source,target\n" + "".join(f"{quoted(s)},{quoted(t)}\n" for s, t in edges), encoding="utf-8")
    return path


def weights_text(variables=VARIABLES, weights=WEIGHTS):
    rows = [",".join(["source\\target", *map(quoted, variables)])]
    rows += [",".join([quoted(s), *(repr(weights.get((s, t), 0.0)) for t in variables)]) for s in variables]
    return "\n".join(rows) + "\n"


def result(**changes):
    edges = [{"source": s, "target": t, "weight": WEIGHTS[s, t]} for s, t in LEARNED]
    return {**LEAST_RESULT, "variables": list(VARIABLES), "edges": edges, **changes}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result()), encoding="utf-8")
    (folder / "weights.csv").write_text(weights_text(), encoding="utf-8")
    return folder


@pytest.fixture
def truth(tmp_path):
    return write_truth(tmp_path / "truth.csv")


def rewrite(run, **changes):
    (run / "result.json").write_text(json.dumps(result(**changes)), encoding="utf-8")


def test_the_graph_of_the_run_is_what_is_scored_by_default(run, truth):
    (run / "weights.csv").unlink()  # not needed, then
    report = evaluate(run, truth, tau=None)
    # A -> B is right, B -> D is reversed, B -> C is missing.
    wanted = {"n_edges": 2, "n_reference_edges": 3, "missing": 1, "extra": 0, "reversed": 1, "shd": 2, "shd_double": 3}
    assert {key: report["scores"][key] for key in wanted} == wanted
    assert report["threshold"] is None
    assert report["warnings"] == []


@pytest.mark.parametrize(
    ("tau", "n_edges", "missing", "turned"),
    [
        (0.0, 3, 0, 1),  # A -> B, B -> C, B -> D: both cycles were broken at their weakest edge
        (0.3, 3, 0, 1),
        (0.4, 2, 1, 1),  # an edge must exceed the threshold
        (0.8, 1, 2, 0),
        (0.9, 0, 3, 0),
    ],
)
def test_a_threshold_cuts_the_raw_weights_whatever_the_run_made_of_them(tau, n_edges, missing, turned, run, truth):
    scores = evaluate(run, truth, tau=tau)["scores"]
    assert (scores["n_edges"], scores["missing"], scores["reversed"], scores["extra"]) == (n_edges, missing, turned, 0)
    assert scores["shd"] == missing + turned


def test_a_weight_that_is_withheld_is_said_to_be_unknown(run, truth):
    file = run / "weights.csv"
    file.write_text(file.read_text(encoding="utf-8").replace("0.9", ""), encoding="utf-8")
    assert np.isnan(read_weights(file, VARIABLES)[0, 1])
    cut = evaluate(run, truth, tau=0.3)
    assert cut["scores"]["n_edges"] == 3, "the cycle is open without it"
    assert any("1 weight is withheld" in text for text in cut["warnings"])
    assert not any("withheld" in text for text in evaluate(run, truth, tau=None)["warnings"])


def test_the_empty_graph_and_chance_at_the_same_density_stand_beside_the_scores(run, truth):
    report = evaluate(run, truth, tau=0.4)
    assert report["scores"]["n_edges"] == 2
    assert report["empty_graph"]["shd"] == len(TRUTH)
    assert report["empty_graph"]["n_edges"] == 0
    # Nothing to adjust for: B on A and D, C on A, B and D. With B -> D: B on D, C as before, D on all three.
    assert report["empty_graph"]["sid"] == 5
    assert report["scores"]["sid"] == 7
    assert "sid" not in report["random_dag"]["mean"]
    chance = report["random_dag"]
    assert (chance["mean"]["n_edges"], chance["std"]["n_edges"]) == (2, 0)
    # Two of the six pairs are drawn, each way alike: a true edge is hit with probability 1/6.
    assert chance["mean"]["tpr"] == pytest.approx(1 / 6, abs=4 * chance["std"]["tpr"] / 1000**0.5)
    assert chance["mean"]["shd"] > report["scores"]["shd"]


def test_a_reference_with_a_cycle_is_scored_with_a_warning(run, tmp_path):
    cyclic = write_truth(tmp_path / "cyclic.csv", [(A, B), (B, C), (C, A)])
    report = evaluate(run, cyclic, tau=None)
    assert report["scores"]["n_reference_edges"] == 3
    assert report["scores"]["shd"] == 3, "B -> D is too many, B -> C and C -> A are missing"
    (warning,) = report["warnings"]
    assert "cyclic.csv has a directed cycle" in warning


@pytest.mark.long
def test_a_run_that_did_not_finish_is_scored_as_it_stood_with_a_warning(run, truth):
    finished = evaluate(run, truth, tau=None)["scores"]
    for state in ("interrupted", "failed"):
        rewrite(run, state=state, reason="stopped in round 7")
        report = evaluate(run, truth, tau=None)
        assert report["scores"] == finished
        (warning,) = report["warnings"]
        assert state in warning
        assert "stopped in round 7" in warning


def test_a_search_that_was_ended_early_is_scored_with_a_warning(run, truth):
    verdict = {"assumed": [], "tested": [], "contradicted": [], "directed_by": {}}
    rewrite(run, verdict={**verdict, "incomplete": ["the search of round 2 was ended early"]})
    assert evaluate(run, truth, tau=None)["warnings"] == ["the search of round 2 was ended early"]


def test_a_run_that_ended_before_its_first_round_has_no_graph_to_score(run, truth):
    rewrite(run, state="failed", reason="0 of 3 sites joined", rounds=[], edges=[])
    with pytest.raises(ResultError, match="ended before its first round: 0 of 3 sites joined"):
        evaluate(run, truth, tau=None)


def test_a_folder_without_a_result_is_named(tmp_path, truth):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ResultError, match=f"{folder} is no run folder with a result: it has no result.json"):
            evaluate(folder, truth, tau=None)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot be read"),
        (b'{"schema": "fedbnsl.result/1", ', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "has the format None; expected 'fedbnsl.result/1'"),
        (b"{}", "has the format None; expected 'fedbnsl.result/1'"),
        (b'{"schema": "fedbnsl.result/2", "rounds": []}', "has the format 'fedbnsl.result/2'"),
        (b'{"schema": "fedbnsl.result/10", "rounds": []}', "has the format 'fedbnsl.result/10'"),
        (b'{"schema": 1, "rounds": []}', "has the format 1"),
        (
            b'{"schema": "fedbnsl.result/1", "state": "finished", "edges": []}',
            "is damaged: reason: Field required, orientation: Field required",
        ),
    ],
)
def test_a_result_of_another_format_is_refused(content, complaint, run, truth):
    (run / "result.json").write_bytes(content)
    with pytest.raises(ResultError, match=r"result\.json") as caught:
        evaluate(run, truth, tau=None)
    assert complaint in str(caught.value)


SWAPPED = (B, A, C, D)
DAMAGED = {
    "missing": None,
    "empty": "",
    "only a header": weights_text().splitlines()[0] + "\n",
    "cut off": weights_text()[:-20],
    "one row less": "\n".join(weights_text().splitlines()[:-1]),
    "one row more": weights_text() + weights_text().splitlines()[-1],
    "blank rows": weights_text().splitlines()[0] + "\n" * 5,
    "a word": weights_text().replace("0.9", "much"),
    "not a number": weights_text().replace("0.9", "nan"),
    "infinite": weights_text().replace("0.9", "inf"),
    "other order of columns": weights_text().replace(
        weights_text().splitlines()[0], weights_text(SWAPPED).split("\n")[0]
    ),
    "other order of rows": "\n".join([weights_text().split("\n")[0], *weights_text(SWAPPED).split("\n")[1:]]),
    "other order of both": weights_text(SWAPPED),
    "another name": weights_text().replace("IL 6", "IL 8"),
    "unclosed quotation mark": weights_text() + '"' + "0.0," * 40_000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_weights_are_refused_by_the_name_of_the_file(text, run, truth):
    if text is None:
        (run / "weights.csv").unlink()
    else:
        (run / "weights.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=r"weights\.csv"):
        evaluate(run, truth, tau=0.3)


@pytest.mark.parametrize("tau", [None, 0.5])
def test_with_other_variables_the_subgraphs_induced_on_those_in_common_are_scored(tau, run, tmp_path):
    # In common: A, B, C. Of the run's A -> B -> D the edge A -> B is left, and of the truth A -> B -> C.
    truth = write_truth(tmp_path / "other.csv", [(A, B), (B, C), (A, "E"), ("E", "F")])
    report = evaluate(run, truth, tau=tau)
    wanted = {"n_edges": 1, "n_reference_edges": 2, "missing": 1, "extra": 0, "reversed": 0, "shd": 1}
    assert {key: report["scores"][key] for key in wanted} == wanted
    assert report["scores"]["sid"] == sid(graph((0, 1)), graph((0, 1), (1, 2)))
    assert report["empty_graph"]["shd"] == 2
    assert report["random_dag"]["mean"]["n_edges"] == 1
    assert report["n_variables"] == 3
    assert report["left_out"] == {"truth": ["E", "F"], "run": [D]}
    said = report["warnings"][0]
    assert "only the 3 variables that the run and the truth have in common are scored" in said
    assert "subgraphs induced on them" in said
    assert f"only in the truth: 'E', 'F'; only in the run: {D!r}" in said
    text = StringIO()
    print_report(report, Console(file=text, width=1000))
    assert said in text.getvalue()


def test_variables_that_the_truth_does_not_name_have_no_edge_if_it_names_no_others(run, tmp_path):
    report = evaluate(run, write_truth(tmp_path / "part.csv", [(A, B)]), tau=None)
    assert (report["scores"]["extra"], report["n_variables"], report["warnings"]) == (1, 4, [])
    assert report["left_out"] == {"truth": [], "run": []}


@pytest.mark.parametrize("edges", [[("E", "F")], [(A, "E")]])
def test_with_fewer_than_two_variables_in_common_there_is_no_score(edges, run, tmp_path):
    with pytest.raises(ResultError, match=r"have [01] variable\(s\) in common, and a score needs two: the truth names"):
        evaluate(run, write_truth(tmp_path / "other.csv", edges), tau=None)


@pytest.mark.parametrize("edges", [[], TRUTH], ids=["nothing learned", "everything learned"])
@pytest.mark.parametrize("reference", [[], TRUTH], ids=["empty reference", "full reference"])
def test_a_report_is_strict_json_even_where_a_ratio_has_no_denominator(edges, reference, run, tmp_path):
    rewrite(run, edges=[{"source": s, "target": t, "weight": 1.0} for s, t in edges])
    report = evaluate(run, write_truth(tmp_path / "truth.csv", reference), tau=None)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["scores"]["precision"] == ((1.0 if reference else 0.0) if edges else None)


def test_the_table_for_people_shows_scores_controls_and_warnings_and_leaves_brackets_alone(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cyclic = write_truth(Path("refs [mol] [red].csv"), [(A, B), (B, C), (C, A)])
    report = evaluate(run, cyclic, tau=None)
    text = StringIO()
    print_report(report, Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert lines[0].strip() == "the run's graph against refs [mol] [red].csv (3 edges, 0 v-structures)"
    (shd,) = [line for line in lines if " SHD  " in line]
    mean, std = (report["random_dag"][part]["shd"] for part in ("mean", "std"))
    cells = [cell.strip() for cell in shd.split("│") if cell.strip()]
    assert cells == ["SHD", "3", "3", f"{mean:.2f} +- {std:.2f}"]
    assert lines[-1].startswith("warning: the reference refs [mol] [red].csv has a directed cycle")


def test_the_table_for_people_shows_a_dash_where_there_is_no_ratio(run, truth):
    rewrite(run, edges=[])
    text = StringIO()
    print_report(evaluate(run, truth, tau=None), Console(file=text, width=200))
    (precision,) = [line for line in text.getvalue().splitlines() if line.strip("│ ").startswith("precision")]
    assert [cell.strip() for cell in precision.split("│") if cell.strip()] == ["precision", "-", "-", "-"]


def test_names_that_a_spreadsheet_would_run_come_back_from_the_files_of_a_run(tmp_path):
    names = ("=1+1", "'=1+1", "-x")
    dag = graph((0, 1), (1, 2))
    W = np.arange(9.0).reshape(3, 3)
    write_all(LearnedGraph(names, dag, W), tmp_path)
    write_weights(names, W, tmp_path / "weights.csv")
    assert read_weights(tmp_path / "weights.csv", names).tolist() == W.tolist()
    assert read_reference(tmp_path / "edges.csv", names).edges.tolist() == dag.tolist()


def test_a_run_of_a_class_is_scored_as_one_with_the_knowledge_of_its_plan(run, truth):
    """Run A -> B -> D and truth A -> B <- D, B -> C; C is not joined in the run. Only the truth has a v-structure."""
    rewrite(run, graph_class="cpdag")
    report = evaluate(run, truth, tau=None)
    scores = report["class_scores"]["run"]
    assert scores["shd"] == 3
    assert (scores["n_directed"], scores["n_undirected"]) == (0, 2)
    assert scores["skeleton_f1"] == pytest.approx(0.8)
    assert scores["sid_exact"]
    true = np.zeros((4, 4), dtype=bool)
    true[[0, 1, 3], [1, 2, 1]] = True
    forms = [[(0, 1), (1, 3)], [(1, 0), (1, 3)], [(1, 0), (3, 1)]]
    members = [np.array([[(i, j) in form for j in range(4)] for i in range(4)]) for form in forms]
    distances = [sid(member, true) for member in members]
    assert scores["sid"] == [min(distances), max(distances)]
    text = StringIO()
    print_report(report, Console(file=text, width=200))
    shown = text.getvalue()
    assert "SHD of the classes" in shown
    assert f"{min(distances)} to {max(distances)}" in shown
    assert "FDR" not in shown
    knowledge = {"tiers": [[A], [B, C, D]]}
    (run / "plan.toml").write_text(Plan().with_settings(knowledge=knowledge).to_toml(), encoding="utf-8")
    scores = evaluate(run, truth, tau=None)["class_scores"]["run"]
    assert (scores["n_directed"], scores["n_undirected"]) == (2, 0), "A -> B directs B -> D"
    assert scores["shd"] == 2
    edges = json.loads((run / "result.json").read_text(encoding="utf-8"))["edges"]
    (edge,) = (one for one in edges if (one["source"], one["target"]) == (B, D))
    edge |= {"directed": False, "directed_by": "undecided"}
    rewrite(run, graph_class="cpdag", edges=edges)
    report = evaluate(run, truth, tau=None)
    scores = report["class_scores"]["run"]
    assert (scores["n_directed"], scores["n_undirected"], scores["shd"]) == (1, 1, 2), "as the run shows its edges"
    assert any(text.startswith("1 edge without a direction") for text in report["warnings"])


def test_a_run_of_a_dag_shows_the_distance_of_the_classes_beside_its_own(run, truth):
    text = StringIO()
    print_report(evaluate(run, truth, tau=None), Console(file=text, width=200))
    assert "SHD of the classes" in text.getvalue()
    assert "FDR" in text.getvalue()


def test_a_reference_with_a_cycle_has_no_class(run, tmp_path):
    cyclic = write_truth(tmp_path / "cyclic.csv", [(A, B), (B, C), (C, A)])
    assert evaluate(run, cyclic, tau=None)["class_scores"] is None
