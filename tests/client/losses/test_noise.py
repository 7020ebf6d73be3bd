"""The sums that show the shape of noise are those that their definition gives, row by row."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.protocol.sparse import Matrix, symmetric_of
from fedbnsl_client.losses.noise import noise_sums

PAIR = DirectedPair(2, 3, (0, 1))


def table(n: int = 400) -> Matrix:
    """z and w act on x, and all three on y, in odd units."""
    rng = np.random.default_rng(3)
    z, w = rng.exponential(size=n), rng.uniform(size=n)
    x = z + rng.laplace(size=n)
    y = x - z + w + rng.exponential(size=n)
    return np.column_stack([z, 7.0 * w, 100.0 * x + 5.0, 0.01 * y - 3.0])


def left(of: Matrix, *by: Matrix) -> Matrix:
    """What least squares on a constant and some columns leave, in units of its root mean square."""
    A = np.column_stack([np.ones(len(of)), *by])
    return np.asarray(of - A @ np.linalg.lstsq(A, of, rcond=None)[0])


def unit(of: Matrix) -> Matrix:
    return np.asarray(of / np.sqrt(np.mean(of**2)))


def test_the_sums_are_those_of_the_definition() -> None:
    z, w, x, y = table().T
    v, r = unit(left(x, z, w)), unit(left(y, z, w, x))
    odd, even = np.tanh, lambda u: np.log(np.cosh(u))
    F = [v, left(odd(v), z, w, x), left(even(v), z, w, x)]
    H = [r] + [
        h(r) - h(r).mean() - slope(r).mean() * r for h, slope in ((odd, lambda u: 1 - np.tanh(u) ** 2), (even, odd))
    ]
    products = [(0, 1), (0, 2), (1, 0), (2, 0), (2, 2)]
    (told,) = noise_sums(table(), [PAIR])
    assert told[0] == len(x)
    assert told[1:6] == pytest.approx([sum(F[i] * H[j]) for i, j in products], abs=1e-8)
    M = symmetric_of(told[6:], 5)
    expected = [[sum(F[i] * F[k]) * sum(H[j] * H[m]) / len(x) for k, m in products] for i, j in products]
    assert pytest.approx(np.array(expected), rel=1e-8, abs=1e-8) == M


def test_rows_with_a_gap_in_a_column_of_the_pair_do_not_count() -> None:
    X, gaps = table(), table()
    gaps[::7, 1] = np.nan
    gaps[3, 3] = np.nan
    rows = ~np.isnan(gaps).any(axis=1)
    assert noise_sums(gaps, [PAIR]) == pytest.approx(noise_sums(X[rows], [PAIR]))
    of_two = noise_sums(np.where(np.isnan(gaps[:, [0, 2]]), 0.0, gaps[:, [0, 2]]), [DirectedPair(0, 1, ())])
    assert of_two[0, 0] == len(X), "columns of other pairs do not matter"


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X[:19],
        lambda X: X * [1, 1, 0, 1],
        lambda X: np.column_stack([X[:, :3], X[:, 2] * 3.0 - X[:, 0]]),  # a function of its parents
        lambda X: np.column_stack([X[:, :2], X[:, 0] + X[:, 1], X[:, 3]]),
        lambda X: np.column_stack([X[:, :2], np.round(X[:, 2] / 200.0), X[:, 3]]),
        lambda X: np.column_stack([X[:, :3], np.maximum(X[:, 3], np.quantile(X[:, 3], 0.1))]),
    ],
    ids=["few rows", "constant", "child a function", "parent a function", "few values", "limit of detection"],
)
def test_nothing_is_told_where_there_is_no_telling(change: Any) -> None:
    assert noise_sums(table(), [PAIR]).any()
    assert not noise_sums(change(table()), [PAIR]).any()


def test_no_unit_and_no_mean_of_a_column_matters() -> None:
    X = table()
    assert noise_sums(X * [-3.0, 2.0, 1e-6, 1e9] + [1.0, 2.0, 3.0, 4e9], [PAIR]) == pytest.approx(
        noise_sums(X, [PAIR]), rel=1e-6, abs=1e-6
    )
