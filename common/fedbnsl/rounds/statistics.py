"""The round before all others, where a plan prepares columns: what each column is like at every site."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import FIRST_BIN, LAST_BIN
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.matrix_codec import Encoding, finite
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.wire import federation_pb2 as federation

PLACE = 5
NUMBERS = "variances"
RELEASES = (
    "sums that tell means and spreads of the columns, and where asked how many values lie how far from the middle"
)
YIELDS = Yields.SETUP


@dataclass(frozen=True, eq=False)
class Task(Content):
    """Empty: the plan says what is asked for."""

    passes_on = ("units",)


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """The columns of one site; with privacy, what follows from one noisy release."""

    means: Matrix
    """(d,) where `intercept` is common, or a private run tells means; otherwise empty: they stay at the site."""
    variances: Matrix
    """(d,) mean squares about the site's means, in squared units of the columns; about 0 where `intercept` is none;
    empty where the plan does not need them. Noise may make them negative."""
    complete_rows: float
    """Rows that are used: with EM those that have a value, else those without a gap; 0 in a private run: all are."""
    n_values: Matrix = field(default_factory=lambda: np.empty(0))
    """(d,) rows that have a value in each column: with EM, where empty says all of them, and noisy in a private run."""
    spreads: Matrix = field(default_factory=lambda: np.empty(0))
    """(d,) the site's spreads (`preparation.NORMAL`), 0 in columns of levels; empty where nobody asks for outlying
    values."""
    far: Index = field(default_factory=lambda: np.empty((0, 3), dtype=np.int64))
    """(k, 3) columns, bins (`preparation.FIRST_BIN`; negative below the median) and counts of values far from the
    site's median, each place once and in order."""

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """See `Content.entries`."""
        own = self.spreads.size + self.far.size
        return self.means.size + self.variances.size + self.n_values.size + own + 1, False


def summands(answer: Answer, low: Matrix, high: Matrix) -> list[int]:
    """A site's part of secure aggregation: by column its values, these times the variance, and times the mean if told.

    On the grid, in half ranges; means are counted from the middle of the range.
    """
    half = (high - low) / 2.0
    numbers = [answer.n_values, answer.n_values * answer.variances / half**2]
    if answer.means.size:
        numbers.append(answer.n_values * (answer.means - (low + high) / 2.0) / half)
    return [round(LATTICE * number) for number in np.concatenate(numbers).tolist()]


def as_one(sums: Sequence[int], low: Matrix, high: Matrix) -> Answer:
    """What `summands` of all sites add up to, as of one site."""
    half = (high - low) / 2.0
    n_values, *of_columns = np.array(sums, dtype=np.float64).reshape(-1, len(half)) / LATTICE
    variances, *means = (one / np.maximum(n_values, 1.0) for one in of_columns)
    told = (low + high) / 2.0 + half * means[0] if means else np.empty(0)
    return Answer(told, half**2 * variances, 0.0, np.maximum(n_values, 1.0))


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
    wire.statistics.spread.extend(answer.spreads.tolist())
    columns, bins, counts = answer.far.T.tolist()
    wire.statistics.far_column.extend(columns)
    wire.statistics.far_bin.extend(bins)
    wire.statistics.far_count.extend(counts)


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    means, variances = finite(wire.statistics.mean), finite(wire.statistics.variance)
    rows = finite([wire.statistics.complete_rows])
    if means.size not in (0, n_variables) or variances.size not in (0, n_variables):
        raise MalformedMessageError(
            f"{means.size} means and {variances.size} variances; expected {n_variables} of each, or none"
        )
    n_values = finite(wire.statistics.n_values)
    if n_values.size not in (0, n_variables) or (n_values < 0.0).any():
        raise MalformedMessageError(f"{n_values.size} counts of values; expected {n_variables} possible ones, or none")
    spreads, far = finite(wire.statistics.spread), _far(wire.statistics, n_variables)
    if spreads.size not in (0, n_variables) or (spreads < 0.0).any():
        raise MalformedMessageError(f"{spreads.size} spreads; expected {n_variables} that are not negative, or none")
    return Answer(means, variances, float(rows[0]), n_values, spreads, far)


def _far(told: federation.Statistics, n_variables: int) -> Index:
    """(k, 3) columns, bins and counts of far values; raises MalformedMessageError for impossible ones."""
    parts = (told.far_column, told.far_bin, told.far_count)
    if len({len(part) for part in parts}) > 1 or any(count >= 2**62 for count in told.far_count):
        raise MalformedMessageError("far values whose columns, distances and counts do not fit together")
    far = np.array(parts, dtype=np.int64).T.reshape(-1, 3)
    columns, bins, counts = far.T
    places = columns * (2 * LAST_BIN + 1) + bins
    usable = (columns < n_variables) & (abs(bins) >= FIRST_BIN) & (abs(bins) <= LAST_BIN) & (counts > 0)
    if not usable.all() or (np.diff(places) <= 0).any():
        raise MalformedMessageError("far values of columns or distances that there are not, or not in their order")
    return far
