"""How much sites differ in a mechanism: a likelihood ratio of each site against the others, from second moments.

A mechanism is how a variable follows from its parents: coefficients and the variance of what they leave. Means are none
of it: they stay at the sites. Of a family with k parents let v be the residual variance of the pooled regression of
some sites with n rows, v_p and v_r those of one of them and of the rest alone, and v_b = (n_p v_p + n_r v_r) / n. What
parameters of its own add to the log-likelihood of Gaussian rows is

    n / 2 log(v / v_b)  for k coefficients, and
    n / 2 log(v_b) - n_p / 2 log(v_p) - n_r / 2 log(v_r)  for the variance.

Other rows are allowed for by what sites tell of fourth moments (`squared_residuals`): the first part is divided by the
largest of White's factors E z^2 r^2 / (E z^2 E r^2) of the coefficients, the second by (K - 1) / 2, where K is the
kurtosis of r. Neither is taken to be less than for normal rows, nor less than on average over the sites.

A site has parameters of its own where they add more than their price by BIC, and log P for choosing it among P sites.
Then the rest is compared without it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.search.linear_network import SINGULAR, SiteMoments, inverse

Family = tuple[int, tuple[int, ...]]
"""A column and its parents, ascending."""

# Rows for each parameter of a site's own, at least; with fewer it tells nothing.
_ROWS_A_PARAMETER = 10.0
# Rows of no site.
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Mechanism:
    """How the P sites differ in one family of k parents, each from the others that have the pooled parameters."""

    gain: Matrix  # (P,) what own parameters add to the log-likelihood, as far as tails let it be believed
    evidence: Matrix  # (P,) -log of its p value
    is_own: Mask  # (P,) which sites have parameters of their own
    told: Mask  # (P,) which tell anything: enough rows, and not known to be apart
    # own, others: (P, k + 1) coefficients and residual variance of the site, and of the others
    own: Matrix
    others: Matrix
    z: Matrix  # (P, k + 1) by how many standard errors they differ: of the logarithm of the variance


class Mechanisms:
    """Families as sites have them.

    Parameters
    ----------
    S
        (d, d) pooled moments.
    apart
        By column, the places of sites whose rows are known to have another mechanism there: they count in no family of
        the column.
    """

    def __init__(
        self, S: Matrix, sites: Sequence[SiteMoments], apart: Mapping[int, frozenset[int]] | None = None
    ) -> None:
        self._S, self._sites, self._apart = S, sites, apart or {}
        self._moments = np.stack([one.moments for one in sites])
        self._rows = np.array([one.accuracy.n_samples for one in sites])
        self._known: dict[Family, Mechanism] = {}

    def of(self, families: Iterable[Family]) -> dict[Family, Mechanism]:
        """By family; those that were asked for before are not computed again."""
        asked = list(dict.fromkeys(families))
        new = [one for one in asked if one not in self._known]
        for family, factors in zip(new, self._factors(new), strict=True):
            self._known[family] = self._mechanism(family, *factors)
        return {one: self._known[one] for one in asked}

    def _factors(self, families: Sequence[Family]) -> Iterable[tuple[Matrix, Matrix]]:
        """By family, (P, k) White's factors of the coefficients, and (P,) those of the variance."""
        d = len(self._S)
        r, z = np.zeros((d, len(families))), np.zeros((d, sum(len(given) for _, given in families)))
        at, of, start = [list[int]() for _ in families], list[int](), 0
        for k, (child, parents) in enumerate(families):
            given = list(parents)
            inverted = inverse(self._S[np.ix_(given, given)])
            r[child, k], r[given, k] = 1.0, -inverted @ self._S[given, child]
            at[k] = list(range(start, start + len(given)))
            z[np.ix_(given, at[k])] = inverted
            of += [k] * len(given)
            start += len(given)
        own: Index = np.arange(len(families), dtype=np.int64)
        coefficients = self._spread(z, r, (np.arange(start, dtype=np.int64), np.array(of, dtype=np.int64)), least=1.0)
        kurtosis = self._spread(r, r, (own, own), least=3.0)
        return [(coefficients[:, at[k]], 0.5 * (kurtosis[:, k] - 1.0)) for k in range(len(families))]

    def _spread(self, left: Matrix, right: Matrix, at: tuple[Index, Index], *, least: float) -> Matrix:
        """(P, K) see `SquaredResiduals.spread`; `least` is what normal rows have."""
        found = np.full((len(self._sites), len(at[0])), least)
        for p, site in enumerate(self._sites):
            if site.squares is not None:
                found[p] = site.squares.spread(site.moments, left, right, at)
        return np.asarray(np.maximum(np.maximum(found, np.average(found, axis=0, weights=self._rows)), least))

    def _mechanism(self, family: Family, of_coefficients: Matrix, of_variance: Matrix) -> Mechanism:
        child, parents = family
        places, n = [*parents, child], self._rows
        k, n_sites = len(parents), len(n)
        compared = _Compared(self._moments[:, places][:, :, places], n, of_coefficients, of_variance)
        away = np.isin(np.arange(n_sites), sorted(self._apart.get(child, frozenset())))
        told = compared.identified & ~away & (n >= _ROWS_A_PARAMETER * (k + 1))
        alike, price = told.copy(), 0.5 * (k + 1) * np.log(n) + math.log(n_sites)
        gain = compared.gains(alike)
        while alike.sum() > 1:
            furthest = int(np.argmax(np.where(alike, gain - price, -np.inf)))
            if gain[furthest] <= price[furthest]:
                break
            alike[furthest] = False
            gain = compared.gains(alike)
        gain = np.where(told, gain, 0.0)
        return Mechanism(gain, _minus_log(gain, k + 1), told & ~alike, told, *compared.differences(alike))


class _Compared:
    """Sites beside each other in one family: (P, k + 1, k + 1) moments of the parents and, last, the child."""

    def __init__(self, moments: Matrix, rows: Matrix, of_coefficients: Matrix, of_variance: Matrix) -> None:
        self._M, self._n = moments, rows
        self._factors = np.column_stack((of_coefficients, of_variance))  # (P, k + 1)
        self._b, self._v = _fitted(moments)
        self.identified = np.isfinite(self._v)

    def gains(self, alike: Mask) -> Matrix:
        """(P,) what own parameters of a site add to those that these sites have, or the others of them."""
        n, (M_r, n_r, factors) = self._n, self._rest(alike)
        n_all = n + n_r
        M = (n[:, None, None] * self._M + n_r[:, None, None] * M_r) / n_all[:, None, None]
        v, v_r = _fitted(M)[1], _fitted(M_r)[1]
        v_b = (n * self._v + n_r * v_r) / n_all
        with np.errstate(invalid="ignore"):
            of_variance = n_all * np.log(v_b) - n * np.log(self._v) - n_r * np.log(v_r)
            told = 0.5 * (of_variance / factors[:, -1])
            if factors.shape[1] > 1:
                told += 0.5 * n_all * np.log(v / v_b) / factors[:, :-1].max(axis=1)
        return np.where(np.isfinite(told), np.maximum(told, 0.0), 0.0)

    def differences(self, alike: Mask) -> tuple[Matrix, Matrix, Matrix]:
        """See the last three of `Mechanism`."""
        n, (M_r, n_r, _) = self._n, self._rest(alike)
        b_r, v_r = _fitted(M_r)
        factors = np.average(self._factors, axis=0, weights=np.where(alike, n, 0.0) + _TINY)
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = np.array([inverse(one[:-1, :-1]).diagonal() for one in self._M])
            of_rest = np.array([inverse(one[:-1, :-1]).diagonal() for one in M_r])
            squared = precision * (self._v / n)[:, None] * self._factors[:, :-1]
            squared += of_rest * (v_r / n_r)[:, None] * factors[:-1]
            z = (self._b - b_r) / np.sqrt(squared)
            z_v = np.log(self._v / v_r) / np.sqrt(2.0 * (self._factors[:, -1] / n + factors[-1] / n_r))
        return (
            np.column_stack((self._b, self._v)),
            np.column_stack((b_r, v_r)),
            np.column_stack((z, z_v)),
        )

    def _rest(self, alike: Mask) -> tuple[Matrix, Matrix, Matrix]:
        """(P, k + 1, k + 1) moments of those that are alike but one, their rows, and factors of the difference."""
        weights = np.where(alike, self._n, 0.0)
        own = weights[:, None, None]
        total, n_r = (own * self._M).sum(axis=0), weights.sum() - weights
        over = np.maximum(n_r, _TINY)
        M_r = (total - own * self._M) / over[:, None, None]
        factors_r = ((weights[:, None] * self._factors).sum(axis=0) - weights[:, None] * self._factors) / over[:, None]
        of_rest, of_site = 1.0 / over[:, None], 1.0 / self._n[:, None]
        return M_r, n_r, (self._factors * of_site + factors_r * of_rest) / (of_site + of_rest)


def _fitted(M: Matrix) -> tuple[Matrix, Matrix]:
    """(P, k) coefficients and (P,) residual variances; NaN where they are not identified."""
    G, c = M[:, :-1, :-1], M[:, :-1, -1]
    size = np.sqrt(np.diagonal(G, axis1=1, axis2=2))
    size = np.where(size > 0.0, size, 1.0)
    R = G / size[:, :, None] / size[:, None, :]
    known = np.isfinite(M).all(axis=(1, 2))
    if R.shape[1]:
        known &= np.linalg.eigvalsh(np.nan_to_num(R))[:, 0] > SINGULAR
    b = np.full(c.shape, np.nan)
    b[known] = np.linalg.solve(R[known], (c / size)[known][:, :, None])[:, :, 0] / size[known]
    v = M[:, -1, -1] - (c * b).sum(axis=1)
    return b, np.where(known & (v > SINGULAR * M[:, -1, -1]), v, np.nan)


def _minus_log(gain: Matrix, degrees: int) -> Matrix:
    """-log of the chance that 2 gain is exceeded by a chi-square number."""
    p = chi_square_tails(2.0 * gain, np.full(gain.shape, degrees, dtype=np.int64))
    return -np.log(np.maximum(p, np.finfo(np.float64).tiny))
