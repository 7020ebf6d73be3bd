"""The figure of networks with unequal noise: what is drawn, what is judged, and what is said where nothing is run."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import networks as bench
from fedbnsl_research.bench.network_cases import Case, Drawn, all_cases, generated, published
from fedbnsl_research.bench.networks import class_found, networks
from fedbnsl_research.comparators.class_searches import ClassSearch, rows_centred_by_site
from fedbnsl_research.trials.harness import megabytes_sent, run_plan
from fedbnsl_workbench.scoring.metrics import score


def small(seed: int) -> Drawn:
    drawn = generated(seed, d=5, expected_edges=6)
    return Drawn(drawn.variables, tuple(X[:300] for X in drawn.tables[:3]), drawn.graph, drawn.ranges)


CASES = {"small": Case("five variables", small, seeds=range(2)), "small-private": Case("noisy", small, 50.0, range(2))}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "all_cases", lambda: CASES)


def test_a_row_holds_the_classes_that_the_plan_finds_and_what_it_sends(few: None) -> None:
    rows = list(networks(methods=["fedbnsl"], seeds=(3, 4)))
    plans = (Plan.load("standard"), Plan.load("private", epsilon=50.0))
    for row, case, plan in zip(rows, CASES.values(), plans, strict=True):
        distances, f1, sent = [], [], []
        for seed in (3, 4):
            drawn = small(seed)
            described = plan.with_settings(dictionary=drawn.ranges.model_dump()) if plan.privacy else plan
            result = run_plan(described, drawn, noise_seed=seed if plan.privacy else None)
            found = class_found(result)
            distances.append(class_distance(found, cpdag(drawn.graph)))
            f1.append(score(found, drawn.graph).skeleton_f1)
            sent.append(megabytes_sent(result, "serialised"))
        assert row["figure"] == case.title
        assert row["CPDAG SHD by seed, fedbnsl"] == " ".join(map(str, distances))
        assert row["CPDAG SHD, fedbnsl"] == pytest.approx(np.mean(distances), abs=0.01)
        assert row["skeleton F1, fedbnsl"] == pytest.approx(np.mean(f1), abs=0.001)
        assert row["MB, fedbnsl"] == pytest.approx(np.mean(sent), rel=0.01)
        assert json.dumps(row, allow_nan=False)
    assert [row["seeds"] for row in rows] == ["3 4"] * 2


def test_a_search_over_rows_sees_those_of_all_sites_and_says_so_where_it_is_not_run(
    few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def empty(X: np.ndarray) -> np.ndarray:
        seen.append(X)
        return np.zeros((5, 5), dtype=bool)

    def never(X: np.ndarray) -> np.ndarray:
        raise AssertionError("more variables than it may be run on")

    searches = {
        "empty": ClassSearch(empty, "none", lambda: True),
        "slow": ClassSearch(never, "none", lambda: True, most_variables=4),
        "lacking": ClassSearch(never, "some-package", lambda: False),
    }
    monkeypatch.setattr(bench, "CLASS_SEARCHES", searches)
    told = []
    (row,) = networks(["small"], methods=tuple(searches), follow=lambda *of: told.append(of))
    edges = [int(small(seed).graph.sum()) for seed in (0, 1)]
    assert row["CPDAG SHD by seed, empty"] == " ".join(map(str, edges)), "every true edge is missing"
    assert row["skeleton F1, empty"] == 0.0
    assert row["true edges"] == np.mean(edges)
    assert row["CPDAG SHD, slow"] == "not run (slow)"
    assert row["CPDAG SHD, lacking"] == "not run (some-package is not installed)"
    for X, seed in zip(seen, (0, 1), strict=True):
        np.testing.assert_array_equal(X, rows_centred_by_site(small(seed).tables))
    assert told[0] == (0, 2, "small, seed 0, empty")
    assert told[-1] == (2, 2, "")


def test_a_result_that_tells_what_is_directed_is_taken_at_its_word() -> None:
    edges = [{"source": "a", "target": "b"}, {"source": "b", "target": "c"}]
    result = {"variables": ["a", "b", "c"], "edges": edges}
    assert class_found(result).sum() == 4, "a chain: neither edge is directed in its class"
    told = {
        "graph_class": "cpdag",
        "edges": [
            {**edges[0], "directed": False, "directed_by": None},
            {**edges[1], "directed": True, "directed_by": "data"},
        ],
    }
    marks = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]], dtype=bool)
    np.testing.assert_array_equal(class_found({**result, **told}), marks)
    assumed = {"graph_class": "dag-equal-variance", "edges": [{**edge, "directed": True} for edge in edges]}
    assert class_found({**result, **assumed}).sum() == 4, "these directions rest on equal variances"


def test_generated_columns_are_standardised_and_keep_their_graph() -> None:
    drawn = generated(1, d=6, expected_edges=8, weight_size=0.3)
    X = np.concatenate(drawn.tables)
    assert [len(table) for table in drawn.tables] == [5000] * 8
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(X.std(axis=0), 1.0, rtol=1e-9)
    j = int(drawn.graph.sum(axis=0).argmax())
    assert drawn.graph[:, j].any()
    weights = np.linalg.lstsq(np.delete(X, j, axis=1), X[:, j])[0]
    assert np.abs(weights).max() > 0.05
    assert drawn.ranges["X1"].range == (-6.0, 6.0)


def test_every_cell_of_a_published_network_lies_in_the_range_that_its_law_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "networks" / "tiny"
    folder.mkdir(parents=True)
    (folder / "variables.csv").write_text("variable,intercept,noise_variance\na,1,4\nb,3,1\n", encoding="utf-8")
    (folder / "edges.csv").write_text("source,target,coefficient\na,b,2\n", encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path))
    drawn = published(0, name="tiny", size=(2, 1000))
    low, high = drawn.ranges["b"].range
    assert (low + high) / 2 == pytest.approx(5.0)
    assert high - low == pytest.approx(12.0 * np.sqrt(17.0)), "b = 3 + 2 a + noise has variance 4 * 4 + 1"
    b = np.concatenate(drawn.tables)[:, 1]
    assert low < b.min() < b.max() < high
    assert {"tiny-8x5000", "tiny-8x1000", "tiny-5x100", "tiny-epsilon5", "ecoli70-8x1000"} <= all_cases().keys()


def test_the_cases_are_those_of_the_figure() -> None:
    cases = all_cases()
    shapes = {
        name: (len(case.draw(100).variables), len(case.draw(100).tables))
        for name, case in cases.items()
        if isinstance(case.draw, partial) and case.draw.func is generated and "200" not in name
    }
    assert shapes == {
        **{f"er{d}": (d, 8) for d in (20, 50, 100)},
        "er50-degree8": (50, 8),
        "small12": (12, 8),
        "small20": (20, 8),
        **{f"er20-epsilon{epsilon}": (20, 8) for epsilon in (10, 5, 1)},
        **{f"er100-epsilon{epsilon}": (100, 8) for epsilon in (5, 1)},
    }
    assert all(set(case.seeds) <= set(range(10)) for case in cases.values()), "from 100 on, seeds are for tuning"
    assert cases["er50-degree8"].draw(100).graph.sum() > 150
    equal = cases["er200-equal-epsilon1"].draw
    assert equal.keywords["noise"] == (1.0, 1.0)


def test_a_case_that_is_none_is_said_and_so_is_data_that_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="--case er7: no such case"):
        next(networks(["er7"]))
    monkeypatch.delenv("FEDBNSL_DATA", raising=False)
    with pytest.raises(ResultError, match="FEDBNSL_DATA is not set"):
        next(networks(["ecoli70-8x1000"]))


def test_the_options_of_networks_go_with_it_alone(fedbnsl, few: None) -> None:
    for option in (["--case", "small"], ["--seeds", "0"], ["--method", "FLOP"]):
        assert "it goes with the figure" in fedbnsl("bench", "startup", *option).err
    assert "choose from fedbnsl, FLOP, BOSS, GES" in fedbnsl("bench", "networks", "--method", "PC").err
    ran = fedbnsl("bench", "networks", "--case", "small", "--seeds", "5", "--method", "fedbnsl", "--json")
    row = json.loads(ran.out)
    assert (row["bench"], row["case"], row["seeds"]) == ("networks", "small", "5")
