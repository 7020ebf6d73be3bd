"""h by strongly connected components against dense matrices."""

import numpy as np
import pytest
from scipy.linalg import expm

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.acyclicity import CyclicPart, acyclicity, expm1

SEEDS = range(6)


def shuffled_blocks(seed: int, sizes: tuple[int, ...], *, scale: float = 0.6) -> Matrix:
    """Weights with one component of each of the sizes, edges between them one way, the nodes shuffled."""
    rng = np.random.default_rng(seed)
    d = sum(sizes)
    W = np.triu(np.where(rng.random((d, d)) < 0.5, rng.standard_normal((d, d)), 0.0), k=1)
    start = 0
    for n in sizes:
        block = np.where(rng.random((n, n)) < 0.4, scale * rng.standard_normal((n, n)), 0.0)
        if n > 1:
            block[np.arange(n), (np.arange(n) + 1) % n] = scale  # a cycle through all of them
        np.fill_diagonal(block, 0.0)
        W[start : start + n, start : start + n] = block
        start += n
    order = rng.permutation(d)
    return W[np.ix_(order, order)]


def dense_exponential(W: Matrix) -> tuple[float, Matrix]:
    E = expm(W * W)
    return float(np.trace(E)) - len(W), E.T * 2.0 * W


@pytest.mark.parametrize("sizes", [(1,), (2,), (7,), (1, 1, 1), (2, 2, 3, 1, 2, 5), (1, 12, 1, 12, 2), (3, 3, 3, 3)])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_components_give_what_the_whole_matrix_gives(seed: int, sizes: tuple[int, ...]) -> None:
    W = shuffled_blocks(seed, sizes)
    h, gradient = acyclicity(W)
    h_dense, gradient_dense = dense_exponential(W)
    assert h == pytest.approx(h_dense, rel=1e-12, abs=1e-11)
    assert gradient == pytest.approx(gradient_dense, rel=1e-12, abs=1e-12)
    assert (h > 0) == (max(sizes) > 1)


@pytest.mark.parametrize("largest", [0.01, 0.7, 2.0, 9.0])
@pytest.mark.parametrize("sizes", [(65,), (150, 1, 3, 150), (70, 200)])
def test_walks_over_the_edges_of_large_components_give_the_same(sizes: tuple[int, ...], largest: float) -> None:
    rng = np.random.default_rng(len(sizes))
    W = sparse_blocks(rng, sizes, largest)
    part = CyclicPart.of(np.flatnonzero(W), len(W))
    flat = W.flat[part.edges]
    h, slope = part.measured(flat * flat)
    E = expm(W * W)
    assert h == pytest.approx(float(np.trace(E)) - len(W), rel=1e-12, abs=1e-10)
    assert slope == pytest.approx(E.T.flat[part.edges], rel=1e-11, abs=1e-13)
    norm = (W * W).sum(axis=0).max()
    assert (norm > 50.0) == (largest == 9.0), "beyond, powers of the blocks are squared instead"


def sparse_blocks(rng: np.random.Generator, sizes: tuple[int, ...], largest: float) -> Matrix:
    """Components of these sizes with three edges a node, of weights up to `largest`, the nodes shuffled."""
    d, first = sum(sizes), 0
    W = np.zeros((d, d))
    for n in sizes:
        own = first + np.arange(n)
        for step in (1, *rng.integers(1, max(n, 2), 2)):
            ends = first + (np.arange(n) + step) % n
            W[own, ends] = np.where(own == ends, 0.0, rng.uniform(-largest, largest, n))
        first += n
    order = rng.permutation(d)
    return W[np.ix_(order, order)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_components_are_those_of_the_graph(seed: int) -> None:
    sizes = (2, 5, 1, 2, 3, 1, 5, 2)
    W = shuffled_blocks(seed, sizes)
    part = CyclicPart.of(np.flatnonzero(W), len(W))
    assert sorted(n for group in part.components for n in [group.shape[1]] * group.shape[0]) == [2, 2, 2, 3, 5, 5]
    assert np.unique(part.edges).size == part.edges.size
    stacks = [np.zeros(group.shape) for group in part.components]
    for group, stack in zip(part.components, stacks, strict=True):
        stack.flat[group.place] = part.edges[group.edges]
        mirrored = np.zeros(group.shape)
        mirrored.flat[group.back] = part.edges[group.edges]
        assert np.array_equal(mirrored, np.swapaxes(stack, 1, 2))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_edge_between_components_has_no_part_in_h(seed: int) -> None:
    W = shuffled_blocks(seed, (3, 4, 2))
    between = W.copy()
    between.flat[CyclicPart.of(np.flatnonzero(W), len(W)).edges] = 0.0
    assert np.count_nonzero(between) > 3
    h, gradient = acyclicity(0.5 * W)
    assert not gradient[between != 0].any()
    assert acyclicity(0.5 * (W + 1e3 * between))[0] == h


@pytest.mark.parametrize("scale", [1e-3, 0.1, 0.7, 1.5, 4.0])
@pytest.mark.parametrize("density", [0.05, 0.5])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_exponential_is_exact_at_every_norm(seed: int, density: float, scale: float) -> None:
    """Entry by entry, against the sum of the series: a sum of numbers at least 0 loses nothing."""
    rng = np.random.default_rng(seed)
    A = np.where(rng.random((2, 15, 15)) < density, scale * rng.random((2, 15, 15)), 0.0)
    expected = np.zeros_like(A)
    for block, total in zip(A, expected, strict=True):
        term = np.eye(15)
        for k in range(1, 400):
            term = term @ block / k
            total += term
    norm = expected.sum(axis=1).max()
    assert np.abs(expm1(A) - expected).max() <= 2e-14 * norm
    assert np.trace(expm1(A), axis1=1, axis2=2) == pytest.approx(np.trace(expected, axis1=1, axis2=2), rel=1e-12)


def test_a_trace_far_below_rounding_is_exact() -> None:
    W = np.array([[0.0, 2.0], [1e-20, 0.0]])
    assert acyclicity(W)[0] == pytest.approx((2.0 * 1e-20) ** 2, rel=1e-12)


def test_a_weight_beyond_all_numbers_gives_an_infinite_value() -> None:
    W = np.array([[0.0, 1e200], [1e200, 0.0]])
    with np.errstate(over="ignore", invalid="ignore"):
        assert acyclicity(W)[0] == np.inf
