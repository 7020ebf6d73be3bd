"""A site's part of the plan's preparation: what its columns are like, and how they become comparable.

A prepared record is (x - centre) / scale. Scales are released numbers, the same at every site. The centre is the site's
own mean, one that all sites share, or zero, as the plan says; a site tells its own mean only if the plan tells means.

In a private run the mean is the noisy one that was paid for, so that a prepared record depends on no other record but
through numbers that were released. An exact mean would void the guarantee: one outlier would move all other records.
To private steps a record with a missing value counts as zeros.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from fedbnsl.plan.preparation import Preparation
from fedbnsl.protocol.messages import Units
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.checks import zeros_for_gaps
from fedbnsl_client.data.mapped_array import gathered, row_blocks, sum_over_rows

# Fewer values than records are told by a count that is so many standard deviations of its noise below.
_WIDTHS = 3.0


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
    n_values
        (d,) rows that have a value, at least 1.
    share
        (d,) of all rows, those that have a value; 1 where the noise does not tell fewer.
    means, variances
        (d,) each, in units of the columns; noise may make variances negative.
    """

    n_values: Matrix
    share: Matrix
    means: Matrix
    variances: Matrix

    @classmethod
    def of(
        cls, sums: Matrix, low: Matrix, high: Matrix, variable_of: Index, *, n_samples: int, noise_std: float
    ) -> Self:
        """From the sums of `private_moments.release_statistics`, and the bounds that they were made with.

        Parameters
        ----------
        variable_of
            (d,) position of each column's variable.
        n_samples
            Records, a public number.
        noise_std
            Of each sum, in records.
        """
        counts, (u, squares) = sums[: -2 * len(low)], sums[-2 * len(low) :].reshape(2, -1)
        rows = np.maximum(counts, 1.0)[variable_of]
        share = np.where(rows < n_samples - _WIDTHS * noise_std, rows / n_samples, 1.0)
        half, mean = (high - low) / 2.0, np.clip(u / rows, -1.0, 1.0)
        return cls(rows, share, (low + high) / 2.0 + half * mean, half**2 * (squares / rows - mean**2))


def column_means(X: Matrix) -> Matrix:
    """(d,) means of the values that an (n, d) table has; 0 for a column without one."""
    return means_and_counts(X)[0]


def means_and_counts(X: Matrix) -> tuple[Matrix, Matrix]:
    """(d,) means, corrected once, for a plain sum loses digits where means are large; and (d,) counts of values."""
    means, counts = _mean_of_values(X, lambda block: block)
    return means + _mean_of_values(X, lambda block: block - means)[0], counts


def _mean_of_values(X: Matrix, f: Callable[[Matrix], Matrix]) -> tuple[Matrix, Matrix]:
    """(d,) mean of f over the values of each column, and how many these are: one pass, the bits of a plain sum."""

    def sums(block: Matrix) -> Matrix:
        found = f(block)
        return np.stack([np.nansum(found, axis=0), (~np.isnan(found)).sum(axis=0)])

    total, counts = sum_over_rows(X, sums)
    return np.asarray(total / np.maximum(counts, 1.0)), counts


def has_intercept(preparation: Preparation | None) -> bool:
    """Whether a site's own regressions have an intercept."""
    return preparation is not None and preparation.intercept != "none"


def column_statistics(X: Matrix, preparation: Preparation) -> tuple[Matrix, Matrix, Matrix]:
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
    centre = np.zeros(X.shape[1])
    if preparation.needs_variances and preparation.intercept != "none":
        centre = column_means(X)
    variances, counts = _mean_of_values(X, lambda block: np.square(block - centre))
    n_values = np.empty(0) if (counts == len(X)).all() else counts
    if not preparation.needs_variances:
        return np.empty(0), np.empty(0), n_values
    return (centre if preparation.intercept == "common" else np.empty(0)), variances, n_values


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
