"""The local step of Fed-BNSL in closed form: the minimum over B of the smooth local objective, all d^2 entries.

    1/(2n) ||X - XB||^2 + <beta, B - W> + rho_2/2 ||B - W||^2   at   (S + rho_2 I) B = rho_2 W - beta + S.

B has a diagonal and no zeros; only W is sparse, acyclic and without excluded edges. Anyone who knows W, beta and rho_2
can compute S from this one B (the paper's appendix "Reconstruction of Covariance Matrix").
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from fedbnsl.errors import DivergenceError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.squared import SecondMoments


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """The solver of one run: S + rho_2 I does not change, so it is factorised once."""

    S: Matrix  # (d, d) second moments of the table
    rho_2: float  # consensus penalty
    factor: Matrix  # upper Cholesky factor of S + rho_2 I, (d, d)

    @classmethod
    def of(cls, loss: SecondMoments, rho_2: float) -> Self:
        """Factorise. Raises DivergenceError if S + rho_2 I is singular to working precision."""
        try:
            factor, _ = cho_factor(loss.S + rho_2 * np.eye(len(loss.S)), check_finite=False)
        except LinAlgError:
            raise DivergenceError(
                f"consensus_penalty = {rho_2:g} is too small to solve in closed form on this table; choose a larger one"
            ) from None
        return cls(loss.S, rho_2, factor)

    def solve(self, W: Matrix, beta: Matrix) -> Matrix:
        """(d, d) minimum for a consensus and a dual (Eq. closed-form)."""
        B = cho_solve((self.factor, False), self.rho_2 * W - beta + self.S, check_finite=False)
        return np.ascontiguousarray(B)
