"""An iteration of EM: the sites complete the sums of rows with gaps by the present covariances, and send them.

The first iteration has no covariances yet: the sites send the products of the rows that have both columns. There is no
such round where no row has a gap, and none after the last that changed anything.
"""

from dataclasses import dataclass, field

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import MOST_EM_ROUNDS
from fedbnsl.protocol.matrix_codec import Encoding, decode_covariances, encode_covariances, finite
from fedbnsl.protocol.messages import Content, Covariances, Yields
from fedbnsl.protocol.sparse import Index, Matrix, upper
from fedbnsl.wire import federation_pb2 as federation

PLACE = 7
NUMBERS = "completed second moments"
RELEASES = (
    "mean products of pairs of variables, how many rows have both, and how means differ between rows with and without "
    "a value"
)
YIELDS = Yields.SETUP

LEAST_ROWS = 10
"""Means are compared where at least so many rows have a value, and as many lack it."""


@dataclass(frozen=True, eq=False)
class Task(Content):
    """What rows with gaps are completed by; None in the first iteration."""

    covariances: Covariances | None

    passes_on = ("completed_by",)

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        told = self.covariances
        return (0 if told is None else upper(told.S).size + told.means.size), False


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """The sums of one site."""

    moments: Matrix
    """(d (d + 1) / 2,) mean expected products, i <= j row by row; in the first iteration over the rows that have
    both columns."""
    n_pairs: Index
    """Rows that have both, likewise; empty after the first iteration."""
    means: Matrix
    """(d,) mean expected values about the task's means; empty where sites use their own, or none."""
    log_likelihood: float
    """Of all values that are there, without constants; 0 in the first iteration."""
    differences: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    """(d, d) [j, k] by how many standard errors the mean of column k is larger in rows that have column j than in those
    that lack it; 0 where fewer than `LEAST_ROWS` do either; (0, 0) after the first iteration."""
    complete_rows: int = 0
    """Rows without a gap; 0 after the first iteration."""

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        return self.moments.size + self.n_pairs.size + self.means.size + self.differences.size + 2, False


def n_rounds(plan: Plan) -> int:
    return 0


def most_iterations(plan: Plan) -> int:
    return MOST_EM_ROUNDS if plan.completes else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.completion.CopyFrom(encode_covariances(task.covariances) or federation.Covariances())


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task(decode_covariances(wire.completion, n_variables))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    # Always in full precision: an iteration must not undo what the last one gained.
    wire.completion.moment.extend(answer.moments.tolist())
    wire.completion.n_pairs.extend(answer.n_pairs.tolist())
    wire.completion.mean.extend(answer.means.tolist())
    wire.completion.log_likelihood = answer.log_likelihood
    wire.completion.mean_difference.extend(answer.differences.ravel().tolist())
    wire.completion.complete_rows = answer.complete_rows


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    told, size = wire.completion, n_variables * (n_variables + 1) // 2
    if len(told.moment) != size or len(told.n_pairs) not in (0, size) or len(told.mean) not in (0, n_variables):
        raise MalformedMessageError(
            f"{len(told.moment)} products, {len(told.n_pairs)} counts and {len(told.mean)} means; expected {size}, "
            f"{size} or none, and {n_variables} or none"
        )
    n_pairs = np.array(told.n_pairs, dtype=np.uint64)
    if (n_pairs > np.iinfo(np.int64).max).any():
        raise MalformedMessageError("a count of rows beyond what a table can have")
    if len(told.mean_difference) != (n_variables**2 if len(told.n_pairs) else 0):
        raise MalformedMessageError(f"{len(told.mean_difference)} differences of means for {n_variables} columns")
    log_likelihood, side = float(finite([told.log_likelihood])[0]), n_variables if len(told.n_pairs) else 0
    return Answer(
        finite(told.moment),
        n_pairs.astype(np.int64),
        finite(told.mean),
        log_likelihood,
        finite(told.mean_difference).reshape(side, side),
        told.complete_rows,
    )
