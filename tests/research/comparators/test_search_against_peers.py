"""The search over orders against FLOP and BOSS on the same moments: hardly ever does it end with a worse score.

Both peers get rows that have exactly these moments, and the same penalty in their unit. Scores are those of
regressions, compared for one DAG of each class.
"""

import numpy as np
import pytest

from fedbnsl_research.bench import search_scores as bench
from fedbnsl_research.bench.search_scores import PEERS, correlations, searched, worse
from fedbnsl_research.comparators.causal_learn_adapter import causal_learn_installed
from fedbnsl_research.comparators.flop_adapter import flop_installed

needs_peers = pytest.mark.skipif(
    not (flop_installed() and causal_learn_installed()), reason="needs flopsearch and causal-learn (extra `compare`)"
)

SEEDS = range(200, 212)
SETTINGS = ((10, 20, 200), (20, 20, 40_000), (20, 40, 500))


@needs_peers
def test_on_no_more_than_one_instance_in_twenty_is_the_score_worse() -> None:
    instances = [(d, edges, n, seed) for d, edges, n in SETTINGS for seed in SEEDS]
    found = [searched(correlations(d, edges, n, seed), n, seed=seed)[0] for d, edges, n, seed in instances]
    for peer in PEERS:
        lost = [one for one, scores in zip(instances, found, strict=True) if worse(scores["fedbnsl"], scores[peer])]
        assert len(lost) <= len(instances) // 20, f"{peer} found a better graph of {lost}"


@needs_peers
def test_a_row_counts_who_ended_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [(-10.0, -10.0, -9.0), (-10.0, -11.0, -10.0 - 1e-9), (-10.0, -11.0, -8.0)]
    seconds = dict.fromkeys(("fedbnsl", *PEERS), 1.5)
    monkeypatch.setattr(bench, "_SETTINGS", ((4, 4, 50),))
    monkeypatch.setattr(bench, "_SEEDS", range(3))
    monkeypatch.setattr(
        bench, "searched", lambda R, n, *, seed: (dict(zip(seconds, scores[seed], strict=True)), seconds)
    )
    (row,) = bench.search_scores()
    assert row == {
        "figure": "ER d=4, degree 2, noise sd 0.5 to 2, 50 rows, seeds 0..2",
        "fedbnsl worse than FLOP": "2 of 3",
        "FLOP worse than fedbnsl": "0 of 3",
        "fedbnsl worse than BOSS": "0 of 3",
        "BOSS worse than fedbnsl": "2 of 3",
        "seconds, fedbnsl / FLOP, median": 1.0,
        "seconds, fedbnsl / BOSS, median": 1.0,
        **{f"s a search, {name}": 1.5 for name in seconds},
    }


@needs_peers
def test_without_edges_every_search_has_the_score_of_the_empty_graph() -> None:
    scores, seconds = searched(np.eye(6), 1000, seed=0)
    assert scores == dict.fromkeys(("fedbnsl", *PEERS), 0.0)
    assert seconds.keys() == scores.keys()


def test_moments_are_those_of_the_rows_of_one_table() -> None:
    R = correlations(4, 4, 300, 5)
    np.testing.assert_allclose(R.diagonal(), 1.0)
    assert np.abs(R - np.eye(4)).max() > 0.1
    assert (correlations(4, 4, 300, 5) == R).all()
