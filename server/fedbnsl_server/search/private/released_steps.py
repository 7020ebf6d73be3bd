"""What private steps have released, as noisy means of clipped products.

A step of DP-PGCD at (i, j) releases the mean over a site's records of -x_i r_j, clipped to a bound, plus Gaussian
noise. r_j = x_j - B_j'x is a residual under the column B_j that the site had at that time, which is known: B_p starts
at zero, and each step tells the weight that it leaves. So every step is one noisy equation in the moments of x.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix

# Columns B_j that differ by no more than this count as one: their steps become one mean.
_SAME_COLUMN = 0.1


@dataclass(frozen=True, eq=False)
class ReleasedSteps:
    """N noisy means of x_i r, clipped."""

    parent: Index  # (N,) i
    residual: Matrix  # (N, d) coefficients of r: 1 at j, and minus those of B_j
    # mean, noise_std: (N,) what was released, and its noise
    mean: Matrix
    noise_std: Matrix
    bound: Matrix  # (N,) what each record's product was clipped to

    @classmethod
    def of_site(cls, told: Matrix, n_variables: int, noise_share: float) -> Self:
        """The steps of one site.

        Parameters
        ----------
        told
            (N, 4) flat index i d + j, gradient, bound and weight after the step, in the order of the steps.
        noise_share
            Standard deviation of the noise of a gradient, as a share of its bound.
        """
        i, j = np.divmod(told[:, 0].astype(np.int64), n_variables)
        _, gradient, bound, weight = told.T
        B = np.zeros((n_variables, n_variables))
        residual = np.zeros((len(told), n_variables))
        for k in range(len(told)):
            residual[k] = -B[:, j[k]]
            B[i[k], j[k]] = weight[k]
        residual[np.arange(len(told)), j] = 1.0
        return cls(i, residual, -gradient, noise_share * bound, bound)

    @classmethod
    def merged(cls, sites: Sequence[Self]) -> Self:
        """The steps of all sites, with the mean of those that tell of the same pair under nearly the same column.

        Means are by inverse variances of the noise. It changes next to nothing, and leaves a fraction of the numbers.
        """
        parent = np.concatenate([one.parent for one in sites])
        residual = np.concatenate([one.residual for one in sites])
        numbers = np.concatenate([np.stack([one.mean, one.bound], axis=1) for one in sites])
        precision = np.concatenate([one.noise_std for one in sites]) ** -2.0
        child = np.argmax(residual == 1.0, axis=1)
        groups: list[Index] = []
        pair = parent * residual.shape[1] + child
        order = np.argsort(pair, kind="stable")
        for left in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1):
            while left.size:
                near = np.abs(residual[left] - residual[left[0]]).max(axis=1) <= _SAME_COLUMN
                groups.append(left[near])
                left = left[~near]
        share = [precision[group] / precision[group].sum() for group in groups]
        residuals = np.array([s @ residual[group] for s, group in zip(share, groups, strict=True)])
        means = np.array([s @ numbers[group] for s, group in zip(share, groups, strict=True)])
        noise_std = np.array([precision[group].sum() ** -0.5 for group in groups])
        first = np.array([group[0] for group in groups], dtype=np.int64)
        return cls(parent[first], residuals, means[:, 0], noise_std, means[:, 1])
