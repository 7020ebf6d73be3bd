"""The studies without privacy, end to end in miniature: what is written, what it says, and that nothing runs twice."""

import csv
import json
import math
import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.plan.plan import Plan
from fedbnsl_research.comparators import pooled
from fedbnsl_research.reproduce import (
    baseline_plans,
    convergence,
    curves,
    personalisation,
    standardisation,
    study,
    table1,
)
from fedbnsl_research.reproduce.baseline_plans import (
    own_settings,
    paper_fed_bnsl,
    paper_fed_bnsl_fw,
    paper_plan,
    shown_settings,
    tuned_fed_bnsl,
)
from fedbnsl_workbench.pages.chart_files import new_figure
from fedbnsl_workbench.tables.synthetic import synthesise

NAMES = ["table1", "convergence", "personalisation", "standardisation"]
SEEDS = (2, 3)

# Sizes of the miniatures, by study.
SMALL = {
    "table1": {"N_SITES": 2, "N_SAMPLES": 60, "DIMENSIONS": (6,), "QUICK_DIMENSIONS": (5,)},
    "convergence": {"N_VARIABLES": 6, "N_SAMPLES": 60, "_KINDS": None},
    "personalisation": {"N_VARIABLES": 6, "N_SITES": 3, "N_ROWS": 40, "QUICK_H_TOL": 1e-1},
    "standardisation": {"N_VARIABLES": 6, "N_SITES": 2, "N_SAMPLES": 60, "FW_STEPS": 5, "MORE_FW_STEPS": 50},
}
METHODS = {"table1": 8, "convergence": 4, "personalisation": 3, "standardisation": 5}
TRIALS = {"table1": 16, "convergence": 16, "personalisation": 6, "standardisation": 20}


def short(plan):
    return plan.with_settings(rounds=3)


@pytest.fixture
def miniature(monkeypatch):
    """The study of a name with a few rounds of few rows, DAGMA aside."""

    def shrink(name):
        module = import_module(f"fedbnsl_research.reproduce.{name}")
        sizes = dict(SMALL[name])
        if name == "convergence":
            sizes["_KINDS"] = {
                "homogeneous": convergence._Data(2, 0.0),
                "heterogeneous": convergence._Data(3, 0.1),
            }
        for key, value in sizes.items():
            monkeypatch.setattr(module, key, value)
        plans = module._plans if hasattr(module, "_plans") else None
        if plans is not None:
            monkeypatch.setattr(
                module, "_plans", lambda *a: {m: (short(plan), why) for m, (plan, why) in plans(*a).items()}
            )
        else:
            monkeypatch.setattr(module, "_PLANS", {m: (short(plan), why) for m, (plan, why) in module._PLANS.items()})
        return module.STUDY

    monkeypatch.setattr(pooled, "dagma_installed", lambda: False)
    return shrink


def run(the_study, out, *, quick):
    return study.reproduce(the_study, SEEDS, out, quick=quick, jobs=1, console=Console(quiet=True))


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_a_study_writes_its_folder_and_does_not_run_again_what_it_holds(name, miniature, tmp_path, monkeypatch):
    small = miniature(name)
    comparisons = run(small, tmp_path, quick=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "trials.jsonl",
        "runs.csv",
        "comparison.csv",
        "index.html",
        f"{name}.svg",
        f"{name}.png",
    }
    rows = rows_of(tmp_path / "runs.csv")
    assert {row["seed"] for row in rows} == {"2", "3"}
    assert len({row["method"] for row in rows}) == METHODS[name]
    assert all(row["method"] for row in rows)
    compared = rows_of(tmp_path / "comparison.csv")
    assert [row["what"] for row in compared] == [c.what for c in comparisons]
    assert len({c.what for c in comparisons}) == len(comparisons), "no line twice"
    assert all(math.isfinite(c.ours) for c in comparisons)
    assert len((tmp_path / "trials.jsonl").read_text(encoding="utf-8").splitlines()) == 1 + TRIALS[name]

    page = text_of(tmp_path / "index.html")
    assert "Quick version." in page
    assert f"fedbnsl reproduce {name} --quick" in page
    assert re.sub(r"\s+", " ", small.quick) in page

    before = (tmp_path / "runs.csv").read_bytes(), (tmp_path / "trials.jsonl").read_bytes()
    monkeypatch.setattr("fedbnsl_research.trials.trials.attempt", lambda *a, **k: pytest.fail("ran again"))
    run(replace(small, draw=lambda rows: new_figure(2, 2)[0]), tmp_path, quick=True)
    assert ((tmp_path / "runs.csv").read_bytes(), (tmp_path / "trials.jsonl").read_bytes()) == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_the_settings_on_the_page_are_those_that_are_run(name, quick):
    the_study = import_module(f"fedbnsl_research.reproduce.{name}").STUDY
    shown = {s.method: dict(s.values) for s in the_study.settings(quick)}
    for trial in the_study.trials((2,), quick):
        method = trial["method"] if trial["method"] in shown else f"{trial['method']}; {trial['data']}"
        assert method in shown
        if "plan" in trial:
            run_with = Plan.parse(trial["plan"]).model_dump(mode="json")
            assert {key: run_with[key] for key in shown[method]} == shown[method]
            assert set(trial["plan"]) - {"name"} <= set(shown[method]), "nothing unsaid is unlike the default"
        else:
            assert {key: trial[key] for key in shown[method]} == shown[method]


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_of_another_setting_or_another_default_is_another_trial(name, monkeypatch):
    module = import_module(f"fedbnsl_research.reproduce.{name}")

    def keys():
        trials = [trial for trial in module.STUDY.trials((2, 3), False) if "plan" in trial]
        return {json.dumps(trial, sort_keys=True) for trial in trials}, {trial["digest"] for trial in trials}

    before, digests = keys()
    for trial in module.STUDY.trials((2,), False):
        if "plan" in trial:
            assert trial["digest"] == Plan.parse(trial["plan"]).digest().hex()[:16]
        else:
            assert "digest" not in trial, "comparators have no plan"
    # A setting that changes unsaid, as a default does.
    monkeypatch.setattr(
        baseline_plans, "own_settings", lambda plan: own_settings(plan.with_settings(global_iterations=20))
    )
    assert keys() == (before, digests)
    plans = getattr(module, "_plans", None)

    def changed(found):
        return {m: (plan.with_settings(global_iterations=21), why) for m, (plan, why) in found.items()}

    if plans is None:
        monkeypatch.setattr(module, "_PLANS", changed(module._PLANS))
    else:
        monkeypatch.setattr(module, "_plans", lambda *a: changed(plans(*a)))
    after, others = keys()
    assert not before & after
    assert not digests & others


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [False, True])
def test_trials_are_plain_distinct_and_name_their_seed(name, quick):
    the_study = import_module(f"fedbnsl_research.reproduce.{name}").STUDY
    trials = the_study.trials((2, 3), quick)
    assert {trial["seed"] for trial in trials} == {2, 3}
    assert [json.loads(json.dumps(trial)) for trial in trials] == list(trials)
    assert len({json.dumps(trial, sort_keys=True) for trial in trials}) == len(trials)
    assert the_study.quick


def test_the_plans_have_the_papers_settings():
    ours = paper_plan()
    assert (ours.acyclicity_penalty, ours.consensus_penalty, ours.l1_weight, ours.step_size) == (1000, 1, 0.1, 0.5)
    dense = paper_fed_bnsl()
    assert (dense.acyclicity_penalty, dense.consensus_penalty, dense.l1_weight) == (1000, 1, 0.01)
    uneven = paper_fed_bnsl(heterogeneous=True)
    assert (uneven.acyclicity_penalty, uneven.consensus_penalty, uneven.l1_weight) == (100, 1, 0.1)
    for plan in (ours, dense, uneven, paper_fed_bnsl_fw(100)):
        assert (plan.rounds, plan.refit_rounds, plan.threshold) == (100, 0, 0.3)
        assert (plan.acyclicity_schedule, plan.acyclicity_growth) == ("augmented", 1.0)
    assert [plan.local_solver for plan in (ours, dense, uneven, paper_fed_bnsl_fw(100))] == [
        "pgcd",
        "closed-form",
        "closed-form",
        "frank-wolfe",
    ]


@pytest.mark.parametrize("plan", [Plan(), paper_plan(), paper_fed_bnsl(), tuned_fed_bnsl(), paper_fed_bnsl_fw(7)])
def test_a_plan_is_made_again_of_its_own_settings_and_shows_all_of_them(plan):
    assert Plan.parse(json.loads(json.dumps(own_settings(plan)))) == plan
    assert set(own_settings(plan)) - {"name"} <= set(shown_settings(plan))


def test_the_normalised_error_is_the_sum_of_squared_gaps_over_that_of_the_truth():
    rng = np.random.default_rng(1)
    estimate, truth = rng.standard_normal((2, 4, 4))
    above = below = 0.0
    for i in range(4):
        for j in range(4):
            above += (estimate[i, j] - truth[i, j]) ** 2
            below += truth[i, j] ** 2
    assert personalisation.normalised_error(estimate, truth) == pytest.approx(above / below)
    assert personalisation.normalised_error(truth, truth) == 0
    assert personalisation.normalised_error(np.zeros((4, 4)), truth) == 1


def test_the_errors_of_a_site_are_against_the_weights_of_that_site(miniature):
    small = miniature("personalisation")
    trial = next(t for t in small.trials((5,), False) if "plan" in t)
    rows = [row for row in small.run({**trial, "rows": 20_000}) if row["kind"] == "error"]
    personal, consensus = (
        [row["normalised_mse"] for row in rows if row["weights"] == kind]
        for kind in ("personalised weights", "consensus weights")
    )
    assert len(personal) == len(consensus) == trial["sites"]
    # With so many rows least squares on the graph finds a site's own weights; the common ones are off by its variance.
    assert max(personal) < 0.01 < min(consensus)


def test_standardised_columns_have_mean_zero_and_unit_variance_at_every_site():
    federation = synthesise(5, 6, 3, 40, 4)
    after = standardisation.standardised(federation)
    for X, Z in zip(federation.tables, after.tables, strict=True):
        for j in range(5):
            mean = sum(X[:, j]) / 40
            std = math.sqrt(sum((x - mean) ** 2 for x in X[:, j]) / 40)
            assert Z[:, j] == pytest.approx([(x - mean) / std for x in X[:, j]])
    assert (after.W == federation.W).all()


def test_the_last_row_by_round_is_the_graph_of_the_result():
    federation = synthesise(6, 6, 2, 200, 3)
    for plan in (Plan.parse({"rounds": 4}), short(paper_plan())):
        result, rows = curves.run_by_round(plan, federation)
        assert [row["round"] for row in rows] == list(range(1, 1 + plan.rounds + plan.refit_rounds))
        names = federation.variables
        found = {(names.index(e["source"]), names.index(e["target"])) for e in result["edges"]}
        true = {(i, j) for i in range(6) for j in range(6) if federation.W[i, j] != 0}
        assert rows[-1]["tpr"] == pytest.approx(len(found & true) / len(true))
        assert rows[-1]["edges"] == len(found)


@pytest.mark.parametrize(
    ("seeds", "said"), [((2, 99, 130), None), ((1, 2), "1"), ((400, 100, 129, 3), "400, 100, 129")]
)
def test_a_page_says_which_of_its_seeds_settings_were_searched_on(seeds, said, tmp_path):
    stub = replace(
        table1.STUDY,
        trials=lambda seeds, quick: [{"seed": seed} for seed in seeds],
        run=lambda trial: [{"method": "m", "seed": trial["seed"]}],
        compare=lambda rows: [],
        draw=lambda rows: new_figure(2, 2)[0],
    )
    study.reproduce(stub, seeds, tmp_path, quick=True, jobs=1, console=Console(quiet=True))
    page = text_of(tmp_path / "index.html")
    assert ("Not held out" in page) == (said is not None)
    assert said is None or f"of seed {said}." in page


def by_round(seed, values):
    return [{"seed": seed, "round": t + 1, "shd": value} for t, value in enumerate(values)]


def test_a_curve_is_the_mean_over_seeds_and_a_run_that_has_ended_keeps_its_last_value():
    rows = by_round(1, [8, 4]) + by_round(2, [6, 6, 0])
    curve = curves.mean_curve(rows, "shd")
    assert list(curve.rounds) == [1, 2, 3]
    assert curve.mean == [7, 5, 2]
    assert curve.std == pytest.approx([2**0.5, 2**0.5, 8**0.5])  # of a sample: divided by n - 1
    assert curves.mean_curve(by_round(1, [8, 4]), "shd").std == [0, 0]


@pytest.mark.parametrize(
    ("shd", "settled"), [([5, 5, 5], 1), ([9, 6, 5], 2), ([5, 9, 5], 3), ([0, 9, 5, 6, 4, 5], 3), ([3], 1)]
)
def test_a_run_is_settled_from_where_it_stays_within_one_of_its_end(shd, settled):
    assert curves.settled(by_round(1, shd)) == [{"seed": 1, "settled": settled}]


def test_scores_stand_beside_table_1_only_at_its_dimensions():
    scores = dict.fromkeys(("shd", "tpr", "fdr", "mb_formula", "mb_serialised"), 1.0)
    rows = [{**trial, **scores} for trial in table1.STUDY.trials((2,), False)]
    elsewhere = [{**row, "d": 50} for row in rows]
    assert all(c.paper is None for c in table1.STUDY.compare(elsewhere))
    numbers = {c.what: (c.paper, c.paper_spread) for c in table1.STUDY.compare(rows)}
    assert numbers["MB, d=200: Fed-Sparse-BNSL, paper's settings"] == (13.7, 0.8)
    assert numbers["FDR, d=200: Fed-BNSL, paper's settings"] == (0.19, 0.045)
    assert numbers["SHD, d=20: NOTEARS, pooled rows"] == (None, None)
    assert "SHD, d=200: NOTEARS, pooled rows" not in numbers  # not run there


def test_every_comparator_gets_the_rows_of_all_sites_without_their_means(monkeypatch):
    given = []
    spy = pooled.Described(lambda X: (given.append(X), np.zeros((2, 2)))[1], {}, "")
    monkeypatch.setattr(pooled, "comparators", lambda: {"spy": spy})
    pooled.pooled_graph("spy", (np.array([[1.0, 10.0], [3.0, 20.0]]), np.array([[8.0, 60.0]])))
    assert given[0].tolist() == [[-3, -20], [-1, -10], [4, 30]]
