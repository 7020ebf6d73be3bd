"""How well a network describes rows: sums over them, by variable, that sites can add up.

Of each variable, the rows count that have it and all of its parents. A row is looked at with the values of the parents
that it has: what is summed is how likely the variable's value is there, how far it is from its mean, and how often
predicted probabilities come true.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import expit, ndtr

from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Family, Grade, Levels, Number, Table, positions
from fedbnsl.network.own_fit import best_log_likelihood
from fedbnsl.protocol.sparse import Index, Mask, Matrix

N_BINS = 10
"""Of predicted probabilities, and of the probability integral transform; each as wide as the others."""

N_SCORES = 128
"""Bins of the probability of the second of two levels, from which the area under the ROC curve follows.

The inner ones are equally wide in the logarithm of the odds, from -6 to 6.
"""

LEAST_PROBABILITY = 1e-12
"""What a level counts as that the network holds impossible, so that one such row is not all that a sum tells."""

_EDGES = expit(np.linspace(-6.0, 6.0, N_SCORES - 1))
_CENTRAL = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class Sums:
    """Over the rows of one variable.

    Attributes
    ----------
    rows, left_out
        Rows that have the variable and its parents; rows that have the variable, and lack a parent.
    log_likelihood
        Natural logarithm, of the variable given its parents, under the network.
    own
        The same under the fit of the same parents to these very rows; of several sites the sum of their own fits. None:
        there are too few rows for one.
    counts, numbers
        Of a number: rows within their central 95 % interval; and (3 + 10,) the sums of x - c, of (x - c)^2 and of
        (x - mean given the parents)^2, then rows by ten bins of the probability integral transform. Of K levels: (K,)
        rows of each, (10,) forecasts by bins of their probability, (10,) those of them that came true, and if K is 2
        (2, 128) rows of either level by bins of the probability of the second; and (10,) sums of probabilities.
    """

    rows: int
    left_out: int
    log_likelihood: float
    own: float | None
    counts: Index
    numbers: Matrix

    def __add__(self, other: Self) -> "Sums":
        alone = [one for one in (self, other) if one.rows]
        own = [one.own for one in alone if one.own is not None]
        return Sums(
            self.rows + other.rows,
            self.left_out + other.left_out,
            self.log_likelihood + other.log_likelihood,
            sum(own) if own and len(own) == len(alone) else None,
            self.counts + other.counts,
            self.numbers + other.numbers,
        )


def nothing(family: Family) -> Sums:
    """The sums of no row."""
    n_counts, n_numbers = sizes(family)
    return Sums(0, 0, 0.0, None, np.zeros(n_counts, dtype=np.int64), np.zeros(n_numbers))


def sizes(family: Family) -> tuple[int, int]:
    """How many counts and numbers the sums of a variable have."""
    K = levels_of(family)
    return (K + 2 * N_BINS + 2 * N_SCORES * (K == 2), N_BINS) if K else (1, 3 + N_BINS)


def levels_of(family: Family) -> int:
    """How many levels its variable has; 0: it is a number."""
    if isinstance(family, Levels):
        return len(family.columns) + 1
    return family.n_levels if isinstance(family, Grade | Table) else 0


def sums_of(network: BayesianNetwork, X: Matrix, centres: Matrix) -> dict[str, Sums]:
    """The sums of each variable over (n, d) rows, NaN where a value is missing.

    Parameters
    ----------
    centres
        (d,) of the columns: the c that sums of numbers are taken about.
    """
    gaps = np.isnan(X)
    return {name: _of_variable(one, X, gaps, centres) for name, one in network.families.items()}


def _of_variable(family: Family, X: Matrix, gaps: Mask, centres: Matrix) -> Sums:
    own = ~gaps[:, family.columns].any(axis=1)
    rows = np.flatnonzero(own & ~gaps[:, family.parents].any(axis=1))
    if not rows.size:
        found = nothing(family)
        return Sums(0, int(own.sum()), 0.0, None, found.counts, found.numbers)
    X = X[rows]
    K = levels_of(family)
    log_p = family.log_density(X)
    if K:
        log_p = np.maximum(log_p, math.log(LEAST_PROBABILITY))
    likely = float(log_p.sum())
    best = best_log_likelihood(family, X)
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
    return np.array([within]), np.array([about.sum(), about @ about, left @ left, *histogram(first, last)])


def _distribution(family: Family, X: Matrix) -> tuple[Matrix, Matrix]:
    """(n,) probabilities of values below the row's own, and of values up to it; the same of a continuous variable."""
    number = family
    if not isinstance(number, Number):
        raise TypeError(f"no distribution function of {type(family).__name__}")
    at, s = number.location(X), number.noise_std
    a, b, z = (number.low - at) / s, (number.high - at) / s, (X[:, number.column] - at) / s
    if not math.isfinite(number.low) and not math.isfinite(number.high):
        p = ndtr(z)
    else:
        # In the upper tail by what is above: both differences keep their digits there.
        up = a > 0.0
        lower = ndtr(np.where(up, -b, a)), ndtr(np.where(up, -a, b)), ndtr(np.where(up, -z, z))
        whole = np.maximum(lower[1] - lower[0], 1e-300)
        p = np.where(up, (lower[1] - lower[2]) / whole, (lower[2] - lower[0]) / whole)
    p = np.clip(p, 0.0, 1.0)
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
    bins = np.minimum((p * N_BINS).astype(np.int64), N_BINS - 1)
    forecasts = np.bincount(bins, minlength=N_BINS)
    hits = np.bincount(bins[true], minlength=N_BINS)
    counts = [np.bincount(at, minlength=K), forecasts, hits]
    if K == 2:
        places = np.searchsorted(_EDGES, P[:, 1])
        counts += [np.bincount(places[at == k], minlength=N_SCORES) for k in (0, 1)]
    return np.concatenate(counts), np.bincount(bins, weights=p, minlength=N_BINS).astype(np.float64)
