"""A site's part of the plan's preparation: what its columns are like, and how they become comparable.

A prepared record is (x - centre) / scale. Scales are released numbers, the same at every site. The centre is the site's
own mean, one that all sites share, or zero, as the plan says; a site's own mean never leaves it.
"""

from typing import NamedTuple

import numpy as np

from fedbnsl.messages import Units
from fedbnsl.plan.preparation import Preparation
from fedbnsl.sparse import Matrix
from fedbnsl_client.data.mapped_array import sum_over_rows


class Prepared(NamedTuple):
    """What prepares a record.

    Attributes
    ----------
    centre, scale
        (d,) each, in units of the variables.
    """

    centre: Matrix
    scale: Matrix


def column_means(X: Matrix) -> Matrix:
    """(d,) means of an (n, d) table, corrected once: a plain sum loses digits where means are large."""
    means = np.asarray(sum_over_rows(X, lambda X: X.sum(axis=0)) / len(X))
    return np.asarray(means + sum_over_rows(X, lambda X: (X - means).sum(axis=0)) / len(X))


def has_intercept(preparation: Preparation | None) -> bool:
    """Whether a site's own regressions have an intercept."""
    return preparation is not None and preparation.intercept != "none"


def column_statistics(X: Matrix, preparation: Preparation) -> tuple[Matrix, Matrix]:
    """What a site answers to a statistics round: its means where all sites share one, and its variances.

    Returns
    -------
    means
        (d,), or empty where they stay at the site.
    variances
        (d,) mean squares about the site's means, or about zero where nothing is taken off.
    """
    centre = np.zeros(X.shape[1]) if preparation.intercept == "none" else column_means(X)
    variances = np.asarray(sum_over_rows(X, lambda X: np.square(X - centre).sum(axis=0)) / len(X))
    return (centre if preparation.intercept == "common" else np.empty(0)), variances


def prepared(X: Matrix, preparation: Preparation, units: Units | None) -> Prepared:
    """What prepares the records of an (n, d) table; without units, scales are 1."""
    d = X.shape[1]
    if preparation.intercept == "site":
        centre = column_means(X)
    else:
        centre = units.centres if units is not None and units.centres.size else np.zeros(d)
    return Prepared(centre, np.ones(d) if units is None else units.scales)
