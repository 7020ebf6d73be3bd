"""Sums over the rows of one variable, which score a network: what sites add up (see `validation`)."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from fedbnsl.protocol.sparse import Index, Matrix

N_BINS = 10
"""Of predicted probabilities, and of the probability integral transform; each as wide as the others."""

N_SCORES = 200
"""Bins of the probability of the second of two levels, from which the area under the ROC curve follows.

The inner ones are about equally wide in the logarithm of the odds, from -10 to 10, and have the ends of the ten bins.
"""


@dataclass(frozen=True, eq=False)
class Sums:
    """Over the rows of one variable.

    Attributes
    ----------
    rows, left_out
        Rows that have the variable and its parents; rows that have the variable, and lack a parent.
    log_likelihood
        Natural logarithm, of the variable given its parents, under the network.
    own
        The same under the fit of the same parents to these very rows; of several sites the sum of their own fits. None:
        there are too few rows for one.
    counts, numbers
        Of a number: rows within their central 95 % interval; and (3 + 10,) the sums of x - c, of (x - c)^2 and of
        (x - mean given the parents)^2, then rows by ten bins of the probability integral transform; of counts k also
        the sums of k, of log k!, and of log Gamma(k + r) for each r of `SIZES`. Of K levels: (K,)
        rows of each, (10,) forecasts by bins of their probability, (10,) those of them that came true, and if K is 2
        (2, 200) rows of either level by bins of the probability of the second; and (10,) sums of probabilities.
    """

    rows: int
    left_out: int
    log_likelihood: float
    own: float | None
    counts: Index
    numbers: Matrix

    def __add__(self, other: Self) -> "Sums":
        alone = [one for one in (self, other) if one.rows]
        own = [one.own for one in alone if one.own is not None]
        return Sums(
            self.rows + other.rows,
            self.left_out + other.left_out,
            self.log_likelihood + other.log_likelihood,
            sum(own) if own and len(own) == len(alone) else None,
            self.counts + other.counts,
            self.numbers + other.numbers,
        )


class Both(NamedTuple):
    """Sums of one variable under the network as it is, and with the intercept that is best for a site's rows."""

    common_means: Sums
    own_means: Sums
