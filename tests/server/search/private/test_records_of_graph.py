"""What clipping does to records with squares of numbers is taken back by records as a graph says that they are."""

import math

import numpy as np
import pytest

from fedbnsl.privacy.calibration import constant_residual
from fedbnsl.privacy.squares import squares
from fedbnsl_server.search.private.records_of_graph import RecordsOfGraph
from fedbnsl_server.search.private.released_likelihood import Release

ROWS, U = 200_000, 3
D = 2 * U
OF = np.arange(U)


def drawn(bend: float, off: float) -> np.ndarray:
    """a -> b -> c; what acts is a line or a parabola, and squares are taken about centres that are off."""
    rng = np.random.default_rng(3)
    a, e, f = rng.standard_normal((3, ROWS))
    b = 0.7 * a + 0.5 * bend * squares(a) + 0.6 * e
    c = 0.7 * b - 0.5 * bend * squares(b) + 0.6 * f
    X = np.column_stack([a, b, c])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X = np.column_stack([X, squares(X - off)])
    return np.asarray(X - X.mean(axis=0))


def records_of(X: np.ndarray) -> RecordsOfGraph:
    """Regressions of each number, with its square, on the number before it and that number's square."""
    S = X.T @ X / ROWS
    W, V = np.zeros((D, D)), np.zeros((D, D))
    for k in range(U):
        own, given = [k, k + U], [k - 1, k - 1 + U] if k else []
        W[np.ix_(given, own)] = np.linalg.solve(S[np.ix_(given, given)], S[np.ix_(given, own)])
        V[np.ix_(own, own)] = S[np.ix_(own, own)] - S[np.ix_(own, given)] @ W[np.ix_(given, own)]
    return RecordsOfGraph(W, V, OF)


@pytest.mark.parametrize("off", [0.0, 0.3], ids=["about the means", "about noisy means"])
@pytest.mark.parametrize("bend", [0.0, 1.0], ids=["lines", "parabolas"])
@pytest.mark.parametrize("share", [0.6, 1.0], ids=["as in the plan", "few are clipped"])
def test_moments_are_what_they_would_be_without_clipping(share: float, bend: float, off: float) -> None:
    X = drawn(bend, off)
    records = records_of(X)
    A = (np.eye(D) - records.weights) / np.sqrt(records.covariance.diagonal())
    Z, unit, norm_bound = X @ A, 1.7, share * math.sqrt(D)
    w = np.minimum(1.0, norm_bound**2 / ((Z**2).sum(axis=1) + constant_residual(D) ** 2))
    moments = (Z * w[:, None]).T @ Z / ROWS / unit**2
    release = Release(moments, 0.01, A, float(w.mean()), norm_bound / unit, constant_residual(D) / unit)
    whole = Z.T @ Z / ROWS * w.mean() / unit**2

    def off_by(found: np.ndarray) -> float:
        return float(np.abs(found - whole).max() / np.median(whole.diagonal()))

    known = records._replace(covariance=5.0 * records.covariance)
    found, as_gaussian = (one.moments for one in (release.unclipped_as(known), release.unclipped(known.moments)))
    assert off_by(found) < 0.05
    assert off_by(found) < 0.5 * off_by(as_gaussian)


def test_records_without_squares_count_as_gaussian() -> None:
    release = Release(np.eye(2), 0.01, np.eye(2), 0.8, 1.5, 0.5)
    records = RecordsOfGraph(np.zeros((2, 2)), np.diag([1.0, 2.0]))
    np.testing.assert_array_equal(release.unclipped_as(records).moments, release.unclipped(np.diag([1.0, 2.0])).moments)


def test_records_are_drawn_after_the_squares_that_act_on_them() -> None:
    """a = b^2 + e, with b as the second column."""
    W = np.zeros((4, 4))
    W[3, 0] = 1.0
    x = RecordsOfGraph(W, np.eye(4), np.arange(2)).drawn(1.0)
    assert np.cov(x[:, 0], x[:, 3])[0, 1] == pytest.approx(np.var(x[:, 3]), rel=0.02)
