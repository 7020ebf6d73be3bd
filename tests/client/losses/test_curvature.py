"""Sums that show curves, against regressions by least squares."""

import numpy as np
import pytest

from fedbnsl.protocol.sparse import symmetric_of
from fedbnsl.rounds.curvature import STEPS
from fedbnsl.rounds.hinges import KNOTS
from fedbnsl_client.losses.curvature import Hinged, curvature_sums

STEP_VALUES = np.array(STEPS)
CHAIN = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 0]], dtype=bool)


def table(n=400, gaps=0.0):
    rng = np.random.default_rng(2)
    a, d = rng.standard_t(3, n), rng.normal(size=n)
    b = 0.8 * a + rng.exponential(size=n)
    c = b**2 - 0.5 * d + rng.normal(size=n)
    Z = np.column_stack([a, b, c, d])
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    Z[rng.random(Z.shape) < gaps] = np.nan
    return Z


def straight(Z, hinged=()):
    return Hinged.of(Z, np.array(hinged, dtype=np.int64), np.array(KNOTS))


def by_least_squares(Z, other, child, hinged=()):
    parents = np.flatnonzero(CHAIN[:, child]).tolist()
    Z = Z[~np.isnan(Z[:, [*parents, child, other]]).any(axis=1)]
    one = np.ones(len(Z))

    def left(y, X):
        return y - X @ np.linalg.lstsq(X, y, rcond=None)[0]

    def hinges(columns):
        return np.column_stack([one, *(np.maximum(Z[:, c] - s, 0.0) for c in columns if c in hinged for s in KNOTS)])

    X = np.column_stack([hinges(parents), Z[:, parents]])
    e = left(Z[:, child], X)
    X = np.column_stack([X, hinges({other}), Z[:, other]])
    f = np.column_stack([left((Z[:, other] > s).astype(float), X) for s in STEPS])
    return len(Z), f.T @ e, (f * e[:, None] ** 2).T @ f


@pytest.mark.parametrize(("gaps", "hinged"), [(0.0, ()), (0.1, ()), (0.0, (1, 3)), (0.1, (0,))])
def test_the_sums_are_those_of_least_squares_over_the_rows_that_have_all_columns(gaps, hinged):
    Z, pairs = table(gaps=gaps), np.array([[0, 1], [3, 1], [0, 2], [1, 2], [3, 2], [1, 3]])
    told = curvature_sums(straight(Z, hinged), CHAIN, pairs, STEP_VALUES)
    for (other, child), sums in zip(pairs.tolist(), told, strict=True):
        n, g, M = by_least_squares(Z, other, child, hinged)
        assert sums[0] == n
        np.testing.assert_allclose(sums[1:4], g, atol=1e-9 * n)
        np.testing.assert_allclose(symmetric_of(sums[4:], 3), M, atol=1e-9 * n)


def test_functions_of_other_columns_and_few_rows_tell_nothing():
    Z = table()
    Z[:, 1] = 2.0 * Z[:, 0]  # b has no residual
    sums = curvature_sums(straight(Z), CHAIN, np.array([[3, 1], [0, 3]]), STEP_VALUES)
    assert not sums[0].any()
    assert sums[1, 0] == len(Z)
    Z[:, 3] = 0.1 - 1e-17  # constant but for rounding
    Z[::2, 3] = 0.1
    assert not curvature_sums(straight(Z - Z.mean(axis=0)), CHAIN, np.array([[0, 3]]), STEP_VALUES).any()
    assert not curvature_sums(straight(Z[:9]), CHAIN, np.array([[0, 3]]), STEP_VALUES).any()


def test_a_column_of_two_values_has_no_curve():
    Z = table()
    Z[:, 0] = np.where(Z[:, 0] > 0.3, 1.2, -0.8)
    sums = curvature_sums(straight(Z), CHAIN, np.array([[0, 3]]), STEP_VALUES)
    assert not sums[0, 1:].any(), "rounding is no curve"
