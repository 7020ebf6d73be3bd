"""Whether sites have the same shares of a variable's levels, given its parents: Pearson's chi-square of their tables.

For each combination of the parents' levels, the table of sites by levels; statistics and degrees of freedom are added
up over the combinations (Agresti 2013, section 6.4.3). Where sites agree, the sum is chi-square if records are enough:
rare levels are merged, and sites with few records left out, until at least so many are expected in each cell. Both go
by the sums of rows and columns alone, which tell nothing of whether sites agree.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Matrix

_LEAST_EXPECTED = 3.0


class Agreement(NamedTuple):
    """A sum of Pearson's chi-squares, and its degrees of freedom; 0: records are too few to tell."""

    q: float
    degrees: int


def agreement_of(tables: Sequence[Matrix]) -> Agreement:
    """Of the sites' (K, r) tables of a variable's r levels by K combinations of its parents' levels."""
    q, degrees = 0.0, 0
    for sites_by_levels in np.stack(tables, axis=1):
        n = _with_enough(sites_by_levels)
        if min(n.shape) > 1:
            expected = _expected(n)
            q += float(((n - expected) ** 2 / expected).sum())
            degrees += (n.shape[0] - 1) * (n.shape[1] - 1)
    return Agreement(q, degrees)


def _with_enough(n: Matrix) -> Matrix:
    """The counts of fewer sites, and of levels of which the rarest are merged, two at least where there are."""
    n = n[n.sum(axis=1) > 0.0][:, n.sum(axis=0) > 0.0]
    while min(n.shape) > 1 and _expected(n).min() < _LEAST_EXPECTED:
        if n.shape[1] > 2:
            rarest = np.argsort(n.sum(axis=0), kind="stable")
            n = np.column_stack([n[:, rarest[:2]].sum(axis=1), n[:, rarest[2:]]])
        else:
            n = np.delete(n, n.sum(axis=1).argmin(), axis=0)
    return n


def _expected(n: Matrix) -> Matrix:
    return np.asarray(np.outer(n.sum(axis=1), n.sum(axis=0)) / n.sum())
