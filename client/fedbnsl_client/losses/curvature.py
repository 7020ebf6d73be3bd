"""Sums that show whether lines and hinges describe a table: residuals of a child times steps of another column.

Steps are what is left of [z > s], for three s, after a regression on the child's parents, z, the hinges of those that
have some, and a constant. Where these describe the effect of z, or there is none, their product with the child's
residuals has mean 0, whatever the distribution of both. Sums over the rows that have all of these columns.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix, upper
from fedbnsl_client.losses.hinges import with_hinges

# A child of which its parents leave less than this, in units of its variance, is a function of them, or constant: what
# is left is rounding.
LEFT = 1e-8
# Fewer rows for each regressor tell nothing.
_ROWS_EACH = 5


@dataclass(frozen=True, eq=False)
class Hinged:
    """Columns and hinges of some of them; NaN where a value is missing."""

    Z: Matrix  # (n, d) columns about their means, in units of their standard deviations
    rows: Matrix  # (n, D) these, and the hinges
    owner: Index  # (D,) the column that each belongs to

    @classmethod
    def of(cls, Z: Matrix, hinged: Index, knots: Matrix) -> Self:
        """With hinges of some columns."""
        owner = [*range(Z.shape[1]), *(c for c in hinged.tolist() for _ in knots.tolist())]
        return cls(Z, with_hinges(Z, hinged, knots), np.array(owner, dtype=np.int64))

    def over(self, kept: Mask, columns: Index) -> Matrix:
        """Some rows of some columns and their hinges."""
        return np.asarray(self.rows[np.ix_(kept, np.isin(self.owner, columns))])


def curvature_sums(columns: Hinged, dag: Mask, pairs: Index, steps: Matrix) -> Matrix:
    """(k, 1 + q + q (q + 1) / 2) rows, sums of residuals times steps, and sums of their products, for each pair.

    Parameters
    ----------
    columns
        The regressors.
    dag
        (d, d) parents of each column.
    pairs
        (k, 2) another column and a child.
    steps
        (q,) values of the other column.
    """
    q = len(steps)
    found = np.zeros((len(pairs), 1 + q + q * (q + 1) // 2))
    there = ~np.isnan(columns.Z)
    for c in np.unique(pairs[:, 1]).tolist():
        parents, of_child = np.flatnonzero(dag[:, c]), np.flatnonzero(pairs[:, 1] == c)
        whole: Mask = np.asarray(there[:, [*parents.tolist(), c]].all(axis=1))
        regression = _Residuals(columns, parents, c, whole)
        for k in of_child.tolist():
            a = int(pairs[k, 0])
            known = there[whole, a].all()
            found[k] = (regression if known else _Residuals(columns, parents, c, whole & there[:, a])).sums(a, steps)
    return found


class _Residuals:
    """The regression of a child on its parents over some rows."""

    def __init__(self, columns: Hinged, parents: Index, child: int, rows: Mask) -> None:
        self._columns, self._rows = columns, rows
        X, y = columns.over(rows, parents), columns.Z[rows, child]
        self._n, self._Q = len(y), np.empty((len(y), 0))
        self._usable = self._has_rows_for(X.shape[1] + 2)
        if self._usable:
            self._Q = basis(np.column_stack([np.ones(self._n), X]))
            self._e = self._left(y)
            self._usable = bool(self._e @ self._e > LEFT * self._n)

    def _has_rows_for(self, n_regressors: int) -> bool:
        return self._n >= _ROWS_EACH * n_regressors

    def _left(self, columns: Matrix) -> Matrix:
        return np.asarray(columns - self._Q @ (self._Q.T @ columns))

    def sums(self, other: int, steps: Matrix) -> Matrix:
        """Of a column; zeros where there is nothing to tell."""
        q = len(steps)
        nothing = np.zeros(1 + q + q * (q + 1) // 2)
        own = self._columns.over(self._rows, np.array([other]))
        if not (self._usable and self._has_rows_for(self._Q.shape[1] + own.shape[1])):
            return nothing
        Q = basis(self._left(own))  # without columns if it is a parent, a function of the parents, or constant
        F = self._left((own[:, [0]] > steps).astype(np.float64))
        F -= Q @ (Q.T @ F)
        F[:, (F**2).sum(axis=0) <= LEFT * self._n] = 0.0  # a step that lines explain, but for rounding
        weighted = F * self._e[:, None]
        return np.concatenate([[self._n], weighted.sum(axis=0), upper(weighted.T @ weighted)])


def basis(columns: Matrix) -> Matrix:
    """(n, r) orthonormal columns that span these, but for what is rounding."""
    vectors, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(vectors[:, sizes**2 > LEFT * len(columns)])
