"""A private moments round: noisy second moments of what a DAG leaves unexplained at a site, in public units.

Where a plan prepares columns, records have a constant as a further column: with it the coordinator takes out what
noisy centres leave of a mean. Records with gaps are completed by the graph and the spreads of its residuals.

Where the noise is small, the coordinator asks for the squares of numbers, too: more columns, which show effects that
bend. All tasks of a run have the same columns; their number says whether squares are among them.
"""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import MOST_COLUMNS_IN_SHARES
from fedbnsl.protocol.matrix_codec import Encoding, decode_matrix, decode_numbers, encode_matrix, encode_numbers, finite
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 50
NUMBERS = "released moments"
RELEASES = "mean products of what the graph leaves unexplained of columns, and where noise is small of their squares"
YIELDS = Yields.GRAPH


@dataclass(frozen=True, eq=False)
class Task(Content):
    """Which residuals to use: x - W'x for the acyclic (D, D) weights W, divided by the (D,) scales, above 0.

    D is d, or with squares more. `spreads`: (D,) their standard deviations by what was released so far, above 0; empty
    where nothing prepares columns, and so nothing completes records.
    """

    weights: SparseMatrix
    scales: Matrix
    spreads: Matrix = field(default_factory=lambda: np.empty(0))

    @property
    def digest(self) -> bytes:
        """8 bytes that identify the task."""
        W = self.weights
        parts = (W.index, W.value, self.scales, self.spreads)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()[:8]


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """One site's release."""

    moments: Matrix
    """Noisy second moments of all k (k + 1) / 2 pairs of scaled residuals, i <= j, row by row: k is D, or D + 1 with
    the constant, which comes last."""
    task_digest: bytes
    """`Task.digest` of the task that it answers. A stored answer to another task would be misread."""


def squared(plan: Plan, columns: Columns) -> Index:
    """(m,) columns whose squares may be asked for, ascending: numbers that are not said to act by straight lines.

    None, if with them columns were too many for secure aggregation.
    """
    found = np.flatnonzero(plan.numbers(columns) & ~plan.has_shape(columns, "linear"))
    few = len(columns.names) + len(found) <= MOST_COLUMNS_IN_SHARES
    return found if plan.may_ask_for_squares and few else found[:0]


def with_squares(columns: Columns, of: Index) -> Columns:
    """The d columns and then squares of some of them, which belong to their column's variable."""
    names = [f"{columns.names[c]}^2" for c in of.tolist()]
    owner = np.append(columns.variable_of, columns.variable_of[of])
    return replace(columns, names=(*columns.names, *names), variable_of=owner)


def most_moments(n_columns: int) -> int:
    """Of an answer of a run with d columns: all of them have squares, and there is a constant."""
    return (2 * n_columns + 1) * (n_columns + 1)


def n_rounds(plan: Plan) -> int:
    return 0 if plan.privacy is None else plan.moments_rounds


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.residual_moments.weights.CopyFrom(encode_matrix(task.weights, value_type=encoding.value_type))
    # Always in full precision.
    wire.residual_moments.scale.extend(task.scales.tolist())
    wire.residual_moments.spread.extend(task.spreads.tolist())


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    scales, spreads = finite(wire.residual_moments.scale), finite(wire.residual_moments.spread)
    D = scales.size
    if not n_variables <= D <= 2 * n_variables or (scales <= 0).any():
        raise MalformedMessageError(f"{D} scales, or one not above 0; expected {n_variables} and those of squares")
    if spreads.size not in (0, D) or (spreads <= 0).any():
        raise MalformedMessageError(f"{spreads.size} spreads, or one not above 0; expected {D}, or none")
    return Task(decode_matrix(wire.residual_moments.weights, n_variables=D), scales, spreads)


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.residual_moments.moments.CopyFrom(encode_numbers(answer.moments, value_type=encoding.value_type))
    wire.residual_moments.task_digest = answer.task_digest


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    answer = wire.residual_moments
    if len(answer.task_digest) != 8:
        raise MalformedMessageError(f"a task digest of {len(answer.task_digest)} bytes; expected 8")
    moments = decode_numbers(answer.moments, most=most_moments(n_variables))
    return Answer(moments, answer.task_digest)
