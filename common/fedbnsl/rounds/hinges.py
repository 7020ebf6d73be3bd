"""After the search by straight lines: second moments of all columns and of hinges of those that hold numbers.

A hinge of z at s is max(z - s, 0). With its hinges, the effect of a number is a line that bends at each s (Friedman
1991). The coordinator searches again with the hinges of those numbers alone whose effects bend.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.limits import MOST_HINGE_NUMBERS
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, decode_columns, decode_numbers, encode_numbers
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 33
NUMBERS = "second moments of hinges"
RELEASES = "second moments of all columns, and of how far numbers lie above fixed values"
YIELDS = Yields.GRAPH

KNOTS = (-1.5, -0.75, 0.0, 0.75, 1.5)
"""Where the hinges are, in the column's scale from the site's mean."""

FEWEST_ROWS = 100
"""Of all sites together: fewer tell no curves."""


@dataclass(frozen=True, eq=False)
class Task(Content):
    """(k,) columns whose hinges are asked for, ascending; empty: nothing is asked for."""

    columns: Index


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """Over the rows without a missing value, of the d columns and, column by column, the hinges; about their means."""

    n_rows: int
    moments: Matrix
    """(D (D + 1) / 2,) i <= j, row by row."""


def n_columns(task: Task, d: int) -> int:
    """D, the columns whose moments are asked for."""
    return d + len(KNOTS) * len(task.columns) if task.columns.size else 0


def n_moments(task: Task, d: int) -> int:
    """How many numbers an answer has."""
    D = n_columns(task, d)
    return D * (D + 1) // 2


def with_hinges(columns: Columns, asked: Index) -> Columns:
    """The d columns and the hinges, which belong to their column's variable."""
    names = [f"{columns.names[c]}>{s:g}" for c in asked.tolist() for s in KNOTS]
    variable_of = np.repeat(columns.variable_of[asked], len(KNOTS))
    return replace(columns, names=(*columns.names, *names), variable_of=np.append(columns.variable_of, variable_of))


def n_rounds(plan: Plan) -> int:
    return int(plan.searches_curves)


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.hinges.SetInParent()
    wire.hinges.column.extend(task.columns.tolist())


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    task = Task(decode_columns(wire.hinges.column, n_variables))
    if n_moments(task, n_variables) > MOST_HINGE_NUMBERS:
        raise MalformedMessageError(f"asks for more than {MOST_HINGE_NUMBERS} moments of hinges")
    return task


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    wire.hinges.n_rows = answer.n_rows
    wire.hinges.moments.CopyFrom(encode_numbers(answer.moments, value_type=encoding.value_type))


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    return Answer(wire.hinges.n_rows, decode_numbers(wire.hinges.moments, most=MOST_HINGE_NUMBERS))
