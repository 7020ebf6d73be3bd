"""Maximum likelihood covariances of tables with gaps, by EM over rounds. Pure mathematics.

Each round the sites complete the sums of their rows by the present covariances S (the E step), and the pooled sums are
the next S (the M step). The start are products over the rows that have both columns. Anderson acceleration combines the
last few steps, by least squares of whitened residuals. After one that lowered the likelihood it begins again from plain
steps; one that is nearly singular gives way to the plain step.

Pairs of columns that no row has together do not enter the likelihood: of all covariances that they may have, these get
the ones with zero partial correlations (maximum entropy; Dempster 1972).

Source: Dempster, Laird and Rubin (1977); Walker and Ni, Anderson acceleration for fixed-point iterations (2011).
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Index, Mask, Matrix, symmetric_of, upper

Unfit = Literal["", "columns", "few", "differ", "unknown"]
"""A site lacks columns; too few; rows with a gap differ from them; not tested, as in runs of earlier versions."""

# EM ends when no covariance of whitened columns changes by more than this share of its standard error.
_SHARE_OF_ERROR = 0.02
# Least eigenvalue of the first correlations: pairwise products may be far from positive.
_LEAST_EIGENVALUE = 0.01
# Steps that are combined.
_DEPTH = 5
# Of the least eigenvalue of a combined step, in units in which those of the plain one are 1.
_LEAST_KEPT = 0.3
# A lower likelihood, as a share of itself, is rounding.
_ROUNDING = 1e-9
_MOST_SWEEPS, _SMALL = 50, 1e-8
# Of a column's variance, what others need not explain: of one that they determine, this part goes to zero for ever.
_UNEXPLAINED = 1e-5
# Of moments that were sent as float32.
_RIDGE_OF_SENT = 1e-5


@dataclass(frozen=True, eq=False)
class Completion:
    """Where EM stands.

    Attributes
    ----------
    n_pairs
        By site, (d, d) rows that have both columns; empty before the first iteration.
    by
        What completes rows in the next iteration, or, once it is done, in all later rounds; None before the first.
    arguments, values
        (k, D) parameters of the last steps, and what EM made of them: the covariances i <= j, then the means.
    log_likelihood
        At the last of these arguments.
    change
        Of a covariance of whitened columns, at most, in the last iteration.
    iterations
        How many there were.
    done
        Whether it has ended.
    differences
        By site, (d, d) [j, k] by how many standard errors the mean of column k is larger in rows that have column j
        than in those that lack it.
    complete_rows
        By site, its rows without a gap.
    unfit
        Why rows without a gap cannot stand for all rows; empty: they can. Decided once, so that no ejection of a site
        changes what later rounds ask for.
    """

    n_pairs: Mapping[str, Matrix] = field(default_factory=dict[str, Matrix])
    by: Covariances | None = None
    arguments: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    values: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    log_likelihood: float = -math.inf
    change: float = math.inf
    iterations: int = 0
    done: bool = False
    differences: Mapping[str, Matrix] = field(default_factory=dict[str, Matrix])
    complete_rows: Mapping[str, int] = field(default_factory=dict[str, int])
    unfit: Unfit = "unknown"

    @cached_property
    def pair_rows(self) -> Matrix:
        """(d, d) rows of all sites that have both columns."""
        return np.asarray(sum(self.n_pairs.values()))

    @property
    def known_share(self) -> float:
        """How many of the rows of all sites count in scores and intervals."""
        return _known_share(self.pair_rows, lacks_columns=self.lacks_columns)

    def known_share_of(self, site: str) -> float:
        """How many of the rows of one site count, for the columns that it has; if it has not said, as of all sites."""
        return _known_share(self.n_pairs.get(site, self.pair_rows))

    @property
    def widening(self) -> Matrix:
        """(d, d) factors of the errors of moments of two columns that few rows have together; infinite: no row has.

        At least 1: where a pair has more rows than count, other columns of a family may have fewer.
        """
        with np.errstate(divide="ignore"):
            rows = self.known_share * self.pair_rows.max() / self.pair_rows
        return np.asarray(np.sqrt(np.maximum(rows, 1.0)))

    @property
    def lacks_columns(self) -> bool:
        """Whether some site has no row with both of some columns."""
        return any((n == 0.0).any() for n in self.n_pairs.values())

    def rows_of_pairs(self, site: str) -> Matrix:
        """(d, d) rows of this site that have both columns; 0 if it has not said."""
        return self.n_pairs.get(site, np.zeros_like(self.pair_rows))

    def has(self, site: str) -> Mask:
        """(d, d) pairs of columns that some row of this site has both of; none if it has not said."""
        return np.asarray(self.rows_of_pairs(site) > 0.0)

    @property
    def never_together(self) -> Mask:
        """(d, d) pairs of columns that no row has both of."""
        return np.asarray(self.pair_rows == 0.0)

    def over(self, kept: Index) -> Self:
        """What it says of some of the columns, for the search and the result."""
        n_pairs, differences = (
            {site: one[np.ix_(kept, kept)] for site, one in told.items()} for told in (self.n_pairs, self.differences)
        )
        return replace(self, n_pairs=n_pairs, differences=differences)

    def without(self, sites: Collection[str]) -> Self:
        """Without the rows of some sites; as it is if others have told none. `by` stays as they helped to find it."""
        if not self.n_pairs.keys() - set(sites):
            return self
        n_pairs, differences = (
            {site: one for site, one in told.items() if site not in sites} for told in (self.n_pairs, self.differences)
        )
        complete_rows = {site: n for site, n in self.complete_rows.items() if site not in sites}
        return replace(self, n_pairs=n_pairs, differences=differences, complete_rows=complete_rows)

    @property
    def has_converged(self) -> bool:
        """Whether the last iteration changed nothing that matters."""
        return self.change <= self.tolerance

    @property
    def tolerance(self) -> float:
        """The change at which it ends."""
        return tolerance(self.pair_rows.max())


def tolerance(n_rows: float) -> float:
    """The change below which EM ends."""
    return _SHARE_OF_ERROR / math.sqrt(max(n_rows, 1.0))


def own_share(S: Matrix, pooled: Matrix, known: float) -> float:
    """Of the (d, d) completed moments S of a site, what share counts as its own, at least the known one.

    Its own moments, pooled + (S - pooled) / share, must have no negative eigenvalue: the least one, in units of the
    pooled moments, stays above half of that of S. It is not known where moments were not asked for: the share is 1.
    """
    if known == 1.0 or np.isnan(S).any():
        return 1.0
    varies = pooled.diagonal() > 0.0
    pooled, S = pooled[np.ix_(varies, varies)], S[np.ix_(varies, varies)]
    size = np.sqrt(pooled.diagonal())
    R = pooled / size / size[:, None] + _RIDGE_OF_SENT * np.eye(len(S))
    W = np.linalg.inv(np.linalg.cholesky(R))
    below = float(np.linalg.eigvalsh(W @ ((S - pooled) / size / size[:, None]) @ W.T)[0])
    longest = (1.0 - below) / (-2.0 * below) if below < 0.0 else math.inf
    return max(known, min(1.0 / longest, 1.0))


def started(products: Mapping[str, Matrix], n_pairs: Mapping[str, Matrix], means: Matrix, varies: Mask) -> Completion:
    """After the first iteration.

    Parameters
    ----------
    products
        (d, d) mean products by site, over the rows that have both columns.
    means
        (d,) zeros where all sites share means; else empty.
    varies
        (d,) columns with a variance.
    """
    rows = np.asarray(sum(n_pairs.values()))
    total = np.asarray(sum(products[site] * n_pairs[site] for site in products))
    S = total / np.maximum(rows, 1.0)
    kept = np.flatnonzero(varies)
    size = np.sqrt(S.diagonal()[kept])
    values, vectors = np.linalg.eigh(S[np.ix_(kept, kept)] / size / size[:, None])
    first = np.zeros_like(S)
    R = (vectors * np.maximum(values, _LEAST_EIGENVALUE)) @ vectors.T
    first[np.ix_(kept, kept)] = R * size * size[:, None]
    # Symmetric to the last bit, as sites get it: they are sent one triangle.
    by = Covariances(symmetric_of(upper(_without_partial(first, rows == 0.0, kept)), len(S)), means)
    none = np.empty((0, _vector(by).size))
    return Completion(n_pairs, by, none, none, iterations=1)


def advanced(before: Completion, S: Matrix, mean: Matrix, log_likelihood: float, *, last: bool) -> Completion:
    """After another iteration.

    Parameters
    ----------
    S
        (d, d) pooled expected second moments.
    mean
        (d,) pooled mean expected values about the means that they were completed with; empty where sites use their own.
    last
        Whether no other iteration is left.
    """
    asked = before.by
    if asked is None:
        raise ValueError("the first iteration has no covariances")
    if mean.size:
        S, mean = S - np.outer(mean, mean), asked.means + mean
    kept, apart = np.flatnonzero(asked.S.diagonal() > 0.0), before.never_together
    new = Covariances(_without_partial(S, apart, kept), mean)
    argument, value = _vector(asked), _vector(new)
    whiten = _Whitening.of(new, kept)
    change = float(np.abs(whiten(value - argument)).max())
    found = replace(before, change=change, iterations=before.iterations + 1, log_likelihood=log_likelihood)
    if last or found.has_converged:
        return replace(found, done=True)
    fell = log_likelihood < before.log_likelihood - _ROUNDING * abs(before.log_likelihood)
    earlier = slice(0, 0) if fell else slice(-_DEPTH, None)
    arguments = np.vstack([before.arguments[earlier], argument])
    values = np.vstack([before.values[earlier], value])
    by = new
    if len(values) > 1:
        residuals = np.stack([whiten(one) for one in values - arguments])
        steps = np.diff(residuals, axis=0).T
        weights: Matrix = np.asarray(np.linalg.lstsq(steps, residuals[-1], rcond=1e-8)[0], dtype=np.float64)
        mixed = _covariances(value - weights @ np.diff(values, axis=0), len(S))
        if whiten.least(mixed.S) >= _LEAST_KEPT:
            by = replace(mixed, S=_without_partial(mixed.S, apart, kept))
    return replace(found, by=by, arguments=arguments, values=values)


@dataclass(frozen=True, eq=False)
class _Whitening:
    """Parameters in units in which the errors of all covariances are alike, whatever the correlations."""

    W: Matrix  # (k, k) inverse of the Cholesky factor of the kept columns' covariances
    kept: Index
    d: int

    @classmethod
    def of(cls, told: Covariances, kept: Index) -> Self:
        part = told.S[np.ix_(kept, kept)]
        ridged = part + _UNEXPLAINED * np.diag(part.diagonal())
        return cls(np.asarray(np.linalg.inv(np.linalg.cholesky(ridged)), dtype=np.float64), kept, len(told.S))

    def __call__(self, parameters: Matrix) -> Matrix:
        told = _covariances(parameters, self.d)
        S = self.W @ told.S[np.ix_(self.kept, self.kept)] @ self.W.T
        return np.concatenate([upper(S), self.W @ told.means[self.kept] if told.means.size else told.means])

    def least(self, S: Matrix) -> float:
        """The least eigenvalue of the kept columns' (d, d) covariances."""
        return float(np.linalg.eigvalsh(self.W @ S[np.ix_(self.kept, self.kept)] @ self.W.T)[0])


def _vector(told: Covariances) -> Matrix:
    return np.concatenate([upper(told.S), told.means])


def _covariances(parameters: Matrix, d: int) -> Covariances:
    n = d * (d + 1) // 2
    return Covariances(symmetric_of(parameters[:n], d), parameters[n:])


def _without_partial(S: Matrix, apart: Mask, kept: Index) -> Matrix:
    """(d, d) with zero partial correlations of these pairs among the kept columns; all other entries stay.

    One pair at a time, until none changes: each step changes one covariance, and the inverse by a matrix of rank 2.
    """
    pairs: list[list[int]] = np.argwhere(np.triu(apart[np.ix_(kept, kept)], k=1)).tolist()
    if not pairs:
        return S
    size = np.sqrt(S.diagonal()[kept])
    R = S[np.ix_(kept, kept)] / size / size[:, None]
    K = np.asarray(np.linalg.inv(R), dtype=np.float64)
    for _ in range(_MOST_SWEEPS):
        largest = 0.0
        for a, b in pairs:
            by = float(K[a, b] / (K[a, a] * K[b, b] - K[a, b] ** 2))
            largest = max(largest, abs(by))
            if abs(by) > _SMALL:
                R[a, b] += by
                R[b, a] += by
                inner = K[np.ix_([a, b], [a, b])] + np.array([[0.0, 1.0 / by], [1.0 / by, 0.0]])
                K = np.asarray(K - K[:, [a, b]] @ np.linalg.solve(inner, K[[a, b]]), dtype=np.float64)
        if largest <= _SMALL:
            break
    found = S.copy()
    found[np.ix_(kept, kept)] = R * size * size[:, None]
    return symmetric_of(upper(found), len(S))


def _known_share(n_pairs: Matrix, *, lacks_columns: bool = False) -> float:
    """Of the rows, from (d, d) counts of those that have both of two columns: the share that has three of them, about.

    An edge at a child that has another parent, too, is known from rows that have all three. Where sites lack whole
    columns, pairs differ most in their rows, and fewer count: with more, graphs had more false edges.
    """
    told = n_pairs[np.triu(n_pairs > 0.0, k=1)]
    if not told.size:
        return 1.0
    mean = 1.0 / float(np.mean(float(n_pairs.max()) / told))
    return float(mean ** (2.5 if lacks_columns else 1.5))
