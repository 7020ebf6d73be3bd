"""The figures of tables as sites have them, on few rows and seeds: what a row holds, and what it is drawn from."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_research.bench import tables as bench
from fedbnsl_research.tables.published import read_network
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import described_by, read_tables
from fedbnsl_workbench.tables.hospital import draw, write_hospitals

FEW = (60, 200, 400)


def test_a_row_holds_the_scores_of_every_plan_on_the_same_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "draw", partial(draw, rows=FEW))
    monkeypatch.setattr(bench, "_SEEDS", range(3, 5))
    troubles = ("means", "nominal", "missing")
    plans = {"standard": Plan.load("standard"), "private": Plan.load("private", epsilon=50.0)}
    row = bench._row("some", troubles, plans)
    assert row["figure"] == "some, seeds 3..4"
    for label, plan in plans.items():
        shds, f1 = [], []
        for seed in (3, 4):
            hospitals, folder = draw(seed, troubles, rows=FEW), tmp_path / f"{label}-{seed}"
            write_hospitals(hospitals, folder / "data")
            known = described_by(plan, folder / "data").with_settings(n_participants=3)
            sites = read_tables(site_files(folder / "data"), (), dictionary=known.dictionary, warn=False)
            result = simulate(known, sites, folder / "run", noise_seed=seed if plan.privacy else None)
            found = score(learned_graph(result), hospitals.W != 0)
            shds.append(found.shd)
            f1.append(found.skeleton_f1)
        assert row[f"SHD by seed, {label}"] == " ".join(map(str, shds))
        assert row[f"SHD, {label}"] == pytest.approx(np.mean(shds), abs=0.01)
        assert row[f"skeleton F1, {label}"] == pytest.approx(np.mean(f1), abs=0.001)
    assert json.dumps(row, allow_nan=False)
    assert row["budget for the statistics round, private"] == "10%"
    assert "scale that is farthest off, standard" not in row, "it is exact"


def test_exact_scales_are_not_off_and_others_are_by_their_share(tmp_path: Path) -> None:
    X = np.random.default_rng(1).normal(5.0, [1.0, 10.0], (50, 2))
    sites = {"site-1": Dataset(("a", "b"), X), "site-2": Dataset(("a", "b"), X + 3.0)}
    scales = X.std(axis=0)
    for factor in (1.0, 1.25):
        result = {"preparation": {"scales": {"a": scales[0], "b": factor * scales[1]}}}
        assert bench._scales_off(result, sites) == pytest.approx(100 * (factor - 1), abs=1e-9)


def test_sites_that_weigh_as_their_rows_are_set_against_one_vote_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "networks" / "small"
    folder.mkdir(parents=True)
    lines = [f"x{k},{k},{1 + k}" for k in range(5)]
    (folder / "variables.csv").write_text("variable,intercept,noise_variance\n" + "\n".join(lines), encoding="utf-8")
    edges = "source,target,coefficient\nx0,x1,1\nx2,x1,-1\nx1,x3,1\nx3,x4,1\n"
    (folder / "edges.csv").write_text(edges, encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path))
    for name, value in (("_NETWORK", "small"), ("_NETWORK_SEEDS", range(2)), ("_NETWORK_ROWS", (20, 20, 500))):
        monkeypatch.setattr(bench, name, value)
    (row,) = bench._weighted()
    network, distances = read_network("small"), []
    for seed in range(2):
        drawn = network.tables((20, 20, 500), np.random.default_rng(seed))
        sites = {f"site-{k}": Dataset(network.variables, X) for k, X in enumerate(drawn, start=1)}
        plan = Plan.load("standard").with_settings(n_participants=3)
        found = learned_graph(simulate(plan, sites, tmp_path / f"run-{seed}"))
        distances.append(class_distance(cpdag(found), cpdag(network.W != 0)))
    assert row["CPDAG SHD by seed, weighting = rows"] == " ".join(map(str, distances))
    assert row["CPDAG SHD, weighting = sites"] >= row["CPDAG SHD, weighting = rows"]
    assert row["figure"] == "small, sites of 20, 20, 500 rows"
