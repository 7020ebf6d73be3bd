"""How far each site's numbers lie from the others', measured by how far the others lie from each other.

With v_pk the k-th of K numbers of site p, and u_pk the variance that sampling and privacy noise alone give it, let

    c_k = median over the sites p of v_pk
    D_p = sqrt(mean over k of (v_pk - c_k)^2 / u_pk)
    influence of p = D_p / max(1, median of D_q over the other sites q).

Medians do not follow a minority of sites: a site with odd numbers looks odd itself, and makes no other one look so. D
is about 1 for tables of the same distribution, however many rows each has. Where the distributions differ, rows do not
bring sites closer together. So D is computed a second time with u_k, the median of u_pk over the sites, for all of
them, and the smaller influence counts.

A site says itself how many rows it has, and few rows excuse wide errors. Where the result weights sites by rows, few
rows give little weight, too. Where every site has one vote (Compared.one_vote), u_pk counts as MOST_VARIANCE times u_k
at most.

All of this works on what the sites sent, in private runs on what they released: it costs no privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix

LIMIT = 6.0
"""A site of larger influence is named. Chosen on generated tables: docs/explanation/wrong-sites.md has the figures."""

FEWEST_SITES = 3
"""Of two sites that differ, nothing tells which one is odd."""

MOST_VARIANCE = 4.0
"""Where each site has one vote: the largest variance that a site is allowed, in units of the median of the sites'."""

# A site that claims few rows is allowed wide errors: no more of them than with this share of the median row count.
_LEAST_ROWS = 0.01
# In place of more, or of a number that overflowed.
_LARGEST = 1e6
# In units of the median of the sites: of a column that is constant at a site, in place of 0.
_LEAST_SQUARE = 1e-12
# A variable is named if it holds at least this share of the squared distance of the one that holds most.
_NAMED_SHARE = 0.5
_MOST_NAMED = 4


@dataclass(frozen=True, eq=False)
class Compared:
    """Numbers of one kind that all sites of a round sent."""

    values: Matrix  # (P, K), in units in which they can be compared with each other
    variances: Matrix  # (P, K) or (P, 1): what sampling and privacy noise give them, above 0
    # (K, 2) the pair of variables that each number is about; twice the same one for a number of one variable
    variables: Index
    one_vote: bool  # whether the result takes a site of few rows as seriously as any other one
    counted: Index | None = None  # (P,) how many numbers a site's mean square is over; None: all K

    @classmethod
    def of_products(
        cls, moments: Matrix, places: Index, of_squares: Matrix, rows: Sequence[int], *, linear: Mask, one_vote: bool
    ) -> Self:
        """Mean products of pairs of columns: correlations r, and logarithms of mean squares.

        A record that carries most of a site's mean square moves its logarithm and its correlations, which are at most
        1: products in units of all sites' sizes, which it moves without bound, would name honest sites of heavy tails.

        Parameters
        ----------
        moments
            (P, K) of the pairs at (K, 2) `places`, among them every column that another pair has with itself.
        of_squares
            (d,) rows times the variance of a column's mean square, in units of its size; of a correlation it is taken
            to be 1 + r^2, as of a product of Gaussian columns of size 1.
        linear
            (d,) columns whose mean squares are compared as they are: a level need not occur at every site.
        """
        i, j = places.T
        squares = np.zeros((len(moments), len(of_squares)))
        squares[:, i[i == j]] = moments[:, i == j]
        typical = np.median(squares, axis=0)
        with np.errstate(over="ignore"):
            in_units = squares / np.where(typical > 0.0, typical, 1.0)  # a level that occurs at few sites
        size = np.sqrt(np.where(squares > 0.0, squares, 1.0))
        values = moments / size[:, i] / size[:, j]
        logs = np.log(np.maximum(in_units, _LEAST_SQUARE))
        values[:, i == j] = np.where(linear, in_units, logs)[:, i[i == j]]
        r = np.clip(np.median(values, axis=0), -1.0, 1.0)
        spread = np.where(i == j, of_squares[i], 1.0 + r * r)
        return cls(values, spread * sampling_variance(rows), places, one_vote)

    def between_variables(self) -> Self:
        """Without the numbers of one variable alone."""
        kept = self.variables[:, 0] != self.variables[:, 1]
        variances = np.broadcast_to(self.variances, self.values.shape)[:, kept]
        return replace(self, values=self.values[:, kept], variances=variances, variables=self.variables[kept])


@dataclass(frozen=True)
class Influence:
    """What stands out about a site's numbers in one round."""

    ratio: float  # its influence
    variables: tuple[int, ...] = ()  # where most of the distance is, by their places, if the influence is above LIMIT


def influences(compared: Sequence[Compared]) -> list[Influence]:
    """The largest influence of each site, in the order of the rows; empty for fewer than FEWEST_SITES."""
    found = [_of_one(one) for one in compared if len(one.values) >= FEWEST_SITES and one.values.shape[1]]
    return [max(of_site, key=lambda one: one.ratio) for of_site in zip(*found, strict=True)]


def sampling_variance(n_samples: Sequence[int]) -> Matrix:
    """(P, 1): 1 / rows, with the row counts of sites that claim very few set higher."""
    return 1.0 / counted_rows(n_samples)


def counted_rows(n_samples: Sequence[int]) -> Matrix:
    """(P, 1): the row counts, those of sites that claim very few set higher."""
    rows = np.asarray(n_samples, dtype=np.float64)
    return np.asarray(np.maximum(rows, _LEAST_ROWS * np.median(rows))[:, None])


def variance_of_squares(variance: Matrix, indicators: Mask) -> Matrix:
    """(d,) n times the variance of a sample variance, divided by its square: 2 for a Gaussian column.

    A column of zeros and ones with variance v has (1 - 4 v) / v: a rare level makes variances differ much.

    Parameters
    ----------
    variance
        (d,) typical variances of the columns.
    indicators
        (d,) which columns hold zeros and ones.
    """
    v = np.clip(variance, np.finfo(np.float64).tiny, 0.25)
    return np.where(indicators, np.maximum(2.0, (1.0 - 4.0 * v) / v), 2.0)


def pairs(mask: Mask) -> Index:
    """(K, 2) places of the True entries of a (d, d) array, row by row."""
    return np.argwhere(mask).astype(np.int64)


def distances(compared: Compared) -> Matrix:
    """(P,) D of every site, with the same u_k for all."""
    return _root_mean(_squares(compared) / np.median(compared.variances, axis=0), compared.counted)


def _squares(compared: Compared) -> Matrix:
    with np.errstate(over="ignore", invalid="ignore"):  # what a site sent may be as large as a float can be
        return np.asarray((compared.values - np.median(compared.values, axis=0)) ** 2)


def _root_mean(squares: Matrix, counted: Index | None) -> Matrix:
    n = squares.shape[1] if counted is None else np.maximum(counted, 1)
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(np.nan_to_num(np.sqrt(squares.sum(axis=1) / n), nan=np.inf), _LARGEST))


def _of_one(compared: Compared) -> list[Influence]:
    squares, own, common = _squares(compared), compared.variances, np.median(compared.variances, axis=0)
    if compared.one_vote:
        own = np.minimum(own, MOST_VARIANCE * common)
    ratio = np.minimum(_ratios(_root_mean(squares / own, compared.counted)), _ratios(distances(compared)))
    typical = squares / common
    return [
        Influence(float(r), _largest(typical[p], compared.variables) if r > LIMIT else ()) for p, r in enumerate(ratio)
    ]


def _ratios(D: Matrix) -> Matrix:
    """(P,) every distance over the median of the others, or over 1."""
    others = [np.median(np.delete(D, p)) for p in range(len(D))]
    return np.asarray(D / np.maximum(1.0, others))


def _largest(squares: Matrix, variables: Index) -> tuple[int, ...]:
    """The variables that hold most of the (K,) squared distances, the first of them most."""
    finite = np.minimum(np.nan_to_num(squares, nan=np.inf), _LARGEST**2)
    held = np.zeros(int(variables.max()) + 1)
    np.add.at(held, variables[:, 0], finite)
    np.add.at(held, variables[:, 1], finite * (variables[:, 0] != variables[:, 1]))
    order = np.argsort(-held, kind="stable")[:_MOST_NAMED]
    return tuple(int(k) for k in order if held[k] >= _NAMED_SHARE * held[order[0]])
