"""Columns that are exact sums of others, such as a total beside its parts: found in the first rows, checked in all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedbnsl.console.shown import shown
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.drafts.column_functions import LEAST_ROWS_OF_OTHERS

_ROWS_AT_ONCE = 5000
_MORE_ROWS_THAN_COLUMNS = 20
_EXACT = 1e-6  # of a column's standard deviation: what rounding in the arithmetic may leave
_MOST_TERMS = 12  # that are written out


class ColumnSum(NamedTuple):
    """Column `target` is `constant` plus the sum of `weights` times the other columns; positions."""

    target: int
    weights: dict[int, float]
    constant: float
    tolerance: float

    def holds(self, X: Matrix) -> bool:
        """Whether every row of an (n, d) table agrees."""
        rest = X[:, self.target] - self.constant - X[:, list(self.weights)] @ np.array([*self.weights.values()])
        return bool((np.abs(rest) <= self.tolerance).all())

    def in_words(self, names: Sequence[str]) -> str:
        """Such as `'a' + 2 x 'b' - 1`."""
        terms = [
            f"{'-' if weight < 0 else '+'} {'' if np.isclose(abs(weight), 1) else f'{abs(weight):.6g} x '}"
            f"{shown(repr(names[k]), 60)}"
            for k, weight in self.weights.items()
        ]
        more = f" and {len(terms) - _MOST_TERMS} more" if len(terms) > _MOST_TERMS else ""
        constant = f" {'-' if self.constant < 0 else '+'} {abs(self.constant):.6g}" if self.constant else ""
        return " ".join(terms[:_MOST_TERMS]).removeprefix("+ ") + more + constant


@dataclass
class ColumnSums:
    """Fed row by row; a sum is dropped at the first row that contradicts it.

    `names`: of d columns of numbers.
    """

    names: Sequence[str]
    _rows: list[Sequence[float]] = field(default_factory=list[Sequence[float]])
    _found: list[ColumnSum] | None = None

    def add(self, row: Sequence[float | None]) -> None:
        """Count one row; None: the value is missing, and the row tells nothing."""
        numbers = [number for number in row if number is not None]
        if len(numbers) == len(self.names):
            self._rows.append(numbers)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._take_rows()

    def sums(self) -> list[tuple[str, str]]:
        """Names of the sums, and what each is, in words."""
        self._take_rows()
        return [(self.names[one.target], one.in_words(self.names)) for one in self._found or ()]

    def _take_rows(self) -> None:
        if not self._rows:
            return
        X = np.array(self._rows, dtype=np.float64)
        self._rows.clear()
        self._found = _sums_in(X) if self._found is None else [one for one in self._found if one.holds(X)]


def _sums_in(X: Matrix) -> list[ColumnSum]:
    """Each column that lies in the span of those before it, by Gram-Schmidt, and the weights of those that it needs."""
    with np.errstate(over="ignore", invalid="ignore"):
        means, scales = X.mean(axis=0), X.std(axis=0)
    places = [k for k in np.flatnonzero(np.isfinite(scales)).tolist() if _varies(X[:, k])]
    if len(X) < len(places) + _MORE_ROWS_THAN_COLUMNS:
        return []
    found, before, Q = list[ColumnSum](), list[int](), np.empty((len(X), 0))
    for k in places:
        rest = z = (X[:, k] - means[k]) / scales[k]
        for _ in range(2):  # the second time for what rounding left
            rest = rest - Q @ (Q.T @ rest)
        if np.abs(rest).max() > _EXACT:
            before.append(k)
            Q = np.column_stack([Q, rest / np.linalg.norm(rest)])
            continue
        Z = (X[:, before] - means[before]) / scales[before]
        weights: Matrix = np.asarray(np.linalg.lstsq(Z, z)[0], dtype=np.float64)
        kept = {j: float(w * scales[k] / scales[j]) for j, w in zip(before, weights, strict=True) if abs(w) > _EXACT}
        found.append(_solved({k: -1.0, **kept}, means, _EXACT * scales[k]))
    return found


def _varies(column: Matrix) -> bool:
    """Whether enough rows differ from the most frequent value: chance alone does not make a sum of them."""
    _, times = np.unique(column, return_counts=True)
    return bool(len(column) - times.max() >= LEAST_ROWS_OF_OTHERS)


def _solved(weights: dict[int, float], means: Matrix, tolerance: float) -> ColumnSum:
    """A weighted sum that does not vary, solved for the only column of its sign: a total is told by its parts."""
    signs = [weight > 0 for weight in weights.values()]
    target = next((k for k, weight in weights.items() if signs.count(weight > 0) == 1), next(iter(weights)))
    others = {k: -weight / weights[target] for k, weight in sorted(weights.items()) if k != target}
    constant = float(means[target] - sum(weight * means[k] for k, weight in others.items()))
    rounding = 10 * tolerance / abs(weights[target])
    return ColumnSum(target, others, constant if abs(constant) > rounding else 0.0, rounding)
