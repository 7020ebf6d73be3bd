"""The round before all others, where a plan prepares columns: what each column is like at every site."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.matrix_codec import Encoding, finite
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 5
NUMBERS = "variances"
RELEASES = "sums that tell means and spreads of the columns"
YIELDS = Yields.SETUP


@dataclass(frozen=True, eq=False)
class Task(Content):
    """Empty: the plan says what is asked for."""

    passes_on = ("units",)


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """The columns of one site; with privacy, what follows from one noisy release."""

    means: Matrix
    """(d,) where `intercept` is common; otherwise empty, since they stay at the site."""
    variances: Matrix
    """(d,) mean squares about the site's means, in squared units of the columns; about 0 where `intercept` is none;
    empty where the plan does not need them. Noise may make them negative."""
    complete_rows: float
    """Rows that are used: with EM those that have a value, else those without a gap."""
    n_values: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """(d,) with EM, rows that have a value in each column; empty: all of them."""

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        return self.means.size + self.variances.size + self.n_values.size + 1, False


def summands(complete_rows: float, variances: Matrix, half_ranges: Matrix) -> list[int]:
    """A site's part of secure aggregation: its complete rows, and these times each column's variance, on the grid."""
    of_columns = complete_rows * variances / half_ranges**2
    return [round(LATTICE * number) for number in (complete_rows, *of_columns.tolist())]


def as_one(sums: Sequence[int], half_ranges: Matrix) -> Answer:
    """What `summands` of all sites add up to, as of one site."""
    rows, of_columns = max(sums[0], LATTICE), np.array(sums[1:], dtype=np.float64)
    return Answer(np.empty(0), half_ranges**2 * of_columns / rows, rows / LATTICE)


def n_rounds(plan: Plan) -> int:
    return 0 if plan.preparation is None else 1


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.statistics.SetInParent()


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task()


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    # Always in full precision.
    wire.statistics.mean.extend(answer.means.tolist())
    wire.statistics.variance.extend(answer.variances.tolist())
    wire.statistics.complete_rows = answer.complete_rows
    wire.statistics.n_values.extend(answer.n_values.tolist())


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    means, variances = finite(wire.statistics.mean), finite(wire.statistics.variance)
    rows = finite([wire.statistics.complete_rows])
    if means.size not in (0, n_variables) or variances.size not in (0, n_variables):
        raise MalformedMessageError(
            f"{means.size} means and {variances.size} variances; expected {n_variables} of each, or none"
        )
    n_values = np.array(wire.statistics.n_values, dtype=np.uint64)
    if n_values.size not in (0, n_variables) or (n_values > np.iinfo(np.int64).max).any():
        raise MalformedMessageError(f"{n_values.size} counts of values; expected {n_variables} possible ones, or none")
    return Answer(means, variances, float(rows[0]), n_values.astype(np.int64))
