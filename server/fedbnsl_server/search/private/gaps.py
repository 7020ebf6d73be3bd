"""Private releases over records with gaps, as if they had none.

A record that lacks one of two residuals adds to their product what the model of the task expects, which is nothing: so
the product is that of the records that have both, times their share of all. Divided by this share it is free of the
model, which in the first round knows of no dependence. The model gets better from round to round, and what parents
lack, which the share does not count, is told by it.

A division widens the noise, and one width is known of a release. So where the noise of a rare pair would stand out of
its sampling error, it is divided by no less than the mean share: then it is told too small, but not too loud.
"""

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.private.pooled_moments import SiteRelease

# What fewer of all records have in common is not told from the noise.
_LEAST_SHARE = 0.1


def pair_shares(value_shares: Matrix, there: Mask, n_samples: Matrix, variable_of: Index) -> Matrix:
    """(d, d) of all records, about those that have the values of both columns.

    As if cells of two variables were missing independently at the sites that have them.

    Parameters
    ----------
    value_shares
        (d,) of all records, those that have a value.
    there
        (P, d) which columns a site has, as the plan says; (P,) `n_samples` are its records.
    variable_of
        (d,) position of each column's variable: columns of one are missing together.
    """
    of_sites = there.T @ (there * n_samples[:, None]) / n_samples.sum()
    of_cells = np.minimum(value_shares / of_sites.diagonal(), 1.0)
    alike = variable_of == variable_of[:, None]
    return np.maximum(np.where(alike, value_shares, of_sites * np.outer(of_cells, of_cells)), _LEAST_SHARE)


def typical(shares: Matrix, variable_of: Index) -> float:
    """The mean share of a pair of columns of two variables."""
    apart = variable_of != variable_of[:, None]
    return float(shares[apart].mean()) if apart.any() else 1.0


def as_if_whole(one: SiteRelease, shares: Matrix, variable_of: Index, left_empty: Index) -> SiteRelease:
    """Moments of residuals of all records, from those with gaps.

    Parameters
    ----------
    shares
        (d, d) of `pair_shares`.
    variable_of
        (d,) position of each column's variable.
    left_empty
        Columns whose gaps the model did not fill: their mean squares are those of the values, times their share.
    """
    d, mean = len(shares), typical(shares, variable_of)
    size = max(float(np.median(one.moments.diagonal())), one.noise_std)
    least = min((one.noise_std / size) ** 2 * one.n_samples, mean)
    by = np.maximum(shares, least)
    np.fill_diagonal(by, np.where(np.isin(np.arange(d), left_empty), shares.diagonal(), 1.0))
    n_samples = max(one.n_samples * mean, 1.0)
    return one._replace(moments=one.moments / by, noise_std=one.noise_std / mean, n_samples=n_samples)
