"""What other tools hold of a variable given its parents: a table of probabilities, or lines with normal noise.

Of a variable with levels whose parents all have levels the table is exact, whatever its family: odds and shares are
computed for each combination of levels. A number is a line in its parents whose mean and covariance are those of the
network: a curve becomes the straight line through it, and a range has no ends.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.network.families import Count, Family, Grade, Levels, Number, Table, coded
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.results.network_of_run import NetworkOfRun

_MOST_CELLS = 4_000_000  # of one table
_MOST_NUMBERS = 4_000_000  # in memory at a time


@dataclass(frozen=True, eq=False)
class OfLevels:
    """A variable with levels, given parents with levels."""

    parents: tuple[str, ...]
    table: Matrix  # an axis for each parent, and the last for the variable; each row adds up to 1


@dataclass(frozen=True, eq=False)
class OfNumbers:
    """A number: an intercept for each combination of its parents' levels, slopes of the others, normal noise."""

    level_parents: tuple[str, ...]
    number_parents: tuple[str, ...]
    intercepts: Matrix  # an axis for each parent with levels
    slopes: Matrix  # (p,) of the other parents
    noise_std: float

    @property
    def parents(self) -> tuple[str, ...]:
        """All of them."""
        return self.level_parents + self.number_parents


@dataclass(frozen=True, eq=False)
class OfMixed:
    """A variable with levels some of whose parents are numbers: odds or cuts, which only `json` holds."""

    parents: tuple[str, ...]


Distribution = OfLevels | OfNumbers | OfMixed


def distributions(fitted: NetworkOfRun) -> dict[str, Distribution]:
    """By variable, each after its parents; parents are in the order of the run.

    Raises
    ------
    SetupError
        If a table would have more than four million probabilities.
    """
    return {name: _distribution(fitted, name, family) for name, family in fitted.network.families.items()}


def parents_of(fitted: NetworkOfRun, family: Family) -> list[str]:
    """Variables that the family looks at, in the order of the run."""
    found = {owner(fitted, column) for column in family.parents.tolist()}
    return [name for name in fitted.variables if name in found]


def owner(fitted: NetworkOfRun, column: int) -> str:
    """The variable that a column of the network belongs to."""
    return fitted.columns.variables[int(fitted.columns.variable_of[column])]


def _distribution(fitted: NetworkOfRun, name: str, family: Family) -> Distribution:
    parents = parents_of(fitted, family)
    with_levels = [one for one in parents if one in fitted.levels]
    if isinstance(family, Count | Number):
        return _line(fitted, family, with_levels, [one for one in parents if one not in fitted.levels])
    if len(with_levels) < len(parents):
        return OfMixed(tuple(parents))
    return _table(fitted, name, family, parents)


def _table(fitted: NetworkOfRun, name: str, family: Family, parents: list[str]) -> OfLevels:
    if not isinstance(family, Grade | Levels | Table):
        raise TypeError(f"{type(family).__name__} has no levels")
    shape, n_levels = _shape(fitted, parents), len(fitted.levels[name])
    n = math.prod(shape)
    if n * n_levels > _MOST_CELLS:
        raise SetupError(
            f"the table of {name!r} given its {len(parents)} parents would have {n * n_levels:,} probabilities; at "
            f"most {_MOST_CELLS:,} are written",
            remedy="`fedbnsl network export RUN --as json` holds what they are computed from.",
        )
    found, step = np.empty((n, n_levels)), max(_MOST_NUMBERS // fitted.network.n_columns, 1)
    for first in range(0, n, step):
        at = np.arange(first, min(first + step, n))
        X = np.zeros((len(at), fitted.network.n_columns))
        _set_levels(fitted, X, parents, at)
        found[at] = family.probabilities(X)
    return OfLevels(tuple(parents), found.reshape(*shape, n_levels))


def _line(fitted: NetworkOfRun, family: Count | Number, with_levels: list[str], numbers: list[str]) -> OfNumbers:
    own, columns = family.column, np.unique(family.parents)
    slopes = np.zeros(fitted.network.n_columns)
    if isinstance(family, Count) or family.bends:  # the best line has the moments that the network implies
        S = fitted.learned.covariance
        slopes[columns] = np.linalg.solve(S[np.ix_(columns, columns)], S[columns, own])
        noise_std = math.sqrt(max(float(S[own, own] - slopes[columns] @ S[columns, own]), 0.0))
    else:
        slopes[family.lines], noise_std = family.weights, family.noise_std
    shape = _shape(fitted, with_levels)
    X = np.zeros((math.prod(shape), fitted.network.n_columns))
    _set_levels(fitted, X, with_levels, np.arange(len(X)))
    own_levels = np.concatenate([fitted.members(one) for one in with_levels] or [np.zeros(0, dtype=np.int64)])
    of_numbers = np.array([int(fitted.members(one)[0]) for one in numbers], dtype=np.int64)
    base = float(fitted.means[own] - slopes @ np.where(slopes, fitted.means, 0.0))
    intercepts = base + X[:, own_levels] @ slopes[own_levels]
    return OfNumbers(tuple(with_levels), tuple(numbers), intercepts.reshape(shape), slopes[of_numbers], noise_std)


def _shape(fitted: NetworkOfRun, parents: list[str]) -> tuple[int, ...]:
    return tuple(len(fitted.levels[one]) for one in parents)


def _set_levels(fitted: NetworkOfRun, X: Matrix, parents: list[str], at: Index) -> None:
    """Give the parents' columns of (n, d) rows the levels of combinations; the last parent changes fastest."""
    if parents:
        for one, places in zip(parents, np.unravel_index(at, _shape(fitted, parents)), strict=True):
            own = fitted.members(one)
            X[:, own] = coded(places, len(own), len(fitted.levels[one]))
