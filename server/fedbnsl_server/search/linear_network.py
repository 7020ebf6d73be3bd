"""The Gaussian network that a graph and second moments give: weights, residuals, and the errors that both have.

With A = I - W the residuals of a record x are e = A'x. Every number of confidence starts from them: under the right
graph they are uncorrelated, and the noise of a private run is that of moments of residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.dependent_rows import DependentRows, excess_of
from fedbnsl_server.search.squared_residuals import SquaredResiduals

SINGULAR = 1e-6
"""Moments of standardised columns with an eigenvalue nearer zero are singular: float32 leaves up to 1e-7 of an exact
relation."""

IN_RELATION = 1e-3
"""A column belongs to a relation if its coefficient is larger than this, among coefficients with squares that sum to
1."""

# Added to the diagonal, as a share of it: as the search itself has it.
_RIDGE = 1e-9
# The least residual variance, as a share of the column's own, or of 1 for a constant one.
_LEAST_RESIDUAL = 1e-12
# Of an eigenvalue of 1 that errors lower.
_LEAST_LEFT = 0.5


@dataclass(frozen=True, eq=False)
class Accuracy:
    """How exact (d, d) second moments are.

    Their error is that of n_samples Gaussian records, and in private runs independent Gaussian noise on the moments of
    residuals z = A'x / scales, where A = I - W and W are the weights of the graph.
    """

    n_samples: float  # records, or as many as weighted ones are worth; above 0
    # standard deviation of the noise of a moment of two residuals z; sqrt(2) times that of a mean square. 0: no
    # noise
    noise_std: float = 0.0
    # (d,) units of these residuals, in units of the columns; None: their own standard deviations
    scales: Matrix | None = None
    # (d, d) at least 1: by how much larger the sampling error of a moment of two residuals is than that of n_samples
    # records, as rows with gaps have few of both columns; infinite: none has both. None: all are alike
    widening: Matrix | None = None
    # rows of groups that depend on each other; None: all are independent
    dependent: DependentRows | None = None

    @property
    def counted(self) -> float:
        """How many rows a score counts."""
        return self.n_samples if self.dependent is None else self.n_samples / self.dependent.factor


@dataclass(frozen=True, eq=False)
class SiteMoments:
    """The moments that one site sent, and how exact they are."""

    moments: Matrix
    accuracy: Accuracy
    squares: SquaredResiduals | None = None  # how squares of residuals go together there; None: not known


@dataclass(frozen=True, eq=False)
class LinearNetwork:
    """Least-squares regressions of all columns on those of their variables' parents."""

    dag: Mask  # (d, d) edges between columns
    weights: Matrix  # (d, d) W, zero off the edges
    residual_covariance: Matrix  # (d, d): diagonal, except for columns of one variable
    back: Matrix  # (d, d) inverse of I - W

    @property
    def residual_variance(self) -> Matrix:
        """(d,) of the columns."""
        return self.residual_covariance.diagonal()

    def of_residuals(self, S: Matrix) -> Matrix:
        """(d, d) moments of the residuals, from moments of the columns; NaN where one that it takes is unknown."""
        A = np.eye(len(S)) - self.weights
        unknown = np.isnan(S)
        found = A.T @ np.where(unknown, 0.0, S) @ A
        used = (A != 0.0).astype(np.float64)
        return np.where(used.T @ unknown.astype(np.float64) @ used > 0.0, np.nan, found)

    def of_columns(self, S_e: Matrix) -> Matrix:
        """(d, d) moments of the columns, from moments of the residuals."""
        return _symmetric(self.back.T @ S_e @ self.back)

    def dependence(self, dependent: DependentRows | None) -> Matrix:
        """(d, d) variance factors of the products of two residuals; 1 of independent rows; see `dependent_rows`."""
        return np.ones(self.dag.shape) if dependent is None else 1.0 + dependent.others * self.excess(dependent)

    def excess(self, dependent: DependentRows) -> Matrix:
        """(d, d) g of the products of two residuals; see `dependent_rows`."""
        return excess_of(self.between_residuals(dependent), self.residual_covariance)

    def between_residuals(self, dependent: DependentRows) -> Matrix:
        """(d, d) mean products of the residuals of two rows of a group, zero where they are unknown."""
        return np.nan_to_num(self.of_residuals(dependent.between))

    def stays_positive(self, accuracy: Accuracy) -> bool:
        """Whether errors leave moments of the residuals positive: eigenvalues lie within 2 sqrt(d) errors of 1."""
        share = float((self.units(accuracy) ** 2 / self.residual_variance).max())
        error = math.hypot(accuracy.noise_std * share, 1.0 / math.sqrt(accuracy.n_samples))
        return 2.0 * math.sqrt(len(self.dag)) * error < _LEAST_LEFT

    def units(self, accuracy: Accuracy) -> Matrix:
        """(d,) in which the noise of residuals is the same for all."""
        return np.sqrt(self.residual_variance) if accuracy.scales is None else accuracy.scales


def fitted(dag: Mask, S: Matrix, columns: Columns) -> LinearNetwork:
    """The network of a (V, V) DAG, from (d, d) moments of which those within every family are known."""
    d, parents = len(S), columns.spread(dag)
    W, covariance = np.zeros((d, d)), np.zeros((d, d))
    for own in columns.members():
        given = np.flatnonzero(parents[:, own[0]])
        W[np.ix_(given, own)] = inverse(S[np.ix_(given, given)]) @ S[np.ix_(given, own)]
        family = np.concatenate((own, given))
        A = (np.eye(d)[:, own] - W[:, own])[family]
        covariance[np.ix_(own, own)] = _positive(A.T @ S[np.ix_(family, family)] @ A, S[own, own])
    return LinearNetwork(parents, W, covariance, np.asarray(np.linalg.inv(np.eye(d) - W), dtype=np.float64))


def families(dag: Mask) -> list[tuple[int, Index]]:
    """Each column of a (d, d) DAG that has parents, with these."""
    return [(int(c), np.flatnonzero(dag[:, c])) for c in np.flatnonzero(dag.any(axis=0))]


def edges_of(dag: Mask) -> Index:
    """(E, 2) edges of a DAG, row by row: the order of all numbers that are one an edge."""
    return np.argwhere(dag)


def inverse(S: Matrix) -> Matrix:
    """Of moments of some columns; the pseudo-inverse if some are constant or determine each other."""
    if not S.size:
        return S.copy()
    size = np.sqrt(np.maximum(S.diagonal(), np.finfo(np.float64).tiny))
    return np.asarray(pseudo_inverse(S / size / size[:, None] + _RIDGE * np.eye(len(S))) / size / size[:, None])


def pseudo_inverse(R: Matrix) -> Matrix:
    """(..., k, k) inverses of moments of standardised columns, which ignore exact relations among these columns.

    The regression coefficients that it gives are, of all that fit equally well, those with the smallest squares.
    """
    values = np.linalg.eigvalsh(R)
    if (np.abs(values) >= SINGULAR).all():
        return np.asarray(np.linalg.inv(R), dtype=np.float64)
    rcond = SINGULAR / np.maximum(values[..., -1], SINGULAR)
    return np.asarray(np.linalg.pinv(R, rcond=rcond, hermitian=True), dtype=np.float64)


def in_relation(S: Matrix) -> Mask:
    """(k,) columns in an exact linear relation, constant ones too: their coefficients are not identified."""
    if not S.size:
        return np.zeros(0, dtype=bool)
    size = np.sqrt(np.maximum(S.diagonal(), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(S / size / size[:, None])
    return np.asarray(np.linalg.norm(vectors[:, np.abs(values) < SINGULAR], axis=1) > IN_RELATION)


def pooled(moments: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
    """(d, d) weighted mean of the sites' moments."""
    return np.asarray(np.average(np.stack(list(moments)), axis=0, weights=weights))


def pooled_accuracy(accuracies: Sequence[Accuracy], weights: Sequence[float]) -> Accuracy:
    """Of a weighted mean of moments that have these errors, independently of each other."""
    shares = np.array(weights, dtype=np.float64) / math.fsum(weights)
    rows = np.array([one.n_samples for one in accuracies])
    noise = np.array([one.noise_std for one in accuracies])
    variances = shares**2 / rows
    n_samples, dependent = 1.0 / float(variances.sum()), accuracies[0].dependent
    if dependent is not None:
        others = [0.0 if one.dependent is None else one.dependent.others for one in accuracies]
        dependent = replace(dependent, others=n_samples * float(variances @ np.array(others)))
    return Accuracy(n_samples, float(np.linalg.norm(shares * noise)), accuracies[0].scales, dependent=dependent)


def _positive(S: Matrix, squares: Matrix) -> Matrix:
    """The residual covariance of one variable's columns, with none of its eigenvalues near zero or below."""
    squares = np.where(squares > 0.0, squares, 1.0)
    if len(S) == 1:
        return np.maximum(S, _LEAST_RESIDUAL * squares)
    size = np.sqrt(squares)
    values, vectors = np.linalg.eigh(_symmetric(S / size / size[:, None]))
    return _symmetric((vectors * np.maximum(values, _LEAST_RESIDUAL)) @ vectors.T) * size * size[:, None]


def _symmetric(S: Matrix) -> Matrix:
    return np.asarray(0.5 * (S + S.T))
