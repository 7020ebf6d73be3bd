"""The closed form against numpy's general solver, the gradient, and perturbations of the minimum."""

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.participant import Participant
from fedbnsl_client.solvers.closed_form import ClosedForm
from oracles import literal_gradient, literal_local_objective

D = 6
RHO_2 = 1.7
SEEDS = range(5)


def problem(seed: int, n: int = 40) -> tuple[Matrix, Matrix, Matrix]:
    """X, W and beta; as in a run, W has no diagonal and beta has one."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) @ (np.eye(D) + np.triu(rng.standard_normal((D, D)), k=1))
    W, beta = rng.standard_normal((2, D, D))
    np.fill_diagonal(W, 0.0)
    return X, W, beta


def solve(X: Matrix, W: Matrix, beta: Matrix, rho_2: float = RHO_2) -> Matrix:
    return ClosedForm.of(SecondMoments.of(X), rho_2).solve(W, beta)


@pytest.mark.parametrize("n", [40, 3], ids=["many rows", "fewer rows than variables"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_weights_solve_the_normal_equations(seed: int, n: int) -> None:
    X, W, beta = problem(seed, n)
    S = X.T @ X / n
    expected = np.linalg.solve(S + RHO_2 * np.eye(D), RHO_2 * W - beta + S)
    assert solve(X, W, beta) == pytest.approx(expected, abs=1e-10)
    assert np.abs(expected.diagonal()).min() > 1e-3, "the diagonal is solved for like the rest"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_is_zero_at_the_weights_and_every_other_matrix_is_worse(seed: int) -> None:
    X, W, beta = problem(seed)
    B = solve(X, W, beta)
    assert literal_gradient(X, B, W, beta, RHO_2) == pytest.approx(0.0, abs=1e-10)
    least = literal_local_objective(X, B, W, beta, 0.0, RHO_2)
    for i, j in np.ndindex(D, D):
        for nudge in (-1e-3, 1e-3):
            other = B.copy()
            other[i, j] += nudge
            assert literal_local_objective(X, other, W, beta, 0.0, RHO_2) > least


def test_one_factor_serves_every_round_with_the_bits_of_a_fresh_one() -> None:
    X, W, beta = problem(0)
    solver = ClosedForm.of(SecondMoments.of(X), RHO_2)
    solver.solve(2 * W, -beta)
    assert solver.solve(W, beta).tobytes() == solve(X, W, beta).tobytes()


def test_inputs_are_not_changed() -> None:
    X, W, beta = problem(1)
    loss = SecondMoments.of(X)
    before = [matrix.copy() for matrix in (loss.S, W, beta)]
    ClosedForm.of(loss, RHO_2).solve(W, beta)
    assert all(np.array_equal(now, then) for now, then in zip((loss.S, W, beta), before, strict=True))


def test_a_table_that_the_penalty_cannot_make_invertible_is_refused_with_a_remedy() -> None:
    X = np.ones((5, D))  # every column the same
    with pytest.raises(DivergenceError, match="consensus_penalty = 1e-300 is too small"):
        ClosedForm.of(SecondMoments.of(X), 1e-300)


def test_a_participant_factorises_once_and_ignores_what_is_known_about_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    factorised: list[float] = []

    class Counting(ClosedForm):
        @classmethod
        def of(cls, loss: SecondMoments, rho_2: float) -> ClosedForm:
            factorised.append(rho_2)
            return ClosedForm.of(loss, rho_2)

    monkeypatch.setattr("fedbnsl_client.solvers.closed_form.ClosedForm", Counting)
    X, W, _ = problem(2)
    names = tuple("uvwxyz")
    plan = Plan(local_solver="closed-form", consensus_penalty=RHO_2).with_settings(
        knowledge={"forbidden": [["u", "v"]], "required": [["x", "y"]]}
    )
    site = Participant("site-1", Dataset(names, X), plan)
    first = site.handle(
        RoundTask(1, admm_rounds.Task(SparseMatrix.zeros(D)), contributed=False)
    ).content.weights.to_dense()
    assert first == pytest.approx(solve(X, np.zeros((D, D)), np.zeros((D, D))), abs=0)
    second = site.handle(RoundTask(2, admm_rounds.Task(SparseMatrix.from_dense(W)), contributed=True))
    expected = solve(X, W, RHO_2 * (first - W))  # the dual has a diagonal: that of B
    assert second.content.weights.to_dense() == pytest.approx(expected, abs=1e-12)
    assert second.content.weights.nnz == D * D
    assert factorised == [RHO_2]
