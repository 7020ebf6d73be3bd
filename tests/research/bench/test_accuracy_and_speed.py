"""The figures of `fedbnsl bench`, on settings small enough for a test: that they run and count what they say."""

import json
import statistics

import numpy as np
import pytest

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.solvers import pgcd
from fedbnsl_research.bench import accuracy, cli, generated, speed
from fedbnsl_research.bench.figures import FIGURES
from fedbnsl_research.bench.generated import Generated
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.sachs import federate
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def short(monkeypatch):
    """Every ready plan has three rounds."""
    ready = Plan.load
    monkeypatch.setattr(Plan, "load", lambda name: ready(name, ["rounds=3"]))


@pytest.fixture
def tiny(monkeypatch):
    """Networks of five variables and few rows, whatever is asked for."""

    def small(d, edges, n_sites, n, seed, *, weight_variance=0.0):
        return synthesise(5, 5, n_sites, 60, seed, weight_variance=weight_variance)

    monkeypatch.setattr(speed, "synthesise", small)


def test_no_graph_is_both_tuned_on_and_evaluated():
    def graphs(figures):
        return {(data.d, seed) for named in figures.values() for _, data in named for seed in data.seeds}

    assert not graphs(accuracy.EVALUATED) & graphs(accuracy.TUNED_ON)


def test_the_settings_of_the_accuracy_figure_are_those_that_the_project_states():
    found = [(name, data) for name, figures in accuracy.EVALUATED.items() for _, data in figures]
    assert [(name, data.d, [*data.seeds], data.n_sites, data.variance) for name, data in found] == [
        ("fed-sparse", 20, [2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 8, 0),
        ("fed-sparse", 100, [2, 3, 4, 5], 8, 0),
        ("fed-sparse", 200, [2, 3], 8, 0),
        ("fed-sparse", 20, [2, 3, 4, 5, 6], 5, 0.1),
        ("paper-homogeneous", 20, [2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 8, 0),
    ]


def test_the_accuracy_figure_is_the_mean_over_the_seeds(short, tmp_path, monkeypatch):
    plan = Plan.load("fed-sparse")
    monkeypatch.setattr(accuracy, "EVALUATED", {"fed-sparse": [("tiny", Generated(5, range(2, 5), n_sites=2))]})
    monkeypatch.setattr(generated, "N_SAMPLES", 60)
    (row,) = accuracy.accuracy()
    shds, megabytes = [], []
    for seed in (2, 3, 4):
        truth = synthesise(5, 5, 2, 60, seed)
        tables = {f"site-{k}": Dataset(truth.variables, X) for k, X in enumerate(truth.tables, start=1)}
        result = simulate(plan.with_settings(n_participants=2), tables, tmp_path / f"run-{seed}")
        learned = {(edge["source"], edge["target"]) for edge in result["edges"]}
        true = {(truth.variables[i], truth.variables[j]) for i, j in np.argwhere(truth.W)}
        pairs = {frozenset(edge) for edge in learned ^ true}
        shds.append(len(pairs))  # a reversal differs in two edges of one pair
        megabytes.append((result["bytes"]["up"]["formula"] + result["bytes"]["down"]["formula"]) / 1e6)
    assert row["SHD by seed"] == " ".join(map(str, shds))
    assert row["mean SHD"] == pytest.approx(statistics.mean(shds), abs=0.005)
    assert row["MB formula"] == pytest.approx(statistics.mean(megabytes), abs=0.005)
    assert (row["d"], row["P"], row["seeds"]) == (5, 2, "2..4")
    assert json.dumps(row, allow_nan=False)


def test_the_sachs_figure_scores_both_splits_against_every_edge_list(short, tmp_path, monkeypatch):
    source = tmp_path / "data" / "sachs"
    source.mkdir(parents=True)
    X = synthesise(4, 4, 1, 90, 3)
    rows = [",".join(X.variables), *(",".join(map(repr, row)) for row in X.tables[0].tolist())]
    (source / "sachs.csv").write_text("\n".join(rows), encoding="utf-8")
    for name in ("edges-b", "edges-a"):
        (source / f"{name}.csv").write_text("source,target\nX1,X2\nX3,X2\n", encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path / "data"))
    seeds = []

    def noting(data, *, seed):
        seeds.append(seed)
        return federate(data, seed=seed)

    monkeypatch.setattr(accuracy, "federate", noting)
    figures = [*accuracy.sachs()]
    assert seeds == [0, None], "None: contiguous"
    assert [(row["figure"].split(",")[1].split()[0], row["reference"]) for row in figures] == [
        ("shuffled", "a"), ("shuffled", "b"), ("contiguous", "a"), ("contiguous", "b"),
    ]  # fmt: skip
    for row in figures:
        assert row["SHD empty"] == 2
        assert row["v-structures in common"].endswith(" of 1")
        assert json.dumps(row, allow_nan=False)


@pytest.mark.parametrize("folder", [None, "/nowhere"])
def test_the_sachs_figure_says_which_data_it_needs(folder, monkeypatch):
    if folder is None:
        monkeypatch.delenv("FEDBNSL_DATA", raising=False)
    else:
        monkeypatch.setenv("FEDBNSL_DATA", folder)
    with pytest.raises(ResultError, match="FEDBNSL_DATA"):
        next(accuracy.sachs())


def test_the_speed_figure_measures_both_solvers_on_the_same_problem(short, monkeypatch):
    calls = {"ours": [], "literal": []}
    ours = pgcd.solve

    def solve(loss, B, W, beta, **settings):
        calls["ours"].append(settings)
        return ours(loss, B, W, beta, **settings)

    class Oracles:
        @staticmethod
        def literal_pgcd(X, B, W, beta, **settings):
            calls["literal"].append(settings)
            start = (SparseMatrix.from_dense(one) for one in (B, W, beta))
            found, steps = ours(speed.SecondMoments.of(X), *start, **settings)
            B = found.to_dense()
            B[3, 4] += 0.125
            return B, steps

    monkeypatch.setattr(speed, "N_SAMPLES", 250)
    monkeypatch.setattr(speed.pgcd, "solve", solve)
    monkeypatch.setattr(speed, "oracles", lambda: Oracles)
    (row,) = speed.local_solve()
    assert row["largest difference"] == "1.2e-01", "a solver that is fast and wrong does not go unseen"
    compared = [settings for settings in calls["ours"] if settings["max_steps"] == speed._STEPS]
    assert len(compared) == len(calls["literal"]) >= 3
    for here, there in zip(compared, calls["literal"], strict=True):
        assert here.keys() == there.keys()
        assert all(np.array_equal(here[key], there[key]) for key in here)
    assert json.dumps(row, allow_nan=False)


def test_the_literal_solver_is_that_of_the_tests_and_agrees_with_the_fast_one():
    X = synthesise(6, 8, 1, 50, 4).tables[0]
    zero, allowed = np.zeros((6, 6)), ~np.eye(6, dtype=bool)
    settings = {"lam": 0.1, "rho_2": 3.0, "gamma": 1.0, "max_steps": 25, "tol": 1e-9, "allowed": allowed}
    literal, n_literal = speed.oracles().literal_pgcd(X, zero, zero, zero, **settings)
    fast, n_fast = pgcd.solve(speed.SecondMoments.of(X), *[SparseMatrix.zeros(6)] * 3, **settings)
    assert n_literal == n_fast == 25
    assert np.abs(literal).max() > 0.1
    assert literal == pytest.approx(fast.to_dense(), abs=1e-12)


def test_the_network_figure_divides_a_run_of_processes_by_the_same_run_in_one(short, tiny, monkeypatch):
    def in_this_process(plan, tables, out, *, watch, seeds):
        simulate(plan, {site: Dataset.read(path) for site, path in tables.items()}, out)
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        result["seconds"]["total"] = 1000.0
        (out / "result.json").write_text(json.dumps(result), encoding="utf-8")

    monkeypatch.setattr(speed.localnet, "run", in_this_process)
    figures = [*speed.network()]
    assert ["d=20" in figures[0]["figure"], "d=200" in figures[1]["figure"]] == [True, True]
    for row in figures:
        assert row["s network"] == 1000.0
        assert row["ratio"] > 100
        assert row["ms a round, overhead"] == pytest.approx(1000.0 / 4 * 1e3, rel=0.01)  # 3 rounds and a refit


def test_the_command_s_help_names_every_figure():
    text = " ".join((cli.bench.help or "").split())
    named = text.partition("FIGURE is one of ")[2].partition(";")[0].replace("- ", "-").split(", ")
    assert sorted(named) == sorted(FIGURES)


def test_every_figure_that_the_command_offers_is_tested_here():
    assert set(FIGURES) == {
        "accuracy", "tuning", "sachs", "local-solve", "network", "bytes", "load", "rows", "sources", "sites", "privacy",
        "privacy-tuning", "private-steps", "global-step", "d1000", "d2000", "lean", "private-moments", "unequal-noise",
        "growth", "startup", "agents", "pages", "attacks", "robust", "honest-sites", "tables", "networks", "search",
        "confidence", "secure-sum", "notears-admm", "hubs", "private-tables",
    }  # fmt: skip
