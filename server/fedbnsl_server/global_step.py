"""The coordinator's minimisation over W (Eq. W), by L-BFGS on the active support.

With A = mean(B_p) + mean(beta_p) / rho_2 the objective is, up to a constant,

    P rho_2 / 2 ||W - A||_F^2 + alpha h(W) + rho_1 / 2 h(W)^2.

Where A and the start are zero the gradient is zero too, so these entries stay zero: only the others are variables.
"""

import numpy as np
from scipy.optimize import minimize

from fedbnsl.errors import DivergenceError
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.acyclicity import acyclicity


def global_step(
    A: Matrix,
    W: Matrix,
    *,
    n_participants: int,
    rho_2: float,
    alpha: float,
    rho_1: float,
    allowed: Mask,
    max_iterations: int,
) -> Matrix:
    """Minimise over W, warm-started, at most `max_iterations` L-BFGS iterations.

    Parameters
    ----------
    A
        (d, d) mean(B_p) + mean(beta_p) / rho_2.
    W
        (d, d) start.
    n_participants, rho_2, alpha, rho_1
        P, consensus penalty, coefficients of h and of h^2 / 2.
    allowed
        (d, d) coordinates that may be non-zero.

    Returns
    -------
    W
        (d, d) new array, zero off the support.

    Raises
    ------
    DivergenceError
        If the minimiser is not finite.
    """
    support = np.flatnonzero(((A != 0) | (W != 0)) & allowed)
    a = A.flat[support]
    weight = n_participants * rho_2
    candidate = np.zeros_like(A)

    def objective(w: Matrix) -> tuple[float, Matrix]:
        candidate.flat[support] = w
        with np.errstate(over="ignore", invalid="ignore"):  # a too long trial step: the line search shortens it
            h, gradient = acyclicity(candidate)
            gap = w - a
            value = 0.5 * weight * float(gap @ gap) + alpha * h + 0.5 * rho_1 * h * h
            return value, weight * gap + (alpha + rho_1 * h) * gradient.flat[support]

    result = np.zeros_like(A)
    if support.size:
        solution = minimize(
            objective,
            W.flat[support],
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": max_iterations, "maxfun": 10 * max_iterations + 100},
        )
        if not np.isfinite(solution.x).all() or not np.isfinite(solution.fun):
            raise DivergenceError("the global step left the finite numbers")
        result.flat[support] = solution.x
    return result
