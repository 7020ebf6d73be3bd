"""What the rounds of a private run have released, as moments of one set of residuals.

Sites release moments of z = A'x, with A = (I - W) / scales from the round before, and independent noise of one size on
all entries. Mapped to the residuals of another A, entries have noise of many sizes: rounds are combined by its inverse
variances. If W is nearly right, most entries are noise, and those that stand out of it are what W misses; so an entry
within its noise counts as zero, and the rest is mapped back to the columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.private.pooled_moments import NOISE_WIDTHS
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.search.whitened import whitened

# The least eigenvalue of cleared correlations of residuals where noise is large.
_LEAST_EIGENVALUE = 0.05
# The squared error may be so many times what it would be with all releases.
_MOST_LOST = 1.2


@dataclass(frozen=True, eq=False)
class Released:
    """Moments of residuals over all records: of one release, or of several that were mapped to the same residuals."""

    moments: Matrix  # (d, d) of z = A'x, in units of their median; noise may have made eigenvalues negative
    noise: Matrix  # (d, d) variance of the noise of the entries
    A: Matrix  # (d, d), invertible
    n_samples: float  # records

    @property
    def noise_std(self) -> float:
        """The typical noise of an entry off the diagonal; of a single column, what it would be there."""
        if len(self.noise) == 1:
            return math.sqrt(0.5 * float(self.noise[0, 0]))
        return math.sqrt(float(np.median(self.noise[~np.eye(len(self.noise), dtype=bool)])))

    @property
    def error(self) -> float:
        """The typical standard deviation of an entry off the diagonal, by noise and sampling."""
        return math.sqrt(self.noise_std**2 + 1.0 / self.n_samples)

    @property
    def units(self) -> Matrix:
        """(d,) of the residuals in which their mean squares all have the typical noise, in units of x."""
        in_z = (self.noise.diagonal() / (2.0 * self.noise_std**2)) ** 0.25
        return np.asarray(in_z / self.A.diagonal())

    @property
    def correlated(self) -> Mask:
        """(d, d) pairs of residuals whose covariance stands out of its errors; nothing on the diagonal."""
        return np.asarray(~np.eye(len(self.A), dtype=bool) & (np.abs(self.moments) > NOISE_WIDTHS * self._errors))

    def over(self, kept: Index) -> "Released":
        """Of some of the columns, of whose residuals the others are no part."""
        both = np.ix_(kept, kept)
        size = _typical(self.moments[both], math.sqrt(float(np.median(self.noise.diagonal()[kept]))))
        return Released(self.moments[both] / size, self.noise[both] / size**2, self.A[both], self.n_samples)

    @property
    def release(self) -> Release:
        """As one release, of residuals in units in which all have the same noise."""
        unit = self.units * self.A.diagonal()
        moments = self.moments / unit / unit[:, None]
        size = _typical(moments, math.sqrt(2.0) * self.noise_std)
        return Release(moments / size, self.noise_std / size, self.A / unit, math.nan, math.inf, 0.0)

    @property
    def of_columns(self) -> Matrix:
        """(d, d) moments of x, up to a factor, with all their noise."""
        return self._mapped_back(self.moments)

    def positive(self, columns: Columns) -> Matrix:
        """(d, d) moments of x as they came, or cleared ones where noise leaves residuals of variables no covariance."""
        squares = self.moments.diagonal()
        if not (squares > 0.0).all():
            return self.cleared
        R = whitened(self.moments / np.sqrt(squares) / np.sqrt(squares)[:, None], columns.members())
        return self.of_columns if np.linalg.eigvalsh(R)[0] >= _LEAST_EIGENVALUE else self.cleared

    @property
    def cleared(self) -> Matrix:
        """(d, d) moments of x, up to a factor: entries within their noise are zero, and all eigenvalues positive."""
        error, kept = self._errors, self.correlated
        np.fill_diagonal(kept, val=True)
        # A residual variance within its error counts as the error.
        size = np.sqrt(np.maximum(self.moments.diagonal(), error.diagonal()))
        R = np.where(kept, self.moments, 0.0) / size / size[:, None]
        np.fill_diagonal(R, 1.0)
        values, vectors = np.linalg.eigh(R)
        least = min(_LEAST_EIGENVALUE, NOISE_WIDTHS * self.error)
        R = (vectors * np.maximum(values, least)) @ vectors.T
        return self._mapped_back(R * size * size[:, None])

    @property
    def _errors(self) -> Matrix:
        return np.asarray(np.sqrt(self.noise + 1.0 / self.n_samples))

    def _mapped_back(self, S_z: Matrix) -> Matrix:
        back = np.linalg.inv(self.A)
        S = back.T @ S_z @ back
        return np.asarray(0.5 * (S + S.T), dtype=np.float64)


def released(
    S_z: Matrix,
    *,
    noise_std: float,
    W: Matrix,
    scales: Matrix,
    weight: float = math.nan,
    norm_bound: float = math.inf,
    constant: float = 0.0,
) -> Release:
    """What a round released.

    Parameters
    ----------
    S_z
        (d, d) mean over all records of the moments of (x - W'x) / scales.
    noise_std
        Of an entry off the diagonal; sqrt(2) times that on it.
    weight, norm_bound, constant
        See `Release`.
    """
    size = _typical(S_z, math.sqrt(2.0) * noise_std)
    A, unit = (np.eye(len(S_z)) - W) / scales, math.sqrt(size)
    return Release(S_z / size, noise_std / size, A, weight, norm_bound / unit, constant / unit)


def combined(releases: Sequence[Release], n_samples: float, A: Matrix) -> Released:
    """All releases as moments of the residuals A'x: the mean by inverse variances of their noise.

    Errors of different entries count as independent.
    """
    moments, precision = np.zeros_like(A), np.zeros_like(A)
    for one in releases:
        M = np.linalg.solve(one.A, A)
        # Entry (i, j) of the noise and (j, i) are one number, so that u'Nv has the variance |u|^2 |v|^2 + (u'v)^2.
        G = M.T @ M
        mapped, noise = M.T @ one.moments @ M, one.noise_std**2 * (np.outer(G.diagonal(), G.diagonal()) + G * G)
        size = _typical(mapped, math.sqrt(float(np.median(noise.diagonal()))))
        moments += mapped * size / noise
        precision += size**2 / noise
    moments /= precision
    return Released(0.5 * (moments + moments.T), 1.0 / precision, A, n_samples)


def worth_it(releases: Sequence[Release], n_samples: float) -> Sequence[Release]:
    """The last ones, as few as tell nearly as much as all.

    Sampling error is the same in all. Where it is most of the error, early releases add little, and in their residuals,
    which are far from uncorrelated, it is of different sizes.
    """
    precision = np.cumsum([one.noise_std**-2 for one in reversed(releases)])
    error = 1.0 / precision + 1.0 / n_samples
    return releases[-1 - int(np.argmax(error <= _MOST_LOST * error[-1])) :]


def _typical(moments: Matrix, noise_std: float) -> float:
    """The median mean square; noise alone may have any size or sign, and counts as its standard deviation."""
    return max(float(np.median(moments.diagonal())), noise_std, float(np.finfo(np.float64).tiny))
