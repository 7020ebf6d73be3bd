"""Regressions of a child on its parents, in which each site has intercepts of its own.

With (p,) parents x, (q,) coefficients beta that all sites share and (a,) intercepts alpha of a site, every family gives
sums over records:

    l = log-likelihood,    U = dl / d(alpha, beta),    J = -d^2 l / d(alpha, beta)^2.

Given beta, a site chooses its alpha so that l is largest. The gradient of this profile log-likelihood is U_beta, and
its information is the Schur complement J_bb - J_ba J_aa^-1 J_ab. Summed over sites, these are what one regression has
that knows all records, with an intercept for each site.
"""

import math
from typing import NamedTuple, Protocol, Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix


class Sums(NamedTuple):
    """Of some records, given alpha and beta."""

    log_likelihood: float
    dispersion: float  # Pearson's statistic, the sum of (y - mean)^2 / variance; 0 of families without one
    gradient: Matrix  # (a + q,)
    information: Matrix  # (a + q, a + q), symmetric

    @classmethod
    def of_vector(cls, numbers: Matrix) -> Self:
        """What `as_vector` has made."""
        size = (math.isqrt(4 * len(numbers) - 7) - 1) // 2  # of 2 + size + size^2 numbers
        told, rest = numbers[2 : 2 + size], numbers[2 + size :]
        return cls(float(numbers[0]), float(numbers[1]), told, rest.reshape(size, size))

    def as_vector(self) -> Matrix:
        """All numbers in a row, so that those of blocks of records can be added."""
        return np.concatenate([[self.log_likelihood, self.dispersion], self.gradient, self.information.ravel()])


class Family(Protocol):
    """A kind of child at a site, given sums over its (n,) children: positions of levels from 0, or counts."""

    @property
    def varies(self) -> bool:
        """Whether the records tell anything of beta, whatever the parents are."""
        ...

    @property
    def intercepts(self) -> Matrix:
        """(a,) alpha that is best if beta is 0, of the intercepts that the records determine."""
        ...

    def step(self, sums: Sums) -> Matrix:
        """(a,) towards better intercepts, from what concerns these; 0 at the best."""
        ...

    def predictors(self, X: Matrix, beta: Matrix) -> Matrix:
        """(n, m) linear predictors of (n, p) parents, without intercepts."""
        ...

    def sums(self, X: Matrix, y: Index, eta: Matrix, alpha: Matrix) -> Sums:
        """At these predictors; of (n, 0) parents, what concerns alpha alone."""
        ...
