"""The figures of `fedbnsl bench`, on settings small enough for a test: that they run and count what they say."""

import json
import statistics

import numpy as np
import pytest

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.bench import accuracy, cli, generated
from fedbnsl_research.bench.figures import FIGURES
from fedbnsl_research.bench.generated import Generated
from fedbnsl_research.tables.sachs import federate
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def short(monkeypatch):
    """Every ready plan has three rounds."""
    ready = Plan.load
    monkeypatch.setattr(Plan, "load", lambda name: ready(name, ["rounds=3"]))


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


def test_the_command_s_help_names_every_figure():
    text = " ".join((cli.bench.help or "").split())
    named = text.partition("FIGURE is one of ")[2].partition(";")[0].replace("- ", "-").split(", ")
    assert sorted(named) == sorted(FIGURES)
