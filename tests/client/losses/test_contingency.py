"""Records in cells, by plain counting."""

import itertools

import numpy as np

from fedbnsl_client.losses.contingency import counted

MEMBERS = [np.array([0]), np.array([1, 2]), np.array([3])]
LEVELS = np.array([2, 3, 2])
SETS = [(0, 1), (1, 2), (0, 1, 2), (2,)]


def test_every_record_is_in_the_cell_of_its_levels() -> None:
    rng = np.random.default_rng(1)
    codes = np.column_stack([rng.integers(0, k, 50) for k in LEVELS])
    X = np.column_stack([codes[:, 0], codes[:, 1] == 1, codes[:, 1] == 2, codes[:, 2]]).astype(float)
    found, start = counted(X, SETS, MEMBERS, LEVELS), 0
    for one in SETS:
        for cell in itertools.product(*(range(LEVELS[v]) for v in one)):
            assert found[start] == (codes[:, list(one)] == cell).all(axis=1).sum()
            start += 1
    assert start == len(found)
