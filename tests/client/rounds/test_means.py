"""Which means a site tells of its columns, and which it keeps to itself."""

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Covariances
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.rounds.kinds import LocalProblem

PLAN = Plan.load("standard")


def table(n_gaps: int) -> np.ndarray:
    """Two columns that go together; the second is missing where the first is largest."""
    x = np.arange(100.0)
    y = 2.0 * x
    y[len(x) - n_gaps :] = np.nan
    return np.column_stack([x, y])


def means(X: np.ndarray, least_cell: int) -> list[float]:
    by = Covariances(np.array([[1.0, 2.0], [2.0, 4.1]]), np.empty(0))
    problem = LocalProblem(
        PLAN, X, PLAN.edge_mask(("a", "b")), Unaccounted(), lambda n: 0, completed_by=by, least_cell=least_cell
    )
    found: list[float] = problem.means.tolist()
    return found


@pytest.mark.parametrize(("least_cell", "expected"), [(0, 99.0), (1, 99.0), (2, 79.0), (5, 79.0)])
def test_with_a_least_cell_means_rest_on_no_combination_of_what_is_there_and_what_lacks(
    least_cell: int, expected: float
) -> None:
    """What is expected of a gap hangs on the other values of its row, which the coordinator's covariances can pick."""
    assert means(table(20), least_cell) == pytest.approx([49.5, expected])


@pytest.mark.parametrize(("n_values", "told"), [(0, True), (1, False), (4, False), (5, True)])
def test_a_mean_of_fewer_values_than_the_least_cell_is_withheld_with_all_others(n_values: int, told: bool) -> None:
    """A mean of one value is that value; which column has so few values is not told either."""
    X = table(0)
    X[n_values:, 1] = np.nan
    assert len(means(X, 5)) == 2 * told
