"""The release of residual moments, judged by what can be told from it."""

from pathlib import Path

import numpy as np
import pytest

from audit import moments_two_worlds, planted
from audit.reference import LATTICE


def test_two_tables_are_not_told_apart_better_than_epsilon_allows() -> None:
    # The two tables must be as far apart as any, or the test would be a weak one.
    in_A, in_B = (moments_two_worlds.sums(X, 2**0.5) for X in moments_two_worlds.worlds())
    assert np.linalg.norm(in_A - in_B) > 1.41 * LATTICE
    assert moments_two_worlds.check_two_worlds() > 0.3


def test_what_is_released_has_the_law_of_the_ideal_mechanism() -> None:
    moments_two_worlds.check_law()


def test_half_the_sensitivity_is_seen_from_the_releases_alone(tmp_path: Path) -> None:
    with planted.half_the_matrix_sensitivity(tmp_path), pytest.raises(AssertionError, match="claimed"):
        moments_two_worlds.check_two_worlds()
