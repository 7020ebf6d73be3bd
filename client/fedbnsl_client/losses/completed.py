"""Second moments of a table with gaps, completed by a covariance matrix S: the E step of EM. Pure mathematics.

Let o be the columns that a record has, and P the (d, d) matrix with the inverse of S_oo in these rows and columns and
zeros elsewhere. The expected record is mu + S P (x - mu), with zeros for x - mu in the gaps; what is left uncertain has
the covariance S - S P S. The expected second moments about mu, summed over n records, are then

    n S + S A S    with    A = sum of P (x - mu) (x - mu)' P - P,

and A is twice the gradient of the log-likelihood by S. The site's own means mu maximise this likelihood, given S.

Of the records with one pattern of gaps, only the sums of 1, x and x x' count. So an iteration costs one inverse for
each pattern, however many records have it.

Source: Dempster, Laird and Rubin (1977); Little and Rubin, Statistical Analysis with Missing Data, chapter 11.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Index, Mask, Matrix

# Inverses are kept between the two passes of an iteration up to so many bytes; beyond they are computed twice.
_KEPT_BYTES = 256 * 2**20
# Of EM within one table, and the change of a correlation below which it ends.
_MOST_ITERATIONS, _SMALL_CHANGE = 1000, 1e-6
# Added to the diagonal of S, as a share of it: a column may be a function of others.
_RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Completed:
    """What an E step gives.

    Attributes
    ----------
    moments
        (d, d) mean expected second moments about the site's own means, those of the task, or zero.
    mean_residual
        (d,) mean expected values about the task's means; empty where it has none.
    log_likelihood
        Of all values that are there, without constants.
    """

    moments: Matrix
    mean_residual: Matrix
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Patterns:
    """The records of a table, grouped by which values they have.

    Attributes
    ----------
    groups
        By the packed bits of a pattern: (k, 1 + d) rows whose products with each other add up to those of the records
        (1, x), with zeros in the gaps. A group has at most 1 + d of them, or as many as it has records.
    n_columns
        d.
    """

    groups: Mapping[bytes, Matrix]
    n_columns: int

    @classmethod
    def of(cls, X: Matrix) -> Self:
        """Those of an (n, d) table, NaN in the gaps; records without any value are left out."""
        seen = ~np.isnan(X)
        rows = np.column_stack([np.ones(len(X)), np.where(seen, X, 0.0)])
        packed = np.packbits(seen, axis=1)
        keys, group = np.unique(packed, axis=0, return_inverse=True)
        order, ends = np.argsort(group.ravel(), kind="stable"), np.cumsum(np.bincount(group.ravel()))
        found = zip(keys, np.split(order, ends[:-1]), strict=True)
        return cls({key.tobytes(): _compressed(rows[which]) for key, which in found if key.any()}, X.shape[1])

    def __add__(self, other: Self) -> Self:
        """Those of both tables together."""
        groups = dict(self.groups)
        for key, rows in other.groups.items():
            groups[key] = _compressed(np.concatenate([groups[key], rows])) if key in groups else rows
        return type(self)(dict(sorted(groups.items())), self.n_columns)

    @cached_property
    def n_samples(self) -> float:
        """Records."""
        return float(sum(np.square(rows[:, 0]).sum() for rows in self.groups.values()))

    @cached_property
    def pair_counts(self) -> Matrix:
        """(d, d) records that have both columns."""
        found = np.zeros((self.n_columns, self.n_columns))
        for seen, rows in self._groups:
            found[np.ix_(seen, seen)] += np.rint(np.square(rows[:, 0]).sum())
        return found

    def pair_products(self, *, own_means: bool) -> Matrix:
        """(d, d) mean products over the records that have both columns, else 0; about the means of all values, or 0."""
        sums = np.zeros((self.n_columns, self.n_columns))
        for seen, _, x in self._about(self._means if own_means else np.zeros(self.n_columns)):
            sums[np.ix_(seen, seen)] += x.T @ x
        return np.asarray(sums / np.maximum(self.pair_counts, 1.0))

    def mean_differences(self, least: int) -> Matrix:
        """(d, d) [j, k] by how many standard errors the mean of k is larger in rows with column j than without.

        A standard error is the larger one of that from the variance of all rows and that from the variances of the two
        groups (Welch): few rows with an odd value are no evidence.

        Parameters
        ----------
        least
            Rows with k that have j, and that lack it; where either are fewer, the difference is 0.
        """
        with_j = np.zeros((3, self.n_columns, self.n_columns))  # their count, sum and sum of squares
        for seen, rows, x in self._about(self._means):
            told = np.stack([np.full(len(seen), np.square(rows[:, 0]).sum()), rows[:, 0] @ x, np.square(x).sum(axis=0)])
            with_j[:, seen[:, None], seen] += told[:, None, :]
        whole = np.diagonal(with_j, axis1=1, axis2=2)
        groups = np.stack([with_j, whole[:, None, :] - with_j])
        n, means, squares = groups[:, 0], *(groups[:, 1:] / np.maximum(groups[:, :1], 1.0)).swapaxes(0, 1)
        own = ((squares - means**2) / np.maximum(n - 1.0, 1.0)).sum(axis=0)
        of_all = whole[2] / np.maximum(whole[0], 1.0) * (1.0 / np.maximum(n, 1.0)).sum(axis=0)
        error = np.sqrt(np.maximum(own, of_all))
        varies = whole[2] > _RIDGE * (whole[2] + whole[0] * self._means**2)  # less is rounding
        tested = (n.min(axis=0) >= least - 0.5) & varies
        return np.asarray(np.where(tested, means[0] - means[1], 0.0) / np.where(tested, error, 1.0))

    @property
    def complete_rows(self) -> int:
        """Records without a gap."""
        n = sum(float(np.square(rows[:, 0]).sum()) for seen, rows in self._groups if len(seen) == self.n_columns)
        return round(n)

    def completed(self, by: Covariances, *, own_means: bool) -> Completed:
        """The E step.

        Parameters
        ----------
        own_means
            Whether moments are about means of the site's own; else about those of `by`, or zero.
        """
        S, d = by.S, self.n_columns
        varies, ridged = S.diagonal() > 0.0, S + _RIDGE * np.diag(S.diagonal())
        groups = [(seen[varies[seen]], rows) for seen, rows in self._groups]
        kept: list[Matrix] | None = None
        if 8 * sum(len(seen) ** 2 for seen, _ in groups) <= _KEPT_BYTES:
            kept = [_inverse(ridged, seen) for seen, _ in groups]

        def with_inverses() -> Iterator[tuple[Index, Matrix, float, Matrix]]:
            for g, (seen, rows) in enumerate(groups):
                P = _inverse(ridged, seen) if kept is None else kept[g]
                yield seen, rows, float(np.square(rows[:, 0]).sum()), P

        mean = by.means.copy() if by.means.size else np.zeros(d)
        if own_means:
            information, sums = np.zeros((d, d)), np.zeros(d)
            for seen, rows, n, P in with_inverses():
                information[np.ix_(seen, seen)] += n * P
                sums[seen] += P @ (rows[:, 0] @ rows[:, 1 + seen])
            known = np.flatnonzero(information.diagonal() > 0.0)
            mean[known] = np.linalg.solve(information[np.ix_(known, known)], sums[known])
        A, gradient, log_likelihood = np.zeros((d, d)), np.zeros(d), 0.0
        for seen, rows, n, P in with_inverses():
            x = rows[:, 1 + seen] - np.outer(rows[:, 0], mean[seen])
            z = x @ P
            A[np.ix_(seen, seen)] += z.T @ z - n * P
            gradient[seen] += rows[:, 0] @ z
            log_likelihood += 0.5 * (n * float(np.linalg.slogdet(P)[1]) - float((z * x).sum()))
        moments = S + S @ (A / self.n_samples) @ S
        residual = S @ gradient / self.n_samples if by.means.size else np.empty(0)
        return Completed(np.asarray(moments + moments.T) / 2.0, residual, log_likelihood)

    @cached_property
    def _means(self) -> Matrix:
        """(d,) of all values of each column; 0 where it has none."""
        sums = np.zeros(self.n_columns)
        for seen, rows in self._groups:
            sums[seen] += rows[:, 0] @ rows[:, 1 + seen]
        return np.asarray(sums / np.maximum(self.pair_counts.diagonal(), 1.0))

    def _about(self, means: Matrix) -> Iterator[tuple[Index, Matrix, Matrix]]:
        """The columns that each group has, its rows, and what they have of these columns about (d,) means."""
        for seen, rows in self._groups:
            yield seen, rows, rows[:, 1 + seen] - np.outer(rows[:, 0], means[seen])

    @cached_property
    def _groups(self) -> list[tuple[Index, Matrix]]:
        """The columns that the records of each group have, and its rows."""
        return [(np.flatnonzero(self.seen(key)), rows) for key, rows in self.groups.items()]

    def seen(self, key: bytes) -> Mask:
        """(d,) the columns that a pattern has."""
        return np.unpackbits(np.frombuffer(key, dtype=np.uint8), count=self.n_columns).astype(bool)


def maximum_likelihood(patterns: Patterns, *, own_means: bool) -> Matrix:
    """(d, d) second moments of one table by EM, about its own means or zero; 0 for columns without values."""
    S = np.diag(patterns.pair_products(own_means=own_means).diagonal())
    for _ in range(_MOST_ITERATIONS):
        found = patterns.completed(Covariances(S, np.empty(0)), own_means=own_means).moments
        size = np.sqrt(np.maximum(np.diagonal(S), np.finfo(np.float64).tiny))
        change, S = float(np.abs((found - S) / size / size[:, None]).max()), found
        if change < _SMALL_CHANGE:
            break
    return S


def _inverse(S: Matrix, seen: Index) -> Matrix:
    return np.asarray(np.linalg.inv(S[np.ix_(seen, seen)]), dtype=np.float64)


def _compressed(rows: Matrix) -> Matrix:
    """Fewer rows with the same sums of products, where there are many more rows than columns."""
    if len(rows) <= 2 * rows.shape[1]:
        return rows
    used = np.flatnonzero(rows.any(axis=0))
    found = np.zeros((min(len(rows), len(used)), rows.shape[1]))
    found[:, used] = np.linalg.qr(rows[:, used], mode="r")
    return found
