"""A round that looks for curves, at the coordinator: ask along the learned graph, and test the sums of all sites."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.protocol.sparse import Index, SparseMatrix
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
    n, g, M = answer.sums[:, 0], answer.sums[:, 1:4], answer.sums[:, 4:]
    squares = M[:, [0, 3, 5]]
    possible = (np.abs(answer.sums) <= LARGEST).all() and (n >= 0.0).all() and (squares >= 0.0).all()
    # Cauchy and Schwarz, of sums over n rows.
    possible = possible and (g**2 <= _ROUNDED_UP * n[:, None] * squares).all()
    products = squares[:, [0, 0, 1]] * squares[:, [1, 2, 2]]
    possible = possible and (M[:, [1, 2, 4]] ** 2 <= _ROUNDED_UP * products).all()
    return "" if possible and (n <= run.plan.max_rows).all() else "has sums that no records have"


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
