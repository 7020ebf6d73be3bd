"""Second moments of a table or of its residuals, released as integer sums with exact Gaussian noise, rounded.

Where a person has several rows (`PersonRows`), n are the persons. Each adds the mean of what the rows would add,
shortened as a whole to the norm that a record is shortened to. Without that, the mean of what records may add lies
between such values, and is as far from another one at most. So a release costs what it costs for one record a person,
whatever rows a person has and however many; and rows that differ make a shorter mean, which less is cut off from.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbnsl.privacy.calibration import LATTICE, WHOLE_SHARE, constant_residual
from fedbnsl.privacy.squares import squares
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.privacy.expected_residuals import Model
from fedbnsl_client.privacy.grid_products import add_expected_products, add_person_products, add_products, rows_times
from fedbnsl_client.privacy.many_gaussians import rounded_gaussians
from fedbnsl_client.privacy.noise import Randbelow, rounded_gaussian


def release_second_moments(X: Table, bounds: Matrix, variance: int, randbelow: Randbelow) -> Matrix:
    """(d,) mean squares of the columns of an (n, d) table, noisy; may be negative.

    Parameters
    ----------
    bounds
        (d,) b_i: larger squares count as b_i. One record moves a sum by at most LATTICE units of b_i / LATTICE.
    variance
        Of the noise, in these units squared.
    """

    def square_shares(X: Matrix) -> Matrix:
        with np.errstate(over="ignore"):  # an infinite square exceeds the bound, too
            return np.nan_to_num(np.minimum(X * X / bounds, 1.0), nan=0.0)

    sums = _rounded_sums(X, square_shares)
    noisy = [int(total) + rounded_gaussian(variance, randbelow) for total in sums]
    return np.asarray(np.array(noisy) * bounds / (LATTICE * len(X)))


def release_statistics(
    X: Table, low: Matrix, high: Matrix, variable_of: Index, variance: int, randbelow: Randbelow
) -> Matrix:
    """(V + 2 d,) noisy numbers of the values of the variables of an (n, d) table, then sums of u and of u^2.

    Parameters
    ----------
    X
        NaN where a record has no value: it adds nothing there.
    low, high
        (d,) public bounds: u is the value mapped from between them into [-1, 1]. How far one record can move the
        sums: see `calibration.statistics_sensitivity`.
    variable_of
        (d,) position of each column's variable, ascending from 0; columns of one are missing together.
    variance
        Of the noise, in fixed-point grid units squared.

    Returns
    -------
    sums
        In records, so that the sum of u over one record lies in [-1, 1].
    """
    first = np.unique(variable_of, return_index=True)[1]

    def told(X: Matrix) -> Matrix:
        with np.errstate(over="ignore", invalid="ignore"):
            u = np.nan_to_num(np.clip((2.0 * X - low - high) / (high - low), -1.0, 1.0), nan=0.0)
        return np.hstack([~np.isnan(X[:, first]), u, u * u])

    sums = _rounded_sums(X, told)
    return np.array([int(total) + rounded_gaussian(variance, randbelow) for total in sums.tolist()]) / LATTICE


def _rounded_sums(X: Table, told: Callable[[Matrix], Matrix]) -> Matrix:
    """Sums over the records of what (k,) numbers from -1 to 1 each tells, rounded on the grid; persons tell means."""

    def rounded(numbers: Matrix) -> Matrix:
        return np.asarray(np.rint(LATTICE * numbers).sum(axis=0))  # whole numbers, whatever the blocks

    if isinstance(X, PersonRows):
        return np.asarray(sum(map(rounded, X.means(told))))
    return sum_over_rows(X, lambda rows: rounded(told(rows)))


def release_covariance(X: Table, norm_bound: float, variance: int, randbelow: Randbelow) -> Matrix:
    """(d, d) second moments X'X / n of an (n, d) table, noisy and made positive semidefinite (DP-Fed-BNSL).

    Parameters
    ----------
    norm_bound, variance
        As in `release_residual_moments`, for the records themselves.
    """
    values, vectors = np.linalg.eigh(
        _noisy(_sums(X, _Plain(np.asarray), norm_bound, X.shape[1]), variance, randbelow)
        * norm_bound**2
        / (LATTICE * len(X))
    )
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


class Squared(NamedTuple):
    """Columns whose squares are further columns, and what prepares them for that: released numbers, (m,) each.

    They stay the same in all rounds of a run, whatever later ones tell of means: so squares do, too.
    """

    of: Index
    centre: Matrix
    scale: Matrix


def _with_squares(rows: Matrix, squared: Squared | None) -> Matrix:
    """(n, D) the (n, d) rows and their squares, each from its row alone; NaN where a value is missing."""
    if squared is None:
        return rows
    with np.errstate(all="ignore"):
        return np.column_stack([rows, squares((rows[:, squared.of] - squared.centre) / squared.scale)])


class Whole(NamedTuple):
    """What makes records comparable, and whole: released numbers, (D,) each.

    Attributes
    ----------
    centre, scale
        Of the columns, the squares among them.
    spreads
        Standard deviations of the residuals, by what was released.
    squared
        None: there are no squares.
    """

    centre: Matrix
    scale: Matrix
    spreads: Matrix
    squared: Squared | None = None


def release_residual_moments(
    X: Table,
    W: Matrix,
    scales: Matrix,
    norm_bound: float,
    variance: int,
    randbelow: Randbelow,
    prepared_by: Whole | None = None,
) -> Matrix:
    """(D, D) second moments Z'Z / n of the scaled residuals Z = (X - X W) / scales; may have negative eigenvalues.

    D is d, or with squares more. With prepared columns, (D + 1, D + 1): each record has a constant,
    `constant_residual`, as its last residual.

    Parameters
    ----------
    X
        (n, d) table. A record whose residuals or their norm are not finite counts as zeros; so does one with a gap,
        unless columns are prepared: then it counts as is expected of it (`expected_residuals`).
    W, scales
        (D, D) weights and (D,) scales, public. Privacy holds for any values; good ones make the residuals uncorrelated
        and equal in size, so that the noise is small relative to each.
    norm_bound
        R: longer records z are clipped to this norm. One record moves the sums by at most sqrt(2) LATTICE + d units
        of R^2 / LATTICE in Frobenius norm, whatever W and the scales are: z depends on no other record. Here d
        counts all residuals, those of squares and the constant among them.
    variance
        Of the noise on the diagonal, in these units squared; half of it off the diagonal, where each number stands for
        two entries.
    prepared_by
        None: columns are taken as they are.
    """
    sums, _ = residual_sums(X, W, scales, norm_bound, variance, randbelow, prepared_by)
    return np.asarray(sums * norm_bound**2 / (LATTICE * len(X)))


class Shared(NamedTuple):
    """What is different where sites share the noise of a release.

    A site then cannot tell its means from its part of the release without paying for all that it tells. So products
    with the constant are released once more, with all the noise that their cost asks for.
    """

    # means_variance: of the noise of the own means, in fixed-point grid units squared; 0: there are none. One record
    # moves them by at most `calibration.own_means_sensitivity`
    means_variance: int = 0
    share: int = WHOLE_SHARE  # see `site_shares`: so much of the sums counts; of the own means, all


_ALONE = Shared()


def residual_sums(
    X: Table,
    W: Matrix,
    scales: Matrix,
    norm_bound: float,
    variance: int,
    randbelow: Randbelow,
    prepared_by: Whole | None = None,
    shared: Shared = _ALONE,
) -> tuple[Matrix, Matrix]:
    """What `release_residual_moments` gives, on the fixed-point grid; with prepared columns a site's own means.

    Returns
    -------
    sums
        (D, D), or (D + 1, D + 1) with the constant; in units of R^2 / LATTICE.
    own_means
        (D + 1,) products of the residuals with the constant, and its square, summed over the records as they count, in
        these units.
    """
    means_variance, share = shared
    d = len(scales)  # workers get what a function below holds: never X

    def residuals(rows: Matrix) -> Matrix:
        with np.errstate(all="ignore"):
            # Where a record stands, and how many rows a block of persons has, hangs on other persons' rows.
            return np.asarray((rows - rows_times(np.ascontiguousarray(rows), W)) / scales)

    def with_constant(Z: Matrix) -> Matrix:
        return np.column_stack([Z, np.full(len(Z), constant_residual(d))])

    if prepared_by is None:
        sums = _sums(X, _Plain(residuals), norm_bound, d)
    else:
        centre, scale, spreads, squared = prepared_by
        with np.errstate(all="ignore"):
            model = Model((np.eye(d) - W) / scales, spreads)

        def prepared(rows: Matrix) -> Matrix:
            rows = _with_squares(rows, squared)
            with np.errstate(all="ignore"):
                x = (rows - centre) / scale
            return np.asarray(x)

        def whole(x: Matrix) -> Matrix:
            return with_constant(residuals(x))

        def expected(x: Matrix) -> Iterator[tuple[Index, Matrix, Matrix]]:
            for which, Z, B in model.expected(x):
                yield which, with_constant(Z), np.column_stack([B, np.zeros(len(B))])

        sums = _sums(X, _Completed(prepared, whole, expected), norm_bound, d + 1)
    own = sums[:, -1] if means_variance else sums[:0, -1]
    own_means = np.array([float(int(total) + rounded_gaussian(means_variance, randbelow)) for total in own])
    return _noisy(sums * share // WHOLE_SHARE, variance, randbelow), own_means


class _Residuals(Protocol):
    """What rows add to the moments."""

    def added(self, rows: Matrix, norm_bound: float) -> NDArray[np.int64]:
        """(d, d) sums of what records add, each shortened by itself."""
        ...

    def of_rows(self, rows: Matrix) -> tuple[Matrix, Index, Matrix]:
        """(n, d) z of rows, and which of the (p, d, d) V each has besides; negative: none."""
        ...


class _Plain(NamedTuple):
    """Rows are whole, or do not count."""

    residuals: Callable[[Matrix], Matrix]

    def added(self, rows: Matrix, norm_bound: float) -> NDArray[np.int64]:
        return _grid_sums(self.residuals(rows), norm_bound)

    def of_rows(self, rows: Matrix) -> tuple[Matrix, Index, Matrix]:
        Z = self.residuals(rows)
        return Z, np.full(len(Z), -1), np.zeros((1, Z.shape[1], Z.shape[1]))


class _Completed(NamedTuple):
    """Rows with gaps count as is expected of them."""

    prepared: Callable[[Matrix], Matrix]
    residuals: Callable[[Matrix], Matrix]
    expected: Callable[[Matrix], Iterator[tuple[Index, Matrix, Matrix]]]

    def added(self, rows: Matrix, norm_bound: float) -> NDArray[np.int64]:
        x = self.prepared(rows)
        found = _grid_sums(self.residuals(x), norm_bound)
        for _, Z, B in self.expected(x[np.isnan(x).any(axis=1)]):
            found += _expected_grid_sums(Z, B, norm_bound)
        return found

    def of_rows(self, rows: Matrix) -> tuple[Matrix, Index, Matrix]:
        x = self.prepared(rows)
        Z, gaps = self.residuals(x), np.full(len(x), -1)
        places, V = np.flatnonzero(np.isnan(x).any(axis=1)), [np.zeros((Z.shape[1], Z.shape[1]))]
        for which, of_which, B in self.expected(x[places]):
            Z[places[which]], gaps[places[which]] = of_which, len(V)
            with np.errstate(all="ignore"):
                V.append(B.T @ B)
        return Z, gaps, np.stack(V)


# Rows of a block: its fixed-point grid columns stay in the cache, and a large table is not copied.
_BLOCK = 1024


def _sums(X: Table, residuals: _Residuals, norm_bound: float, d: int) -> NDArray[np.int64]:
    """(d, d) exact sums, i <= j alone, of what all records or persons add, in units of R^2 / LATTICE."""
    if isinstance(X, PersonRows):
        sums = np.zeros((d, d), dtype=np.int64)
        for rows, sizes in X.blocks():
            with np.errstate(all="ignore"):
                Z, gaps, V = residuals.of_rows(rows)
            add_person_products(np.ascontiguousarray(Z), gaps, V, sizes, norm_bound**2, float(LATTICE), sums)
        return sums

    def sums_of(rows: Matrix) -> NDArray[np.int64]:
        sums = np.zeros((d, d), dtype=np.int64)
        for start in range(0, len(rows), _BLOCK):
            sums += residuals.added(rows[start : start + _BLOCK], norm_bound)
        return sums

    return sum_over_rows(X, sums_of)


def _noisy(sums: NDArray[np.int64], variance: int, randbelow: Randbelow) -> Matrix:
    """(d, d) symmetric sums with noise, from those for i <= j."""
    noisy = np.empty(sums.shape)
    i, j = np.triu_indices(len(sums))
    noise = rounded_gaussians((variance // 2, variance), (i == j).astype(np.int64), randbelow)
    noisy[i, j] = noisy[j, i] = (sums[i, j] + noise).astype(np.float64)
    return noisy


def _grid_sums(Z: Matrix, norm_bound: float) -> NDArray[np.int64]:
    """(d, d) exact sums of the rounded products of clipped records, i <= j alone, in units of R^2 / LATTICE."""
    with np.errstate(all="ignore"):
        norms = np.maximum(np.sqrt((Z * Z).sum(axis=1)), norm_bound)
        columns = np.ascontiguousarray(np.nan_to_num(Z / norms[:, None], nan=0.0).T) * LATTICE**0.5
    sums = np.zeros((Z.shape[1], Z.shape[1]), dtype=np.int64)
    add_products(columns, sums)
    return sums


def _expected_grid_sums(Z: Matrix, B: Matrix, norm_bound: float) -> NDArray[np.int64]:
    """The same of zz' + B'B for the (n, d) records Z, each shortened to the Frobenius norm R^2."""
    with np.errstate(all="ignore"):
        V = B.T @ B
        norms = np.sqrt(
            (Z * Z).sum(axis=1) ** 2
            + 2.0 * np.square(rows_times(Z, np.ascontiguousarray(B.T))).sum(axis=1)
            + np.square(V).sum()
        )
        usable = np.isfinite(norms)
        shares = np.where(usable, LATTICE / np.maximum(norms, norm_bound**2), 0.0)
        columns = np.ascontiguousarray((np.where(usable[:, None], Z, 0.0) * np.sqrt(shares)[:, None]).T)
    sums = np.zeros((Z.shape[1], Z.shape[1]), dtype=np.int64)
    add_expected_products(columns, V if usable.any() else np.zeros_like(V), shares, sums)
    return sums
