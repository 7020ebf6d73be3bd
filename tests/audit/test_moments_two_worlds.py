"""The release of residual moments, judged by what can be told from it."""

import numpy as np
import pytest

from audit import moments_two_worlds, reference, two_worlds
from audit.moments_two_worlds import SCALES, W
from audit.reference import LATTICE


@pytest.mark.long
def test_two_tables_are_not_told_apart_better_than_epsilon_allows() -> None:
    # The two tables must be as far apart as any, or the test would be a weak one.
    in_A, in_B = (reference.moment_sums(X, W, SCALES, 2**0.5) for X in moments_two_worlds.worlds())
    assert np.linalg.norm(in_A - in_B) > 1.41 * LATTICE
    released = moments_two_worlds.statistics()
    assert two_worlds.check_bound(*released) > 0.3
    two_worlds.check_law(*released)
