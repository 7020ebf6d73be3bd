"""After all else: how well the learned network describes the rows of each site, as sums by variable.

The network is one of FittedNetwork.to_json, and the sums are those of `fedbnsl.network.validation`: under the network
as it is, and with the means of the site. Of each variable without numbers in it nothing is asked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.plan.limits import MOST_VALIDATION_NUMBERS
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.matrix_codec import Encoding, finite
from fedbnsl.protocol.messages import Content, Yields
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.wire import federation_pb2 as federation

if TYPE_CHECKING:  # they load SciPy's distributions, which other rounds do not need
    from fedbnsl.network.families import Family
    from fedbnsl.network.sums import Both

PLACE = 70
NUMBERS = "sums that score the network"
RELEASES = "how well the learned network describes its rows: log-likelihoods, squared errors, counts by probability"
YIELDS = Yields.SCORES


@dataclass(frozen=True, eq=False)
class Task(Content):
    """The learned network as JSON; empty: it has no numbers to score."""

    network: str


@dataclass(frozen=True, eq=False)
class Answer(Content):
    """Sums of V variables in the order of the network's families, and with the means of the site of all of them again.

    Zeros of a variable of which the site tells nothing.
    """

    rows: Index
    """(2 V,), as those below; see `Sums`."""
    left_out: Index
    log_likelihood: Matrix
    own: Matrix
    """0 where there is none."""
    has_own: Index
    """0 or 1."""
    counts: Index
    """Of all variables, one after another."""
    numbers: Matrix

    @classmethod
    def of(cls, both: "Sequence[Both]") -> Self:
        """The answer with these sums."""
        told = [*(one.common_means for one in both), *(one.own_means for one in both)]
        return cls(
            np.array([one.rows for one in told], dtype=np.int64),
            np.array([one.left_out for one in told], dtype=np.int64),
            np.array([one.log_likelihood for one in told], dtype=np.float64),
            np.array([one.own or 0.0 for one in told], dtype=np.float64),
            np.array([one.own is not None for one in told], dtype=np.int64),
            np.concatenate([np.empty(0, dtype=np.int64), *(one.counts for one in told)]),
            np.concatenate([np.empty(0), *(one.numbers for one in told)]),
        )

    def fits(self, families: "Iterable[Family]") -> bool:
        """Whether it has as many sums as these families."""
        from fedbnsl.network.validation import sizes

        expected = [sizes(family) for family in families] * 2
        of_variables = (self.rows, self.left_out, self.log_likelihood, self.own, self.has_own)
        counts, numbers = (sum(one) for one in zip(*expected, strict=True)) if expected else (0, 0)
        return all(one.size == len(expected) for one in of_variables) and (
            (self.counts.size, self.numbers.size) == (counts, numbers)
        )

    def sums(self, families: "Iterable[Family]") -> "list[Both]":
        """Those of each family, of an answer that fits."""
        from fedbnsl.network.sums import Both, Sums
        from fedbnsl.network.validation import sizes

        found, at_counts, at_numbers, families = list[Sums](), 0, 0, list(families)
        for k, family in enumerate(families * 2):
            n_counts, n_numbers = sizes(family)
            found.append(
                Sums(
                    int(self.rows[k]),
                    int(self.left_out[k]),
                    float(self.log_likelihood[k]),
                    float(self.own[k]) if self.has_own[k] else None,
                    self.counts[at_counts : at_counts + n_counts],
                    self.numbers[at_numbers : at_numbers + n_numbers],
                )
            )
            at_counts, at_numbers = at_counts + n_counts, at_numbers + n_numbers
        return list(map(Both, found[: len(families)], found[len(families) :]))


def n_rounds(plan: Plan) -> int:
    return int(plan.sends_scores)


def encode_task(task: Task, wire: federation.Task, encoding: Encoding) -> None:
    wire.validation.network = task.network
    wire.validation.SetInParent()


def decode_task(wire: federation.Task, n_variables: int, encoding: Encoding) -> Task:
    return Task(wire.validation.network)


def encode_answer(answer: Answer, wire: federation.Update, encoding: Encoding) -> None:
    told = wire.validation
    told.SetInParent()
    told.rows.extend(answer.rows.tolist())
    told.left_out.extend(answer.left_out.tolist())
    told.log_likelihood.extend(answer.log_likelihood.tolist())
    told.has_own.extend(map(bool, answer.has_own.tolist()))
    told.own.extend(answer.own.tolist())
    told.count.extend(answer.counts.tolist())
    told.number.extend(answer.numbers.tolist())  # always in full precision: they are added up


def decode_answer(wire: federation.Update, n_variables: int, encoding: Encoding) -> Answer:
    told = wire.validation
    if len(told.count) + len(told.number) > MOST_VALIDATION_NUMBERS or len(told.rows) > 2 * n_variables:
        raise MalformedMessageError(f"scores of {len(told.rows) // 2} variables; this run has {n_variables} columns")
    whole = [np.array(one, dtype=np.uint64) for one in (told.rows, told.left_out, told.count)]
    if any((one > np.iinfo(np.int64).max).any() for one in whole):
        raise MalformedMessageError("a count of rows beyond what a table can have")
    rows, left_out, counts = (one.astype(np.int64) for one in whole)
    has_own = np.array(told.has_own, dtype=np.int64)
    return Answer(rows, left_out, finite(told.log_likelihood), finite(told.own), has_own, counts, finite(told.number))
