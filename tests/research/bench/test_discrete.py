"""The figures of tables of categories: what is drawn, and what a row holds."""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import ResultError
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl_research.bench import discrete as bench
from fedbnsl_research.tables.discrete import read_discrete
from fedbnsl_research.tables.grades import graded_network

NETWORK = {
    "network": "small",
    "variables": [
        {"name": "x", "levels": ["a", "b"], "parents": [], "probabilities": [[0.3, 0.7]]},
        {"name": "y", "levels": ["u", "v", "w"], "parents": [], "probabilities": [[0.5, 0.3, 0.2]]},
        {
            "name": "z", "levels": ["no", "yes"], "parents": ["y", "x"],
            "probabilities": [[0.9, 0.1], [0.1, 0.9], [0.8, 0.2], [0.5, 0.5], [0.05, 0.95], [0.6, 0.4]],
        },
    ],
}  # fmt: skip


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "discrete"
    folder.mkdir()
    (folder / "child.json").write_text(json.dumps(NETWORK), encoding="utf-8")
    monkeypatch.setenv("FEDBNSL_DATA", str(tmp_path))
    return folder


def test_tables_have_the_probabilities_of_the_network(small: Path) -> None:
    network = read_discrete("child")
    one, other = network.tables([30_000, 20_000], np.random.default_rng(1))
    assert (len(one), len(other)) == (30_000, 20_000)
    whole = np.concatenate([one, other])
    assert np.mean(whole[:, 0] == 1) == pytest.approx(0.7, abs=0.01)
    for y in range(3):
        for x in range(2):
            rows = whole[(whole[:, 1] == y) & (whole[:, 0] == x)]
            assert rows[:, 2].mean() == pytest.approx(NETWORK["variables"][2]["probabilities"][2 * y + x][1], abs=0.03)
    assert np.argwhere(network.graph).tolist() == [[0, 2], [1, 2]]


def test_a_row_has_distances_bytes_and_seconds(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.CASES, "child-8x5000", bench._Case("child", 3, 2000))
    monkeypatch.setattr(bench, "pgmpy_installed", lambda: False)
    monkeypatch.setattr(bench, "causal_learn_installed", lambda: False)
    told: list[str] = []
    (row,) = bench.discrete(["child-8x5000"], [4], follow=lambda done, total, what: told.append(what))
    plans = ["standard", "standard without counts", "private, epsilon 1", "private, epsilon 5"]
    assert told == [f"child-8x5000, {plan}" for plan in plans]
    assert row["figure"] == "child, P=3, 2000 rows a site, seeds 4"
    assert row["class SHD, standard"] == "0"
    assert row["skeleton F1, standard"] == 1.0
    assert row["skeleton F1, private, epsilon 5"] == 1.0
    assert row["score above the true graph's, standard"] == "0"
    assert row["kB up a site, standard"] > row["kB up a site, standard without counts"]
    assert row["hill climbing, BIC"] == "not run (pgmpy is not installed)"
    assert row["BOSS, BIC"] == "not run (causal-learn is not installed)"
    assert json.dumps(row, allow_nan=False)


def test_methods_are_chosen_by_their_names(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.CASES, "child-8x5000", bench._Case("child", 3, 200))
    monkeypatch.setattr(bench, "causal_learn_installed", lambda: False)
    (row,) = bench.discrete(["child-8x5000"], [4], ["standard", "BOSS*"])
    named = {key.rpartition(", standard")[0] for key in row if "standard" in key}
    assert named == {"class SHD", "skeleton F1", "score above the true graph's", "seconds", "kB up a site"}
    assert [key for key, value in row.items() if "not run" in str(value)] == ["BOSS, BIC", "BOSS, BDeu"]
    with pytest.raises(ResultError, match="no method is called PC"):
        next(bench.discrete(["child-8x5000"], [4], ["PC"]))


def test_a_row_of_tables_with_gaps_has_what_counts_of_complete_rows_find(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.CASES, "child-gaps", bench._Case("child", 3, 2000, 0.1))
    (row,) = bench.discrete(["child-gaps"], [4])
    assert row["figure"] == "child, P=3, 2000 rows a site, seeds 4, 10% of cells missing"
    assert 0.7 < int(row["rows without a gap"]) / 6000 < 0.76  # 0.9^3
    assert row["class SHD, standard"] == "0"


def test_a_search_that_takes_too_long_is_ended() -> None:
    assert bench.within(0.5, partial(time.sleep, 60.0)) is None
    ended = bench.within(60.0, partial(pow, 2, 10))
    assert ended is not None
    assert ended[1] == 1024


def test_the_skeleton_counts_pairs() -> None:
    truth = cpdag(np.array([[0, 0, 1], [0, 0, 1], [0, 0, 0]], dtype=bool))
    found = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], dtype=bool)
    assert bench._skeleton_f1(truth, truth) == 1.0
    assert bench._skeleton_f1(found, truth) == pytest.approx(0.5)


def test_a_graph_without_edges_has_the_lower_score(small: Path) -> None:
    """By what the pair tells of the child, in nats, less what the longer code costs."""
    network = read_discrete("child")
    (codes,) = network.tables([2000], np.random.default_rng(3))
    empty = bench._above_truth(np.zeros((3, 3), dtype=bool), network, codes)
    shares = np.stack([np.bincount(codes[:, 2][codes[:, 0] * 3 + codes[:, 1] == k].astype(int)) for k in range(6)])
    told = (shares * np.log(shares / shares.sum(axis=1, keepdims=True))).sum()
    alone = (shares.sum(axis=0) * np.log(shares.sum(axis=0) / 2000)).sum()
    assert alone - told < float(empty) < alone - told + 50.0


def test_an_unknown_case_or_network_is_said(small: Path) -> None:
    with pytest.raises(ResultError, match="no case is called"):
        next(bench.discrete(["nothing"]))
    with pytest.raises(ResultError, match="there is no"):
        read_discrete("alarm")


def test_a_row_of_grades_says_whether_counts_were_taken(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.CASES, "child-ordinal", bench._Case("child", 3, 2000, ordinal=True))
    (row,) = bench.discrete(["child-ordinal"], [4, 5])
    assert row["figure"] == "child, P=3, 2000 rows a site, seeds 4 5, ordinal"
    assert row["counts taken"] == "yes yes"
    assert row["class SHD, standard"] == row["class SHD, standard, as nominal"] == "0 0"
    assert not any("private" in key or "hill" in key for key in row)


def test_generated_grades_follow_straight_effects_or_tables() -> None:
    """The mean grade of a straight child rises or falls all along the grades of its first parent; not by tables."""

    def is_straight(share: float) -> list[bool]:
        network, found = graded_network(share, np.random.default_rng(3)), list[bool]()
        for parents, p in zip(network.parents, network.probabilities, strict=True):
            assert p.sum(axis=1) == pytest.approx(1.0)
            if parents:
                first = (p @ np.arange(p.shape[1])).reshape(len(network.levels[parents[0]]), -1)
                steps = np.diff(first, axis=0)
                found.append(bool((steps > 0).all() or (steps < 0).all()))
        return found

    assert all(is_straight(0.0))
    assert sum(is_straight(1.0)) < len(is_straight(1.0)) / 2
