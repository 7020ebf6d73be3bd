"""What a family, a child with its parents, adds to the score of a DAG: the one place that says it. Less is better.

For a Gaussian network, with v_p the residual variance of the child given its parents at site p of P, per row,

    mean over p of [ log(v_p) / 2 + log(v_p / sigma_p^2)^2 / (2 n) ] + penalty * columns of the child * of its parents.

Without sites and for n = infinity this is BIC, or the extended BIC, by the penalty alone; with n the rows of a site it
has a prior for equal noise variances, which weighs as much as one row. A variable of several columns is a block
(degenerate Gaussian: Andrews, Ramsey and Cooper 2019): v is the determinant of its residual covariance to the power of
1 / columns, and log(v) counts once a column. Columns that only explain, such as squares of numbers, have no part in v:
parents do not tell products of each other, which the squares of their children share. Edges cost as with them.

Compiled loops know of a score only what `kernels.score` has: the share of a child from what all sites leave of it
together, and the cost of edges. Another score of residual variances, such as one that lets sites have parameters of
their own, is another branch there and another constructor here. A score that comes from counts cannot grow a family by
pivots of a matrix; what it has to offer to the rest of the server is `ClassProblem`: `found` and `scores`.
"""

import math
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix

# Rows that a penalty is for, at least: of fewer its logarithm would be 0 or less.
_FEWEST = 2.0
# Of the extended BIC where noise is most of the error. A false edge costs more than itself: it directs others.
_GAMMA_OF_NOISE = 1.0


class Score(NamedTuple):
    """A score of residual variances, for compiled loops and for whole graphs."""

    logarithmic: bool  # whether the share of a child is as above; otherwise v / (2 sigma^2), the same to first order
    # common, log_common: (P,) sigma^2 of the sites, and half its logarithm
    common: Matrix
    log_common: Matrix
    n_samples: float  # n
    penalty: float  # of an edge, for each pair of a column of one end and one of the other

    @classmethod
    def near(cls, common: Matrix, *, logarithmic: bool, n_samples: float, penalty: float) -> "Score":
        """With a prior for residual variances near a common one."""
        return cls(logarithmic, common, 0.5 * np.log(common), float(n_samples), float(penalty))

    @classmethod
    def bic(cls, penalty: float) -> "Score":
        """Without a prior, for moments over all sites."""
        return cls.near(np.ones(1), logarithmic=True, n_samples=math.inf, penalty=penalty)

    def of_dag(self, dag: Mask, residual_variances: Matrix, sizes: Index, explained: Index) -> float:
        """Of a whole (V, V) DAG, from (P, V) residual variances; logarithmic scores only.

        Parameters
        ----------
        sizes, explained
            (V,) columns of each variable, and how many of them its parents explain.
        """
        v = residual_variances.T
        apart = np.log(v / self.common)
        shares = (0.5 * np.log(v) + 0.5 * apart * apart / self.n_samples).mean(axis=1)
        return float(shares @ explained) + self.penalty * int(sizes @ dag @ sizes)


def bic_penalty(n_samples: float) -> float:
    """Penalty of an edge, per row (Schwarz 1978); above 0, as fewer than two rows count as two."""
    n = max(_FEWEST, n_samples)
    return 0.5 * math.log(n) / n


def extended_penalty(n_samples: float, n_variables: int, gamma: float = 0.5) -> float:
    """Penalty of an edge, per row, that also pays for choosing it among many (extended BIC: Foygel and Drton 2010).

    Parameters
    ----------
    n_samples
        Fewer than two count as two: noise may be larger than all else.
    gamma
        Theirs: 0 is BIC, 1 the most that it pays for choosing.
    """
    n = max(_FEWEST, n_samples)
    return (0.5 * math.log(n) + 2.0 * gamma * math.log(n_variables)) / n


class NoisyScore(NamedTuple):
    """A negative log-likelihood of released numbers, and what edges cost beside it."""

    # What the log-likelihood by noise alone counts for: 1 if sampling error is small against the noise. That
    # error is in all releases, so that all of them together count for less where it is not.
    share: float
    penalty: float  # of an edge between two columns

    @classmethod
    def of(cls, noise: float, n_samples: float, n_variables: int) -> "NoisyScore":
        """From the variance that noise gives a correlation of residuals, and the records that it is one of."""
        squared = noise + 1.0 / n_samples
        return cls(noise / squared, extended_penalty(1.0 / squared, n_variables, _GAMMA_OF_NOISE) / squared)
