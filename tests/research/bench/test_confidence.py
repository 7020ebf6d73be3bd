"""What `bench confidence` counts, on results written by hand, and that it runs on tables small enough for a test."""

import json

import numpy as np
import pytest

from fedbnsl_research.bench import confidence as bench

W = np.zeros((3, 3))
W[0, 1], W[1, 2], W[0, 2] = 1.0, -2.0, 0.5
NAMES = ["a", "b", "c"]


def edge(source, target, interval, *, directed=True, adjacent=1.0, forward=0.0, backward=0.0):
    told = {"source": source, "target": target, "interval": interval, "directed": directed}
    share = {"adjacent": adjacent, "forward": forward, "backward": backward}
    return {**told, "bootstrap": share}


def test_intervals_count_where_the_target_has_its_true_parents_alone():
    edges = [edge("a", "b", [0.9, 1.1]), edge("b", "c", [-2.1, -1.9]), edge("a", "c", [0.6, 0.7])]
    assert bench.covered({"variables": NAMES, "edges": edges}, W) == (2, 3, 3)
    assert bench.covered({"variables": NAMES, "edges": edges[:2]}, W) == (1, 1, 3)  # c lacks a parent
    reversed_one = [edge("b", "a", [0.9, 1.1]), *edges[1:]]
    assert bench.covered({"variables": NAMES, "edges": reversed_one}, W) == (1, 2, 3)


def test_an_undirected_edge_counts_as_it_is_named():
    forward, backward = (edge(*ends, [0.9, 1.1], directed=False) for ends in ("ab", "ba"))
    truth = np.where(np.arange(3) == 1, W, 0.0)
    assert bench.covered({"variables": NAMES, "edges": [forward]}, truth) == (1, 1, 1)
    assert bench.covered({"variables": NAMES, "edges": [backward]}, truth) == (0, 0, 1)
    assert bench.covered({"variables": NAMES, "edges": [backward]}, truth.T) == (1, 1, 1)


def test_an_edge_is_none_if_the_truth_has_none_between_its_ends():
    edges = [edge("b", "a", None), edge("c", "b", None), edge("a", "c", None)]
    assert bench.false_pairs({"variables": NAMES, "edges": edges}, W != 0) == 0
    assert bench.false_pairs({"variables": NAMES, "edges": edges}, np.eye(3, k=1) != 0) == 1


def test_pairs_and_directions_count_in_the_band_of_their_share():
    collider = np.zeros((3, 3), dtype=bool)
    collider[[0, 1], 2] = True  # a -> c <- b
    told = {
        "variables": NAMES,
        "edges": [
            edge("a", "c", None, adjacent=1.0, forward=0.9, backward=0.05),
            edge("c", "b", None, adjacent=0.6, forward=0.2, backward=0.4),
        ],
        "unsure": [{"source": "a", "target": "b", "adjacent": 0.1, "forward": 0.0, "backward": 0.1}],
    }
    counts = bench.by_share(told, collider)
    assert counts["pairs"].tolist() == [[1, 0], [1, 1], [1, 1]]
    assert counts["directions"].tolist() == [[3, 1], [0, 0], [1, 1]]


def test_arrows_count_as_shown_or_left_open_in_the_band_of_the_draws_with_their_edge():
    """Of a -> c <- b; an edge without a direction in the class, or without draws, counts nowhere."""
    collider = np.zeros((4, 4), dtype=bool)
    collider[[0, 1], 2] = True

    def arrow(source, target, who="data", **shares):
        return {**edge(source, target, None, directed=who == "data", **shares), "directed_by": who}

    edges = [
        arrow("a", "c", adjacent=0.5, forward=0.45),
        arrow("c", "b", adjacent=1.0, forward=0.8),
        arrow("b", "c", "undecided", adjacent=0.9, forward=0.6),
        arrow("c", "a", "undecided", adjacent=0.0, forward=0.0),
        arrow("b", "d", adjacent=1.0, forward=1.0),
        arrow("a", "d", "nobody", adjacent=1.0, forward=0.1),
        {**arrow("d", "c"), "bootstrap": None},
    ]
    counts = bench.arrows_by_share({"variables": [*NAMES, "d"], "edges": edges}, collider)
    assert counts["shown"].tolist() == [[0, 0], [1, 1], [2, 1]]
    assert counts["open"].tolist() == [[2, 1], [0, 0], [0, 0]]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "N_SAMPLES", 300)
    monkeypatch.setattr(bench, "_COVERAGE_D", 5)
    monkeypatch.setattr(bench, "_COVERAGE_SEEDS", range(2))
    monkeypatch.setattr(bench, "_NETWORKS", ())
    monkeypatch.setattr(bench, "_TIMED_D", 5)
    monkeypatch.setattr(bench, "_TIMED_DRAWS", 3)


def test_it_measures_what_runs_say(small):
    exact, five, one, lines, time = bench.confidence()
    assert all(json.dumps(row, allow_nan=False) for row in (exact, five, one, lines, time))
    assert exact["intervals that count"] > 0
    assert exact["coverage of 95 % intervals"] > 0.5
    assert exact["true edges"] == five["true edges"] == one["true edges"] > 0
    assert "epsilon 5" in five["figure"]
    assert "epsilon 1" in one["figure"]
    assert "look_for_curves=false" in lines["figure"]
    assert time["s at the coordinator, with draws"] > 0
