"""A round of Algorithm 1: the coordinator sends W, a site its B_p, each as a matrix or as the entries that changed.

Where the plan searches the graph that explains all private steps, a site sends these with its B_p.
"""

from dataclasses import dataclass, field

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import (
    Encoding,
    as_sent,
    decode_dense,
    decode_matrix,
    decode_numbers,
    encode_dense,
    encode_matrix,
    encode_numbers,
    expect_form,
)
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 10
NUMBERS = "weights"
RELEASES = "local weights between the variables"
YIELDS = Yields.W


@dataclass(frozen=True, eq=False)
class _Weights(Content):
    """A (d, d) matrix, or its changes (`Plan.sends_changes`)."""

    weights: SparseMatrix

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        return (self.weights.n_variables**2, False) if dense else (self.weights.nnz, True)


class Task(_Weights):
    """W, (d, d)."""


@dataclass(frozen=True, eq=False)
class Answer(_Weights):
    """B_p, (d, d), and the private steps of the round that led to it, if the plan wants them."""

    index: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """(K,) flat indices i d + j of the coordinates, in the order of the steps."""
    gradient: Matrix = field(default_factory=lambda: np.empty(0))
    """(K,) noisy means of the clipped gradients of the loss, as released."""
    bound: Matrix = field(default_factory=lambda: np.empty(0))
    """(K,) what each record's gradient was clipped to."""
    weight: Matrix = field(default_factory=lambda: np.empty(0))
    """(K,) B_ij after the step."""

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`; each number of a step counts with an index."""
        entries, indexed = super().entries(dense=dense)
        return entries + 3 * self.index.size, indexed

    def as_sent(self, value_type: str) -> "Answer":
        """With the steps as the other side receives them."""
        return Answer(
            self.weights, self.index, *(as_sent(one, value_type) for one in (self.gradient, self.bound, self.weight))
        )


def n_rounds(plan: Plan) -> int:
    return plan.rounds


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    _encode(task.weights, wire, encoding)


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task(_decode(wire, n_variables, encoding))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    if not answer.index.size:
        _encode(answer.weights, wire, encoding)
        return
    steps = wire.admm_steps
    steps.weights.CopyFrom(encode_matrix(answer.weights, value_type=encoding.value_type))
    steps.index.extend(answer.index.tolist())
    for place, numbers in (
        (steps.gradient, answer.gradient),
        (steps.bound, answer.bound),
        (steps.weight, answer.weight),
    ):
        place.CopyFrom(encode_numbers(numbers, value_type=encoding.value_type))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    if encoding.dense or wire.WhichOneof("content") != "admm_steps":
        return Answer(_decode(wire, n_variables, encoding))
    steps = wire.admm_steps
    index = np.array(steps.index, dtype=np.int64)
    gradient, bound, weight = (
        decode_numbers(one, most=index.size) for one in (steps.gradient, steps.bound, steps.weight)
    )
    if not index.size or not index.size == gradient.size == bound.size == weight.size:
        raise MalformedMessageError(
            f"{index.size} private steps with {gradient.size} gradients, {bound.size} bounds and {weight.size} weights"
        )
    if index.max() >= n_variables**2 or (index % (n_variables + 1) == 0).any():
        raise MalformedMessageError("a private step off the matrix or on its diagonal")
    if (bound <= 0.0).any():
        raise MalformedMessageError("a private step whose bound is not above 0")
    return Answer(decode_matrix(steps.weights, n_variables=n_variables), index, gradient, bound, weight)


def _encode(matrix: SparseMatrix, wire: federation.Task | federation.Update, encoding: Encoding) -> None:
    if encoding.dense:
        wire.admm_dense.CopyFrom(encode_dense(matrix, value_type=encoding.value_type))
    else:
        wire.admm.CopyFrom(encode_matrix(matrix, value_type=encoding.value_type))


def _decode(wire: federation.Task | federation.Update, n_variables: int, encoding: Encoding) -> SparseMatrix:
    expect_form(wire.WhichOneof("content"), "admm_dense" if encoding.dense else "admm")
    if encoding.dense:
        return decode_dense(wire.admm_dense, n_variables=n_variables)
    return decode_matrix(wire.admm, n_variables=n_variables)
