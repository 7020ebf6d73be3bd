"""A site's part of the plan's preparation: what its columns are like, and how they become comparable.

A prepared record is (x - centre) / scale. Scales are released numbers, the same at every site. The centre is the site's
own mean, one that all sites share, or zero, as the plan says; a site's own mean never leaves it.

In a private run the mean is the noisy one that was paid for, so that a prepared record depends on no other record but
through numbers that were released. An exact mean would void the guarantee: one outlier would move all other records.
A record with a missing value counts as zeros.
"""

from typing import NamedTuple, Self

import numpy as np

from fedbnsl.plan.preparation import Preparation
from fedbnsl.protocol.messages import Units
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.checks import zeros_for_gaps
from fedbnsl_client.data.mapped_array import gathered, row_blocks, sum_over_rows


class Prepared(NamedTuple):
    """What prepares a record.

    Attributes
    ----------
    centre, scale
        (d,) each, in units of the variables.
    """

    centre: Matrix
    scale: Matrix


class NoisyColumns(NamedTuple):
    """What a paid release tells of a site's columns.

    Attributes
    ----------
    complete_rows
        At least 1.
    means, variances
        (d,) each, in units of the columns; noise may make variances negative.
    """

    complete_rows: float
    means: Matrix
    variances: Matrix

    @classmethod
    def of(cls, sums: Matrix, low: Matrix, high: Matrix) -> Self:
        """From the (2 d + 1,) sums of `private_moments.release_statistics`, and the bounds that they were made with."""
        rows, (u, squares) = max(float(sums[0]), 1.0), sums[1:].reshape(2, -1)
        half, mean = (high - low) / 2.0, np.clip(u / rows, -1.0, 1.0)
        return cls(rows, (low + high) / 2.0 + half * mean, half**2 * (squares / rows - mean**2))


def column_means(X: Matrix) -> Matrix:
    """(d,) means of an (n, d) table, corrected once: a plain sum loses digits where means are large."""
    means = np.asarray(sum_over_rows(X, lambda X: X.sum(axis=0)) / len(X))
    return np.asarray(means + sum_over_rows(X, lambda X: (X - means).sum(axis=0)) / len(X))


def has_intercept(preparation: Preparation | None) -> bool:
    """Whether a site's own regressions have an intercept."""
    return preparation is not None and preparation.intercept != "none"


def column_statistics(X: Matrix, preparation: Preparation) -> tuple[Matrix, Matrix]:
    """What a site answers to a statistics round: its means where all sites share one, and its variances.

    `X`: (n, d) without missing values.

    Returns
    -------
    means
        (d,), or empty where they stay at the site.
    variances
        (d,) mean squares about the site's means, or about zero where nothing is taken off; empty where the plan does
        not need them.
    """
    if not preparation.needs_variances:
        return np.empty(0), np.empty(0)
    centre = np.zeros(X.shape[1]) if preparation.intercept == "none" else column_means(X)
    variances = np.asarray(sum_over_rows(X, lambda X: np.square(X - centre).sum(axis=0)) / len(X))
    return (centre if preparation.intercept == "common" else np.empty(0)), variances


def prepared(X: Matrix, preparation: Preparation, units: Units | None, noisy: NoisyColumns | None = None) -> Prepared:
    """What prepares the records of an (n, d) table; without units, scales are 1.

    `noisy`: in a private run, what was released of the columns: the table itself is then not looked at.
    """
    d = X.shape[1]
    if noisy is not None:
        centre = noisy.means
    elif preparation.intercept == "site":
        centre = column_means(X)
    else:
        centre = units.centres if units is not None and units.centres.size else np.zeros(d)
    return Prepared(centre, np.ones(d) if units is None else units.scales)


def prepared_rows(X: Matrix, by: Prepared) -> Matrix:
    """(n, d) prepared table, zeros in the rows with a missing value; in a file if X is."""

    def rows(block: Matrix) -> Matrix:
        return zeros_for_gaps((block - by.centre) / by.scale)

    return gathered(map(rows, row_blocks(X)), X.shape[1])
