"""The local solver against a literal reading of Algorithm 1, and the squared loss against the table itself."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers import pgcd
from local_problems import SEEDS, problem
from oracles import finite_difference, literal_gradient, literal_local_objective

# ---- the solver ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_chooses_the_coordinate_of_the_literal_algorithm(seed: int) -> None:
    p = problem(seed)
    before, expected_before = p.B, p.B
    for k in range(1, 31):
        B, steps = p.solve(max_steps=k, tol=0.0)
        expected, expected_steps = p.literal(max_steps=k, tol=0.0)
        assert steps == expected_steps == k
        assert np.argwhere(before != B).tolist() == np.argwhere(expected != expected_before).tolist()
        assert np.abs(B - expected).max() <= 1e-10
        before, expected_before = B, expected


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_solve_equals_the_literal_algorithm(seed: int) -> None:
    p = problem(seed)
    B, steps = p.solve(max_steps=10_000, tol=1e-4)
    expected, expected_steps = p.literal(max_steps=10_000, tol=1e-4)
    assert steps == expected_steps
    assert 10 < steps < 10_000
    assert np.abs(B - expected).max() <= 1e-10


@pytest.mark.parametrize("gamma", [1.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_wherever_the_steps_end_the_bits_are_those_of_the_greedy_order(
    seed: int, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solve in one go works column by column; one that may take a single step at a time cannot."""
    p = problem(seed, gamma=gamma)
    whole, n_steps = p.solve(max_steps=10_000, tol=1e-4)
    monkeypatch.setattr(pgcd, "_descend_by_columns", lambda *problem: (-1, None, None))
    greedy = {k: p.solve(max_steps=k, tol=1e-4) for k in (*range(0, n_steps, 7), n_steps - 1, n_steps, n_steps + 1)}
    monkeypatch.undo()
    for max_steps, (B, steps) in greedy.items():
        found, found_steps = p.solve(max_steps=max_steps, tol=1e-4)
        assert found_steps == steps == min(max_steps, n_steps)
        assert np.array_equal(found, B)
    assert np.array_equal(whole, B)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_optimum_satisfies_the_kkt_conditions(seed: int) -> None:
    p = replace(problem(seed), lam=2.0)
    B, steps = p.solve(max_steps=100_000, tol=1e-10)
    assert steps < 100_000
    G = literal_gradient(p.X, B, p.W, p.beta, p.rho_2)
    for i, j in np.argwhere(p.allowed):
        if B[i, j] != 0.0:
            assert G[i, j] == pytest.approx(-p.lam * np.sign(B[i, j]), abs=1e-8)
        else:
            assert abs(G[i, j]) <= p.lam + 1e-8
    zero = (B == 0.0) & p.allowed
    assert zero.any()
    assert (B != 0.0).any()


@pytest.mark.parametrize("gamma", [1.0, 0.4])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_step_increases_the_objective(seed: int, gamma: float) -> None:
    p = problem(seed, gamma=gamma)
    values = [p.objective(p.solve(max_steps=k, tol=0.0)[0]) for k in range(60)]
    assert all(after <= before + 1e-12 * abs(before) for before, after in pairwise(values))
    assert values[-1] < values[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_does_better_close_to_the_optimum(seed: int) -> None:
    p = problem(seed)
    B, _ = p.solve(max_steps=100_000, tol=1e-10)
    rng = np.random.default_rng(seed)
    best = p.objective(B)
    for scale in (1e-3, 1e-1, 1.0):
        for _ in range(30):
            assert p.objective(B + np.where(p.allowed, scale * rng.standard_normal(B.shape), 0.0)) > best


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_mask_excludes_stays_zero(seed: int) -> None:
    p = problem(2 * seed)
    excluded = ~p.allowed
    assert excluded.sum() > len(excluded)  # more than the diagonal
    B, _ = p.solve(max_steps=100_000, tol=1e-8)
    assert (B[excluded] == 0.0).all()
    assert (literal_gradient(p.X, B, p.W, p.beta, p.rho_2)[excluded] != 0.0).any()


def test_the_start_is_not_changed() -> None:
    p = problem(0)
    given = [array.copy() for array in (p.B, p.W, p.beta)]
    B, _ = p.solve(max_steps=50, tol=0.0)
    assert not np.array_equal(B, p.B)
    assert all(np.array_equal(a, b) for a, b in zip((p.B, p.W, p.beta), given, strict=True))


def test_a_warm_start_at_the_optimum_stops_at_once() -> None:
    p = problem(1)
    B, _ = p.solve(max_steps=100_000, tol=1e-9)
    warm = replace(p, B=B)
    again, steps = warm.solve(max_steps=100_000, tol=1e-8)
    assert steps == 0
    assert np.array_equal(again, B)


def test_two_solves_in_a_row_equal_one_long_one() -> None:
    p = problem(5)
    whole, _ = p.solve(max_steps=40, tol=0.0)
    half, _ = p.solve(max_steps=20, tol=0.0)
    rest, _ = replace(p, B=half).solve(max_steps=20, tol=0.0)
    assert np.abs(rest - whole).max() <= 1e-10


@pytest.mark.parametrize(("max_steps", "tol"), [(0, 0.0), (100, np.inf)])
def test_no_step_is_taken_without_leave(max_steps: int, tol: float) -> None:
    p = problem(0)
    B, steps = p.solve(max_steps=max_steps, tol=tol)
    assert steps == 0
    assert np.array_equal(B, p.B)


def test_with_nothing_allowed_nothing_moves() -> None:
    p = problem(2)
    zero = np.zeros_like(p.B)
    B, steps = replace(p, W=zero, beta=zero, allowed=np.zeros_like(p.allowed)).solve(max_steps=9, tol=0.0)
    assert steps == 0
    assert not B.any()


def test_an_l1_weight_that_outweighs_everything_gives_zero() -> None:
    p = problem(1)
    B, _ = replace(p, lam=1e6).solve(max_steps=10_000, tol=1e-9)
    assert p.B.any()
    assert not B.any()


def test_the_same_problem_gives_the_same_bits() -> None:
    p = problem(3)
    assert p.solve(max_steps=500, tol=0.0)[0].tobytes() == p.solve(max_steps=500, tol=0.0)[0].tobytes()


def test_warming_up_changes_nothing() -> None:
    before = problem(3).solve(max_steps=50, tol=0.0)[0]
    pgcd.warm_up()
    assert np.array_equal(problem(3).solve(max_steps=50, tol=0.0)[0], before)


# ---- the squared loss ----------------------------------------------------------------------------------------------


def half_mean_square(X: Matrix, B: Matrix) -> float:
    """1/(2n) ||X - XB||^2, from the table itself."""
    return float(np.sum((X - X @ B) ** 2) / (2 * X.shape[0]))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_is_that_of_the_loss_by_finite_differences(seed: int) -> None:
    p = problem(seed)
    B = np.random.default_rng(seed).standard_normal(p.B.shape)
    expected = finite_difference(lambda V: half_mean_square(p.X, V), B)
    assert p.loss.gradient(B) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_smoothness_of_row_i_is_the_second_derivative_in_every_entry_of_row_i(seed: int) -> None:
    p = problem(seed)
    M = p.loss.smoothness(p.rho_2)
    d = len(M)

    def smooth(B: Matrix) -> float:
        return literal_local_objective(p.X, B, p.W, p.beta, 0.0, p.rho_2)

    for i in range(d):
        for j in range(d):
            forward, backward = p.B.copy(), p.B.copy()
            forward[i, j] += 0.5
            backward[i, j] -= 0.5  # the function is quadratic: any step is exact
            second = (smooth(forward) - 2 * smooth(p.B) + smooth(backward)) / 0.25
            assert M[i] == pytest.approx(second, rel=1e-8)
    assert not np.allclose(M[:, None], M[None, :])  # the parent's row, not the child's column


@pytest.mark.parametrize("seed", SEEDS)
def test_least_squares_is_that_of_the_table_itself(seed: int) -> None:
    p = problem(seed)
    B = p.loss.least_squares(p.allowed)
    for j in range(len(B)):
        parents = np.flatnonzero(p.allowed[:, j])
        expected = np.linalg.lstsq(p.X[:, parents], p.X[:, j], rcond=None)[0] if parents.size else []
        assert B[parents, j] == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert (B[~p.allowed] == 0.0).all()


def test_least_squares_without_parents_is_zero() -> None:
    p = problem(0)
    assert not p.loss.least_squares(np.zeros_like(p.allowed)).any()


def test_least_squares_on_variables_of_very_different_scale_is_that_of_the_table_itself() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3)) * [1e6, 1e-4, 1.0]
    X[:, 2] += X[:, 0] * 2e-6 + X[:, 1] * 3e4
    support = np.zeros((3, 3), dtype=bool)
    support[:2, 2] = True
    expected = np.linalg.lstsq(X[:, :2], X[:, 2], rcond=None)[0]
    assert expected == pytest.approx([2e-6, 3e4], rel=0.1)
    assert SecondMoments.of(X).least_squares(support)[:2, 2] == pytest.approx(expected, rel=1e-6)


def test_least_squares_on_two_equal_parents_is_finite_and_as_good_as_on_one() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 3))
    X[:, 1] = X[:, 0]
    X[:, 2] += X[:, 0]
    both, one = np.zeros((3, 3), dtype=bool), np.zeros((3, 3), dtype=bool)
    both[:2, 2] = one[0, 2] = True
    loss = SecondMoments.of(X)
    assert half_mean_square(X, loss.least_squares(both)) == pytest.approx(
        half_mean_square(X, loss.least_squares(one)), rel=1e-9
    )
    assert loss.least_squares(both)[0, 2] == pytest.approx(loss.least_squares(both)[1, 2], rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_residual_variance_is_that_of_the_residuals(seed: int) -> None:
    p = problem(seed)
    B = np.where(p.allowed, np.random.default_rng(seed).standard_normal(p.B.shape), 0.0)
    expected = [np.mean((p.X[:, j] - p.X @ B[:, j]) ** 2) for j in range(len(B))]
    assert p.loss.residual_variance(B) == pytest.approx(expected, rel=1e-9)


def test_least_squares_on_a_parent_that_is_always_zero_leaves_it_out() -> None:
    X = np.random.default_rng(2).standard_normal((60, 3))
    X[:, 1] = 0.0
    support = np.array([[False, False, True], [False, False, True], [False, False, False]])
    B = SecondMoments.of(X).least_squares(support)
    assert B[1, 2] == 0.0
    assert B[0, 2] == pytest.approx(X[:, 0] @ X[:, 2] / (X[:, 0] @ X[:, 0]))


def test_a_residual_variance_is_never_negative() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((50, 1))
        weights = rng.uniform(0.1, 30.0, 2)
        B = np.zeros((3, 3))
        B[0, 1:] = weights
        variance = SecondMoments.of(np.hstack([x, x * weights])).residual_variance(B)
        assert (variance >= 0).all()
        assert variance[1:] == pytest.approx([0.0, 0.0], abs=1e-10)
