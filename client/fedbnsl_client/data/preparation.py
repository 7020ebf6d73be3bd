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
from fedbnsl.protocol.sparse import Index, Matrix
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


def column_means(X: Matrix, n_values: Index | None = None) -> Matrix:
    """(d,) means of an (n, d) table, corrected once: a plain sum loses digits where means are large.

    `n_values`: (d,) values of each column, where it has gaps; the mean of none is 0.
    """
    total, n = (np.sum, len(X)) if n_values is None else (np.nansum, np.maximum(n_values, 1))
    means = np.asarray(sum_over_rows(X, lambda X: total(X, axis=0)) / n)
    return np.asarray(means + sum_over_rows(X, lambda X: total(X - means, axis=0)) / n)


def values_by_column(X: Matrix) -> Index | None:
    """(d,) how many rows of an (n, d) table have a value in each column; None: all."""
    counts = np.asarray(sum_over_rows(X, lambda X: (~np.isnan(X)).sum(axis=0)))
    return None if (counts == len(X)).all() else counts


def has_intercept(preparation: Preparation | None) -> bool:
    """Whether a site's own regressions have an intercept."""
    return preparation is not None and preparation.intercept != "none"


def column_statistics(X: Matrix, preparation: Preparation) -> tuple[Matrix, Matrix, Index]:
    """What a site answers to a statistics round: its means where all sites share one, its variances, and its values.

    `X`: (n, d); without missing values, but where EM completes them.

    Returns
    -------
    means
        (d,), or empty where they stay at the site.
    variances
        (d,) mean squares about the site's means, or about zero where nothing is taken off; empty where the plan does
        not need them.
    n_values
        (d,) rows with a value in each column; empty where no value is missing.
    """
    n_values = values_by_column(X) if preparation.missing == "em" else None
    told = np.empty(0, dtype=np.int64) if n_values is None else n_values
    if not preparation.needs_variances:
        return np.empty(0), np.empty(0), told
    total, n = (np.sum, len(X)) if n_values is None else (np.nansum, np.maximum(n_values, 1))
    centre = np.zeros(X.shape[1]) if preparation.intercept == "none" else column_means(X, n_values)
    variances = np.asarray(sum_over_rows(X, lambda X: total(np.square(X - centre), axis=0)) / n)
    return (centre if preparation.intercept == "common" else np.empty(0)), variances, told


def prepared(X: Matrix, preparation: Preparation, units: Units | None, noisy: NoisyColumns | None = None) -> Prepared:
    """What prepares the records of an (n, d) table; without units, scales are 1.

    `noisy`: in a private run, what was released of the columns: the table itself is then not looked at.
    """
    d = X.shape[1]
    if noisy is not None:
        centre = noisy.means
    elif preparation.intercept == "site":
        centre = column_means(X, values_by_column(X) if preparation.missing == "em" else None)
    else:
        centre = units.centres if units is not None and units.centres.size else np.zeros(d)
    return Prepared(centre, np.ones(d) if units is None else units.scales)


def prepared_rows(X: Matrix, by: Prepared) -> Matrix:
    """(n, d) prepared table, zeros in the rows with a missing value; in a file if X is."""

    def rows(block: Matrix) -> Matrix:
        return zeros_for_gaps((block - by.centre) / by.scale)

    return gathered(map(rows, row_blocks(X)), X.shape[1])
