"""How a variable of a network depends on its parents: numbers, counts, grades, levels by odds, and tables."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import betainc, expit, gammaln, nbdtrik, ndtr, ndtri, pdtr, pdtrc, pdtrik

from fedbnsl.plan.dictionary import TRANSFORMS, Formula, Transform
from fedbnsl.protocol.sparse import Index, Matrix


class Family(Protocol):
    """A variable given its parents; X is (n, d) values of all columns of the network."""

    @property
    def columns(self) -> Index:
        """Those of the variable."""
        ...

    @property
    def parents(self) -> Index:
        """The columns that it looks at."""
        ...

    def mean(self, X: Matrix) -> Matrix:
        """(n, c) expected values of its columns."""
        ...

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """(n, c) drawn values of its columns."""
        ...

    def log_density(self, X: Matrix) -> Matrix:
        """(n,) logarithms of the density, or probability, of the values that its own columns have in X."""
        ...


class Bend(NamedTuple):
    """An effect that is no line: how much a value of the parent adds, a line between points and on beyond them."""

    parent: int  # its column
    at: Matrix
    adds: Matrix

    def of(self, x: Matrix) -> Matrix:
        """(n,) what these values add."""
        k = np.clip(np.searchsorted(self.at, x) - 1, 0, len(self.at) - 2)
        slope = np.diff(self.adds)[k] / np.diff(self.at)[k]
        return np.asarray(self.adds[k] + slope * (x - self.at[k]))


@dataclass(frozen=True, eq=False)
class _Additive:
    """A column whose location is a sum of lines and bends."""

    column: int
    lines: Index  # (p,) columns of parents with straight effects
    weights: Matrix  # (p,)
    intercept: float
    bends: tuple[Bend, ...] = field(default=(), kw_only=True)

    @property
    def columns(self) -> Index:
        """See `Family`."""
        return np.array([self.column])

    @property
    def parents(self) -> Index:
        """See `Family`."""
        return np.array([*self.lines.tolist(), *(bend.parent for bend in self.bends)], dtype=np.int64)

    def terms(self, X: Matrix) -> Matrix:
        """(n, p + b) what the sum is of: parents with straight effects, and what bends add."""
        return np.column_stack([X[:, self.lines], *(bend.of(X[:, bend.parent]) for bend in self.bends)])

    def location(self, X: Matrix) -> Matrix:
        """(n,) the sum."""
        bent = sum((bend.of(X[:, bend.parent]) for bend in self.bends), np.zeros(len(X)))
        return np.asarray(self.intercept + X[:, self.lines] @ self.weights + bent)


@dataclass(frozen=True, eq=False)
class Number(_Additive):
    """A number: its location, and normal noise; within its range, if it has one (truncated)."""

    noise_std: float
    low: float = -np.inf
    high: float = np.inf

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`: that of a truncated normal distribution."""
        at = self.centre(X)
        a, b = (self.low - at) / self.noise_std, (self.high - at) / self.noise_std
        shift = (_density(a) - _density(b)) / np.maximum(ndtr(b) - ndtr(a), _TINY)
        return np.asarray(np.clip(at + self.noise_std * shift, self.low, self.high))[:, None]

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        at, u = self.centre(X), rng.random(len(X))
        first, last = ndtr((self.low - at) / self.noise_std), ndtr((self.high - at) / self.noise_std)
        z = ndtri(np.clip(first + u * (last - first), _TINY, 1.0 - _ROUNDING))
        return np.asarray(np.clip(at + self.noise_std * z, self.low, self.high))[:, None]

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`."""
        at = self.centre(X)
        z = (X[:, self.column] - at) / self.noise_std
        inside = ndtr((self.high - at) / self.noise_std) - ndtr((self.low - at) / self.noise_std)
        return np.asarray(-0.5 * z**2 - np.log(self.noise_std * _ROOT_2_PI) - np.log(np.maximum(inside, _TINY)))

    def centre(self, X: Matrix) -> Matrix:
        """(n,) locations, no further beyond the range than five standard deviations: further out, all is rounding."""
        far = _MOST_BEYOND * self.noise_std
        return np.clip(self.location(X), self.low - far, self.high + far)


_TINY, _ROUNDING, _ROOT_2_PI = 1e-300, 1e-16, float(np.sqrt(2.0 * np.pi))
_MOST_BEYOND = 5.0


def _density(z: Matrix) -> Matrix:
    return np.asarray(np.exp(-0.5 * z**2) / _ROOT_2_PI)


@dataclass(frozen=True, eq=False)
class Count(_Additive):
    """A count: negative binomial, or Poisson, about a rate; its column has a transform of it.

    The rate is the exponential of the location, or the count whose transform the location is. A count beyond its range
    counts as the nearest end.
    """

    transform: Transform
    by_rates: bool
    size: float  # the variance is rate + rate^2 / size; infinite: Poisson
    low: float = 0.0
    high: float = np.inf

    def counts(self, X: Matrix) -> Matrix:
        """(n,) the nearest counts within the range."""
        return np.asarray(np.rint(np.clip(self._formula.back(X[:, self.column]), self.low, self.high)))

    def rates(self, location: Matrix) -> Matrix:
        """(n,) expected counts, without regard to the range."""
        if self.by_rates:
            return np.asarray(np.exp(np.clip(location, np.log(_LEAST_RATE), np.log(_MOST_RATE))))
        least, most = self._formula.forth(np.array([_LEAST_RATE, _MOST_RATE])).tolist()
        return np.asarray(self._formula.back(np.clip(location, least, most)))

    def moments(self, location: Matrix) -> tuple[Matrix, Matrix]:
        """(n,) means and mean squares of the column, interpolated between those of rates of a grid."""
        counts, weights = self._values
        told = self._formula.forth(np.clip(counts, self.low, self.high))
        of_grid = np.column_stack([(weights * told).sum(axis=1), (weights * told**2).sum(axis=1)])
        between = CubicSpline(_LOG_RATES, of_grid)(np.log(self.rates(location)))
        return between[:, 0], between[:, 1]

    @cached_property
    def _values(self) -> tuple[Matrix, Matrix]:
        """Counts at each rate of a grid, and weights that add up to 1: all small ones, quantiles of the others."""
        rates = np.exp(_LOG_RATES)[:, None]
        small = np.tile(np.arange(_SMALL, dtype=np.float64), (len(rates), 1))
        up_to = self.up_to(small, rates)
        left = 1.0 - up_to[:, -1:]
        u = up_to[:, -1:] + left * (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        if np.isinf(self.size):  # the quantiles of large rates take SciPy seconds, and are normal ones
            normal = rates + np.sqrt(rates) * ndtri(u)
            others = np.ceil(np.where(rates > _NORMAL, normal, pdtrik(u, np.minimum(rates, _NORMAL))))
        else:
            others = np.ceil(nbdtrik(u, self.size, self.size / (self.size + rates)))
        weights = np.hstack([np.diff(up_to, prepend=0.0), np.tile(left / _QUANTILES, (1, _QUANTILES))])
        others = np.where(np.isfinite(others), others, rates)  # beyond what SciPy tells
        return np.hstack([small, others]), weights

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return self.moments(self.location(X))[0][:, None]

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        rates = self.rates(self.location(X))
        if np.isfinite(self.size):
            rates = rates * rng.gamma(self.size, 1.0 / self.size, len(X))
        drawn = rng.poisson(np.minimum(rates, _MOST_RATE)).astype(np.float64)
        return np.asarray(self._formula.forth(np.clip(drawn, self.low, self.high)))[:, None]

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`: of the nearest count."""
        k = self.counts(X)
        rates = self.rates(self.location(X))
        if np.isinf(self.size):
            inside = k * np.log(rates) - rates - gammaln(k + 1.0)
            beyond = pdtrc(self.high - 1.0, rates)
        else:
            r, p = self.size, self.size / (self.size + rates)
            inside = gammaln(k + r) - gammaln(r) - gammaln(k + 1.0) + r * np.log(p) + k * np.log1p(-p)
            beyond = np.zeros(len(X)) if np.isinf(self.high) else betainc(self.high, r, 1.0 - p)
        with np.errstate(divide="ignore"):
            ends = np.where(k >= self.high, np.log(beyond), np.log(self.up_to(self.low, rates)))
        # At an end also all beyond it, which is as good as nothing where that is too little for a float.
        return np.asarray(np.where((k > self.low) & (k < self.high), inside, np.maximum(inside, ends)))

    def up_to(self, k: Matrix | float, rates: Matrix) -> Matrix:
        """Probabilities of a count up to k, at least 0, without regard to the range."""
        if np.isinf(self.size):
            return np.asarray(pdtr(k, rates), dtype=np.float64)
        return np.asarray(betainc(self.size, k + 1.0, self.size / (self.size + rates)), dtype=np.float64)

    @property
    def _formula(self) -> Formula:
        return TRANSFORMS[self.transform]


_LEAST_RATE, _MOST_RATE = 1e-6, 1e12
_LOG_RATES: Matrix = np.linspace(math.log(_LEAST_RATE), math.log(_MOST_RATE), 160)
_SMALL, _QUANTILES, _NORMAL = 16, 50, 1e5


@dataclass(frozen=True, eq=False)
class Grade(_Additive):
    """An ordinal variable: parents multiply the odds of every "above level k" alike (proportional odds)."""

    cuts: Matrix  # (K - 1,) ascending: locations at which the odds of "above level k" are one to one
    scale: float = 1.0  # of a location: what multiplies odds by e

    @property
    def n_levels(self) -> int:
        """K."""
        return len(self.cuts) + 1

    def probabilities(self, X: Matrix) -> Matrix:
        """(n, K) of its levels."""
        return self.probabilities_at(self.location(X))

    def probabilities_at(self, location: Matrix) -> Matrix:
        """(n, K) of its levels, where the sum of effects is this."""
        below = expit((self.cuts - location[:, None]) / self.scale)
        return np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=(0.0, 1.0)))

    def moments(self, location: Matrix) -> tuple[Matrix, Matrix]:
        """(n,) means and mean squares of the position."""
        p, k = self.probabilities_at(location), np.arange(self.n_levels)
        return p @ k, p @ k**2

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return self.moments(self.location(X))[0][:, None]

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        return drawn_levels(self.probabilities(X), rng).astype(np.float64)[:, None]

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return _log_of(self.probabilities(X), positions(X, self.columns, self.n_levels))


@dataclass(frozen=True, eq=False)
class Levels:
    """A binary or nominal variable: odds of each level against the first, or shares that are lines in its parents."""

    columns: Index  # (K - 1,)
    parents: Index  # (p,)
    weights: Matrix  # (p, K - 1)
    intercepts: Matrix  # (K - 1,)
    by_odds: bool

    @property
    def n_levels(self) -> int:
        """K."""
        return len(self.columns) + 1

    def probabilities(self, X: Matrix) -> Matrix:
        """(n, K) of its levels."""
        told = X[:, self.parents] @ self.weights + self.intercepts
        if not self.by_odds:
            shares = np.clip(told, _LEAST_SHARE, 1.0 - _LEAST_SHARE)
            first = np.maximum(1.0 - shares.sum(axis=1, keepdims=True), _LEAST_SHARE)
            found = np.hstack([first, shares])
        else:
            eta = np.pad(told, ((0, 0), (1, 0)))
            found = np.exp(eta - eta.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`: probabilities of all levels but the first."""
        return self.probabilities(X)[:, 1:]

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        return indicators(drawn_levels(self.probabilities(X), rng), len(self.columns) + 1)

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return _log_of(self.probabilities(X), positions(X, self.columns, len(self.columns) + 1))


_LEAST_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class Table:
    """A variable with levels whose parents have levels: a table of probabilities."""

    columns: Index
    n_levels: int
    of_parents: tuple[tuple[Index, int], ...]  # columns and numbers of levels
    table: Matrix  # an axis for each parent, and one for the variable; each row adds up to 1

    @property
    def parents(self) -> Index:
        """See `Family`."""
        return np.array([c for columns, _ in self.of_parents for c in columns.tolist()], dtype=np.int64)

    def probabilities(self, X: Matrix) -> Matrix:
        """(n, K) of its levels."""
        at = tuple(positions(X, columns, n) for columns, n in self.of_parents)
        return np.broadcast_to(self.table[at], (len(X), self.n_levels))

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`."""
        p = self.probabilities(X)
        return np.asarray(p @ coded(np.arange(self.n_levels), len(self.columns), self.n_levels))

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        return coded(drawn_levels(self.probabilities(X), rng), len(self.columns), self.n_levels)

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return _log_of(self.probabilities(X), positions(X, self.columns, self.n_levels))


def positions(X: Matrix, columns: Index, n_levels: int) -> Index:
    """(n,) positions of levels from a variable's columns: positions themselves, or indicators of all but the first."""
    if len(columns) == 1:
        return np.clip(np.rint(X[:, columns[0]]), 0, n_levels - 1).astype(np.int64)
    own = X[:, columns]
    return np.asarray(np.where(own.max(axis=1) > 0.5, own.argmax(axis=1) + 1, 0))


def coded(at: Index, n_columns: int, n_levels: int) -> Matrix:
    """(n, n_columns) columns of (n,) positions of levels."""
    return at.astype(np.float64)[:, None] if n_columns == 1 else indicators(at, n_levels)


def indicators(at: Index, n_levels: int) -> Matrix:
    """(n, n_levels - 1) zeros and ones of all levels but the first."""
    return np.asarray((at[:, None] == np.arange(1, n_levels)).astype(np.float64))


def drawn_levels(probabilities: Matrix, rng: np.random.Generator) -> Index:
    """(n,) positions of levels, one from each row of (n, K) probabilities."""
    below = np.cumsum(probabilities, axis=1)[:, :-1]
    return np.asarray((rng.random((len(probabilities), 1)) > below).sum(axis=1))


def _log_of(probabilities: Matrix, at: Index) -> Matrix:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities[np.arange(len(at)), at]))
