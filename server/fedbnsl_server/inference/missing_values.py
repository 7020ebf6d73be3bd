"""Whether values are missing completely at random (MCAR), so that rows without a gap are a sample like all rows.

The mean of a column is compared between rows that have another variable and rows that lack it: a site tells by how many
standard errors z they differ. Under MCAR z is about standard normal. For each pair, two numbers are tested: the sum of
z over the sites, for a reason that they share, and the sum of z^2, for reasons that differ between them. The smaller
p-value counts twice, and Holm's correction is over all pairs.

Little's test (1988) compares the means of all columns by pattern of gaps. Where nearly every row has a pattern of its
own, its statistic is far from chi-square; and it does not tell which variables differ.

Counts of categories and curves rest on the rows without a gap, where these can stand for all.
"""

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.algorithm.completion import Completion, Unfit
from fedbnsl_server.inference.heterogeneity import chi_square_tails, holm, tails

# A p-value that says that rows without a gap are unlike the others.
_DIFFERENT = 0.01
# Rows without a gap that are enough: so many in all and for each variable, or so large a share of all. With fewer, the
# class of a network of categories can be worse than by the moments of all rows.
_ENOUGH_ROWS, _ENOUGH_A_VARIABLE, _ENOUGH_OF_ALL = 500, 40, 0.8


def unfit(told: Completion, columns: Columns, rows: int, least_rows: int) -> Unfit:
    """Why rows without a gap cannot stand for all `rows`; empty: nothing shows that they cannot."""
    if told.lacks_columns:
        return "columns"
    enough = max(_ENOUGH_ROWS, _ENOUGH_A_VARIABLE * len(columns.variables))
    if sum(told.complete_rows.values()) < min(enough, _ENOUGH_OF_ALL * rows):
        return "few"
    _, p = differences_of_means(told, columns, least_rows)
    return "differ" if (p < _DIFFERENT).any() else ""


def differences_of_means(told: Completion, columns: Columns, least_rows: int) -> tuple[Index, Matrix]:
    """(K, 2) pairs of a variable that some rows lack and a column of another one, and (K,) adjusted p-values.

    Pairs are left out where no site has `least_rows` rows on either side.
    """
    first, apart = [int(own[0]) for own in columns.members()], ~columns.within()
    sites, total, squares = np.zeros((3, len(first), len(apart)))
    for site, z in told.differences.items():
        n = told.n_pairs[site]
        tested = (apart & (np.minimum(n, n.diagonal() - n) >= least_rows))[first]
        sites += tested
        total += np.where(tested, z[first], 0.0)
        squares += np.where(tested, z[first] ** 2, 0.0)
    pairs = np.argwhere(sites > 0.0)
    at = tuple(pairs.T)
    shared, differing = tails(total[at] / np.sqrt(sites[at])), chi_square_tails(squares[at], sites[at].astype(np.int64))
    return pairs, holm(2.0 * np.minimum(shared, differing))
