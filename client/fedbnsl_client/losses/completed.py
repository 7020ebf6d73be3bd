"""Second moments of a table with gaps, completed by a covariance matrix S: the E step of EM. Pure mathematics.

Let o be the columns that a record has, m its gaps, K the inverse of S, and P the (d, d) matrix with the inverse of S_oo
in its rows and columns o and zeros elsewhere. The expected record is mu + S P (x - mu), with zeros for x - mu in the
gaps; what is left uncertain has the covariance S - S P S. The expected second moments about mu, summed over n records,
are then

    n S + S A S    with    A = sum of P (x - mu) (x - mu)' P - P,

and A is twice the gradient of the log-likelihood by S. The site's own means mu maximise this likelihood, given S.

Where records have fewer gaps than values, the inverse V of K_mm is the shorter way: the expected gaps about mu are
-V K_mo (x - mu)_o with the covariance V. With x* the expected record and V in the rows and columns m, zeros elsewhere,
P (x - mu) is K (x* - mu) and P is K - K V K, so that S A S is the sum of (x* - mu) (x* - mu)' + V - S.

Of the records with one pattern of gaps, only the sums of 1, x and x x' count. So an iteration costs one inverse for
each pattern, however many records have it.

Source: Dempster, Laird and Rubin (1977); Little and Rubin, Statistical Analysis with Missing Data, chapter 11.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import BLOCK_BYTES
from fedbnsl_client.losses.pattern_groups import Batch, PatternGroups

# Inverses are kept between the two passes of an iteration up to so many bytes; the others are computed twice.
_KEPT_BYTES = 256 * 2**20
# Groups are merged up to so many bytes; beyond, they lie in files.
_PART_BYTES = 8 * BLOCK_BYTES
# Of EM within one table, and the change of a correlation below which it ends.
_MOST_ITERATIONS, _SMALL_CHANGE = 1000, 1e-6
# Of the eigenvalues of correlations: below, sums over their inverse lose the digits of a column that few rows have.
_LEAST_EIGENVALUE = 1e-5
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
    means
        (d,) what the moments are about.
    """

    moments: Matrix
    mean_residual: Matrix
    log_likelihood: float
    means: Matrix


@dataclass(frozen=True, eq=False)
class Patterns:
    """The records of a table, grouped by which values they have.

    Attributes
    ----------
    parts
        A pattern may be in several of them.
    n_columns
        d.
    """

    parts: tuple[PatternGroups, ...]
    n_columns: int

    @classmethod
    def of(cls, X: Matrix) -> Self:
        """Those of an (n, d) table, NaN in the gaps; records without any value are left out."""
        return cls((PatternGroups.of(X),), X.shape[1])

    def __add__(self, other: Self) -> Self:
        """Those of both tables together."""
        *done, last = self.parts
        for part in other.parts:
            if last.rows.nbytes + part.rows.nbytes <= _PART_BYTES:
                last += part
            else:
                done.append(last.in_file())
                last = part
        return type(self)((*done, last), self.n_columns)

    @cached_property
    def n_samples(self) -> float:
        """Records."""
        return float(sum(part.n.sum() for part in self.parts))

    @cached_property
    def pair_counts(self) -> Matrix:
        """(d, d) records that have both columns."""
        found = np.zeros((self.n_columns, self.n_columns))
        for part in self.parts:
            for first, last, _ in part.blocks():
                seen = part.seen(first, last).astype(np.float64)
                found += (seen * part.n[first:last, None]).T @ seen
        return found

    def pair_products(self, *, own_means: bool) -> Matrix:
        """(d, d) mean products over the records that have both columns, else 0; about the means of all values, or 0."""
        sums = np.zeros((self.n_columns, self.n_columns))
        for batch in self._batches():
            x = batch.about(self._means if own_means else np.zeros(self.n_columns)).reshape(-1, self.n_columns)
            sums += x.T @ x
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
        for batch in self._batches():
            x, seen = batch.about(self._means), np.zeros((len(batch.n), self.n_columns))
            np.put_along_axis(seen, batch.seen, 1.0, axis=1)
            sums = np.einsum("kr,krd->kd", batch.rows[..., 0], x)
            with_j += seen.T @ np.stack([batch.n[:, None] * seen, sums, np.square(x).sum(axis=1)])
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
        return round(sum(float(part.n[part.seen().all(axis=1)].sum()) for part in self.parts))

    def completed(self, by: Covariances, *, own_means: bool) -> Completed:
        """The E step.

        Parameters
        ----------
        own_means
            Whether moments are about means of the site's own; else about those of `by`, or zero.
        """
        S, varies = by.S, np.flatnonzero(by.S.diagonal() > 0.0)
        model, v = _Model.of(S[np.ix_(varies, varies)]), len(varies)
        K, inverses, free_bytes = model.K, list[Matrix | None](), _KEPT_BYTES
        information, uncertain, n_by_gaps, log_likelihood = np.zeros((v, v)), np.zeros((v, v)), 0.0, 0.0
        weighted, expected, n_values = np.zeros(v), np.zeros(v), np.zeros(v)
        for batch in self._batches(varies, by_gaps=model.by_gaps):
            inverse, log_determinants = model.inverses(batch)
            free_bytes -= inverse.nbytes
            inverses.append(inverse if free_bytes >= 0 else None)
            log_likelihood += 0.5 * float(batch.n @ log_determinants)
            sums = (batch.rows[..., :1] * batch.rows[..., 1:]).sum(axis=1, keepdims=True) if own_means else None
            if batch.by_gaps:
                n_by_gaps += float(batch.n.sum())
                n_values += np.bincount(batch.seen.ravel(), np.repeat(batch.n, batch.seen.shape[1]), v)
                _add(uncertain, batch.gaps, batch.n[:, None, None] * inverse)
                if sums is not None:
                    expected += model.expected(batch, sums, inverse).sum(axis=(0, 1))
            else:
                _add(information, batch.seen, batch.n[:, None, None] * inverse)
                if sums is not None:
                    weighted += model.weighted(batch, sums, inverse).sum(axis=(0, 1))
        mean = by.means[varies] if by.means.size else np.zeros(v)
        if own_means:
            # S times the sums of P and of P x. Of V K, what falls on gaps is the identity: what is left of n of it is
            # counted, for a difference would lose its digits. Columns without a value here have no mean.
            of_values = uncertain @ K
            np.fill_diagonal(of_values, 0.0)
            total = model.S @ information + np.diag(n_values) - of_values
            known = np.flatnonzero(self.pair_counts.diagonal()[varies] > 0.0)
            mean[known] = np.linalg.solve(total[np.ix_(known, known)], (model.S @ weighted + expected)[known])
        products, squares = np.zeros((v, v)), np.zeros((v, v))
        weighted, expected = np.zeros(v), np.zeros(v)
        for batch, kept in zip(self._batches(varies, by_gaps=model.by_gaps), inverses, strict=True):
            inverse = model.inverses(batch)[0] if kept is None else kept
            x, ones = batch.about(mean), batch.rows[..., 0].ravel()
            if batch.by_gaps:
                whole = model.expected(batch, x, inverse).reshape(-1, v)
                squares += whole.T @ whole
                expected += ones @ whole
            else:
                z = model.weighted(batch, x, inverse).reshape(-1, v)
                products += z.T @ z
                weighted += ones @ z
                log_likelihood -= 0.5 * float((z * x.reshape(-1, v)).sum())
        log_likelihood -= 0.5 * float((K * squares).sum())
        # S K is the identity but for the ridge: the product itself would lose digits.
        by_S, by_SK = S[:, varies], np.eye(len(S))[:, varies]
        by_SK[varies] -= model.ridge[:, None] * K
        changes = by_S @ (products - information) @ by_S.T
        changes += by_SK @ (squares + uncertain - n_by_gaps * model.S) @ by_SK.T
        moments = S + changes / self.n_samples
        residual = (by_S @ weighted + by_SK @ expected) / self.n_samples if by.means.size else np.empty(0)
        means = np.zeros(len(S))
        means[varies] = mean
        if own_means:
            # Exactly: where other columns determine one, as levels that only one site has, rounding is not small.
            moments[self._constant] = 0.0
            moments[:, self._constant] = 0.0
        return Completed(np.asarray(moments + moments.T) / 2.0, residual, log_likelihood, means)

    @cached_property
    def _constant(self) -> Mask:
        """(d,) columns that have the same value in all records, without a gap."""
        squares, complete = self.pair_products(own_means=True).diagonal(), self.pair_counts.diagonal() == self.n_samples
        return np.asarray(complete & (squares <= _RIDGE * (squares + self._means**2)))  # more than rounding varies

    @cached_property
    def _means(self) -> Matrix:
        """(d,) of all values of each column; 0 where it has none."""
        sums = sum(np.einsum("kr,krd->d", batch.rows[..., 0], batch.rows[..., 1:]) for batch in self._batches())
        return np.asarray(sums / np.maximum(self.pair_counts.diagonal(), 1.0))

    def _batches(self, columns: Index | None = None, *, by_gaps: bool = False) -> Iterator[Batch]:
        """All groups, restricted to some columns."""
        for part in self.parts:
            yield from part.batches(np.arange(self.n_columns) if columns is None else columns, by_gaps=by_gaps)


class _Model(NamedTuple):
    """What completes rows.

    Attributes
    ----------
    S, K
        (v, v) covariances with the ridge, and their inverse; zeros for one of which too few digits are left.
    ridge
        (v,)
    log_determinant
        Of K.
    by_gaps
        Whether K has digits enough to complete rows by it.
    """

    S: Matrix
    K: Matrix
    ridge: Matrix
    log_determinant: float
    by_gaps: bool

    @classmethod
    def of(cls, S: Matrix) -> Self:
        size, ridge = np.sqrt(S.diagonal()), _RIDGE * S.diagonal()
        ridged = S + np.diag(ridge)
        if not len(S) or np.linalg.eigvalsh(S / size / size[:, None])[0] < _LEAST_EIGENVALUE:
            return cls(ridged, np.zeros_like(S), ridge, 0.0, by_gaps=False)
        K = np.linalg.inv(ridged)
        return cls(ridged, np.asarray(K + K.T) / 2.0, ridge, float(np.linalg.slogdet(K)[1]), by_gaps=True)

    def inverses(self, batch: Batch) -> tuple[Matrix, Matrix]:
        """V or P of each group, without the zeros, and the logarithm of the determinant of P."""
        of, columns, add = (self.K, batch.gaps, self.log_determinant) if batch.by_gaps else (self.S, batch.seen, 0.0)
        parts = of[columns[:, :, None], columns[:, None, :]]
        log_determinants = np.asarray(np.linalg.slogdet(parts)[1], dtype=np.float64)
        return np.asarray(np.linalg.inv(parts), dtype=np.float64), add - log_determinants

    def expected(self, batch: Batch, x: Matrix, V: Matrix) -> Matrix:
        """(k, r, v) x*, from x with zeros in the gaps."""
        gaps = batch.gaps[:, None, :]
        found = x.copy()
        of_all = (x.reshape(-1, x.shape[2]) @ self.K).reshape(x.shape)  # one product, not one for each group
        np.put_along_axis(found, gaps, -np.take_along_axis(of_all, gaps, axis=2) @ V, axis=2)
        return found

    def weighted(self, batch: Batch, x: Matrix, P: Matrix) -> Matrix:
        """(k, r, v) P x."""
        seen = batch.seen[:, None, :]
        found = np.zeros_like(x)
        np.put_along_axis(found, seen, np.take_along_axis(x, seen, axis=2) @ P, axis=2)
        return found


def _add(to: Matrix, columns: Index, parts: Matrix) -> None:
    """Add (k, p, p) parts to rows and columns of a (v, v) matrix."""
    places = columns[:, :, None] * len(to) + columns[:, None, :]
    to += np.bincount(places.ravel(), parts.ravel(), to.size).reshape(to.shape)


def maximum_likelihood(patterns: Patterns, *, own_means: bool) -> Matrix:
    """(d, d) second moments of one table by EM, about its own means or zero; 0 for columns without values."""
    S = np.diag(patterns.pair_products(own_means=own_means).diagonal())
    for _ in range(_MOST_ITERATIONS if patterns.n_samples else 0):
        found = patterns.completed(Covariances(S, np.empty(0)), own_means=own_means).moments
        size = np.sqrt(np.maximum(np.diagonal(S), np.finfo(np.float64).tiny))
        change, S = float(np.abs((found - S) / size / size[:, None]).max()), found
        if change < _SMALL_CHANGE:
            break
    return S
