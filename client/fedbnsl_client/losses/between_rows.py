"""Mean products between two different rows of a group: how much rows that belong together depend on each other.

Of groups of m rows, the sum over i != j of x_i x_j' is s s' - sum of x_i x_i', where s is the sum of the group's rows.
It has m (m - 1) ordered pairs of rows. Between independent rows the mean product is zero; where all rows of a group are
the same, it is that within a row.

Rows with gaps count by their conditional means, as EM completes them.

The products of one group of two rows would give both rows: of fewer groups than FEWEST_GROUPS nothing is told.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import row_blocks
from fedbnsl_client.losses.pattern_groups import numbered

FEWEST_GROUPS = 10
"""Groups of more than one row, without which a site tells no products."""

# Added to the diagonal of covariances, as a share of it: a column may be a function of others.
_RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class BetweenRows:
    """What a table says of two rows of a group."""

    products: Matrix  # (d, d) mean of x_i x_j' over ordered pairs of different rows; zeros where none is told
    n_pairs: int  # how many there are; 0: none, or of too few groups


def tells_of_pairs(sizes: Index) -> bool:
    """Whether enough of the (G,) groups have more than one row."""
    return int((sizes > 1).sum()) >= FEWEST_GROUPS


def between_rows(X: Matrix, sizes: Index, prepared: Callable[[Matrix], Matrix]) -> BetweenRows:
    """Those of an (n, d) table whose groups follow each other.

    Parameters
    ----------
    sizes
        (G,) rows of each group, in their order; they add up to n.
    prepared
        What makes (rows, d) prepared records without gaps of a block of the table.
    """
    if not tells_of_pairs(sizes):
        return BetweenRows(np.zeros((X.shape[1], X.shape[1])), 0)
    group, several = np.repeat(np.arange(len(sizes)), sizes), sizes > 1
    n_pairs = int((sizes * (sizes - 1)).sum())
    products, at = np.zeros((X.shape[1], X.shape[1])), 0
    last, held = -1, np.zeros((1, X.shape[1]))  # the group that a block ended in, and the sum of its rows so far
    for block in row_blocks(X):
        own = group[at : at + len(block)]
        at += len(block)
        used = several[own]
        own, x = own[used], prepared(block)[used]
        if not len(own):
            continue
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        sums = np.add.reduceat(x, starts, axis=0)
        if own[0] == last:
            sums[0] += held[0]
        else:
            products += held.T @ held
        products += sums[:-1].T @ sums[:-1] - x.T @ x
        last, held = int(own[-1]), sums[-1:]
    products += held.T @ held
    return BetweenRows(products / n_pairs, n_pairs)


def conditional_means(x: Matrix, S: Matrix) -> Matrix:
    """(n, d) rows about their means, NaN in the gaps, with each gap as (d, d) covariances S expect it, given the row.

    A gap of a column without variance is zero.
    """
    seen = ~np.isnan(x)
    found = np.where(seen, x, 0.0)
    if seen.all():
        return found
    keys = numbered(np.packbits(seen, axis=1))
    order = np.argsort(keys, kind="stable")
    varies, ridged = S.diagonal() > 0.0, S + _RIDGE * np.diag(S.diagonal())
    for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        there = seen[rows[0]]
        known, gaps = np.flatnonzero(there & varies), np.flatnonzero(~there & varies)
        if known.size and gaps.size:
            by = np.linalg.solve(ridged[np.ix_(known, known)], S[np.ix_(known, gaps)])
            found[np.ix_(rows, gaps)] = found[np.ix_(rows, known)] @ by
    return found
