"""Records as weights of levels: where a value is missing, the levels that the covariances of all sites expect.

The indicators of the levels of a variable have the conditional mean mu_m + S_mo inv(S_oo) (x_o - mu_o), given what the
record has. As probabilities of levels they are clipped to [0, 1], the reference level gets what is left of 1, and all
are divided by their sum. A record counts in a cell of several variables by the product of its weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.graphs.contingency import VariableSet, cells_of
from fedbnsl.protocol.sparse import Index, Matrix

# Added to the diagonal of S, as a share of it: columns may determine each other.
_RIDGE = 1e-6
# Weights of records in cells that are computed at a time.
_MOST_PRODUCTS = 4_000_000


@dataclass(frozen=True, eq=False)
class Completing:
    """What completes the records of a site.

    Attributes
    ----------
    S
        (d, d) covariances of the prepared columns.
    means
        (d,) of the prepared columns at this site.
    centre, scale
        (d,) what prepares them: (x - centre) / scale.
    """

    S: Matrix
    means: Matrix
    centre: Matrix
    scale: Matrix

    def completed(self, X: Matrix) -> Matrix:
        """(n, d) records with the expected value in each gap."""
        found, lacks = X.copy(), np.isnan(X)
        patterns, of_row = np.unique(lacks, axis=0, return_inverse=True)
        S = self.S + _RIDGE * np.diag(self.S.diagonal())
        for k, gaps in enumerate(patterns):
            rows, seen = np.flatnonzero(of_row.ravel() == k), ~gaps & (S.diagonal() > 0.0)
            z = (X[np.ix_(rows, seen)] - self.centre[seen]) / self.scale[seen] - self.means[seen]
            expected = self.means[gaps] + z @ np.linalg.solve(S[np.ix_(seen, seen)], S[np.ix_(seen, gaps)])
            found[np.ix_(rows, gaps)] = self.centre[gaps] + self.scale[gaps] * expected
        return found


def counted(
    X: Matrix, sets: Sequence[VariableSet], members: Sequence[Index], n_levels: Index, by: Completing | None
) -> Matrix:
    """Records of an (n, d) table in the cells of the tables of these sets, one after the other.

    Parameters
    ----------
    members
        The columns of each variable.
    by
        None: records with a gap in a set do not count in its table.
    """
    own = [_levels(X, one) for one in members]
    lacks = np.any([one < 0 for one in own], axis=0)
    place = np.cumsum(lacks) - 1  # of a record with gaps among those
    completed = None if by is None or not lacks.any() else by.completed(X[lacks])
    weights = [] if completed is None else [_weights(completed[:, one]) for one in members]
    found: list[Matrix] = []
    for one in sets:
        cell, gap = np.zeros(len(X), dtype=np.int64), np.zeros(len(X), dtype=bool)
        for v in one:
            cell = cell * int(n_levels[v]) + own[v]
            gap |= own[v] < 0
        n_cells = cells_of(one, n_levels)
        table = np.bincount(cell[~gap], minlength=n_cells).astype(np.float64)
        if weights and gap.any():
            rows = place[gap]
            for part in np.array_split(rows, len(rows) * n_cells // _MOST_PRODUCTS + 1):
                table += _of_products([weights[v][part] for v in one])
        found.append(table)
    return np.concatenate(found)


def _levels(X: Matrix, own: Index) -> Index:
    """(n,) the level of each record in one variable, from (n, d) indicators; negative where it is missing."""
    number = X[:, own] @ np.arange(1.0, len(own) + 1.0)
    return np.where(np.isnan(number), -1.0, number).astype(np.int64)


def _weights(indicators: Matrix) -> Matrix:
    """(n, k + 1) of the levels of one variable, from (n, k) completed indicators."""
    of_others = np.clip(indicators, 0.0, 1.0)
    weights = np.column_stack([np.maximum(1.0 - of_others.sum(axis=1), 0.0), of_others])
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _of_products(weights: Sequence[Matrix]) -> Matrix:
    """The sum over records of the products of their weights, for each cell."""
    *most, last = weights
    products = np.ones((len(last), 1))
    for one in most:
        products = (products[:, :, None] * one[:, None, :]).reshape(len(last), -1)
    return np.asarray(products.T @ last).ravel()
