"""How well numbers of the other sites describe a site that had no part in them, from second moments by site.

For a child y with parents x, moments S_s of site s about its own means, and M of all other sites together,

    b = M_xx^-1 M_xy,    v = M_yy - b' M_xy,    e = S_yy - 2 b' S_xy + b' S_xx b:

v is the variance of the noise by the other sites, and e the mean squared error of their weights in the rows of s, with
its own mean. The graph is that of all sites, s among them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Matrix

LEAST_SHARE = 0.9
"""Of rows that have a value of a column: where fewer do, moments are more what completes them than what sites have."""


class LeftOut(NamedTuple):
    """Of one site and one variable."""

    rows: float
    error: float  # e, and S_yy, in squared units of the run's columns
    variance: float
    gain: float  # of log-likelihood a row, in nats, above the variable by itself, with the site's own variance


def by_the_others(
    moments: Mapping[str, Matrix],
    rows: Mapping[str, float],
    shares: Mapping[str, Matrix],
    families: Mapping[str, tuple[int, Sequence[int]]],
) -> dict[str, dict[str, LeftOut]]:
    """By variable, each site that others tell of: straight lines alone.

    Parameters
    ----------
    moments
        (d, d) by site; NaN where they are not known.
    shares
        (d,) by site: of rows that have a value.
    families
        By variable its column, and those of its parents, one or more.
    """
    found: dict[str, dict[str, LeftOut]] = {}
    for name, (child, parents) in families.items():
        at = [*parents, child]
        own = {
            site: S[np.ix_(at, at)]
            for site, S in moments.items()
            if (shares[site][at] >= LEAST_SHARE).all() and np.isfinite(S[np.ix_(at, at)]).all()
        }
        for site, S in own.items():
            others = {other: T for other, T in own.items() if other != site}
            if not others or S[-1, -1] <= 0.0:
                continue
            M = np.average(list(others.values()), axis=0, weights=[rows[other] for other in others])
            told = _one(S, M, rows[site])
            if told is not None:
                found.setdefault(name, {})[site] = told
    return found


def _one(S: Matrix, M: Matrix, rows: float) -> LeftOut | None:
    b = np.linalg.lstsq(M[:-1, :-1], M[:-1, -1], rcond=None)[0]
    noise = float(M[-1, -1] - b @ M[:-1, -1])
    variance, error = float(S[-1, -1]), float(S[-1, -1] - 2.0 * b @ S[:-1, -1] + b @ S[:-1, :-1] @ b)
    if noise <= 0.0:  # parents determine it: no noise to speak of
        return None
    error = max(error, 0.0)
    gain = 0.5 * (math.log(variance / noise) + 1.0 - error / noise)
    return LeftOut(rows, error, variance, gain)
