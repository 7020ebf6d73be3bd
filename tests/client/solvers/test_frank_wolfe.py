"""Frank-Wolfe on the local objective, against proximal gradient steps on the table and the other solver's minimum."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl_client.solvers import frank_wolfe, pgcd
from local_problems import SEEDS, Problem, problem
from oracles import literal_gradient


def solve(p: Problem, *, max_steps: int, tol: float) -> tuple[Matrix, int, float]:
    return frank_wolfe.solve(p.loss, p.B, p.W, p.beta, p.settings(max_steps=max_steps, tol=tol))


def ista(p: Problem) -> Matrix:
    """Proximal gradient steps with one length for all coordinates, until they stand still."""
    length = 1.0 / (np.linalg.norm(p.X, 2) ** 2 / len(p.X) + p.rho_2)
    B = p.B
    for _ in range(20_000):
        V = B - length * literal_gradient(p.X, B, p.W, p.beta, p.rho_2)
        new = np.where(p.allowed, np.sign(V) * np.maximum(np.abs(V) - length * p.lam, 0.0), 0.0)
        if np.array_equal(new, B):
            break
        B = new
    return B


def literal_walk(p: Problem, steps: int) -> Matrix:
    """The algorithm of the docstring with every corner tried, and the step length by trisection."""
    d = len(p.B)
    B = p.B
    D = (p.objective(B) + np.sum(p.beta**2) / (2 * p.rho_2)) / p.lam
    for _ in range(steps):
        G = literal_gradient(p.X, B, p.W, p.beta, p.rho_2)
        best, corner, s = 0.0, np.zeros((d, d)), 0.0
        for i, j in np.argwhere(p.allowed):
            for sign in (-1.0, 1.0):
                value = sign * D * G[i, j] + p.lam * D
                if value < best:
                    best, s = value, D
                    corner = np.zeros((d, d))
                    corner[i, j] = sign * D

        def along(share: float, B: Matrix = B, corner: Matrix = corner, s: float = s) -> float:
            point, bound = (1 - share) * B + share * corner, (1 - share) * np.abs(B).sum() + share * s
            return p.objective(point) - p.lam * np.abs(point).sum() + p.lam * bound

        low, high = 0.0, 1.0
        for _ in range(120):
            third = (high - low) / 3
            low, high = (low, high - third) if along(low + third) < along(high - third) else (low + third, high)
        B = (1 - low) * B + low * corner
    return B


@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_is_that_of_the_literal_algorithm(seed: int) -> None:
    p = problem(seed)
    for k in (1, 2, 5, 12):
        B, steps, _ = solve(p, max_steps=k, tol=0.0)
        assert steps == k
        assert np.abs(B - literal_walk(p, k)).max() <= 1e-5


@pytest.mark.parametrize("seed", SEEDS)
def test_the_duality_gap_bounds_the_distance_to_the_minimum_at_every_step(seed: int) -> None:
    p = problem(seed)
    minimum = p.objective(ista(p))
    for k in (0, 1, 3, 10, 100, 1000, 10_000):
        B, _, gap = solve(p, max_steps=k, tol=0.0)
        assert -1e-9 <= p.objective(B) - minimum <= gap + 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_it_converges_to_the_minimum_of_proximal_greedy_coordinate_descent(seed: int) -> None:
    p = problem(seed)
    B, steps, gap = solve(p, max_steps=3_000_000, tol=1e-3)
    assert steps < 3_000_000
    assert gap <= 1e-3
    greedy, _ = p.solve(max_steps=100_000, tol=1e-10)
    assert abs(p.objective(B) - p.objective(greedy)) <= gap
    assert p.objective(B) < p.objective(p.B) - 100 * gap
    # Strongly convex: a small gap is a small distance.
    assert np.sum((B - greedy) ** 2) <= 2 * gap / p.rho_2


@pytest.mark.parametrize("seed", SEEDS)
def test_no_step_increases_the_objective(seed: int) -> None:
    p = problem(seed)
    values = [p.objective(solve(p, max_steps=k, tol=0.0)[0]) for k in range(60)]
    assert all(after <= before + 1e-12 * abs(before) for before, after in pairwise(values))
    assert values[-1] < values[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_mask_excludes_stays_zero(seed: int) -> None:
    p = problem(2 * seed)
    B, _, _ = solve(p, max_steps=1000, tol=0.0)
    assert (B[~p.allowed] == 0.0).all()
    assert B.any()


def test_from_zero_a_step_adds_one_entry_at_most() -> None:
    p = problem(3)
    p = replace(p, B=np.zeros_like(p.B))
    for k in range(1, 8):
        assert np.count_nonzero(solve(p, max_steps=k, tol=0.0)[0]) <= k


def test_the_start_is_not_changed() -> None:
    p = problem(0)
    given = [array.copy() for array in (p.B, p.W, p.beta)]
    B, _, _ = solve(p, max_steps=50, tol=0.0)
    assert not np.array_equal(B, p.B)
    assert all(np.array_equal(a, b) for a, b in zip((p.B, p.W, p.beta), given, strict=True))


def test_a_warm_start_within_the_tolerance_stops_at_once() -> None:
    p = problem(1)
    B, _, _ = solve(p, max_steps=3_000_000, tol=1e-3)
    again, steps, gap = solve(replace(p, B=B), max_steps=10, tol=1e-3)
    assert steps == 0
    assert gap <= 1e-3
    assert np.array_equal(again, B)


def test_with_nothing_allowed_nothing_moves() -> None:
    zero = np.zeros((4, 4))
    p = replace(problem(2, d=4), B=zero, W=zero, beta=zero, allowed=np.zeros((4, 4), dtype=bool))
    B, steps, gap = solve(p, max_steps=9, tol=0.0)
    assert steps == 0
    assert gap == 0.0
    assert not B.any()


def test_an_l1_weight_that_outweighs_everything_gives_zero() -> None:
    p = problem(1)
    B, _, _ = solve(replace(p, lam=1e6), max_steps=10, tol=0.0)
    assert p.B.any()
    assert not B.any()


def test_a_table_on_an_unlike_scale_needs_more_steps_and_reaches_the_same_minimum() -> None:
    rng = np.random.default_rng(4)
    X = rng.standard_normal((200, 4)) @ (np.eye(4) + np.triu(rng.standard_normal((4, 4)), k=1))
    zero = np.zeros((4, 4))
    counts = []
    for scale in (np.ones(4), np.array([1.0, 8.0, 1.0, 8.0])):
        p = replace(problem(1, d=4), X=X * scale, B=zero, W=zero, beta=zero, lam=0.5)
        B, steps, gap = solve(p, max_steps=3_000_000, tol=1e-2)
        greedy, _ = pgcd.solve(
            p.loss, *[SparseMatrix.zeros(4)] * 3, replace(p, gamma=1.0).settings(max_steps=10**6, tol=1e-10)
        )
        assert gap <= 1e-2
        assert abs(p.objective(B) - p.objective(greedy.to_dense())) <= gap
        counts.append(steps)
    assert counts[1] > 5 * counts[0]
