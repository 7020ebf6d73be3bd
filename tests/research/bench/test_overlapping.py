"""The figure of sites of which none has all variables: what is drawn, and how found pairs are judged."""

from itertools import combinations

import numpy as np
import pytest

from fedbnsl_research.bench.overlapping import Overlapping, _judged, draw
from fedbnsl_research.comparators.fedci_adapter import fedci_adjacent, fedci_installed


@pytest.mark.parametrize("hidden", [0, 2])
def test_every_other_site_lacks_one_variable_and_the_rest_another(hidden):
    for seed in range(20):
        drawn = draw(200, hidden, np.random.default_rng(seed))
        lacks = [np.flatnonzero(np.isnan(X).all(axis=0)).tolist() for X in drawn.tables]
        assert lacks[0] == lacks[2] != lacks[1] == lacks[3]
        assert [len(one) for one in lacks] == [1] * 4
        assert sum(map(len, drawn.tables)) == 200
        assert not drawn.together[lacks[0][0], lacks[1][0]]
        assert drawn.together.sum() == 25 - 2


def test_pairs_with_a_hidden_cause_are_adjacent_and_others_only_by_way_of_them():
    plain = [draw(20, 0, np.random.default_rng(seed)).adjacent for seed in range(20)]
    assert {int(np.triu(one).sum()) for one in plain} == {6}
    hidden = [int(np.triu(draw(20, 2, np.random.default_rng(seed)).adjacent).sum()) for seed in range(20)]
    assert min(hidden) == 6


def test_pairs_that_no_site_has_are_not_judged():
    adjacent = np.zeros((5, 5), dtype=bool)
    adjacent[[0, 1], [1, 0]] = True
    together = np.ones((5, 5), dtype=bool)
    together[[0, 2], [2, 0]] = False
    row = _judged("all", [Overlapping((), adjacent, together)], lambda tables: np.ones((5, 5), dtype=bool))
    assert row["pairs found, all"] == "1 of 1"
    assert row["false pairs, all"] == 8


@pytest.mark.skipif(not fedci_installed(), reason="needs python-fedci")
def test_fedci_finds_a_chain_over_sites_that_lack_one_end_each():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2000, 4)) @ np.linalg.inv(np.eye(4) - np.diag([1.0, 1.0, 1.0], 1))
    one, other = np.split(X, 2)
    one[:, 0] = other[:, 3] = np.nan
    found = fedci_adjacent([one, other], alpha=0.001)
    chain = {(0, 1), (1, 2), (2, 3)}
    # No site has both ends, so no test separates them.
    assert {(i, j) for i, j in combinations(range(4), 2) if found[i, j]} == chain | {(0, 3)}
