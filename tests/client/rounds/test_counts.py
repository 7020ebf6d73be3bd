"""What a site answers to a round of counts, and what it refuses."""

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.counts import Task
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.rounds.counts import Rounds
from fedbnsl_client.rounds.kinds import LocalProblem

LEVELS = {"x": ["a", "b"], "y": ["u", "v", "w"]}
DICTIONARY = Dictionary.model_validate(
    {name: {"kind": "binary" if len(of) == 2 else "nominal", "levels": of} for name, of in LEVELS.items()}
)
PLAN = Plan.load("standard").with_dictionary(DICTIONARY, origin="here")
# x = a with y = u, v; x = b with y = u, w
X = np.repeat([[0.0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 0, 1]], [5, 1, 4, 7], axis=0)


def rounds(X: np.ndarray, least_cell: int = 0) -> Rounds:
    zero, mask = SparseMatrix.zeros(3), PLAN.edge_mask(("x", "y=v", "y=w"))
    problem = LocalProblem(PLAN, X, mask, Unaccounted(), lambda n: 0, least_cell=least_cell)
    return Rounds(problem, SiteState(zero, zero))


def task(*sets: tuple[int, ...]) -> RoundTask:
    return RoundTask(14, Task.of(sets), contributed=True)


def test_a_site_sends_the_cells_that_have_records() -> None:
    answer = rounds(X).answer(task((0, 1), (0,)))
    assert answer.n_cells.tolist() == [4, 2]
    assert answer.cells.tolist() == [0, 1, 3, 5, 0, 1]
    assert answer.counts.tolist() == [5, 1, 4, 7, 6, 11]


def test_a_site_that_is_asked_for_nothing_sends_nothing() -> None:
    assert rounds(X).answer(task()).counts.size == 0


@pytest.mark.parametrize(
    ("least_cell", "sent"), [(0, [4, 2, 3]), (1, [4, 2, 3]), (2, [0, 2, 0]), (6, [0, 2, 0]), (7, [0, 0, 0])]
)
def test_a_table_with_a_count_below_the_least_one_is_withheld_whole(least_cell: int, sent: list[int]) -> None:
    """y = v occurs once; x = a six times."""
    answer = rounds(X, least_cell).answer(task((0, 1), (0,), (1,)))
    assert answer.n_cells.tolist() == sent
    assert not answer.counts.size or answer.counts.min() >= least_cell


def test_a_record_with_a_gap_is_in_no_table_also_not_of_the_variables_that_it_has() -> None:
    gap = X.copy()
    gap[0, 1:] = np.nan
    answer = rounds(gap).answer(task((0, 1), (0,)))
    assert answer.counts.tolist() == [4, 1, 4, 7, 5, 11]


@pytest.mark.parametrize(("lacking", "sent"), [(2, [0]), (4, [0]), (5, [2]), (0, [2])])
def test_a_table_that_tells_how_few_rows_have_a_gap_is_withheld(lacking: int, sent: list[int]) -> None:
    """Sums over the rows that have x tell how often each of its levels is there, also beside a gap in y."""
    gap = np.repeat(X, 10, axis=0)
    gap[:lacking, 1:] = np.nan
    assert rounds(gap, least_cell=5).answer(task((0,))).n_cells.tolist() == sent
