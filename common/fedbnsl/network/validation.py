"""How well a network describes rows: sums over them, by variable, that sites can add up.

Of each variable, the rows count that have it and all of its parents. A row is looked at with the values of the parents
that it has: what is summed is how likely the variable's value is there, how far it is from its mean, and how often
predicted probabilities come true.
"""

import math

import numpy as np
from scipy.special import expit, gammaln, ndtr

from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Count, Family, Grade, Levels, Number, Table, positions
from fedbnsl.network.own_fit import SIZES, best_log_likelihood
from fedbnsl.network.own_means import with_own_mean
from fedbnsl.network.sums import N_BINS, N_SCORES, Both, Sums
from fedbnsl.protocol.sparse import Index, Mask, Matrix

LEAST_PROBABILITY = 1e-12
"""What a level counts as that the network holds impossible, so that one such row is not all that a sum tells."""

_TENTHS = np.arange(1, N_BINS) / N_BINS
_EDGES = expit(np.linspace(-10.0, 10.0, N_SCORES - 1))
# Each of the ten bins is made of whole ones: what both tell together, by subtraction, is of no fewer rows.
_EDGES[np.abs(_EDGES[:, None] - _TENTHS).argmin(axis=0)] = _TENTHS
_CENTRAL = (0.025, 0.975)


def both_of(network: BayesianNetwork, X: Matrix, centres: Matrix) -> dict[str, Both]:
    """By variable; see `sums_of`."""
    common, own = (sums_of(network, X, centres, own_means=one) for one in (False, True))
    return {name: Both(common[name], own[name]) for name in network.families}


def nothing(family: Family) -> Sums:
    """The sums of no row."""
    n_counts, n_numbers = sizes(family)
    return Sums(0, 0, 0.0, None, np.zeros(n_counts, dtype=np.int64), np.zeros(n_numbers))


def sizes(family: Family) -> tuple[int, int]:
    """How many counts and numbers the sums of a variable have."""
    K = levels_of(family)
    return (
        (K + 2 * N_BINS + 2 * N_SCORES * (K == 2), N_BINS)
        if K
        else (1, 3 + N_BINS + (2 + len(SIZES)) * isinstance(family, Count))
    )


def levels_of(family: Family) -> int:
    """How many levels its variable has; 0: it is a number."""
    if isinstance(family, Levels):
        return len(family.columns) + 1
    return family.n_levels if isinstance(family, Grade | Table) else 0


def sums_of(network: BayesianNetwork, X: Matrix, centres: Matrix, *, own_means: bool = False) -> dict[str, Sums]:
    """The sums of each variable over (n, d) rows, NaN where a value is missing.

    Parameters
    ----------
    centres
        (d,) of the columns: the c that sums of numbers are taken about.
    own_means
        Whether each family has the intercept that is best for these rows.
    """
    gaps, room = np.isnan(X), np.empty(X.shape, order="F")
    with np.errstate(all="ignore"):  # of trial steps far off, which are not taken
        return {name: _of_variable(one, X, gaps, room, centres, own_means) for name, one in network.families.items()}


def _of_variable(family: Family, X: Matrix, gaps: Mask, room: Matrix, centres: Matrix, own_means: bool) -> Sums:
    own = ~gaps[:, family.columns].any(axis=1)
    rows = np.flatnonzero(own & ~gaps[:, family.parents].any(axis=1))
    if not rows.size:
        found = nothing(family)
        return Sums(0, int(own.sum()), 0.0, None, found.counts, found.numbers)
    # Only these columns are looked at: copies of all, for each of many variables, would take most of the time.
    looked_at = np.concatenate([family.columns, family.parents])
    room[: len(rows), looked_at] = X[np.ix_(rows, looked_at)]
    X = room[: len(rows)]
    family = with_own_mean(family, X) if own_means else family
    K = levels_of(family)
    log_p = family.log_density(X)
    if K:
        log_p = np.maximum(log_p, math.log(LEAST_PROBABILITY))
    likely = float(log_p.sum())
    best = best_log_likelihood(family, X)
    if best is not None and not math.isfinite(best):
        best = None
    counts, numbers = _of_levels(family, X, K) if K else _of_number(family, X, centres)
    # Of the network's own numbers, too, the best fit is at least as good.
    return Sums(
        len(rows), int(own.sum()) - len(rows), likely, None if best is None else max(best, likely), counts, numbers
    )


def _of_number(family: Family, X: Matrix, centres: Matrix) -> tuple[Index, Matrix]:
    column = int(family.columns[0])
    about, left = X[:, column] - centres[column], X[:, column] - family.mean(X)[:, 0]
    first, last = _distribution(family, X)
    low, high = _CENTRAL
    within = int(((last > low) & (first < high)).sum())
    found = [about.sum(), about @ about, left @ left, *histogram(first, last)]
    if isinstance(family, Count):
        k = family.counts(X)
        of_sizes: Matrix = np.sum(gammaln(k[:, None] + SIZES), axis=0)
        found += [k.sum(), float(np.sum(gammaln(k + 1.0))), *of_sizes.tolist()]
    return np.array([within]), np.array(found)


def _distribution(family: Family, X: Matrix) -> tuple[Matrix, Matrix]:
    """(n,) probabilities of values below the row's own, and of values up to it; the same of a continuous variable."""
    if isinstance(family, Count):
        k, rates = family.counts(X), family.rates(family.location(X))
        first, last = (family.up_to(np.maximum(one, 0.0), rates) for one in (k - 1.0, k))
        return np.where(k <= family.low, 0.0, first), np.where(k >= family.high, 1.0, last)
    if not isinstance(family, Number):
        raise TypeError(f"no distribution function of {type(family).__name__}")
    at, s = family.centre(X), family.noise_std
    first, last, here = (ndtr((end - at) / s) for end in (family.low, family.high, X[:, family.column]))
    p = np.clip((here - first) / (last - first), 0.0, 1.0)
    return p, p


def histogram(first: Matrix, last: Matrix) -> Matrix:
    """(10,) rows by bins; one whose value has a probability is spread over it (Czado, Gneiting and Held 2009)."""
    ends = np.arange(N_BINS + 1) / N_BINS
    wide = last > first
    share = np.clip((ends - first[wide, None]) / (last - first)[wide, None], 0.0, 1.0)
    at = np.minimum((first[~wide] * N_BINS).astype(np.int64), N_BINS - 1)
    return np.asarray(np.diff(share, axis=1).sum(axis=0) + np.bincount(at, minlength=N_BINS))


def _of_levels(family: Family, X: Matrix, K: int) -> tuple[Index, Matrix]:
    if not isinstance(family, Grade | Levels | Table):
        raise TypeError(f"no probabilities of {type(family).__name__}")
    P, at = family.probabilities(X), positions(X, family.columns, K)
    # Of two levels the forecast of the second tells that of the first.
    p = P[:, 1] if K == 2 else P.ravel()
    true = at == 1 if K == 2 else (at[:, None] == np.arange(K)).ravel()
    bins = np.searchsorted(_TENTHS, p, side="right")
    forecasts = np.bincount(bins, minlength=N_BINS)
    hits = np.bincount(bins[true], minlength=N_BINS)
    counts = [np.bincount(at, minlength=K), forecasts, hits]
    if K == 2:
        places = np.searchsorted(_EDGES, P[:, 1], side="right")
        counts += [np.bincount(places[at == k], minlength=N_SCORES) for k in (0, 1)]
    return np.concatenate(counts), np.bincount(bins, weights=p, minlength=N_BINS).astype(np.float64)
