"""What a site tells of the shape of noise, and what it refuses or keeps to itself."""

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.noise import MOST_SETS, Task
from fedbnsl_client.losses.noise import noise_sums
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.rounds.kinds import LocalProblem
from fedbnsl_client.rounds.noise import Rounds

PLAN = Plan.load("standard").with_settings(value_type="float64")
PAIRS = (DirectedPair(0, 1, ()), DirectedPair(0, 1, (2,)))
TASK = RoundTask(14, Task(PAIRS), contributed=True)
X = np.random.default_rng(0).exponential(1.0, (200, 3)) @ np.array([[1.0, 0.7, 0.2], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])


def rounds(X: np.ndarray, least_cell: int = 0, plan: Plan = PLAN) -> Rounds:
    zero, mask = SparseMatrix.zeros(3), plan.edge_mask(("a", "b", "c"))
    return Rounds(LocalProblem(plan, X, mask, Unaccounted(), lambda n: 0, least_cell=least_cell), SiteState(zero, zero))


@pytest.mark.parametrize(("least_cell", "is_told"), [(0, True), (1, True), (2, False), (5, False)])
def test_where_rows_have_gaps_a_site_with_a_least_cell_tells_nothing_of_noise(least_cell: int, is_told: bool) -> None:
    """Sums with column c and without it differ by the one row that lacks it."""
    gap = X.copy()
    gap[3, 2] = np.nan
    assert np.array_equal(rounds(gap, least_cell).answer(TASK).sums, noise_sums(gap, PAIRS) * is_told)
    whole = rounds(X, least_cell).answer(TASK).sums
    assert np.array_equal(whole, noise_sums(X, PAIRS))
    assert whole.any()


def test_a_task_about_levels_or_forbidden_edges_is_refused() -> None:
    rounds(X).begin(TASK, None)
    with pytest.raises(RemoteProtocolError, match="does not allow"):
        rounds(X, plan=PLAN.with_settings(knowledge={"forbidden": [["c", "b"]]})).begin(TASK, None)
    levels = {"a": {"kind": "binary", "levels": ["0", "1"]}, "b": {}, "c": {}}
    with pytest.raises(RemoteProtocolError, match="levels"):
        rounds(X, plan=PLAN.with_settings(dictionary=levels)).begin(TASK, None)


def test_a_task_with_more_sets_of_an_edge_than_its_direction_needs_is_refused() -> None:
    """Else a coordinator could ask for the same residuals beside one set after the other."""
    both = [DirectedPair(0, 1, ())] * MOST_SETS + [DirectedPair(1, 0, (2,))] * MOST_SETS
    rounds(X).begin(RoundTask(14, Task(tuple(both)), contributed=True), None)
    more = RoundTask(14, Task((*both, DirectedPair(0, 1, (2,)))), contributed=True)
    with pytest.raises(RemoteProtocolError, match=f"beside {MOST_SETS + 1} sets of columns; at most {MOST_SETS}"):
        rounds(X).begin(more, None)
