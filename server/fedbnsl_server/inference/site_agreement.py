"""Whether sites agree: each site's coefficients with their errors, given the graph, and a test that they are equal.

Let z be what the other parents leave of a parent, and r the residual of the child. At a site of n rows the variance of
the coefficient is E z^2 r^2 / (n (E z^2)^2) (White 1980). For Gaussian columns E z^2 r^2 = E z^2 E r^2. For others

    spread = E z^2 r^2 / (E z^2 E r^2)

is what the site tells of the squares of its residuals (`squared_residuals`), and at least the mean of all sites. A
column of zeros and ones that is rare may be in no row of a site that would tell it. If columns are sums of independent
sources s with excess kurtosis k_s, the spread is 1 + sum over s of cor(z, s)^2 cor(r, s)^2 k_s; a column of zeros and
ones has k = (1 - 6 v) / v, where v is its variance: 1 / p where a level is rare. The spread is at least that.

A site's residual variance counts as that of all sites at least: it is near zero where a handful of events happen to
fit. With fewer events than FEWEST_EVENTS of the child, or of what the other parents leave of the parent, the estimate
is not normal whatever its variance is: such a site tells nothing there. A rare level among the other parents takes a
few rows away, and nothing else.

Pairs of columns without an edge are compared, too, by the covariance of their residuals: where one of three sites has
the opposite effect, the graph of all may lack the edge.

A family (a child and its parents) is compared among the sites that have all of its columns. What EM made of the columns
that a site lacks is the other sites' word: it tells nothing of this one.

Where rows depend on others of their group, variances have the factors of `dependent_rows`, by all sites' ICCs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.algorithm.influence import FEWEST_SITES
from fedbnsl_server.inference.heterogeneity import chi_square_tails, cochran, holm
from fedbnsl_server.search.linear_network import (
    LinearNetwork,
    SiteMoments,
    edges_of,
    families,
    in_relation,
    inverse,
)

FEWEST_EVENTS = 20.0
"""Rows of a site that are expected to have the rarer value of a column of zeros and ones."""

FEWEST_IN_A_CELL = 10.0
"""Rows of a site that are expected to have the rarer values of two such columns, if these were independent."""

LEVEL = 0.01
"""Chance of a false alarm, over all pairs."""

ODD_LEVEL, AGREE_LEVEL = 1e-4, 0.2
"""A site is named if all sites differ more than this, and the others alone hardly do.

Where all coefficients of sites differ a little, one of them is the extreme one: with looser levels it would be named in
every fourth run.
"""

# Beyond so many numbers, pairs without an edge are not compared.
_MOST_COMPARED = 5_000_000


@dataclass(frozen=True, eq=False)
class Agreement:
    """What P sites tell about K pairs of columns."""

    pairs: Index  # (K, 2) columns: first the edges, row by row, then pairs without an edge
    n_edges: int  # how many of them are edges
    # estimates, errors: (P, K) each site's coefficients, or covariances of residuals, and their standard errors;
    # NaN: it tells none
    estimates: Matrix
    errors: Matrix

    def of_edges(self) -> tuple[Matrix, Matrix]:
        """(P, E) coefficients of each site alone, and their standard errors."""
        return self.estimates[:, : self.n_edges], self.errors[:, : self.n_edges]

    def q(self) -> tuple[Matrix, Index]:
        """(E,) Cochran's Q of the edges and its degrees of freedom."""
        return cochran(*self.of_edges())

    def p(self, *, without: int | None = None) -> Matrix:
        """(K,) p-values with Holm's correction over all pairs, 1 where nothing is tested; without one of the sites."""
        kept = np.arange(len(self.estimates)) != without
        q, degrees = cochran(self.estimates[kept], self.errors[kept])
        tested, found = degrees > 0, np.ones(len(q))
        found[tested] = holm(chi_square_tails(q[tested], degrees[tested]))
        return found

    def differing(self) -> Index:
        """(K', 2) pairs of columns without an edge whose residuals vary together differently, the surest first."""
        p = self.p()[self.n_edges :]
        order = np.argsort(p, kind="stable")
        return self.pairs[self.n_edges :][order[p[order] < LEVEL]]

    def odd_site(self) -> int | None:
        """The one site without which the others agree well, while they do not at all with it; None: not exactly one."""
        n, differ = len(self.estimates), self.p() < ODD_LEVEL
        if n < FEWEST_SITES or not differ.any():
            return None
        found = [site for site in range(n) if self._agree_without(site, differ)]
        return found[0] if len(found) == 1 else None

    def _agree_without(self, site: int, differ: Mask) -> bool:
        """Whether the others agree, and tell so somewhere where they differ with this one, as sites always do with it.

        Nowhere else: with few sites, each may lack something of what the odd one has.
        """
        others = np.arange(len(self.estimates)) != site
        _, degrees = cochran(self.estimates[others][:, differ], self.errors[others][:, differ])
        is_in_all = bool(np.isfinite(self.estimates[site, differ]).all())
        return is_in_all and bool((degrees > 0).any() and self.p(without=site).min(initial=1.0) >= AGREE_LEVEL)

    def where_odd(self, site: int) -> Index:
        """(K', 2) pairs of columns in which sites differ, first those in which this site does so most."""
        p = self.p()
        others = np.arange(len(self.estimates)) != site
        with np.errstate(invalid="ignore"):
            weights = np.nan_to_num(1.0 / self.errors[others] ** 2)
            mean = (weights * np.nan_to_num(self.estimates[others])).sum(axis=0) / weights.sum(axis=0)
            z = np.nan_to_num(np.abs(self.estimates[site] - mean) / self.errors[site])
        order = np.argsort(-z, kind="stable")
        return self.pairs[order[p[order] < LEVEL]]


def site_agreement(
    network: LinearNetwork,
    S: Matrix,
    sites: Sequence[SiteMoments],
    columns: Columns,
    level_variance: Matrix | None = None,
) -> Agreement:
    """Each site's regressions, given the graph, beside those of all sites.

    Parameters
    ----------
    S
        (d, d) moments that the network was fitted to.
    level_variance
        (d,) variances of columns of zeros and ones, in squared units of the table; NaN: another column. None: all are
        other columns.
    """
    levels = np.full(len(S), np.nan) if level_variance is None else level_variance
    rows, v = np.array([one.accuracy.n_samples for one in sites]), network.residual_variance
    edges, events = edges_of(network.dag), _events(levels, rows)
    i, c = edges.T
    fits = _fits(network, S, sites, rare=_excess_of_levels(levels))
    A = np.eye(len(S)) - network.weights
    tails = _at_least_the_mean(_tails(S, sites, fits.partialled, A, (np.arange(len(edges)), c)), rows)
    spread = np.maximum(tails, 1.0 + fits.shared)
    least = np.fmax(fits.residual, v)
    free = rows[:, None] - network.dag.sum(axis=0)[c]
    of_source = _events(np.minimum(levels[i] * fits.partial / S[i, i], levels[i]), rows)
    enough = (np.minimum(of_source, events[:, c]) >= FEWEST_EVENTS) & _cells(events, rows, i, c)
    pairs, told = edges, np.where(enough, fits.coefficients, np.nan)
    errors = np.sqrt(spread * fits.dependence * least[:, c] / fits.partial / np.maximum(free, 1.0))
    errors = errors / _left_of_residuals(S, sites, fits.partialled)
    apart = np.triu(~(network.dag | network.dag.T | columns.within()), k=1)
    if len(sites) * apart.sum() <= _MOST_COMPARED:
        i, j = np.nonzero(apart)
        tails = _at_least_the_mean(_tails(S, sites, A, A, (i, j)), rows)
        spread = np.maximum(tails, 1.0 + fits.shared_by_residuals[i, j])
        covariances = np.stack([network.of_residuals(one.moments)[i, j] for one in sites])
        enough = (np.minimum(events[:, i], events[:, j]) >= FEWEST_EVENTS) & _cells(events, rows, i, j)
        varies = np.isfinite(fits.residual[:, i] + fits.residual[:, j])
        pairs = np.concatenate([edges, np.column_stack((i, j))])
        told = np.hstack([told, np.where(enough & varies, covariances, np.nan)])
        grows = np.array([network.dependence(one.accuracy.dependent)[i, j] for one in sites])
        errors = np.hstack([errors, np.sqrt(spread * grows * least[:, i] * least[:, j] / rows[:, None])])
    known = np.isfinite(told) & (errors > 0.0)
    return Agreement(pairs, len(edges), np.where(known, told, np.nan), np.where(known, errors, np.nan))


def _tails(S: Matrix, sites: Sequence[SiteMoments], left: Matrix, right: Matrix, at: tuple[Index, Index]) -> Matrix:
    """(P, K) E z^2 r^2 / (E z^2 E r^2) of some left and right combinations of the columns; 1 where a site tells none.

    Moments that a site does not tell are those of all, (d, d) S.
    """
    found = np.ones((len(sites), len(at[0])))
    for p, site in enumerate(sites):
        if site.squares is not None:
            own = np.where(np.isnan(site.moments), S, site.moments)
            found[p] = site.squares.spread(own, left, right, at)
    return found


def _left_of_residuals(S: Matrix, sites: Sequence[SiteMoments], partialled: Matrix) -> Matrix:
    """(P, E) 1 - h, where h is how much larger the mean leverage z^2 / sum z^2 of a site is than that of normal rows.

    Weighted by z^2, their mean is E z^4 / (n (E z^2)^2). Of a row of leverage h a regression leaves 1 - h of the
    residual (MacKinnon and White 1985): where one row carries nearly all of z, the site's regression goes through it,
    and no residual shows how wrong it may be.
    """
    own: Index = np.arange(len(partialled.T), dtype=np.int64)
    excess = np.maximum(_tails(S, sites, partialled, partialled, (own, own)) - 1.0, 0.0)
    rows = np.array([[one.accuracy.n_samples] for one in sites])
    return np.asarray(np.maximum(1.0 - excess / rows, 1.0 / rows))


def _at_least_the_mean(tails: Matrix, rows: Matrix) -> Matrix:
    """(P, K) each site's, or the mean of all sites by their (P,) rows, whichever is more."""
    return np.maximum(tails, np.average(tails, axis=0, weights=rows))


@dataclass(frozen=True, eq=False)
class _Fits:
    """Regressions of each site, given the graph."""

    # coefficients, partial: (P, E) on the edges, and the variance that the other parents leave of the parent;
    # NaN: it is not identified
    coefficients: Matrix
    partial: Matrix
    dependence: Matrix  # (P, E) by what the variances of the coefficients grow where rows depend on each other
    residual: Matrix  # (P, d) residual variances; NaN: the column does not vary
    partialled: Matrix  # (d, E) what the other parents leave of the parent, as a combination of columns, up to a factor
    shared: Matrix  # (E,) the sum over columns with levels of cor(z, s)^2 cor(r, s)^2 k_s
    shared_by_residuals: Matrix  # (d, d) the same sum for residuals


def _fits(network: LinearNetwork, S: Matrix, sites: Sequence[SiteMoments], *, rare: Matrix) -> _Fits:
    """With (d,) the excess kurtosis of the columns that have levels, 0 for others."""
    edges, P, d = edges_of(network.dag), len(sites), len(S)
    place = {(i, c): k for k, (i, c) in enumerate(edges.tolist())}
    parents = dict(families(network.dag))
    sources = np.flatnonzero(rare)
    known = np.nan_to_num(S[sources] / np.sqrt(S.diagonal()[sources])[:, None])
    of_residuals = _squared(known @ (np.eye(d) - network.weights), network.residual_variance)
    coefficients, partial = np.full((P, len(edges)), np.nan), np.full((P, len(edges)), np.nan)
    residual = np.full((P, d), np.nan)
    shared, dependence, partialled = np.empty(len(edges)), np.ones((P, len(edges))), np.zeros((d, len(edges)))
    for c in range(d):
        given = parents.get(c, np.empty(0, dtype=np.int64))
        at, family = [place[i, c] for i in given.tolist()], np.append(given, c)
        inverted = inverse(S[np.ix_(given, given)])
        partialled[given[:, None], at] = inverted
        of_parents = _squared(known[:, given] @ inverted, inverted.diagonal())
        shared[at] = rare[sources] @ (of_parents * of_residuals[:, [c]])
        u = np.column_stack([inverted, np.zeros(len(given))])
        r = np.append(-network.weights[given, c], 1.0)
        for p, site in enumerate(sites):
            if site.accuracy.dependent is not None and given.size:
                dependence[p, at] = site.accuracy.dependent.along(u, r, S[np.ix_(family, family)], family)
            own, free = site.moments, site.accuracy.n_samples - len(given)
            if np.isnan(own[np.ix_(family, family)]).any() or free <= 0.0 or own[c, c] <= 0.0:
                continue
            inverted = inverse(own[np.ix_(given, given)])
            # Moments that were rounded may have an eigenvalue below zero.
            identified = ~in_relation(own[np.ix_(given, given)]) & (inverted.diagonal() > 0.0)
            b = inverted @ own[given, c]
            coefficients[p, at] = np.where(identified, b, np.nan)
            partial[p, at] = 1.0 / np.where(identified, inverted.diagonal(), np.nan)
            residual[p, c] = max(float(own[c, c] - own[given, c] @ b), 0.0) * site.accuracy.n_samples / free
    by_residuals = (of_residuals.T * rare[sources]) @ of_residuals
    return _Fits(coefficients, partial, dependence, residual, partialled, shared, by_residuals)


def _excess_of_levels(levels: Matrix) -> Matrix:
    """(d,) of columns of zeros and ones with these variances, if it is above 0; 0 for others, and constant ones."""
    return np.maximum(1.0 / np.where(levels > 0.0, levels, 1.0) - 6.0, 0.0)


def _squared(covariances: Matrix, variance: Matrix) -> Matrix:
    """Squared correlations with columns of these variances, from covariances with numbers of variance 1."""
    return np.asarray(np.minimum(covariances**2 / np.maximum(variance, np.finfo(np.float64).tiny), 1.0))


def _events(levels: Matrix, rows: Matrix) -> Matrix:
    """(P, d) rows that are expected to have the rarer value; infinite for columns that are not zeros and ones.

    From (d,) or (P, d) variances of such columns.
    """
    rarer = 0.5 - np.sqrt(np.maximum(0.25 - levels, 0.0))
    return np.where(np.isnan(levels), np.inf, rows[:, None] * rarer)


def _cells(events: Matrix, rows: Matrix, i: Index, j: Index) -> Mask:
    """(P, K) whether enough rows are expected to have the rarer values of both columns."""
    both = np.isfinite(events[:, i]) & np.isfinite(events[:, j])
    product = np.where(both, events[:, i], 0.0) * np.where(both, events[:, j], 0.0)
    return np.asarray(~both | (product >= FEWEST_IN_A_CELL * rows[:, None]))
