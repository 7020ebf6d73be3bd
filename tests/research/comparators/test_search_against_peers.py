"""The search over orders against FLOP and BOSS on the same moments: hardly ever does it end with a worse score.

Both peers get rows that have exactly these moments, and the same penalty in their unit. Scores are those of
regressions, compared for one DAG of each class.
"""

import math

import numpy as np
import pytest

from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_research.comparators.causal_learn_adapter import causal_learn_installed
from fedbnsl_research.comparators.class_searches import CLASS_SEARCHES
from fedbnsl_research.comparators.flop_adapter import flop_installed
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.score import bic_penalty
from fedbnsl_server.search.space import Space
from fedbnsl_workbench.tables.synthetic import synthesise
from moment_rows import gaussian_score, rows_with_moments

needs_peers = pytest.mark.skipif(
    not (flop_installed() and causal_learn_installed()), reason="needs flopsearch and causal-learn (extra `compare`)"
)

PEERS = ("FLOP", "BOSS")
SEEDS = range(200, 212)
SETTINGS = ((10, 20, 200), (20, 20, 40_000), (20, 40, 500))
SAME = 1e-9  # scores that differ by no more, relative to their size, count as equal


def scores_on(R: Matrix, n: int, *, seed: int) -> dict[str, float]:
    """Score of each search on (d, d) correlations of n rows, with the penalty of BIC."""
    everything = ~np.eye(len(R), dtype=bool)
    ours = best_dag(R, Space(everything), penalty=bic_penalty(n), seed=seed)
    X, penalty = rows_with_moments(R), 0.5 * math.log(n)
    found = {"fedbnsl": ours}
    for name in PEERS:
        found[name] = consistent_extension(CLASS_SEARCHES[name].classes(X, penalty=penalty * len(X) / n))
    return {name: gaussian_score(R, dag, n_samples=n, penalty=penalty) for name, dag in found.items()}


@needs_peers
def test_on_no_more_than_one_instance_in_twenty_is_the_score_worse() -> None:
    instances = [(d, edges, n, seed) for d, edges, n in SETTINGS for seed in SEEDS]
    found = []
    for d, edges, n, seed in instances:
        (X,) = synthesise(d, edges, 1, n, seed, noise_range=(0.5, 2.0)).tables
        found.append(scores_on(np.asarray(np.corrcoef(X.T)), n, seed=seed))
    for peer in PEERS:
        lost = [
            one
            for one, scores in zip(instances, found, strict=True)
            if scores["fedbnsl"] - scores[peer] > SAME * abs(scores[peer])
        ]
        assert len(lost) <= len(instances) // 20, f"{peer} found a better graph of {lost}"


@needs_peers
def test_without_edges_every_search_has_the_score_of_the_empty_graph() -> None:
    assert scores_on(np.eye(6), 1000, seed=0) == dict.fromkeys(("fedbnsl", *PEERS), 0.0)
