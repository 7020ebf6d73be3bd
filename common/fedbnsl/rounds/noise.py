"""After the moments: what the shape of noise says of edges that second moments leave without a direction.

For an edge x - y and a set of parents that y has in some graph of the class, x among them, a site tells how what these
parents leave of y goes together with x, beyond correlation: sums that have mean 0 if x -> y is right, whatever the
distribution of the noise. If y -> x is right, they have not, unless noise is normal.
"""

from dataclasses import dataclass

from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.plan.limits import MOST_NOISE_NUMBERS
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, decode_columns, decode_numbers, encode_numbers
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 32
NUMBERS = "sums that show the shape of noise"
RELEASES = "how residuals of variables go together with one of their parents, beyond correlation"
YIELDS = Yields.SETUP

N_STATISTICS = 5
"""Of a pair, see `fedbnsl_client.losses.noise`."""

NUMBERS_A_PAIR = 1 + N_STATISTICS + N_STATISTICS * (N_STATISTICS + 1) // 2
"""Rows; the sums; and the products of two of them that independence lets one expect, i <= j."""

MOST_PAIRS = MOST_NOISE_NUMBERS // NUMBERS_A_PAIR

MOST_SETS = 16
"""Sets of other parents that are asked for, and answered, beside one source and target."""


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The pairs whose sums are asked for; none where no edge between numbers lacks a direction."""

    pairs: tuple[DirectedPair, ...]


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """(k, `NUMBERS_A_PAIR`) sums of the pairs of the task; zeros of one of which the site tells nothing."""

    sums: Matrix


def n_rounds(plan: Plan) -> int:
    return int(plan.looks_at_noise)


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.noise.SetInParent()
    for pair in task.pairs:
        wire.noise.pair.add(source=pair.source, target=pair.target, other=pair.others)


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    pairs = tuple(DirectedPair(one.source, one.target, tuple(one.other)) for one in wire.noise.pair)
    if len(pairs) > MOST_PAIRS:
        raise MalformedMessageError(f"{len(pairs)} pairs of columns; at most {MOST_PAIRS} are asked for")
    for pair in pairs:
        decode_columns(pair.others, n_variables)
        columns = {pair.source, pair.target, *pair.others}
        if max(columns) >= n_variables or len(columns) < 2 + len(pair.others):
            raise MalformedMessageError("a pair of columns that are out of range or not different")
    return Task(pairs)


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.noise.CopyFrom(encode_numbers(answer.sums.ravel(), value_type=encoding.value_type))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    numbers = decode_numbers(wire.noise, most=MOST_NOISE_NUMBERS)
    if numbers.size % NUMBERS_A_PAIR:
        raise MalformedMessageError(f"{numbers.size} sums; each pair has {NUMBERS_A_PAIR}")
    return Answer(numbers.reshape(-1, NUMBERS_A_PAIR))
