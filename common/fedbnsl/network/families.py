"""How a variable of a network depends on its parents: numbers, levels by odds, grades, and tables of counts."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr, ndtri

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
class Number:
    """A number: a sum of lines and bends, and normal noise; within its range, if it has one (truncated)."""

    column: int
    lines: Index  # (p,) columns of parents with straight effects
    weights: Matrix  # (p,)
    intercept: float
    noise_std: float
    bends: tuple[Bend, ...] = ()
    low: float = -np.inf
    high: float = np.inf

    @property
    def columns(self) -> Index:
        """See `Family`."""
        return np.array([self.column])

    @property
    def parents(self) -> Index:
        """See `Family`."""
        return np.array([*self.lines.tolist(), *(bend.parent for bend in self.bends)], dtype=np.int64)

    def location(self, X: Matrix) -> Matrix:
        """(n,) the mean that it would have without a range."""
        bent = sum((bend.of(X[:, bend.parent]) for bend in self.bends), np.zeros(len(X)))
        return np.asarray(self.intercept + X[:, self.lines] @ self.weights + bent)

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`: that of a truncated normal distribution."""
        at = np.clip(self.location(X), *self._beyond)
        a, b = (self.low - at) / self.noise_std, (self.high - at) / self.noise_std
        shift = (_density(a) - _density(b)) / np.maximum(ndtr(b) - ndtr(a), _TINY)
        return np.asarray(np.clip(at + self.noise_std * shift, self.low, self.high))[:, None]

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        at, u = np.clip(self.location(X), *self._beyond), rng.random(len(X))
        first, last = ndtr((self.low - at) / self.noise_std), ndtr((self.high - at) / self.noise_std)
        z = ndtri(np.clip(first + u * (last - first), _TINY, 1.0 - _ROUNDING))
        return np.asarray(np.clip(at + self.noise_std * z, self.low, self.high))[:, None]

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`."""
        at = np.clip(self.location(X), *self._beyond)
        z = (X[:, self.column] - at) / self.noise_std
        inside = ndtr((self.high - at) / self.noise_std) - ndtr((self.low - at) / self.noise_std)
        return np.asarray(-0.5 * z**2 - np.log(self.noise_std * _ROOT_2_PI) - np.log(np.maximum(inside, _TINY)))

    @property
    def _beyond(self) -> tuple[float, float]:
        """How far beyond its range a location counts: further out, numbers of the distribution are rounding."""
        return self.low - _MOST_BEYOND * self.noise_std, self.high + _MOST_BEYOND * self.noise_std


_TINY, _ROUNDING, _ROOT_2_PI = 1e-300, 1e-16, float(np.sqrt(2.0 * np.pi))
_MOST_BEYOND = 5.0


def _density(z: Matrix) -> Matrix:
    return np.asarray(np.exp(-0.5 * z**2) / _ROOT_2_PI)


@dataclass(frozen=True, eq=False)
class Grade:
    """An ordinal variable: the level nearest to a number with normal noise, which falls within its levels."""

    number: Number
    n_levels: int

    @property
    def columns(self) -> Index:
        """See `Family`."""
        return self.number.columns

    @property
    def parents(self) -> Index:
        """See `Family`."""
        return self.number.parents

    def probabilities(self, X: Matrix) -> Matrix:
        """(n, K) of its levels."""
        edges = np.arange(self.n_levels - 1) + 0.5
        below = ndtr((edges - self.number.location(X)[:, None]) / self.number.noise_std)
        return np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=(0.0, 1.0)))

    def mean(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return np.asarray(self.probabilities(X) @ np.arange(self.n_levels))[:, None]

    def sample(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        """See `Family`."""
        return drawn_levels(self.probabilities(X), rng).astype(np.float64)[:, None]

    def log_density(self, X: Matrix) -> Matrix:
        """See `Family`."""
        return _log_of(self.probabilities(X), np.rint(X[:, self.number.column]).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Levels:
    """A binary or nominal variable: odds of each level against the first, or shares that are lines in its parents."""

    columns: Index  # (K - 1,)
    parents: Index  # (p,)
    weights: Matrix  # (p, K - 1)
    intercepts: Matrix  # (K - 1,)
    by_odds: bool

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
