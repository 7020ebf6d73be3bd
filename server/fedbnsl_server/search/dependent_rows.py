"""How much less rows that belong together tell than independent ones: variance factors of mean products.

Let any two rows of a group be alike: x of one and x' of another have the same covariance B, within a row it is S. For
Gaussian rows, the variance of the sum of u x and r x over the rows, divided by that of as many independent rows, is

    1 + k g,    g = (uBu rBr + (uBr)^2) / (uSu rSr + (uSr)^2),

where k is the mean number of other rows of a row's group: the sum of m (m - 1) over groups of m rows, divided by the
rows. The intraclass correlation (ICC) of u x is uBu / uSu. Of a regression coefficient, u is what the other parents
leave of the parent, and r the residual: g is the product of their ICCs (Moulton 1986), for uSr = 0.

A score counts as many rows as would be worth as much if all pairs of variables had the largest g, one number a run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Matrix

# A factor that is larger by less is error of the ICCs.
_MORE = 1.05


Products = tuple[Matrix, Matrix | float, Matrix]


@dataclass(frozen=True, eq=False)
class DependentRows:
    """What is known of two rows of a group."""

    others: float  # k
    between: Matrix  # (d, d) B, in the units of the moments S; NaN where it was not asked for
    largest: float = 0.0  # g that a score counts with

    @property
    def factor(self) -> float:
        """How many rows count as one in a score, at least 1."""
        return 1.0 + self.others * self.largest

    def excess(self, S: Matrix) -> Matrix:
        """(d, d) g of the products of two columns; a mean product between rows that is unknown counts as zero."""
        return excess_of(np.nan_to_num(self.between), S)

    def along(self, u: Matrix, r: Matrix, S: Matrix, columns: Index) -> Matrix:
        """(K,) factors 1 + k g of u x with r x, for K vectors u and one r over some columns, with their moments S."""
        B = np.nan_to_num(self.between[np.ix_(columns, columns)])
        return self.factors(*((_squared(u, M), float(r @ M @ r), u @ M @ r) for M in (B, S)))

    def factors(self, between: Products, within: Products) -> Matrix:
        """1 + k g, from (uBu, rBr, uBr) and the same of S."""
        return 1.0 + self.others * _ratio(between, within)

    def counting(self, excess: Matrix, columns: Columns) -> Self:
        """With the largest g so far, and among these (d, d) ones of columns of two variables: others have no edge."""
        largest = float(excess[~columns.within()].max(initial=0.0))
        return replace(self, largest=max(largest, self.largest))

    def is_more(self, excess: Matrix, columns: Columns) -> bool:
        """Whether among these there is a g with which notably fewer rows count."""
        return self.counting(excess, columns).factor > _MORE * self.factor


def of_sites(
    products: Mapping[str, Matrix],
    n_pairs: Mapping[str, int],
    rows: Mapping[str, int],
    shares: Mapping[str, Matrix] | None = None,
) -> dict[str, DependentRows]:
    """By site, its number of other rows with the mean products of all sites; empty: no two rows are of one group.

    Parameters
    ----------
    products
        By site, (d, d) mean products between two rows of a group, over so many pairs.
    rows
        Of each site.
    shares
        By site, (d, d) share of its rows that have both columns: expected values vary less between groups than values
        do, so that they count only where no site has both. None: no value is missing.
    """
    # A site cannot say more of them than its rows have.
    pairs = {site: min(n, rows[site] * (rows[site] - 1)) for site, n in n_pairs.items()}
    if not any(pairs.values()):
        return {}
    groups = np.array([_groups(n, rows[site]) for site, n in pairs.items()])[:, None, None]
    weights = groups if shares is None else groups * [shares[site] for site in pairs]
    weights = np.where(weights.any(axis=0), weights, groups)
    B = (weights * [products[site] for site in pairs]).sum(axis=0) / weights.sum(axis=0)
    return {site: DependentRows(n / rows[site], np.asarray(B)) for site, n in pairs.items()}


def _groups(n_pairs: int, rows: int) -> float:
    """About how many groups of several rows a site has: what a mean over pairs is worth, however many rows they have.

    Groups of one size are rows^2 / (pairs + rows); where most rows are alone, there are pairs / 2 at most.
    """
    return min(rows**2 / (n_pairs + rows), n_pairs / 2)


def icc(between: Matrix, S: Matrix) -> Matrix:
    """(d,) intraclass correlations of columns, 0 to 1; 0 for a column without variance."""
    squares = S.diagonal()
    return np.clip(np.nan_to_num(between.diagonal()) / np.where(squares > 0.0, squares, np.inf), 0.0, 1.0)


def excess_of(between: Matrix, S: Matrix) -> Matrix:
    """(d, d) g of all pairs, from mean products between rows and within a row; what is NaN counts as zero."""
    b, s = between.diagonal(), S.diagonal()
    return _ratio((b[:, None], b, np.nan_to_num(between)), (s[:, None], s, np.nan_to_num(S)))


def _squared(u: Matrix, M: Matrix) -> Matrix:
    return np.asarray(np.einsum("ki,ij,kj->k", u, M, u))


def _ratio(between: Products, within: Products) -> Matrix:
    """g, from (uBu, rBr, uBr) and the same of S; within what rows can have, 0 to 1."""
    (bu, br, bur), (su, sr, sur) = between, within
    bu, br = (np.clip(b, 0.0, np.maximum(s, 0.0)) for b, s in ((bu, su), (br, sr)))
    bur = np.clip(bur, -np.sqrt(bu * br), np.sqrt(bu * br))
    whole = su * sr + sur**2
    return np.asarray(np.minimum((bu * br + bur**2) / np.where(whole > 0.0, whole, np.inf), 1.0))
