"""A round that looks for curves, at the coordinator: ask along the learned graph, and test the sums of all sites."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix
from fedbnsl.rounds.curvature import NUMBERS_A_PAIR, Answer, Task, n_possible, pairs_of
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.inference.curvature import curvature_of
from fedbnsl_server.rounds.kinds import Run

# Of sums that were rounded to single precision.
_ROUNDED_UP = 1.0 + 1e-5


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The graph that the search found, and what has hinges in it."""
    found = state.refitted or SparseMatrix.zeros(len(run.mask.allowed))
    support = found.support()
    hinged = np.empty(0, dtype=np.int64) if state.curves is None else state.curves.columns
    return state, Task(SparseMatrix.on_support(support.astype(np.float64), support), hinged)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report sums that were not asked for, or that no records have."""
    expected = (len(_pairs(task, run)), NUMBERS_A_PAIR)
    if answer.sums.shape != expected:
        return f"has sums of {len(answer.sums)} pairs; {expected[0]} were asked for"
    return "" if are_sums(answer.sums, most_rows=run.plan.max_rows) else "has sums that no records have"


def are_sums(sums: Matrix, *, most_rows: float) -> bool:
    """Whether each row can be: rows of records, q sums over them, and q (q + 1) / 2 covariances of these, i <= j."""
    q = round((np.sqrt(8 * sums.shape[1] + 1) - 3) / 2)
    n, g, M = sums[:, 0], sums[:, 1 : 1 + q], sums[:, 1 + q :]
    i, j = np.triu_indices(q)
    squares = M[:, i == j]
    possible = (np.abs(sums) <= LARGEST).all() and (n >= 0.0).all() and (squares >= 0.0).all()
    # Cauchy and Schwarz, of sums over n rows.
    possible = possible and (g**2 <= _ROUNDED_UP * n[:, None] * squares).all()
    possible = possible and (_ROUNDED_UP * squares[:, i] * squares[:, j] >= M**2).all()
    return bool(possible and (n <= most_rows).all())


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The state with what the test says."""
    total = np.sum([answer.sums for answer in answers.values()], axis=0)
    columns = run.mask.columns
    possible = n_possible(task.graph.support(), columns, run.plan.numbers(columns))
    return replace(state, curvature=curvature_of(total, _pairs(task, run), columns.names, possible))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Nothing: the moments before were compared."""
    return []


def _pairs(task: Task, run: Run) -> Index:
    columns = run.mask.columns
    return pairs_of(task.graph.support(), columns, run.plan.numbers(columns))
