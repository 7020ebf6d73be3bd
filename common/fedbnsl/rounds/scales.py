"""The round before the first private moments round: sites send the mean squares that they released in the setup."""

from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, decode_numbers, encode_numbers
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 40
NUMBERS = "released mean squares"
RELEASES = "mean squares of the columns, as released in the setup"
YIELDS = Yields.SETUP


@dataclass(frozen=True, eq=False)
class Task(Content):
    """Empty: the question needs no content."""


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """(d,) noisy mean squares of the variables."""

    mean_squares: Matrix


def n_rounds(plan: Plan) -> int:
    # Where columns are prepared, `statistics` takes its place.
    return 1 if plan.privacy is not None and plan.moments_rounds and plan.preparation is None else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.scales.SetInParent()


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task()


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.scales.CopyFrom(encode_numbers(answer.mean_squares, value_type=encoding.value_type))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    return Answer(decode_numbers(wire.scales, most=n_variables))
