"""Products along the edges of a graph are those of dense matrices."""

import numpy as np
import pytest

from fedbnsl_server.search.sparse_products import Rows, TotalEffects


@pytest.mark.parametrize("d", [1, 2, 7, 40])
@pytest.mark.parametrize("edges", [0.0, 0.1, 1.0])
def test_products_are_those_of_dense_matrices(d: int, edges: float) -> None:
    rng = np.random.default_rng(d)
    mixed = rng.permutation(d)
    W = (np.triu(rng.normal(0.0, 0.5, (d, d)), 1) * (rng.random((d, d)) < edges))[np.ix_(mixed, mixed)]
    X = rng.normal(size=(d, 3))
    B, before = np.linalg.inv(np.eye(d) - W), X.copy()
    effects = TotalEffects.of(W)
    np.testing.assert_allclose(Rows.of(W).times(X), W @ X, atol=1e-9)
    np.testing.assert_allclose(effects.times(X), B @ X, atol=1e-6, rtol=1e-9)
    np.testing.assert_allclose(effects.transposed_times(X), B.T @ X, atol=1e-6, rtol=1e-9)
    assert (before == X).all(), "nothing is written into what is multiplied"
    S = X @ X.T
    np.testing.assert_allclose(effects.around(S), B @ S @ B.T, atol=1e-6, rtol=1e-9)
    np.testing.assert_allclose(Rows.of(W).around(S), W @ S @ W.T, atol=1e-9)
    np.testing.assert_array_equal(Rows.of(W).transposed.dense, W.T)


def test_a_cycle_is_refused() -> None:
    W = np.zeros((4, 4))
    W[0, 1] = W[1, 2] = W[2, 1] = 0.5
    with pytest.raises(ValueError, match="cycle"):
        TotalEffects.of(W)
