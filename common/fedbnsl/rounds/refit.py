"""A refit round: every site regresses each variable on its parents in one graph, without a penalty."""

from dataclasses import dataclass

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, decode_matrix, encode_matrix, finite
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 20
NUMBERS = "weights and residual variances"
RELEASES = "least-squares weights along the learned edges"
YIELDS = Yields.WEIGHTS


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The graph to regress on: the entries of a (d, d) matrix, with its consensus weights."""

    graph: SparseMatrix


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """One site's regressions: (d, d) least-squares weights on the graph, and (d,) variances in squared units."""

    weights: SparseMatrix
    residual_variance: Matrix


def n_rounds(plan: Plan) -> int:
    return plan.refit_rounds


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.refit.CopyFrom(encode_matrix(task.graph, value_type=encoding.value_type))


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task(decode_matrix(wire.refit, n_variables=n_variables))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.refit.weights.CopyFrom(encode_matrix(answer.weights, value_type=encoding.value_type))
    # Variances are always sent in full precision.
    wire.refit.residual_variance.extend(answer.residual_variance.tolist())


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    weights = decode_matrix(wire.refit.weights, n_variables=n_variables)
    variance = finite(wire.refit.residual_variance)
    if variance.size != n_variables or (variance < 0).any():
        raise MalformedMessageError(
            f"{variance.size} residual variances, or one below 0; expected {n_variables}, all at least 0"
        )
    return Answer(weights, variance)
