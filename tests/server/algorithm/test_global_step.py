"""The global step on components against the dense one."""

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl_server.algorithm.acyclicity import CyclicPart, acyclicity
from fedbnsl_server.algorithm.global_step import Terms, global_step
from oracles import dense_global_step

SEEDS = range(5)
P, RHO_2 = 3, 2.0


def sparse_weights(seed: int, d: int, *, scale: float = 1.0) -> Matrix:
    """A graph with about one edge a node and, much smaller, some against it."""
    rng = np.random.default_rng(seed)
    W = np.triu(np.where(rng.random((d, d)) < 2.0 / d, rng.uniform(0.5, 2.0, (d, d)), 0.0), k=1)
    against = np.tril(np.where(rng.random((d, d)) < 1.5 / d, rng.uniform(-0.7, 0.7, (d, d)), 0.0), k=-1)
    order = rng.permutation(d)
    return scale * (W + against)[np.ix_(order, order)]


def step(
    A: Matrix,
    W: Matrix,
    *,
    alpha: float = 0.0,
    rho_1: float = 0.0,
    l1_weight: float = 0.0,
    max_iterations: int = 10_000,
    least_gain: float = 0.0,
) -> Matrix:
    return global_step(
        SparseMatrix.from_dense(A),
        SparseMatrix.from_dense(W),
        Terms(P, RHO_2, alpha, rho_1, l1_weight),
        allowed=~np.eye(len(A), dtype=bool),
        max_iterations=max_iterations,
        least_gain=least_gain,
    ).to_dense()


def value(A: Matrix, W: Matrix, alpha: float, rho_1: float = 0.0) -> float:
    h, _ = acyclicity(W)
    return float(P * RHO_2 / 2 * np.sum((W - A) ** 2) + alpha * h + rho_1 / 2 * h * h)


@pytest.mark.parametrize(("alpha", "rho_1"), [(0.3, 0.0), (30.0, 0.0), (1e5, 0.0), (0.5, 3.0)])
@pytest.mark.parametrize("seed", SEEDS)
def test_few_iterations_get_lower_than_as_many_of_the_dense_step(seed: int, alpha: float, rho_1: float) -> None:
    A = sparse_weights(seed, 30)
    W = step(A, np.zeros_like(A), alpha=alpha / 1.3, rho_1=rho_1)
    settings = {"weight": P * RHO_2, "alpha": alpha, "rho_1": rho_1, "allowed": ~np.eye(30, dtype=bool)}
    dense = dense_global_step(A, W, **settings, max_iterations=4)
    ours = step(A, W, alpha=alpha, rho_1=rho_1, max_iterations=4)
    gained = value(A, W, alpha, rho_1) - value(A, dense, alpha, rho_1)
    assert gained > 0
    assert value(A, ours, alpha, rho_1) <= value(A, dense, alpha, rho_1) + 1e-3 * gained


@pytest.mark.parametrize("seed", SEEDS)
def test_an_edge_between_components_keeps_its_mean(seed: int) -> None:
    A = sparse_weights(seed, 40)
    found = step(A, np.zeros_like(A), alpha=5.0, max_iterations=30)
    between = A != 0
    between.flat[CyclicPart.of(np.flatnonzero(A), len(A)).edges] = False
    assert between.sum() > 5
    assert np.array_equal(found[between], A[between])
    assert not np.array_equal(found, A)


def test_an_edge_of_the_start_alone_that_closes_no_cycle_is_gone() -> None:
    W = np.zeros((3, 3))
    W[0, 1] = W[1, 2] = 0.5
    assert not step(np.zeros((3, 3)), W, alpha=1.0).any()


def test_between_components_the_l1_term_shrinks_exactly() -> None:
    A = np.zeros((3, 3))
    A[0, 1], A[1, 2], A[0, 2] = 1.0, -1.0, 0.1
    found = step(A, np.zeros((3, 3)), alpha=1.0, l1_weight=1.5)
    assert found[0, 1] == pytest.approx(1.0 - 1.5 / (P * RHO_2), rel=1e-15)
    assert found[1, 2] == -found[0, 1]
    assert found[0, 2] == 0.0


def test_a_rounding_error_ties_no_components_together() -> None:
    A = np.zeros((3, 3))
    A[0, 1], A[1, 2], A[2, 0] = 1.0, 1.0, 1e-18
    found = step(A, np.zeros((3, 3)), alpha=1e3)
    assert np.array_equal(found, A)


@pytest.mark.parametrize("l1_weight", [0.0, 0.2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_ends_when_an_iteration_gains_too_little(seed: int, l1_weight: float) -> None:
    A = sparse_weights(seed, 30)

    def worth(W: Matrix) -> float:
        return value(A, W, 50.0) + l1_weight * float(np.abs(W).sum())

    def reached(**limits: float) -> float:
        return worth(step(A, np.zeros_like(A), alpha=50.0, l1_weight=l1_weight, **limits))  # type: ignore[arg-type]

    start = step(A, np.zeros_like(A), l1_weight=l1_weight)
    start.flat[CyclicPart.of(np.flatnonzero(A), len(A)).edges] = 0.0  # the other edges are known from the first
    by_iterations = [reached(max_iterations=k) for k in range(1, 30)]
    gains = -np.diff([worth(start), *by_iterations])
    for share in (0.5, 0.1, 0.01):
        last = next(k for k in range(len(gains)) if gains[k] <= share * gains[: k + 1].sum())
        assert reached(least_gain=share) == pytest.approx(by_iterations[last], rel=1e-12)


def test_a_term_beyond_all_numbers_is_a_divergence() -> None:
    A = np.array([[0.0, 2.0], [2.0, 0.0]])
    with pytest.raises(DivergenceError):
        step(A, A / 4, alpha=1e308, rho_1=1e308)
    with pytest.raises(DivergenceError):
        step(np.where(A > 0, np.inf, 0.0), A)
