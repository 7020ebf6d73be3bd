"""Sums that show whether straight lines describe a table: residuals of a child times steps of another column.

Steps are what is left of [z > s], for three s, after a regression on the child's parents, z and a constant. Where the
effect of z is a straight line, or there is none, their product with the child's residuals has mean 0, whatever the
distribution of both. Sums over the rows that have all of these columns.
"""

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix, upper

# A child of which its parents leave less than this, in units of its variance, is a function of them, or constant: what
# is left is rounding.
_LEFT = 1e-8
# Fewer rows for each regressor tell nothing.
_ROWS_EACH = 5


def curvature_sums(Z: Matrix, dag: Mask, pairs: Index, steps: Matrix) -> Matrix:
    """(k, 1 + q + q (q + 1) / 2) rows, sums of residuals times steps, and sums of their products, for each pair.

    Parameters
    ----------
    Z
        (n, d) columns about their means, in units of their standard deviations; NaN where a value is missing.
    dag
        (d, d) parents of each column.
    pairs
        (k, 2) another column and a child.
    steps
        (q,) values of the other column.
    """
    q = len(steps)
    found = np.zeros((len(pairs), 1 + q + q * (q + 1) // 2))
    there = ~np.isnan(Z)
    for c in np.unique(pairs[:, 1]).tolist():
        parents, of_child = np.flatnonzero(dag[:, c]), np.flatnonzero(pairs[:, 1] == c)
        whole: Mask = np.asarray(there[:, [*parents.tolist(), c]].all(axis=1))
        basis = _Residuals(Z, parents, c, whole)
        for k in of_child.tolist():
            a = int(pairs[k, 0])
            known = there[whole, a].all()
            found[k] = (basis if known else _Residuals(Z, parents, c, whole & there[:, a])).sums(a, steps)
    return found


class _Residuals:
    """The regression of a child on its parents over some rows."""

    def __init__(self, Z: Matrix, parents: Index, child: int, rows: Mask) -> None:
        self._Z, self._rows, self._n_regressors = Z, rows, len(parents) + 2
        X, y = Z[np.ix_(rows, parents)], Z[rows, child]
        self._n = len(y)
        self._usable = self._n >= _ROWS_EACH * self._n_regressors
        if self._usable:
            self._Q = np.linalg.qr(np.column_stack([np.ones(self._n), X]))[0]
            self._e = self._left(y)
            self._usable = bool(self._e @ self._e > _LEFT * self._n)

    def _left(self, columns: Matrix) -> Matrix:
        return np.asarray(columns - self._Q @ (self._Q.T @ columns))

    def sums(self, other: int, steps: Matrix) -> Matrix:
        """Of a column; zeros where there is nothing to tell."""
        q = len(steps)
        nothing = np.zeros(1 + q + q * (q + 1) // 2)
        if not self._usable:
            return nothing
        z = self._Z[self._rows, other]
        F, line = self._left((z[:, None] > steps).astype(np.float64)), self._left(z)
        square = line @ line
        if square > _LEFT * self._n:  # else it is a parent, a function of the parents, or constant
            F -= np.outer(line, line @ F / square)
        F[:, (F**2).sum(axis=0) <= _LEFT * self._n] = 0.0  # a step that lines explain, but for rounding
        weighted = F * self._e[:, None]
        return np.concatenate([[self._n], weighted.sum(axis=0), upper(weighted.T @ weighted)])
