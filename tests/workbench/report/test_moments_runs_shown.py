"""What people are shown of runs with rounds of moments: the report, scores at a threshold, results, the estimator."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.estimator import FedSparseBNSL, SimulationWarning
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.scoring.evaluation import evaluate, print_report, read_weights
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise
from report_runs import Page, make_run

NAMES = tuple("abcdefgh")
LEAN = {"rounds": 5, "refit_rounds": 0, "moments_rounds": 1, "value_type": "float32"}
PRIVATE = {
    "local_solver": "dp-pgcd",
    "rounds": 0,
    "local_steps": 2,
    "refit_rounds": 0,
    "moments_rounds": 2,
    "privacy": {"epsilon": 100.0, "feature_bounds": [100.0]},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    plans = {
        "lean": LEAN,
        "private": PRIVATE,
        "private after ADMM": {**PRIVATE, "rounds": 2},
    }
    made = {name: make_run(folder / name, NAMES, rows=2000, **plan) for name, plan in plans.items()}
    made["in the scales"] = make_run(folder / "scales", NAMES, rows=2000, stop_after=1, **PRIVATE)
    made["in the moments"] = make_run(folder / "moments", NAMES, rows=2000, stop_after=2, **PRIVATE)
    return made


def result_of(run):
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def page_of(run):
    path = write_report(run, out=run.parent / "page.html", truth=run.parent / "tables" / "truth.csv")
    return Page(path.read_text(encoding="utf-8"))


def edges_of(run):
    return {(e["source"], e["target"]): e["weight"] for e in result_of(run)["edges"]}


# ---- results -------------------------------------------------------------------------------------------------------


def test_rounds_have_their_kinds_and_moments_their_bytes(runs):
    result = result_of(runs["private after ADMM"])
    assert [entry["kind"] for entry in result["rounds"]] == [
        "admm",
        "admm",
        "scales",
        "residual_moments",
        "residual_moments",
    ]
    for entry in result["rounds"][2:]:
        expected = 8 * (8 if entry["kind"] == "scales" else 36)
        for of_site in entry["bytes"].values():
            assert of_site["up"]["formula"] == expected
            assert of_site["up"]["serialised"] > expected
    lean = result_of(runs["lean"])
    assert [entry["kind"] for entry in lean["rounds"]] == ["admm"] * 5 + ["moments"]
    for of_site in lean["rounds"][-1]["bytes"].values():
        assert 0 < of_site["up"]["formula"] <= 2 * 8 * 36, "moments, and as many products of squares"
        assert of_site["up"]["formula"] % 8 == 0


def test_weights_are_those_of_the_last_graph_only_where_there_was_no_admm(runs):
    for name in ("private", "in the moments"):
        W = read_weights(runs[name] / "weights.csv", NAMES)
        assert W.any()
        for (source, target), weight in edges_of(runs[name]).items():
            assert W[NAMES.index(source), NAMES.index(target)] == weight
    for name in ("lean", "private after ADMM"):
        W = read_weights(runs[name] / "weights.csv", NAMES)
        assert W.any()
        assert any(W[NAMES.index(s), NAMES.index(t)] != weight for (s, t), weight in edges_of(runs[name]).items())
    assert not read_weights(runs["in the scales"] / "weights.csv", NAMES).any()


def test_unequal_variances_contradict_a_search_that_takes_them_to_be_equal(tmp_path):
    rng = np.random.default_rng(1)
    tables = {}
    for site in ("x", "y", "z"):
        a = rng.normal(size=500) * 3
        tables[site] = Dataset(("a", "b"), np.column_stack([a, 0.8 * a + rng.normal(size=500)]))
    result = simulate(Plan.parse(LEAN), tables, tmp_path / "run")
    (contradicted,) = result["verdict"]["contradicted"]
    (edge,) = result["edges"]
    records = np.concatenate([table.X for table in tables.values()])
    x, y = (records[:, "ab".index(edge[end])] for end in ("source", "target"))
    ratio = (x @ x) / (y @ y - (x @ y) ** 2 / (x @ x))
    told = re.search(r"by a factor of up to ([\d.]+) .*directions that the data leave open rest on their", contradicted)
    assert told is not None, contradicted
    assert float(told[1]) == pytest.approx(max(ratio, 1 / ratio), rel=0.01)
    assert result["warnings"] == [], "it is said once"


# ---- scores at a threshold -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title", "warning"),
    [
        ("lean", "raw W, not refitted, cut at 0.5,", "raw W, cut anywhere, gives another"),
        ("private", "weights of the searched graph, cut at 0.5,", "has no raw W"),
    ],
)
def test_scores_at_another_threshold_say_what_was_cut(name, title, warning, runs):
    run = runs[name]
    truth = run.parent / "tables" / "truth.csv"
    report = evaluate(run, truth, tau=0.5)
    assert any(warning in text for text in report["warnings"])
    shown = io.StringIO()
    print_report(report, Console(file=shown, width=300))
    assert title in shown.getvalue()
    assert report["scores"]["n_edges"] > 0
    assert evaluate(run, truth, tau=None)["warnings"] == []


def test_scores_of_a_plan_without_moments_say_nothing_of_a_search(tmp_path):
    run = make_run(tmp_path, NAMES)
    assert evaluate(run, tmp_path / "tables" / "truth.csv", tau=0.5)["warnings"] == []


# ---- the report ----------------------------------------------------------------------------------------------------


def labels_of(page):
    return [attributes.get("aria-label", "") for tag, attributes in page.tags if tag == "svg"]


def test_a_searched_graph_is_not_called_refitted(runs):
    page = page_of(runs["lean"])
    for words in (
        "on the graph that was searched, from each site's moments",
        "the others estimated again without them",
        "the search goes over graphs without a directed cycle",
        "and before the search",
        "(last: the search)",
        "the reported graph was not cut from them but searched with moments",
        "weights and second moments, computed exactly",
        "Where the moments leave a direction open",
        "Residual variances lie between",
    ):
        assert words in page.text, words
    for words in ("refitted before", "adjusted for parents that were cut", "no refit followed", "before the refit"):
        assert words not in page.text, words
    weights = {ends: row["estimate"] for ends, row in page.edges().items()}
    assert weights == {edge: f"{weight:+.3f}" for edge, weight in edges_of(runs["lean"]).items()}


def test_a_private_run_without_admm_has_no_raw_weights_and_no_acyclicity(runs):
    page = page_of(runs["private"])
    for words in (
        "from the sites' noisy moments, pooled",
        "without ADMM rounds there is no raw W",
        "left of tau the curve says nothing",
        "(last: the searches)",
        "Residual variances, computed from noisy moments, lie between",
        "its moments carry noise",
    ):
        assert words in page.text, words
    for words in ("Acyclicity h(W)", "Raw weights", "raw weights", "no refit followed", "Raw W cut"):
        assert words not in page.text, words
    after_admm = page_of(runs["private after ADMM"])
    assert "Acyclicity h(W)" in after_admm.text
    assert "and before the search" in after_admm.text


def test_a_run_that_broke_off_before_its_last_search_says_what_its_estimates_are(runs):
    page = page_of(runs["in the moments"])
    assert "The run ended before its last search" in page.text
    assert "left of tau the curve says nothing" not in page.text
    empty = page_of(runs["in the scales"])
    assert "No edge among 8 variables exceeded the threshold" in empty.text


# ---- the estimator -------------------------------------------------------------------------------------------------


def written_weights(run: Path):
    with (run / "weights.csv").open(encoding="utf-8") as file:
        return np.array([[float(x) for x in row[1:]] for row in list(csv.reader(file))[1:]])


@pytest.mark.parametrize("settings", [LEAN, PRIVATE], ids=["lean", "private"])
def test_the_estimator_gives_the_bits_of_the_simulation(settings, tmp_path):
    drawn = synthesise(5, 5, 3, 500, 100)
    names = drawn.variables
    frames = {f"site-{k + 1}": pd.DataFrame(dict(zip(names, X.T, strict=True))) for k, X in enumerate(drawn.tables)}
    plan = Plan.parse({**settings, "n_participants": 3})
    seed = 7 if plan.privacy else None
    tables = {site: Dataset(names, frame.to_numpy()) for site, frame in frames.items()}
    result = simulate(plan, tables, tmp_path / "run", noise_seed=seed)
    estimator = FedSparseBNSL(plan=plan, noise_seed=seed)
    if plan.privacy:
        with pytest.warns(SimulationWarning):
            fitted = estimator.fit(frames)
    else:
        fitted = estimator.fit(frames)
    assert fitted.edges_ == [(e["source"], e["target"], e["weight"]) for e in result["edges"]]
    assert len(fitted.edges_) > 0
    assert [h["kind"] for h in fitted.history_] == [r["kind"] for r in result["rounds"]]
    assert (fitted.raw_weights_ == written_weights(tmp_path / "run")).all()
    assert fitted.raw_weights_.any()
    network = json.loads((tmp_path / "run" / "lgbn.json").read_text(encoding="utf-8"))
    assert [network["cpds"][name]["variance"] for name in names] == [[v] for v in fitted.residual_variance_.tolist()]
    assert ("noisy moments" in network.get("variances", "")) == (plan.privacy is not None)


def test_variances_that_the_noise_hides_are_not_written_and_the_page_says_why(tmp_path):
    page = page_of(
        make_run(tmp_path / "noisy", NAMES, rows=200, **{**PRIVATE, "privacy": {**PRIVATE["privacy"], "epsilon": 0.1}})
    )
    assert "lgbn.json was not written" in page.text
    assert "the noise hides them" in page.text
    assert not (tmp_path / "noisy" / "lgbn.json").exists()
