"""Small local problems (Eq. Bp), drawn at random, for every solver of them."""

from dataclasses import dataclass

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers import pgcd
from fedbnsl_client.solvers.settings import Settings
from oracles import literal_local_objective, literal_pgcd

SEEDS = range(8)


@dataclass(frozen=True)
class Problem:
    X: Matrix
    B: Matrix
    W: Matrix
    beta: Matrix
    lam: float
    rho_2: float
    gamma: float
    allowed: Mask

    @property
    def loss(self) -> SecondMoments:
        return SecondMoments.of(self.X)

    def settings(self, *, max_steps: int, tol: float) -> Settings:
        return Settings(self.allowed, self.lam, self.rho_2, max_steps, self.gamma, tol)

    def solve(self, *, max_steps: int, tol: float) -> tuple[Matrix, int]:
        B, steps = pgcd.solve(
            self.loss,
            *(SparseMatrix.from_dense(one) for one in (self.B, self.W, self.beta)),
            self.settings(max_steps=max_steps, tol=tol),
        )
        return B.to_dense(), steps

    def literal(self, *, max_steps: int, tol: float) -> tuple[Matrix, int]:
        return literal_pgcd(
            self.X, self.B, self.W, self.beta, self.lam, self.rho_2, self.gamma, max_steps, tol, self.allowed
        )

    def objective(self, B: Matrix) -> float:
        return literal_local_objective(self.X, B, self.W, self.beta, self.lam, self.rho_2)


def problem(seed: int, *, d: int = 5, n: int = 40, gamma: float | None = None) -> Problem:
    """Columns of unlike spread, correlated; warm start, consensus, dual and mask at random."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) * rng.uniform(0.3, 3.0, d)
    allowed = (rng.random((d, d)) < (1.0 if seed % 2 else 0.7)) & ~np.eye(d, dtype=bool)

    def weights(scale: float) -> Matrix:
        return np.where(allowed & (rng.random((d, d)) < 0.6), scale * rng.standard_normal((d, d)), 0.0)

    return Problem(
        X=X,
        B=weights(1.0) if seed % 4 < 2 else np.zeros((d, d)),
        W=weights(1.0),
        beta=weights(0.5),
        lam=float(rng.uniform(0.01, 0.5)),
        rho_2=float(rng.uniform(0.2, 3.0)),
        gamma=(1.0 if seed % 3 else float(rng.uniform(0.2, 0.9))) if gamma is None else gamma,
        allowed=allowed,
    )
