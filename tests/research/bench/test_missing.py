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
from fedbnsl_workbench.tables.hospital import ROWS, draw
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise

_MIXED_COLUMNS = ("skeleton F1", "CPDAG SHD", "false pairs", "lost pairs", "rounds of EM")


class Published(SyntheticFederation):
    """Of a published network: what it names its graph."""

    @property
    def graph(self):
        return self.W != 0


@pytest.fixture
def few(monkeypatch):
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
    drawn = {seed: bench._drawn(6, 80, seed) for seed in (4, 5)}
    row = bench._cells(drawn, 0.0, "MCAR")
    results = [run_plan(Plan.load("standard").with_settings(bootstrap=0), one) for one in drawn.values()]
    truths = [one.W != 0 for one in drawn.values()]
    distances = [class_distance(class_found(one), cpdag(W)) for one, W in zip(results, truths, strict=True)]
    assert row["CPDAG SHD"] == np.mean(distances)
    assert row["rounds of EM"] == row["MB of EM"] == 0
    inside, judged, edges = np.sum([covered(r, one.W) for r, one in zip(results, drawn.values(), strict=True)], axis=0)
    assert row["95 % intervals that hold"] == f"{inside} of {judged} ({edges} true edges)"


def test_a_row_of_missing_cells_has_rounds_and_bytes_of_em_and_the_same_tables_without_it(few):
    drawn = {4: bench._drawn(6, 80, 4)}
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
    drawn = {seed: synthesise(12, 12, 3, 80, seed) for seed in (1, 2)}
    given = {seed: (one.tables, one.W != 0) for seed, one in drawn.items()}
    row = bench._columns("12 variables", given, 0.5)
    apart = 0
    for seed in drawn:
        there = ~bench.lacking_columns(3, 12, 0.5, np.random.default_rng((seed, 2)))
        apart += np.triu(~(there[:, :, None] & there[:, None]).any(axis=0)).sum()
    assert row["pairs never together"] == apart / 2 > 0
    assert bench._columns("12 variables", given, 0.0)["pairs never together"] == 0
    true = np.mean([np.count_nonzero(one.W) for one in drawn.values()])
    # Of all true pairs, those that are not lost are found, and found pairs are these and the false ones.
    found = true - row["lost pairs"]
    assert 0 < found < true
    assert row["skeleton F1"] == pytest.approx(2 * found / (true + found + row["false pairs"]), abs=0.1)
    assert row["skeleton F1 of whole tables without edges there"] < 1


@pytest.mark.parametrize("n_patterns", [30, None])
def test_a_row_of_alarms_has_few_by_chance_and_many_where_another_variable_decides(few, monkeypatch, n_patterns):
    monkeypatch.setattr(bench, "_TABLES", 20)
    by_chance, weak, strong = (int(told.split(" of ")[0]) for told in list(bench._alarms(n_patterns).values())[1:])
    assert by_chance <= 4
    assert by_chance < weak < strong
    assert strong >= 15


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_mixed_tables_lack_the_stated_share_of_their_cells(share, monkeypatch):
    seen = []
    monkeypatch.setattr(bench, "_learned", lambda plan, tables: seen.append(tables))
    monkeypatch.setattr(bench, "_judged", lambda result, truth: dict.fromkeys(_MIXED_COLUMNS, truth.sum()))
    row = bench._mixed([3], share)
    (tables,) = seen
    assert [len(table.X) for table in tables.values()] == list(ROWS)
    gaps = np.concatenate([np.isnan(table.X) for table in tables.values()])
    assert gaps.mean() == pytest.approx(share, abs=0.01)
    assert gaps.shape[1] > 12  # indicators of levels
    assert row["false pairs"] == float(f"{np.count_nonzero(draw(3).W):.3g}")


def test_the_time_is_of_as_many_rows_columns_and_patterns_as_it_states():
    row = bench._seconds(2000, 12, 30)
    assert row["figure"] == "time of EM at a site, 2000 rows, 12 columns, 30 patterns"
    assert min(value for name, value in row.items() if name != "figure") > 0


def test_the_tables_are_those_that_the_project_states_and_seeds_may_be_chosen(monkeypatch):
    asked = []

    def drawn(name, seed, **size):
        asked.append((name, size["size"][1], seed))
        return synthesise(2, 1, 1, 20, 0)

    monkeypatch.setattr(bench, "_drawn", lambda d, n, seed: drawn(d, seed, size=(8, n)))
    monkeypatch.setattr(bench, "published", lambda seed, name, size: Published(**vars(drawn(name, seed, size=size))))
    monkeypatch.setattr(bench, "_cells", lambda drawn, share, way: {"figure": (len(drawn), share, way)})
    monkeypatch.setattr(bench, "_columns", lambda name, drawn, share: {"figure": (name, len(drawn), share)})
    monkeypatch.setattr(bench, "_mixed", lambda seeds, share: {"figure": (len(seeds), share)})
    monkeypatch.setattr(bench, "_alarms", lambda n_patterns: {"figure": n_patterns})
    monkeypatch.setattr(bench, "_seconds", lambda *size: {"figure": size})
    shares = [(0.0, "MCAR"), *((share, way) for way in ("MCAR", "MAR") for share in (0.1, 0.2, 0.3))]
    rows = [row["figure"] for row in bench.missing()]
    assert rows == [
        *((n, *one) for n in (10, 1, 3) for one in shares),
        *(("12 variables", 10, share) for share in (0.0, 0.1, 0.3, 0.5)),
        (10, 0.0),
        (10, 0.2),
        *(30, None),
        *((10**6, 20, 30), (10**6, 20, 3000), (2000, 150, 2000)),
        *((name, 10, share) for name in ("ecoli70", "magic-niab") for share in (0.0, 1 / 3)),
    ]
    ten = range(10)
    generated = [*((20, 1000, k) for k in ten), (50, 1000, 0), *((20, 5000, k) for k in range(3))]
    named = [(name, 1000, k) for name in ("ecoli70", "magic-niab") for k in ten]
    assert asked == [*generated, *((12, 1000, k) for k in ten), *named]
    assert (bench._SITES, bench._NOISE) == (8, (0.5, 2.0))
    del asked[:]
    list(bench.missing((7,)))
    assert {seed for *_, seed in asked} == {7}


def test_the_command_takes_its_seeds(fedbnsl, monkeypatch):
    from fedbnsl_research.bench import figures

    monkeypatch.setitem(figures.FIGURES, "missing", lambda seeds: iter([{"figure": list(seeds)}]))
    ran = fedbnsl("bench", "missing", "--seeds", "3..4", "--json")
    assert json.loads(ran.out) == {"bench": "missing", "figure": [3, 4]}
