"""A test whether straight lines describe how variables depend on each other, from sums over the records of all sites.

Of a child's residuals e and the parts f of steps of another variable that no straight line explains, g = sum e f has
mean 0 where the graph and its straight lines hold. Its variance is M = sum e^2 f f', whatever the distribution (White
1980), so that g' M^-1 g is chi-square with as many degrees of freedom as steps. Divided by the rows it is the share of
the child's residual variance that the steps explain. A curve counts if both chance and size say so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.inference.heterogeneity import chi_square_tails, holm, statistic_of_sums

# Chance of a false alarm in a run.
_LEVEL = 0.01
LEAST_SHARE = 0.01
"""Of a child's residual variance; curves that explain less change no graph."""


class Curve(NamedTuple):
    """A straight line that does not describe a pair."""

    source: str
    target: str
    share: float  # of the residual variance of the target that steps of the source explain


@dataclass(frozen=True)
class Curvature:
    """What was looked at, and what was found, the largest first."""

    n_tested: int
    n_possible: int
    curves: tuple[Curve, ...]


def curvature_of(sums: Matrix, pairs: Index, names: tuple[str, ...], n_possible: int = 0) -> Curvature:
    """Test the pairs.

    Parameters
    ----------
    sums
        (k, 10) over all sites, as in `fedbnsl.rounds.curvature`.
    pairs
        (k, 2) columns: another one, and a child.
    names
        Of the columns.
    n_possible
        Pairs that there are, if more than these.
    """
    tests = list(map(statistic_of_sums, sums))
    told = np.array([degrees > 0 for _, degrees in tests], dtype=bool)
    statistic, degrees = (np.array([one[k] for one in tests])[told] for k in (0, 1))
    p = holm(chi_square_tails(statistic, degrees)) if told.any() else np.empty(0)
    share = statistic / np.maximum(sums[told, 0], 1.0)
    found = (p < _LEVEL) & (share >= LEAST_SHARE)
    order = np.flatnonzero(found)[np.argsort(-share[found], kind="stable")]
    return Curvature(
        int(told.sum()), max(n_possible, len(pairs)), tuple(_curves(pairs[told][order], share[order], names))
    )


def _curves(pairs: Index, share: Matrix, names: tuple[str, ...]) -> Iterator[Curve]:
    for (a, c), one in zip(pairs.tolist(), share.tolist(), strict=True):
        yield Curve(names[a], names[c], min(one, 1.0))
