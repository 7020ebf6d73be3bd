"""Which pairs a search may have."""

import numpy as np

from fedbnsl.graphs.family_moments import within_two_steps


def chain(n: int) -> np.ndarray:
    return np.eye(n, k=1, dtype=bool)


def test_of_up_to_300_columns_all_pairs_are_asked_for_so_that_no_edge_is_lost_that_was_not_seen_before() -> None:
    assert (within_two_steps(chain(300)) == np.triu(np.ones((300, 300), dtype=bool), k=1)).all()


def test_of_more_columns_those_within_two_steps_are() -> None:
    assert (within_two_steps(chain(301)) == chain(301) | np.eye(301, k=2, dtype=bool)).all()
