"""Sums that show the shape of noise: how residuals of a column go together with one of its parents, beyond correlation.

Let r be the residual of a column y on a constant, other parents and x, and v that of x on a constant and these other
parents, both in units of their standard deviations. If x -> y is right and noise is independent, r and v are, and each
of five products has mean 0:

    v tanh(r), v log cosh(r), tanh(v) r, log cosh(v) r, log cosh(v) log cosh(r).

tanh and log cosh are functions of residuals with a bounded slope, an odd and an even one. Of functions of v there is
taken what the parents do not explain linearly, and from functions h of r their mean and E h'(r) times r: then to first
order no sum depends on what the regressions have estimated. The covariance of the sums, for independent r and v, is the
mean product of the two functions of v times that of the two of r (times the rows): no fourth moments of products.
"""

from collections.abc import Iterable

import numpy as np

from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.protocol.sparse import Matrix, upper
from fedbnsl_client.losses.curvature import LEFT, basis

_OF_PARENT, _OF_RESIDUAL = [0, 0, 1, 2, 2], [1, 2, 0, 0, 2]  # the functions of the five products: 1, tanh, log cosh
_NUMBERS = 1 + 5 + 15
# Fewer rows in all, or for each column, tell nothing: a site regresses by itself, and what this leaves in the sums does
# not become smaller beside their errors with the number of sites.
_FEWEST_ROWS, _ROWS_EACH = 100, 30
# Of a column that is no continuous number: shares of rows with one value anywhere, and with the least or the largest
# one, and rows that may have it.
_MOST_EQUAL, _MOST_AT_END, _FEW = 0.2, 0.02, 3


def noise_sums(X: Matrix, pairs: Iterable[DirectedPair]) -> Matrix:
    """(k, 21) rows, sums of the products, and their covariances, i <= j; zeros where there is no telling.

    Nothing is told of columns that are no continuous numbers: what is rounded to few values, or piled up at a limit of
    detection, has no independent noise in either direction.

    Parameters
    ----------
    X
        (n, d) rows; NaN where a value is missing. Those that have all columns of a pair count.
    """
    found: list[Matrix] = []
    continuous: dict[int, bool] = {}
    for pair in pairs:
        for c in (pair.source, pair.target):
            if c not in continuous:
                continuous[c] = _is_continuous(X[:, c])
        told = continuous[pair.source] and continuous[pair.target]
        rows = X[:, [*pair.others, pair.source, pair.target]]
        found.append(_sums(rows[~np.isnan(rows).any(axis=1)]) if told else np.zeros(_NUMBERS))
    return np.array(found).reshape(-1, _NUMBERS)


def _is_continuous(column: Matrix) -> bool:
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    n = int(counts.sum())
    if len(values) < 2:
        return False
    at_end = max(int(counts[0]), int(counts[-1]))
    return bool(counts.max() <= max(_MOST_EQUAL * n, _FEW) and at_end <= max(_MOST_AT_END * n, _FEW))


def _sums(rows: Matrix) -> Matrix:
    """Of a pair: the last column is its target, that before its source."""
    nothing = np.zeros(_NUMBERS)
    n, d = rows.shape
    if n < max(_FEWEST_ROWS, _ROWS_EACH * d):
        return nothing
    rows = rows - rows.mean(axis=0)
    size = np.sqrt(np.square(rows).mean(axis=0))
    rows = rows / np.where(size > 0.0, size, 1.0)
    Q = basis(np.column_stack([np.ones(n), rows[:, :-2]]))
    v = _left(Q, rows[:, -2])
    if v @ v <= LEFT * n:  # constant, or a function of the others
        return nothing
    v /= np.sqrt(v @ v / n)
    Q = np.column_stack([Q, v / np.sqrt(n)])
    r = _left(Q, rows[:, -1])
    if r @ r <= LEFT * n:
        return nothing
    r /= np.sqrt(r @ r / n)
    F = np.column_stack([v, _left(Q, np.column_stack([np.tanh(v), _log_cosh(v)]))])
    odd, even, slope = np.tanh(r), _log_cosh(r), np.tanh(r).mean()  # log cosh has the derivative tanh
    H = np.column_stack([r, odd - odd.mean() - (1.0 - np.square(odd)).mean() * r, even - even.mean() - slope * r])
    g = (F.T @ H)[_OF_PARENT, _OF_RESIDUAL]
    V = (F.T @ F)[np.ix_(_OF_PARENT, _OF_PARENT)] * (H.T @ H)[np.ix_(_OF_RESIDUAL, _OF_RESIDUAL)] / n
    return np.concatenate([[n], g, upper(V)])


def _left(Q: Matrix, columns: Matrix) -> Matrix:
    """What is left of columns after a regression on some with this orthonormal basis."""
    return np.asarray(columns - Q @ (Q.T @ columns))


def _log_cosh(x: Matrix) -> Matrix:
    return np.asarray(np.logaddexp(x, -x) - np.log(2.0))
