"""Records in cells: whole ones by plain counting, and those with gaps by what a Gaussian model expects."""

import itertools

import numpy as np
import pytest

from fedbnsl_client.losses.expected_levels import Completing, counted

MEMBERS = [np.array([0]), np.array([1, 2]), np.array([3])]
LEVELS = np.array([2, 3, 2])
SETS = [(0, 1), (1, 2), (0, 1, 2), (2,)]


def table(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a, b, c = rng.integers(0, 2, n), rng.integers(0, 3, n), rng.integers(0, 2, n)
    return np.column_stack([a, b == 1, b == 2, c]).astype(float)


def test_every_record_is_in_the_cell_of_its_levels() -> None:
    X = table(50, 1)
    codes = np.column_stack([X[:, 0], X[:, 1] + 2 * X[:, 2], X[:, 3]]).astype(int)
    found, start = counted(X, SETS, MEMBERS, LEVELS, None), 0
    for one in SETS:
        for cell in itertools.product(*(range(LEVELS[v]) for v in one)):
            assert found[start] == (codes[:, list(one)] == cell).all(axis=1).sum()
            start += 1
    assert start == len(found)


def test_a_gap_counts_as_the_conditional_mean_of_the_model_says() -> None:
    """Two binary variables: E[a | b] is a straight line, which the regression on b gives."""
    X = np.array([[1.0, 1.0], [0.0, 1.0], [np.nan, 1.0], [np.nan, 0.0], [np.nan, np.nan]])
    S, mean = np.array([[0.25, 0.1], [0.1, 0.25]]), np.array([0.5, 0.6])
    by = Completing(S, np.zeros(2), mean, np.ones(2))
    found = counted(X, [(0, 1), (0,)], [np.array([0]), np.array([1])], np.array([2, 2]), by)
    up, down = 0.5 + 0.4 * 0.4, 0.5 - 0.4 * 0.6
    both = np.array([[1 - down, 1 + 1 - up], [down, 1 + up]])
    both += np.outer([0.5, 0.5], [0.4, 0.6])
    assert found[:4] == pytest.approx(both.ravel(), abs=1e-5)
    assert found[4:] == pytest.approx(both.sum(axis=1), abs=1e-5)


def test_expected_levels_are_probabilities_and_keep_every_record() -> None:
    X = table(200, 2)
    S = np.cov(X.T, ddof=0)
    X[np.random.default_rng(3).random(len(X)) < 0.3, 1:3] = np.nan
    by = Completing(S, np.zeros(4), np.nanmean(X, axis=0) * 3.0, np.ones(4))  # means far out: weights are clipped
    found = counted(X, SETS, MEMBERS, LEVELS, by)
    assert (found >= 0.0).all()
    assert found[:6].sum() == pytest.approx(200)
    assert found[12:24].sum() == pytest.approx(200)
