"""Least-squares regressions of a child on some of its candidate parents, at all sites at once, from second moments."""

import numpy as np

from fedbnsl.sparse import Index, Mask, Matrix

# If the parents leave less than this share of a candidate's variance, they determine it, and it adds nothing.
_LEAST_SHARE = 1e-7
# The least residual variance, as a share of the variable's second moment: noisy moments may give less than zero.
_LEAST_RESIDUAL = 1e-12


class Families:
    """Residual variances of d children given some of their candidate parents, and what one parent changes.

    Parameters
    ----------
    moments
        (P, d, d) symmetric second moments of P sites. NaN stands for an unknown moment: no regression has both
        variables. Those on the diagonal are known.
    candidates
        (d, d) edges i -> j that are considered.
    ridge
        Added to the diagonal, as a share of it.
    """

    def __init__(self, moments: Matrix, candidates: Mask, *, ridge: float) -> None:
        size = np.sqrt(np.diagonal(moments, axis1=1, axis2=2))
        self._size: Matrix = np.where(size > 0.0, size, 1.0)
        # In units of each variable's size: otherwise one on a small scale counts as rounding error of a large one.
        self._R: Matrix = moments / (self._size[:, :, None] * self._size[:, None, :])
        self._R += ridge * np.eye(moments.shape[1])
        self.candidates: list[Index] = [np.flatnonzero(column) for column in candidates.T]

    def residual_variance(self, j: int, parents: Index) -> Matrix:
        """(P,) of a child given some of its candidates, in squared units of the child."""
        return self._in_units(j, self._regression(j, parents)[2])

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
        others = candidates[~present]
        inverse, coefficients, residual = self._regression(j, parents)
        after = np.empty((len(residual), len(candidates)))
        after[:, present] = residual[:, None] + coefficients**2 / np.diagonal(inverse, axis1=1, axis2=2)
        # What the parents leave of each other candidate, and of its moment with the child.
        A = self._R[:, parents[:, None], others]
        left = self._R[:, others, others] - (A * (inverse @ A)).sum(axis=1)
        c = self._R[:, others, j] - (coefficients[:, :, None] * A).sum(axis=1)
        adds = left > _LEAST_SHARE
        added = residual[:, None] - np.where(adds, c**2 / np.where(adds, left, 1.0), 0.0)
        after[:, ~present] = np.where(np.isnan(left + c), np.inf, added)
        return self._in_units(j, residual), self._in_units(j, after.T).T

    def residual_variances(self, dag: Mask) -> Matrix:
        """(P, d) of every variable given its parents in a DAG of candidates."""
        return np.stack([self.residual_variance(j, np.flatnonzero(dag[:, j])) for j in range(len(dag))], axis=1)

    def weights(self, dag: Mask) -> Matrix:
        """(d, d) mean over the sites of their least-squares weights on a DAG of candidates."""
        W = np.zeros(dag.shape)
        for j in np.flatnonzero(dag.any(axis=0)).tolist():
            parents = np.flatnonzero(dag[:, j])
            coefficients = self._regression(j, parents)[1]
            W[parents, j] = (coefficients * self._size[:, [j]] / self._size[:, parents]).mean(axis=0)
        return W

    def _regression(self, j: int, parents: Index) -> tuple[Matrix, Matrix, Matrix]:
        """(P, k, k) inverse moments of k parents, (P, k) coefficients and (P,) residual variances, in units of size."""
        R = self._R[:, parents[:, None], parents]
        try:
            inverse: Matrix = np.asarray(np.linalg.inv(R), dtype=np.float64)
        except np.linalg.LinAlgError:  # singular in spite of the ridge, as no moments of a table are
            inverse = np.asarray(np.linalg.pinv(R, hermitian=True), dtype=np.float64)
        b = self._R[:, parents, j]
        coefficients: Matrix = np.asarray((inverse @ b[:, :, None])[:, :, 0])
        return inverse, coefficients, np.asarray(self._R[:, j, j] - (b * coefficients).sum(axis=1))

    def _in_units(self, j: int, residual: Matrix) -> Matrix:
        """Residual variances (..., P) in units of size, in the squared unit of the child; kept above zero."""
        return np.asarray(np.maximum(residual, _LEAST_RESIDUAL) * self._size[:, j] ** 2)
