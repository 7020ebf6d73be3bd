"""The structural intervention distance, against effects worked out from the covariance of random networks."""

from itertools import permutations

import numpy as np
import pytest

from fedbnsl_workbench.scoring.metrics import random_dag, sid


def graph(d, *edges):
    G = np.zeros((d, d), dtype=bool)
    for i, j in edges:
        G[i, j] = True
    return G


def wrong_effects(estimate, reference, rng):
    """Pairs whose effect, by regression on i and its estimated parents, is not that of a random linear network.

    With random weights no two wrongs cancel.
    """
    d = len(reference)
    W = np.where(reference, rng.uniform(0.5, 1.5, (d, d)) * rng.choice([-1, 1], (d, d)), 0.0)
    total = np.linalg.inv(np.eye(d) - W)
    covariance = total.T @ np.diag(rng.uniform(0.5, 2.0, d)) @ total
    wrong = 0
    for i, j in permutations(range(d), 2):
        parents = list(np.flatnonzero(estimate[:, i]))
        effect = 0.0
        if j not in parents:
            given = [i, *parents]
            effect = np.linalg.solve(covariance[np.ix_(given, given)], covariance[given, j])[0]
        wrong += abs(effect - total[i, j]) > 1e-8
    return wrong


@pytest.mark.parametrize("seed", range(40))
def test_it_counts_the_effects_that_regressions_get_wrong(seed):
    rng = np.random.default_rng(seed)
    estimate, reference = (random_dag(6, int(rng.integers(0, 13)), rng) for _ in range(2))
    assert sid(estimate, reference) == wrong_effects(estimate, reference, rng)


def test_examples_by_hand():
    chain, fork = graph(3, (0, 1), (1, 2)), graph(3, (1, 0), (1, 2))
    assert sid(chain, chain) == 0
    assert sid(graph(2, (1, 0)), graph(2, (0, 1))) == 2
    assert sid(graph(2), graph(2, (0, 1))) == 1  # what causes 1 is taken for an effect of 1
    assert sid(chain | graph(3, (0, 2)), chain) == 0  # an edge too many along the order misleads nobody
    assert sid(fork, chain) == 3  # 0 -> 1, 0 -> 2 through 1, 1 -> 0
    assert sid(chain, fork) == 3


def test_a_cycle_has_no_distance():
    cyclic, dag = graph(3, (0, 1), (1, 0)), graph(3, (0, 1))
    assert sid(cyclic, dag) is None
    assert sid(dag, cyclic) is None


def test_a_long_chain_is_walked_to_its_end():
    d = 60
    chain = graph(d, *((i, i + 1) for i in range(d - 1)))
    assert sid(chain, chain) == 0
    # Without parents to adjust for, everything before i is taken for an effect of i.
    assert sid(graph(d), chain) == d * (d - 1) // 2
    assert sid(chain.T, chain) == d * (d - 1)
