"""A moments round without privacy: the sites send second moments of neighbours once, and the coordinator searches.

Both sides derive the list of moments from the graph of neighbours (`family_moments`), so no index is sent.

Where rows of a group stay rows, they depend on each other, and moments vary more than those of independent rows. Then a
site also sends the mean products between two different rows of a group, of the same pairs of variables.

In the last such round the coordinator names weights W between columns, and sites send how the squares of the residuals
x - W'x go together: by that, sites of heavy tails are told from sites that differ. With it they send the means of their
columns, where the plan tells means.
"""

from dataclasses import dataclass, field

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import (
    Encoding,
    decode_matrix,
    decode_numbers,
    decode_pairs,
    encode_matrix,
    encode_numbers,
    encode_pairs,
)
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 30
NUMBERS = "second moments"
RELEASES = (
    "exact mean products of pairs of variables, and of squares of their residuals; where rows of a group stay rows, "
    "also between two of its rows"
)
YIELDS = Yields.GRAPH


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The graph of neighbours: where a (d, d) matrix has ones."""

    neighbours: SparseMatrix
    residuals: SparseMatrix | None = None
    """(d, d) weights of the residuals whose squares are asked for, in units of the run's columns; None: none are."""


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """Second moments of the pairs that were asked for, i <= j, row by row."""

    moments: Matrix
    between: Matrix = field(default_factory=lambda: np.empty(0))
    """Of the same pairs, mean products x_i x_j' over ordered pairs of different rows of a group; empty: not asked."""
    n_row_pairs: int = 0
    """Over how many."""
    squares: Matrix = field(default_factory=lambda: np.empty(0))
    """Of the same pairs of residuals e, E e_i^2 e_j^2 / (E e_i^2 E e_j^2) over rows with both; empty: not asked."""
    means: Matrix = field(default_factory=lambda: np.empty(0))
    """(d,) of the columns, in their units; with EM of the completed rows; empty: not asked, or withheld."""


def n_rounds(plan: Plan) -> int:
    return plan.moments_rounds if plan.privacy is None else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.moments.CopyFrom(encode_pairs(task.neighbours))
    if task.residuals is not None:
        wire.residuals.CopyFrom(encode_matrix(task.residuals, value_type=encoding.value_type))


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    asked = wire.HasField("residuals")
    return Task(
        decode_pairs(wire.moments, n_variables=n_variables),
        decode_matrix(wire.residuals, n_variables=n_variables) if asked else None,
    )


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.moments.CopyFrom(encode_numbers(answer.moments, value_type=encoding.value_type))
    if answer.between.size:
        wire.moments.between.CopyFrom(encode_numbers(answer.between, value_type=encoding.value_type))
    wire.moments.n_row_pairs = answer.n_row_pairs
    if answer.squares.size:
        wire.moments.squares.CopyFrom(encode_numbers(answer.squares, value_type=encoding.value_type))
    if answer.means.size:  # in full precision: they may be large beside what varies
        wire.moments.means.CopyFrom(encode_numbers(answer.means, value_type="float64"))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    most, told = n_variables * (n_variables + 1) // 2, wire.moments
    between, squares = (decode_numbers(numbers, most=most) for numbers in (told.between, told.squares))
    means = decode_numbers(told.means, most=n_variables)
    return Answer(decode_numbers(told, most=most), between, told.n_row_pairs, squares, means)
