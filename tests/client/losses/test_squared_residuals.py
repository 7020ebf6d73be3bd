"""How squares of residuals go together, against sums row by row."""

import numpy as np
import pytest

from fedbnsl_client.losses.squared_residuals import products_of_squares

W = np.array([[0.0, 0.8, 0.0], [0.0, 0.0, -0.5], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_they_are_means_over_the_rows_that_have_both_residuals(gaps: float) -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_t(3, (60, 3))
    X[rng.random(X.shape) < gaps] = np.nan
    found = products_of_squares(X, W)
    for i in range(3):
        for j in range(3):
            squares = []
            for x in X:
                e = [sum(x[k] * (float(k == c) - W[k, c]) for k in range(3) if k == c or W[k, c]) for c in (i, j)]
                if not np.isnan(e).any():
                    squares.append((e[0] ** 2, e[1] ** 2))
            a, b = np.transpose(squares)
            assert found[i, j] == pytest.approx((a * b).mean() / (a.mean() * b.mean()))


def test_they_have_no_units_and_do_not_overflow() -> None:
    X = np.random.default_rng(3).standard_normal((50, 3))
    size = np.array([1e90, 1.0, 1e-90])
    scaled = products_of_squares(X * size, W * size / size[:, None])
    assert scaled == pytest.approx(products_of_squares(X, W))


def test_a_column_that_is_zero_or_missing_throughout_is_as_normal_ones_are() -> None:
    X = np.random.default_rng(4).standard_normal((50, 3))
    X[:, 0], X[:, 2] = 0.0, np.nan
    found = products_of_squares(X, np.zeros((3, 3)))
    assert found[0].tolist() == found[2].tolist() == [1.0, 1.0, 1.0]
    assert found[1, 1] == pytest.approx((X[:, 1] ** 4).mean() / (X[:, 1] ** 2).mean() ** 2)
