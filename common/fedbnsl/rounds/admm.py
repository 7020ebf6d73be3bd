"""A round of Algorithm 1: the coordinator sends W, a site its B_p, each as a matrix or as the entries that changed."""

from dataclasses import dataclass

from fedbnsl.matrix_codec import Encoding, decode_dense, decode_matrix, encode_dense, encode_matrix, expect_form
from fedbnsl.messages import Content
from fedbnsl.plan.plan import Plan
from fedbnsl.sparse import SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 10


@dataclass(frozen=True, eq=False)
class _Weights(Content):
    """A (d, d) matrix, or its changes (`Plan.sends_changes`)."""

    weights: SparseMatrix

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        return (self.weights.n_variables**2, False) if dense else (self.weights.nnz, True)


class Task(_Weights):
    """W, (d, d)."""


class Answer(_Weights):
    """B_p, (d, d)."""


def n_rounds(plan: Plan) -> int:
    """The plan's `rounds`, for each start of Algorithm 1."""
    return plan.rounds * (1 + len(plan.starts))


def start_of(plan: Plan, step: int) -> tuple[int, int]:
    """Which start the ADMM round `step` (from 1) belongs to, from 0, and its number there, from 1."""
    start, before = divmod(step - 1, plan.rounds)
    return start, before + 1


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    """See `kinds.Kind`."""
    _encode(task.weights, wire, encoding)


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    """See `kinds.Kind`."""
    return Task(_decode(wire, n_variables, encoding))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    """See `kinds.Kind`."""
    _encode(answer.weights, wire, encoding)


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    """See `kinds.Kind`."""
    return Answer(_decode(wire, n_variables, encoding))


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
