"""What a learned network says of one variable in rows where others are known: means and intervals, or probabilities.

Of a row that has values of the variable's parents, of its children and of their other parents, nothing else counts
(its Markov blanket; Pearl 1988), and the distribution follows on a grid of values, or over all levels. Of any other
row it follows from draws of what is missing (likelihood weighting).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from fedbnsl.network.families import Count, coded, positions
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.protocol.sparse import Index, Mask, Matrix

_GRID, _WIDTHS = 241, 7.0  # points, and standard deviations to either side
_DRAWS = 4_000
_MOST_PASSES, _FINE, _NEGLIGIBLE = 6, 0.1, 1e-9  # of finer grids; steps, in standard deviations; weights
_FEW = 30  # draws that count
_MOST_VALUES = 2_000_000  # at a time, of all columns
_ENDS = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Of (n,) rows; NaN for one whose known values never occur together.

    Attributes
    ----------
    mean, low, high
        (n,) of a number, in the dictionary's unit: its mean, and the ends of the interval that holds 95 % of values.
    probabilities
        (n, K) of the levels of a variable that has some.
    by_draws
        (n,) rows that lack a value that counts.
    few
        (n,) those of them of which fewer than 30 draws count: roughly right at best.
    """

    levels: Sequence[str]
    mean: Matrix
    low: Matrix
    high: Matrix
    probabilities: Matrix
    by_draws: Mask
    few: Mask

    @property
    def is_unknown(self) -> Mask:
        """(n,) rows without a prediction."""
        return np.asarray(np.isnan(self.probabilities if self.levels else self.mean[:, None]).any(axis=1))


def predicted(fitted: FittedNetwork, X: Matrix, target: str, rng: np.random.Generator) -> Predictions:
    """From (n, d) rows without regard to what they have of the target itself.

    Raises SetupError if the network has no such variable.
    """
    fitted.require(target)
    own, n = fitted.members(target), len(X)
    levels = fitted.levels.get(target, ())
    whole = np.asarray(~np.isnan(X[:, _blanket(fitted, target)]).any(axis=1))
    mean, low, high = (np.full(n, np.nan) for _ in range(3))
    few = np.zeros(n, dtype=bool)
    found = Predictions(levels, mean, low, high, np.full((n, len(levels)), np.nan), ~whole, few)
    for rows in _blocks(np.flatnonzero(whole), _GRID * X.shape[1]):
        values, weights = _on_grid(fitted, X[rows], target, own, len(levels))
        _put(fitted, found, rows, target, values, weights)
    lacking = np.flatnonzero(~whole)
    patterns, pattern_of = np.unique(np.isnan(X[lacking]), axis=0, return_inverse=True)
    for k, missing in enumerate(patterns):
        for rows in _blocks(lacking[pattern_of == k], _DRAWS * X.shape[1]):
            values, weights = _by_draws(fitted, X[rows], target, missing, rng)
            _put(fitted, found, rows, target, values, weights)
            found.few[rows] = 1.0 / np.square(weights).sum(axis=1) < _FEW
    return found


def _blanket(fitted: FittedNetwork, target: str) -> Index:
    """Columns that the distribution of the target hangs on, where all of them are known."""
    own, families = fitted.members(target), fitted.network.families
    found = set(families[target].parents.tolist())
    for family in families.values():
        if np.isin(own, family.parents).any():
            found |= {*family.parents.tolist(), *family.columns.tolist()}
    return np.array(sorted(found - {*own.tolist()}), dtype=np.int64)


def _blocks(rows: Index, values_a_row: int) -> Iterator[Index]:
    size = max(1, _MOST_VALUES // values_a_row)
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def _on_grid(fitted: FittedNetwork, X: Matrix, target: str, own: Index, n_levels: int) -> tuple[Matrix, Matrix]:
    """(n, g) positions of levels or values of the column, and their (n, g) weights."""
    families, filled = fitted.network.families, np.nan_to_num(X)
    if n_levels:
        values = np.tile(np.arange(n_levels, dtype=np.float64), (len(X), 1))
        cells = np.tile(coded(np.arange(n_levels), len(own), n_levels), (len(X), 1))
        return values, _weights(fitted, filled, target, cells, n_levels)
    values = _places(fitted, target, families[target].mean(filled))
    weights = _weights(fitted, filled, target, values.reshape(-1, 1), values.shape[1])
    if isinstance(family := families[target], Count):
        most = float(fitted.entry(target).formula.forth(np.array([family.high]))[0])
        weights = np.where(values > most, 0.0, weights)  # what lies beyond counts at the end, and once
        return values, weights / weights.sum(axis=1, keepdims=True)
    for _ in range(_MOST_PASSES):  # where the others tell much, between two points of the first grid
        step = values[:, 1] - values[:, 0]
        mean = (weights * values).sum(axis=1, keepdims=True)
        spread = np.sqrt((weights * (values - mean) ** 2).sum(axis=1))
        if not (step > _FINE * spread).any():
            break
        likely = weights > _NEGLIGIBLE
        first = np.where(likely, values, np.inf).min(axis=1) - step
        last = np.where(likely, values, -np.inf).max(axis=1) + step
        first, last = np.maximum(first, values[:, 0]), np.minimum(last, values[:, -1])
        values = first[:, None] + (last - first)[:, None] * np.linspace(0.0, 1.0, _GRID)
        weights = _weights(fitted, filled, target, values.reshape(-1, 1), _GRID)
    return values, weights


def _weights(fitted: FittedNetwork, filled: Matrix, target: str, cells: Matrix, g: int) -> Matrix:
    """(n, g) of g values of the target in each of (n, d) rows."""
    families = fitted.network.families
    at, own = np.repeat(filled, g, axis=0), fitted.members(target)
    at[:, own] = cells
    log_weights = families[target].log_density(at)
    for name, family in families.items():
        if name != target and np.isin(own, family.parents).any():
            log_weights = log_weights + family.log_density(at)
    return _normalised(log_weights.reshape(len(filled), g))


def _places(fitted: FittedNetwork, target: str, centre: Matrix) -> Matrix:
    """(n, g) values of a number's column about its (n, 1) means: of a count, those of whole numbers."""
    (column,), family = fitted.entry(target).columns(target), fitted.network.families[target]
    reach = _WIDTHS * float(fitted.spread[family.columns[0]])
    ends = np.clip(centre - reach, column.low, column.high), np.clip(centre + reach, column.low, column.high)
    share = np.linspace(0.0, 1.0, _GRID)
    if not isinstance(family, Count):
        return np.asarray(ends[0] + (ends[1] - ends[0]) * share)
    formula = fitted.entry(target).formula
    first, last = (np.clip(np.rint(formula.back(end)), max(family.low, 0.0), family.high) for end in ends)
    last = np.maximum(last, first + 1.0)
    step = np.maximum(np.ceil((last - first) / (_GRID - 1)), 1.0)
    return np.asarray(formula.forth(first + step * np.arange(_GRID, dtype=np.float64)))


def _by_draws(
    fitted: FittedNetwork, X: Matrix, target: str, missing: Mask, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """(n, g) drawn values, of rows that lack the same columns, and their (n, g) weights."""
    at = np.repeat(X, _DRAWS, axis=0)
    known = {
        name: at[:, family.columns]
        for name, family in fitted.network.families.items()
        if name != target and not missing[family.columns].any()
    }
    drawn, log_weights = fitted.network.log_weighted_draws(len(at), rng, known)
    own = fitted.members(target)
    n_levels = len(fitted.levels.get(target, ()))
    values = positions(drawn, own, n_levels).astype(np.float64) if n_levels else drawn[:, own[0]]
    return values.reshape(len(X), _DRAWS), _normalised(log_weights.reshape(len(X), _DRAWS))


def _normalised(log_weights: Matrix) -> Matrix:
    """(n, g) weights that add up to 1 in each row; NaN in a row where none is possible."""
    highest = log_weights.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        weights = np.exp(log_weights - highest)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _put(fitted: FittedNetwork, found: Predictions, rows: Index, target: str, values: Matrix, weights: Matrix) -> None:
    if n_levels := len(found.levels):
        for level in range(n_levels):
            found.probabilities[rows, level] = np.where(values == level, weights, 0.0).sum(axis=1)
        found.probabilities[rows[np.isnan(weights).any(axis=1)]] = np.nan
        return
    back = fitted.entry(target).formula.back
    found.mean[rows] = (back(values) * weights).sum(axis=1)
    order = np.argsort(values, axis=1, kind="stable")
    ordered, below = (
        np.take_along_axis(values, order, axis=1),
        np.take_along_axis(weights, order, axis=1).cumsum(axis=1),
    )
    for end, out in zip(_ENDS, (found.low, found.high), strict=True):
        place = np.clip((below < end).sum(axis=1), 0, values.shape[1] - 1)
        out[rows] = np.where(np.isnan(found.mean[rows]), np.nan, back(ordered[np.arange(len(rows)), place]))


def scored(fitted: FittedNetwork, found: Predictions, X: Matrix, target: str) -> dict[str, Any] | None:
    """How near predictions come to the values that rows have of the target; None: fewer than two rows have one.

    Of a number the share of its variance that is told (`r2`) and of values within their intervals (`within`); of levels
    the mean logarithm of the probability of the true one (`log_probability`), beside that of shares of levels alone,
    and of two levels the area under the ROC curve (`auc`).
    """
    own = fitted.members(target)
    known = ~np.isnan(X[:, own]).any(axis=1)
    known &= ~found.is_unknown
    if known.sum() < 2:
        return None
    told: dict[str, Any] = {"rows": int(known.sum())}
    if not found.levels:
        true = fitted.entry(target).formula.back(X[known, own[0]])
        error = float(np.mean(np.square(true - found.mean[known])))
        within = (true >= found.low[known]) & (true <= found.high[known])
        variance = float(true.var())
        return told | {"r2": 1.0 - error / variance if variance else math.nan, "within": float(within.mean())}
    at, p = positions(X[known], own, len(found.levels)), found.probabilities[known]
    shares = np.bincount(at, minlength=len(found.levels)) / len(at)
    with np.errstate(divide="ignore"):
        told["log_probability"] = float(np.log(np.maximum(p[np.arange(len(at)), at], 1e-12)).mean())
        told["log_probability_of_shares"] = float(np.log(shares[at]).mean())
    if len(found.levels) == 2 and 0 < at.sum() < len(at):
        # The share of pairs of a "yes" and a "no" that are ordered rightly: the statistic of Mann and Whitney.
        told["auc"] = float(mannwhitneyu(p[at == 1, 1], p[at == 0, 1]).statistic / ((at == 1).sum() * (at == 0).sum()))
    return told
