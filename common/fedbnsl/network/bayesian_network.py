"""A network of families: draws of all columns, weighted draws where some values are known, and predictions.

What is known is kept at its value, and draws count by how likely it is there (likelihood weighting; Fung and Chang
1990). What is set by an intervention loses its family: its draws all count alike (Pearl 2009).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.network.families import Family
from fedbnsl.protocol.sparse import Index, Matrix

_MOST_NUMBERS = 10_000_000  # in memory at a time


@dataclass(frozen=True, eq=False)
class BayesianNetwork:
    """Families by variable, each after those of its parents."""

    n_columns: int
    families: Mapping[str, Family]

    def sample(self, n: int, rng: np.random.Generator) -> Matrix:
        """(n, d) draws of all columns."""
        return self.draws(n, rng)[0]

    def draws(
        self,
        n: int,
        rng: np.random.Generator,
        known: Mapping[str, Sequence[float]] | None = None,
        set_to: Mapping[str, Sequence[float]] | None = None,
        columns: Index | None = None,
    ) -> tuple[Matrix, Matrix]:
        """(n, c) draws and their (n,) weights, which add up to 1, given values of the columns of some variables.

        `columns`: (c,) those to draw; None: all.

        Raises
        ------
        SetupError
            If none of the draws could have the known values.
        """
        kept = self.n_columns if columns is None else len(columns)
        X, log_weights, step = np.empty((n, kept)), np.empty(n), max(_MOST_NUMBERS // self.n_columns, 1)
        for first in range(0, n, step):
            rows = slice(first, min(first + step, n))
            X[rows], log_weights[rows] = self.log_weighted_draws(rows.stop - first, rng, known, set_to, columns)
        highest = log_weights.max()
        if not np.isfinite(highest):
            raise never_occurs(known or {})
        weights = np.exp(log_weights - highest)
        return X, weights / weights.sum()

    def log_weighted_draws(
        self,
        n: int,
        rng: np.random.Generator,
        known: Mapping[str, Sequence[float] | Matrix] | None = None,
        set_to: Mapping[str, Sequence[float] | Matrix] | None = None,
        columns: Index | None = None,
    ) -> tuple[Matrix, Matrix]:
        """(n, c) draws and the (n,) logarithms of their weights; what is known may be another value in each draw."""
        known, set_to = known or {}, set_to or {}
        X, log_weights = np.zeros((n, self.n_columns)), np.zeros(n)
        for name in self.families if columns is None else self.needed(columns, known, set_to):
            family = self.families[name]
            if name in set_to:
                X[:, family.columns] = set_to[name]
            elif name in known:
                X[:, family.columns] = known[name]
                log_weights += family.log_density(X)
            else:
                X[:, family.columns] = family.sample(X, rng)
        return X if columns is None else X[:, columns], log_weights

    def needed(self, asked: Index, known: Mapping[str, object], set_to: Mapping[str, object]) -> list[str]:
        """Variables that the asked columns, or known values, depend on, in order: all others add up to 1."""
        columns, found = set(asked.tolist()), list[str]()
        for name, family in reversed(list(self.families.items())):
            if name in known or not columns.isdisjoint(family.columns.tolist()):
                found.append(name)
                columns.update(() if name in set_to else family.parents.tolist())
        return found[::-1]


def never_occurs(known: Mapping[str, object]) -> SetupError:
    """The error for values that are impossible together."""
    return SetupError(
        f"what is said to be known never occurs in the network: {', '.join(map(repr, known))}",
        remedy="Leave one of the values out, or take one that is possible together with the others.",
    )
