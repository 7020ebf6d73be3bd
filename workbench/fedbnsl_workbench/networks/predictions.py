"""What a learned network says of one variable in rows where others are known: means and intervals, or probabilities.

Of a row that has values of the variable's parents, of its children and of their other parents, nothing else counts
(its Markov blanket; Pearl 1988), and the distribution follows on a grid of values, or over all levels. Of any other
row it follows from draws of what is missing (likelihood weighting).
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError, SetupError
from fedbnsl.files import durable
from fedbnsl.network.families import coded, positions
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_workbench.networks.fitted import FittedNetwork
from fedbnsl_workbench.networks.synthetic import cells
from fedbnsl_workbench.networks.values import text_of

_GRID, _WIDTHS = 241, 7.0  # points, and standard deviations to either side
_DRAWS, _SEED = 4_000, 1
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


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by their columns, after a first line with #, if it has one.

    Raises DataError if it cannot be read, has a column twice, a row of another length, or no row.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            if not file.readline().startswith("#"):
                file.seek(0)
            header, *rows = csv.reader(file)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise DataError(f"{path} cannot be read as CSV with a header: {error}") from None
    names = [name.strip() for name in header]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path} has the column {twice[0]!r} twice", remedy="Leave one of them out.")
    if not rows:
        raise DataError(f"{path} has a header and no row")
    for k, row in enumerate(rows, start=1):
        if row and len(row) != len(names):
            raise DataError(f"row {k} of {path} has {len(row)} cells; its header has {len(names)}")
    return [dict(zip(names, row, strict=True)) for row in rows if row]


def rows_of_table(fitted: FittedNetwork, table: Sequence[Mapping[Any, object]]) -> tuple[Matrix, dict[str, int]]:
    """(n, d) values of the columns of the network, NaN where a row has none; and by variable, cells that are no value.

    Raises SetupError if the table has no column of the network.
    """
    header = list(table[0]) if table else []
    known = [name for name in fitted.variables if name in header]
    if not known:
        raise SetupError(
            f"the table has no column of the network, which has {', '.join(fitted.variables)}; it has "
            f"{first_few(map(repr, header))}",
            remedy="The header names the network's variables, with commas between.",
        )
    X, unread = np.full((len(table), fitted.network.n_columns), np.nan), dict[str, int]()
    for name in known:
        own, seen = fitted.members(name), dict[tuple[type, str], list[float] | None]()
        for k, row in enumerate(table):
            cell = row[name]
            key = type(cell), str(cell)
            if key not in seen:
                seen[key] = _value(fitted, name, cell)
            values = seen[key]
            if values is None:
                unread[name] = unread.get(name, 0) + 1
            elif values:
                X[k, own] = values
    return X, unread


def _value(fitted: FittedNetwork, name: str, cell: object) -> list[float] | None:
    """Values of its columns; empty: the cell is missing; None: the dictionary has no such value."""
    try:
        text = text_of(fitted, name, cell)
        return fitted.coded(name, text) if text else []
    except SetupError:
        return None


def predicted(fitted: FittedNetwork, X: Matrix, target: str) -> Predictions:
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
    rng = np.random.default_rng(_SEED)
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
    else:
        spread, centre = float(fitted.learned.spread[own[0]]), families[target].mean(filled)
        low, high = _range(fitted, target)
        reach = _WIDTHS * spread
        ends = np.clip(centre - reach, low, high), np.clip(centre + reach, low, high)
        values = ends[0] + (ends[1] - ends[0]) * np.linspace(0.0, 1.0, _GRID)
        cells = values.reshape(-1, 1)
    g = values.shape[1]
    at = np.repeat(filled, g, axis=0)
    at[:, own] = cells
    log_weights = families[target].log_density(at)
    for name, family in families.items():
        if name != target and np.isin(own, family.parents).any():
            log_weights = log_weights + family.log_density(at)
    return values, _normalised(log_weights.reshape(len(X), g))


def _range(fitted: FittedNetwork, target: str) -> tuple[float, float]:
    (column,) = fitted.entry(target).columns(target)
    return column.low, column.high


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


def write_predictions(found: Predictions, X: Matrix, fitted: FittedNetwork, target: str, out: Path) -> None:
    """Write a CSV file: a row for each of the table, with its number and what the table has of the target.

    See `durable.write_file` for errors.
    """
    own = fitted.members(target)
    known = ~np.isnan(X[:, own]).any(axis=1)
    actual = np.full(len(X), "", dtype=object)
    if known.any():
        actual[known] = cells(fitted, target, X[known])
    head = [f"probability of {level}" for level in found.levels] or ["predicted", "low", "high"]
    numbers = found.probabilities if found.levels else np.column_stack([found.mean, found.low, found.high])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", target, *head])
    for k, (value, row) in enumerate(zip(actual, numbers.tolist(), strict=True), start=1):
        writer.writerow([k, value, *("" if math.isnan(number) else f"{number:.6g}" for number in row)])
    durable.write_text(out, text.getvalue())


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
