"""The figure of missing values, on few variables and rows: how cells and columns go missing, and what its rows hold."""

import json

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import missing as bench
from fedbnsl_research.bench.confidence import covered
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.trials.harness import run_plan
from fedbnsl_workbench.tables.synthetic import synthesise


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(bench, "_ROWS", 80)
    monkeypatch.setattr(bench, "_SITES", 3)


@pytest.mark.parametrize("way", ["MCAR", "MAR"])
def test_the_stated_share_of_cells_is_missing_and_the_others_are_as_they_were(way):
    tables = synthesise(8, 8, 2, 5000, 3).tables
    for X, there in zip(bench.lacking_cells(tables, 0.3, way, np.random.default_rng(1)), tables, strict=True):
        gaps = np.isnan(X)
        assert gaps.mean() == pytest.approx(0.3, abs=0.01)
        assert (X[~gaps] == there[~gaps]).all()


def test_cells_missing_at_random_depend_on_a_complete_variable_and_on_nothing_else():
    X = np.random.default_rng(0).standard_normal((40_000, 8))
    for way, n_whole in (("MCAR", 0), ("MAR", 2)):
        (found,) = bench.lacking_cells([X], 0.3, way, np.random.default_rng(1))
        gaps = np.isnan(found)
        whole = ~gaps.any(axis=0)
        assert whole.sum() == n_whole
        leans = np.abs(np.corrcoef(X.T, gaps[:, ~whole].T)[:8, 8:]) > 0.1
        assert (leans.sum(axis=0) == bool(n_whole)).all()
        assert not leans[~whole].any()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_no_site_is_left_with_one_variable_and_no_variable_without_a_site(share):
    for seed in range(30):
        lacks = bench.lacking_columns(8, 12, share, np.random.default_rng(seed))
        assert lacks.sum() == round(share * 96)
        assert not lacks.all(axis=0).any()
        assert (~lacks).sum(axis=1).min() >= 2


def test_where_nothing_is_missing_a_row_is_that_of_the_plan_by_itself(few):
    drawn = {seed: bench._drawn(6, seed) for seed in (4, 5)}
    row = bench._cells(drawn, 0.0, "MCAR")
    results = [run_plan(Plan.load("standard").with_settings(bootstrap=0), one) for one in drawn.values()]
    truths = [one.W != 0 for one in drawn.values()]
    distances = [class_distance(class_found(one), cpdag(W)) for one, W in zip(results, truths, strict=True)]
    assert row["CPDAG SHD"] == np.mean(distances)
    assert row["rounds of EM"] == row["MB of EM"] == 0
    inside, judged, edges = np.sum([covered(r, one.W) for r, one in zip(results, drawn.values(), strict=True)], axis=0)
    assert row["95 % intervals that hold"] == f"{inside} of {judged} ({edges} true edges)"


def test_a_row_of_missing_cells_has_rounds_and_bytes_of_em_and_the_same_tables_without_it(few):
    drawn = {4: bench._drawn(6, 4)}
    little, much = (bench._cells(drawn, share, "MCAR") for share in (0.1, 0.6))
    assert little["figure"] == "6 variables, 3 x 80 rows, 10% of cells missing (MCAR), graphs of seeds 4"
    (X, *others) = bench.lacking_cells(drawn[4].tables, 0.1, "MCAR", np.random.default_rng((4, 1)))
    whole = [np.isfinite(one).all(axis=1).sum() for one in (X, *others)]
    assert little["complete rows a site"] == pytest.approx(np.mean(whole), abs=0.05)
    assert little["complete cases refused"] == "0 of 1"
    assert 0 <= little["skeleton F1, complete cases"] <= 1
    assert little["rounds of EM"] >= 2
    numbers = 3 * 6 * 7 / 2 * 8 / 1e6  # of all sites, in one direction and round
    # The first round asks with no covariances; each other one sends them down.
    assert little["MB of EM"] == pytest.approx(2 * little["rounds of EM"] * numbers, rel=0.3)
    assert much["complete cases refused"] == "1 of 1"
    assert "skeleton F1, complete cases" not in much


def test_a_row_of_missing_columns_counts_pairs_that_no_site_has(few):
    drawn = {seed: synthesise(bench._OF_ABSENT, 12, 3, 80, seed) for seed in (1, 2)}
    row = bench._columns(drawn, 0.5)
    apart = 0
    for seed in drawn:
        there = ~bench.lacking_columns(3, 12, 0.5, np.random.default_rng((seed, 2)))
        apart += np.triu(~(there[:, :, None] & there[:, None]).any(axis=0)).sum()
    assert row["pairs never together"] == apart / 2 > 0
    assert bench._columns(drawn, 0.0)["pairs never together"] == 0
    true = np.mean([np.count_nonzero(one.W) for one in drawn.values()])
    # Of all true pairs, those that are not lost are found, and found pairs are these and the false ones.
    found = true - row["lost pairs"]
    assert 0 < found < true
    assert row["skeleton F1"] == pytest.approx(2 * found / (true + found + row["false pairs"]), abs=0.1)


def test_the_time_is_of_as_many_patterns_as_it_states(monkeypatch):
    monkeypatch.setattr(bench, "_TIMED_ROWS", 2000)
    row = bench._seconds(30)
    assert row["figure"] == "time of EM at a site, 2000 rows, 20 columns, 30 patterns"
    assert min(value for name, value in row.items() if name != "figure") > 0


def test_the_tables_are_those_that_the_project_states_and_seeds_may_be_chosen(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "_drawn", lambda d, seed: asked.append((d, seed)))
    monkeypatch.setattr(bench, "_cells", lambda drawn, share, way: {"figure": (len(drawn), share, way)})
    monkeypatch.setattr(bench, "_columns", lambda drawn, share: {"figure": (len(drawn), share)})
    monkeypatch.setattr(bench, "_seconds", lambda n: {"figure": n})
    shares = [(0.0, "MCAR"), *((share, way) for way in ("MCAR", "MAR") for share in (0.1, 0.2, 0.3))]
    rows = [row["figure"] for row in bench.missing()]
    columns = [(10, share) for share in (0.0, 0.1, 0.3, 0.5)]
    assert rows == [*((5, *one) for one in shares), *((1, *one) for one in shares), *columns, 30, 3000]
    assert asked == [*((20, seed) for seed in range(5)), (50, 0), *((12, seed) for seed in range(10))]
    assert (bench._SITES, bench._ROWS, bench._NOISE) == (8, 1000, (0.5, 2.0))
    del asked[:]
    list(bench.missing((7,)))
    assert asked == [(20, 7), (50, 7), (12, 7)]


def test_the_command_takes_its_seeds(fedbnsl, monkeypatch):
    from fedbnsl_research.bench import figures

    monkeypatch.setitem(figures.FIGURES, "missing", lambda seeds: iter([{"figure": list(seeds)}]))
    ran = fedbnsl("bench", "missing", "--seeds", "3..4", "--json")
    assert json.loads(ran.out) == {"bench": "missing", "figure": [3, 4]}
