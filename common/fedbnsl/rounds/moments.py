"""A moments round without privacy: the sites send second moments of neighbours once, and the coordinator searches.

Both sides derive the list of moments from the graph of neighbours (`family_moments`), so no index is sent.
"""

from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, decode_numbers, decode_pairs, encode_numbers, encode_pairs
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 30
NUMBERS = "second moments"
RELEASES = "exact mean products of pairs of variables"
YIELDS = Yields.GRAPH


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The graph of neighbours: where a (d, d) matrix has ones."""

    neighbours: SparseMatrix


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """Second moments of the pairs that were asked for, i <= j, row by row."""

    moments: Matrix


def n_rounds(plan: Plan) -> int:
    return plan.moments_rounds if plan.privacy is None else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.moments.CopyFrom(encode_pairs(task.neighbours))


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task(decode_pairs(wire.moments, n_variables=n_variables))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.moments.CopyFrom(encode_numbers(answer.moments, value_type=encoding.value_type))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    return Answer(decode_numbers(wire.moments, most=n_variables * (n_variables + 1) // 2))
