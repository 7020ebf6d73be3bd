"""A round of counts, without privacy: contingency tables of sets of categorical variables.

The coordinator names the sets, each site counts its records in their cells. The tables of all sites add up.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.contingency import MOST_CELLS_A_ROUND, MOST_IN_TABLE, VariableSet
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index
from fedbnsl.wire import federation_pb2 as federation

PLACE = 35
NUMBERS = "counts of records"
RELEASES = "how many records have each combination of levels of a few variables"
YIELDS = Yields.GRAPH


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The sets whose tables are asked for; none once the search needs no more."""

    sizes: Index
    """(S,) how many variables each set has, 1 to `MOST_IN_TABLE`."""
    variables: Index
    """Positions of their variables, one set after the other, ascending in each."""

    @classmethod
    def of(cls, sets: tuple[VariableSet, ...]) -> "Task":
        """The task that asks for these sets."""
        flat = [v for one in sets for v in one]
        return cls(np.array([len(one) for one in sets], dtype=np.int64), np.array(flat, dtype=np.int64))

    @cached_property
    def sets(self) -> tuple[VariableSet, ...]:
        """The sets, in the order of their tables."""
        ends = np.cumsum(self.sizes).tolist()
        return tuple(
            tuple(self.variables[end - size : end].tolist())
            for end, size in zip(ends, self.sizes.tolist(), strict=True)
        )

    @property
    def digest(self) -> bytes:
        """8 bytes that identify the task."""
        return hashlib.sha256(self.sizes.tobytes() + self.variables.tobytes()).digest()[:8]


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """One site's tables: of each set, the cells that have records."""

    n_cells: Index
    """(S,) how many such cells each set has; 0: the site keeps its table to itself."""
    cells: Index
    """Their numbers in the table of the set, ascending, one set after the other."""
    counts: Index
    """Records in each of them, at least 1."""
    task_digest: bytes
    """`Task.digest` of the task that it answers."""

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        return self.counts.size, True


def n_rounds(plan: Plan) -> int:
    return plan.counts_rounds if plan.counted else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.counts.SetInParent()
    wire.counts.size.extend(task.sizes.tolist())
    wire.counts.variable.extend(task.variables.tolist())


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    task = Task(np.array(wire.counts.size, dtype=np.int64), np.array(wire.counts.variable, dtype=np.int64))
    if (task.sizes < 1).any() or task.sizes.sum() != task.variables.size or (task.variables >= n_variables).any():
        raise MalformedMessageError(f"{task.variables.size} variables in {task.sizes.size} sets, or one that is none")
    if (task.sizes > MOST_IN_TABLE).any():
        raise MalformedMessageError(f"a set of {task.sizes.max()} variables; a table has at most {MOST_IN_TABLE}")
    if any(list(one) != sorted(set(one)) for one in task.sets):
        raise MalformedMessageError("a set whose variables are not in ascending order")
    return task


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    starts = np.zeros(answer.cells.size, dtype=bool)
    ends = np.cumsum(answer.n_cells)
    starts[(ends - answer.n_cells)[answer.n_cells > 0]] = True
    steps = np.where(starts, answer.cells, np.diff(answer.cells, prepend=0))
    wire.counts.n_cells.extend(answer.n_cells.tolist())
    wire.counts.step.extend(steps.tolist())
    wire.counts.count.extend(answer.counts.tolist())
    wire.counts.task_digest = answer.task_digest


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    told = wire.counts
    n_cells, steps = np.array(told.n_cells, dtype=np.int64), np.array(told.step, dtype=np.int64)
    if n_cells.sum() != steps.size or len(told.count) != steps.size or steps.size > MOST_CELLS_A_ROUND:
        raise MalformedMessageError(
            f"{len(told.count)} counts in {steps.size} cells; expected as many as the sets have, {n_cells.sum()}, and "
            f"at most {MOST_CELLS_A_ROUND}"
        )
    counts = np.array(told.count, dtype=np.uint64)
    if (counts == 0).any() or (counts > np.iinfo(np.int64).max // MOST_CELLS_A_ROUND).any():
        raise MalformedMessageError("a cell without records, or with more than a table can have")
    if len(told.task_digest) != 8:
        raise MalformedMessageError(f"a task digest of {len(told.task_digest)} bytes; expected 8")
    total = np.cumsum(steps)
    first = np.cumsum(n_cells) - n_cells  # of each set
    before = np.where(first > 0, total[np.minimum(first, steps.size) - 1], 0) if steps.size else np.zeros_like(first)
    cells = total - np.repeat(before, n_cells)
    return Answer(n_cells, cells, counts.astype(np.int64), told.task_digest)
