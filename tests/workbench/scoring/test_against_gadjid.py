"""SHD and SID against gadjid, an independent implementation in Rust (Henckel, Wuertzen and Weichwald 2024)."""

from itertools import product

import gadjid
import numpy as np
import pytest

from fedbnsl_workbench.scoring.metrics import random_dag, score, sid

SIZES = [2, 3, 4, 5, 8, 13, 25]
SHARES = [0.0, 0.1, 0.3, 0.7, 1.0]


def pairs():
    """DAGs of unlike density over the same variables, empty and full ones among them; then, near relatives."""
    rng = np.random.default_rng(0)
    for d, estimated, true in product(SIZES, SHARES, SHARES):
        n_pairs = d * (d - 1) // 2
        for _ in range(2):
            yield tuple(random_dag(d, round(share * n_pairs), rng) for share in (estimated, true))
    for d in SIZES:
        for _ in range(15):
            reference = random_dag(d, min(2 * d, d * (d - 1) // 2), rng)
            yield reference & (rng.random((d, d)) < 0.8), reference
            yield reference, reference & (rng.random((d, d)) < 0.8)


PAIRS = list(pairs())


def as_gadjid(edges):
    return edges.astype(np.int8)


def test_the_structural_hamming_distance_is_gadjids():
    for estimate, reference in PAIRS:
        _, mistakes = gadjid.shd(as_gadjid(reference), as_gadjid(estimate))
        assert score(estimate, reference).shd == mistakes


def test_the_structural_intervention_distance_is_gadjids():
    distances = set()
    for estimate, reference in PAIRS:
        _, mistakes = gadjid.sid(as_gadjid(reference), as_gadjid(estimate), edge_direction="from row to column")
        assert sid(estimate, reference) == mistakes
        distances.add(mistakes)
    assert len(PAIRS) > 500
    assert len(distances) > 50


@pytest.mark.parametrize("edges", [200, 1000])
def test_the_distance_of_graphs_of_two_hundred_variables_is_gadjids(edges):
    rng = np.random.default_rng(edges)
    estimate, reference = (random_dag(200, edges, rng) for _ in range(2))
    _, mistakes = gadjid.sid(as_gadjid(reference), as_gadjid(estimate), edge_direction="from row to column")
    assert sid(estimate, reference) == mistakes
