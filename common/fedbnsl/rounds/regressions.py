"""A step of the regressions of children with levels and of counts: each site tells sums at the coefficients of all.

For each family, a child and its parents in the learned graph, a site sends its profile log-likelihood, the gradient and
the information (`fedbnsl.families.regression`). Its intercepts stay with it. The rounds go on until all coefficients
have settled; there are none where the graph has no such family.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.limits import MOST_REGRESSION_NUMBERS
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, decode_columns, finite
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 60
KINDS_OF_CHILDREN = ("binary", "nominal", "ordinal", "count")
"""In the data dictionary: those that have a regression here."""

NUMBERS = "sums of regressions"
RELEASES = "how likely its values are under regressions along the learned edges, with the gradient and the curvature"
YIELDS = Yields.RATIOS

MOST_COEFFICIENTS = 200
"""Of one family: its information has 20,100 numbers."""


class Family(NamedTuple):
    """A child and its parents, by their columns."""

    child: tuple[int, ...]  # the columns of one variable, ascending: one for each level but the reference
    parents: tuple[int, ...]  # columns, ascending

    @property
    def n_coefficients(self) -> int:
        """One for each column of the child and each of the parents, in this order."""
        return len(self.child) * len(self.parents)

    @property
    def n_numbers(self) -> int:
        """That a site sends of it."""
        q = self.n_coefficients
        return 3 + q + q * (q + 1) // 2


@dataclass(frozen=True, eq=False)
class Task(Content):
    """Families, and where their sums are asked for: all their coefficients, one family after another."""

    families: tuple[Family, ...]
    coefficients: Matrix


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """The sums of one site, of F families one after another; all 0 where its records tell nothing of a family.

    Also of one with a combination of levels of so few records that the site does not tell of it.
    """

    rows: Index
    """(F,) records without a gap in the family."""
    log_likelihood: Matrix
    """(F,) with the best intercepts."""
    gradient: Matrix
    information: Matrix
    """i <= j, row by row."""
    dispersion: Matrix
    """(F,) of counts, Pearson's statistic; 0 of others."""


def n_rounds(plan: Plan) -> int:
    return 0


def most_iterations(plan: Plan) -> int:
    return plan.regressions_rounds if plan.has_ratios else 0


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    # Always in full precision.
    for family in task.families:
        wire.regressions.family.add(child=family.child, parent=family.parents)
    wire.regressions.coefficient.extend(task.coefficients.tolist())


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    told = wire.regressions
    families = tuple(Family(tuple(one.child), tuple(one.parent)) for one in told.family)
    for family in families:
        if not (decode_columns(family.child, n_variables).size and decode_columns(family.parents, n_variables).size):
            raise MalformedMessageError("a regression without columns")
        if set(family.child) & set(family.parents) or family.n_coefficients > MOST_COEFFICIENTS:
            raise MalformedMessageError(
                f"a regression of {len(family.child)} columns on {len(family.parents)}, or of some on themselves"
            )
    size = sum(family.n_coefficients for family in families)
    numbers = sum(family.n_numbers for family in families)
    if not families or len(told.coefficient) != size or numbers > MOST_REGRESSION_NUMBERS:
        raise MalformedMessageError(
            f"{len(told.coefficient)} coefficients of {len(families)} regressions; expected {size}, of one or more "
            f"whose answer has at most {MOST_REGRESSION_NUMBERS} numbers"
        )
    return Task(families, finite(told.coefficient))


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    told = wire.regressions
    told.rows.extend(answer.rows.tolist())
    told.log_likelihood.extend(answer.log_likelihood.tolist())
    told.gradient.extend(answer.gradient.tolist())
    told.information.extend(answer.information.tolist())
    told.dispersion.extend(answer.dispersion.tolist())


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    told = wire.regressions
    numbers = [finite(one) for one in (told.log_likelihood, told.gradient, told.information, told.dispersion)]
    if sum(one.size for one in numbers) > MOST_REGRESSION_NUMBERS or len(told.rows) > MOST_REGRESSION_NUMBERS:
        raise MalformedMessageError(f"sums of regressions with more than {MOST_REGRESSION_NUMBERS} numbers")
    rows = np.array(told.rows, dtype=np.uint64)
    if (rows > np.iinfo(np.int64).max).any():
        raise MalformedMessageError("a count of rows beyond what a table can have")
    return Answer(rows.astype(np.int64), *numbers)
