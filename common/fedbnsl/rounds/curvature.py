"""After the search: whether straight lines, or hinges, describe how numbers depend on each other.

For each pair of a child and another number that is not below it in the learned graph, a site tells how its child's
residuals vary with three steps of the other number: sums that have mean 0 where effects are straight lines.
"""

from dataclasses import dataclass

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.limits import MOST_CURVATURE_NUMBERS
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import (
    Encoding,
    decode_columns,
    decode_numbers,
    decode_pairs,
    encode_numbers,
    encode_pairs,
)
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Mask, Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 50
NUMBERS = "sums that show curves"
RELEASES = "how residuals of variables vary with steps of other variables"
YIELDS = Yields.SETUP

STEPS = (-0.6745, 0.0, 0.6745)
"""Where the steps are, in the column's scale from the site's mean: the quartiles of a normal variable."""

NUMBERS_A_PAIR = 1 + 3 + 6
"""Rows; the sums of residuals times steps; those of squared residuals times products of two steps, i <= j."""

MOST_PAIRS = MOST_CURVATURE_NUMBERS // NUMBERS_A_PAIR
"""With more, only pairs within two edges of each other in the learned graph are looked at, and no more than these."""


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The learned graph: where a (d, d) matrix has ones, between columns; and the columns that have hinges in it."""

    graph: SparseMatrix
    hinged: Index


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """(k, `NUMBERS_A_PAIR`) sums of the pairs of `pairs_of`, in their order."""

    sums: Matrix


def pairs_of(dag: Mask, columns: Columns, numbers: Mask) -> Index:
    """(k, 2) columns to look at: another number, and a child that it does not descend from, by the (d, d) DAG.

    `numbers`: (d,) columns that hold numbers; each is a variable by itself.
    """
    asked = _possible(dag, columns, numbers)
    if asked.sum() > MOST_PAIRS:
        near = columns.joined(dag | dag.T).astype(np.int64)
        asked &= (near + near @ near) > 0
    first = np.array([own[0] for own in columns.members()])
    return np.asarray(first[np.argwhere(asked.T)[:MOST_PAIRS, ::-1]])


def n_possible(dag: Mask, columns: Columns, numbers: Mask) -> int:
    """How many such pairs there are, also those that are too many to be asked for."""
    return int(_possible(dag, columns, numbers).sum())


def _possible(dag: Mask, columns: Columns, numbers: Mask) -> Mask:
    """(V, V) [a, c]: both are numbers, and a is not below c."""
    of_variable = numbers[np.array([own[0] for own in columns.members()])]
    found = ~arrows_lead(columns.joined(dag)).T & of_variable[:, None] & of_variable
    np.fill_diagonal(found, False)
    return np.asarray(found)


def n_rounds(plan: Plan) -> int:
    return int(plan.looks_for_curves)


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.curvature.graph.CopyFrom(encode_pairs(task.graph))
    wire.curvature.column.extend(task.hinged.tolist())


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    told = wire.curvature
    return Task(decode_pairs(told.graph, n_variables=n_variables), decode_columns(told.column, n_variables))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.curvature.CopyFrom(encode_numbers(answer.sums.ravel(), value_type=encoding.value_type))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    numbers = decode_numbers(wire.curvature, most=min(n_variables**2 * NUMBERS_A_PAIR, MOST_CURVATURE_NUMBERS))
    if numbers.size % NUMBERS_A_PAIR:
        raise MalformedMessageError(f"{numbers.size} sums; each pair has {NUMBERS_A_PAIR}")
    return Answer(numbers.reshape(-1, NUMBERS_A_PAIR))
