"""Gaussian regressions of a child on some of its candidate parents, at all sites at once, from second moments.

A variable may be a block of columns, such as the indicators of a nominal one (degenerate Gaussian: Andrews, Ramsey and
Cooper 2019). Then its residual variance is the generalised one: the determinant of the residual covariance of its k
columns, to the power of 1 / k. By the chain rule, k times its logarithm is the sum over the block of the logarithms of
the columns' residual variances given the parents and the columns before.
"""

from collections.abc import Sequence

import numpy as np

from fedbnsl.sparse import Index, Mask, Matrix

# If the parents leave less than this share of a candidate's variance, they determine it, and it adds nothing.
_LEAST_SHARE = 1e-7
# The least residual variance, as a share of the variable's second moment: noisy moments may give less than zero.
_LEAST_RESIDUAL = 1e-12


class Families:
    """Residual variances of V children given some of their candidate parents, and what one parent changes.

    Parameters
    ----------
    moments
        (P, d, d) symmetric second moments of the columns at P sites. NaN stands for an unknown moment: no regression
        has both columns. Those on the diagonal are known.
    candidates
        (V, V) edges i -> j that are considered.
    ridge
        Added to the diagonal, as a share of it.
    members
        The columns of each variable, ascending; None: one each.

    Attributes
    ----------
    candidates
        Those of each variable, ascending.
    sizes
        (V,) columns of each variable.
    """

    def __init__(
        self, moments: Matrix, candidates: Mask, *, ridge: float, members: Sequence[Index] | None = None
    ) -> None:
        size = np.sqrt(np.diagonal(moments, axis1=1, axis2=2))
        self._size: Matrix = np.where(size > 0.0, size, 1.0)
        # In units of each column's size: otherwise one on a small scale counts as rounding error of a large one.
        self._R: Matrix = moments / (self._size[:, :, None] * self._size[:, None, :])
        self._R += ridge * np.eye(moments.shape[1])
        self.candidates: list[Index] = [np.flatnonzero(column) for column in candidates.T]
        own = [np.array([j], dtype=np.int64) for j in range(len(candidates))]
        self._members: list[Index] = own if members is None else list(members)
        self.sizes: Index = np.array([columns.size for columns in self._members])
        self._first: Index = np.array([columns[0] for columns in self._members])

    def residual_variance(self, j: int, parents: Index) -> Matrix:
        """(P,) of a child given some of its candidates, in squared units of the child."""
        return self._in_units(j, self._residual(j, self._columns(parents)))

    def toggled(self, j: int, parents: Index) -> tuple[Matrix, Matrix]:
        """(P,) residual variance given the parents, and (P, m) after adding or removing each of the m candidates.

        Infinite for a candidate whose moment with the child or a parent is unknown.

        Parameters
        ----------
        parents
            Candidates of j, in increasing order. Each of them is removed in turn, each other candidate added.
        """
        candidates = self.candidates[j]
        present = np.isin(candidates, parents)
        given = self._columns(parents)
        after = np.empty((len(self._R), len(candidates)))
        alone = self.sizes[candidates] == 1
        if self.sizes[j] == 1:
            residual = self._toggled_columns(j, given, candidates, present, alone, after)
        else:
            alone = np.zeros_like(alone)
            residual = self._residual(j, given)
        for k in np.flatnonzero(~alone).tolist():
            block: Index = self._members[int(candidates[k])]
            kept = np.setdiff1d(given, block) if present[k] else np.concatenate([given, block])
            found = self._residual(j, kept)
            after[:, k] = np.where(np.isnan(found), np.inf, found)
        return self._in_units(j, residual), self._in_units(j, after.T).T

    def _toggled_columns(
        self, j: int, given: Index, candidates: Index, present: Mask, alone: Mask, after: Matrix
    ) -> Matrix:
        """`toggled` for a child of one column: fill in the candidates of one column; return the residual variance."""
        child = self._first[j]
        inverse, coefficients, residual = self._regression(child, given)
        inside, outside = present & alone, ~present & alone
        position = np.zeros(self._size.shape[1], dtype=np.int64)
        position[given] = np.arange(len(given))
        place = position[self._first[candidates[inside]]]
        after[:, inside] = (
            residual[:, None] + coefficients[:, place] ** 2 / np.diagonal(inverse, axis1=1, axis2=2)[:, place]
        )
        # What the parents leave of each other candidate, and of its moment with the child.
        others = self._first[candidates[outside]]
        A = self._R[:, given[:, None], others]
        left = self._R[:, others, others] - (A * (inverse @ A)).sum(axis=1)
        c = self._R[:, others, child] - (coefficients[:, :, None] * A).sum(axis=1)
        adds = left > _LEAST_SHARE
        added = residual[:, None] - np.where(adds, c**2 / np.where(adds, left, 1.0), 0.0)
        after[:, outside] = np.where(np.isnan(left + c), np.inf, added)
        return residual

    def residual_variances(self, dag: Mask) -> Matrix:
        """(P, V) of every variable given its parents in a DAG of candidates."""
        return np.stack([self.residual_variance(j, np.flatnonzero(dag[:, j])) for j in range(len(dag))], axis=1)

    def column_variances(self, dag: Mask) -> Matrix:
        """(P, d) of every column given the columns of its variable's parents, and of no other of its own variable."""
        found = np.empty(self._size.shape)
        for j, columns in enumerate(self._members):
            given = self._columns(np.flatnonzero(dag[:, j]))
            for c in columns.tolist():
                left = np.maximum(self._regression(c, given)[2], _LEAST_RESIDUAL)
                found[:, c] = left * self._size[:, c] ** 2
        return found

    def weights(self, dag: Mask) -> Matrix:
        """(d, d) mean over the sites of the columns' least-squares weights on a (V, V) DAG of candidates."""
        W = np.zeros(self._R.shape[1:])
        for j in np.flatnonzero(dag.any(axis=0)).tolist():
            given = self._columns(np.flatnonzero(dag[:, j]))
            for c in self._members[j].tolist():
                coefficients = self._regression(c, given)[1]
                W[given, c] = (coefficients * self._size[:, [c]] / self._size[:, given]).mean(axis=0)
        return W

    def _columns(self, variables: Index) -> Index:
        if not len(variables):
            return np.empty(0, dtype=np.int64)
        blocks: list[Index] = [self._members[v] for v in variables.tolist()]
        return np.concatenate(blocks)

    def _residual(self, j: int, given: Index) -> Matrix:
        """(P,) generalised residual variance of a variable given columns, in units of size; NaN if one is unknown."""
        columns = self._members[j]
        if columns.size == 1:
            return self._regression(int(columns[0]), given)[2]
        whole = np.concatenate((columns, given))
        R = self._R[:, whole[:, None], whole]
        if np.isnan(R).any():
            return np.full(len(R), np.nan)
        k = columns.size
        inverse, A = self._inverse(R[:, k:, k:]), R[:, k:, :k]
        left = R[:, :k, :k] - np.swapaxes(A, 1, 2) @ inverse @ A
        values = np.maximum(np.linalg.eigvalsh(0.5 * (left + np.swapaxes(left, 1, 2))), _LEAST_RESIDUAL)
        return np.asarray(np.exp(np.log(values).mean(axis=1)))

    def _regression(self, column: int, given: Index) -> tuple[Matrix, Matrix, Matrix]:
        """(P, k, k) inverse moments of k columns, (P, k) coefficients and (P,) residual variances, in units of size."""
        inverse = self._inverse(self._R[:, given[:, None], given])
        b = self._R[:, given, column]
        coefficients: Matrix = np.asarray((inverse @ b[:, :, None])[:, :, 0])
        return inverse, coefficients, np.asarray(self._R[:, column, column] - (b * coefficients).sum(axis=1))

    def _inverse(self, R: Matrix) -> Matrix:
        try:
            return np.asarray(np.linalg.inv(R), dtype=np.float64)
        except np.linalg.LinAlgError:  # singular in spite of the ridge, as no moments of a table are
            return np.asarray(np.linalg.pinv(R, hermitian=True), dtype=np.float64)

    def _in_units(self, j: int, residual: Matrix) -> Matrix:
        """Residual variances (..., P) in units of size, in the squared unit of the child; kept above zero."""
        columns = self._members[j]
        if columns.size == 1:
            unit = self._size[:, columns[0]] ** 2
        else:
            unit = np.exp(2.0 * np.log(self._size[:, columns]).mean(axis=1))
        return np.asarray(np.maximum(residual, _LEAST_RESIDUAL) * unit)
