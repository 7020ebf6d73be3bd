"""The coordinator's minimisation over W (Eq. W), by L-BFGS on the active support.

With A = mean(B_p) + mean(beta_p) / rho_2 the objective is, up to a constant,

    P rho_2 / 2 ||W - A||_F^2 + alpha h(W) + rho_1 / 2 h(W)^2 + lambda ||W||_1.

Where A and the start are zero the gradient of the smooth part is zero too, so these entries stay zero: only the others
are variables. The last term is for a local solver that has none of its own; otherwise lambda is 0 here. It stands once
beside the sum over the P sites, as in NOTEARS-ADMM (Ng and Zhang 2022); lambda ||B_p||_1 at every site is P times that.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, minimize

from fedbnsl.errors import DivergenceError
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.acyclicity import acyclicity

Objective = Callable[[Matrix], tuple[float, Matrix]]
"""Value and gradient at a vector."""


def global_step(
    A: Matrix,
    W: Matrix,
    *,
    n_participants: int,
    rho_2: float,
    alpha: float,
    rho_1: float,
    l1_weight: float = 0.0,
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
    l1_weight
        lambda on W.
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

    def smooth(w: Matrix) -> tuple[float, Matrix]:
        candidate.flat[support] = w
        with np.errstate(over="ignore", invalid="ignore"):  # a too long trial step: the line search shortens it
            h, gradient = acyclicity(candidate)
            gap = w - a
            value = 0.5 * weight * float(gap @ gap) + alpha * h + 0.5 * rho_1 * h * h
            return value, weight * gap + (alpha + rho_1 * h) * gradient.flat[support]

    result = np.zeros_like(A)
    if support.size:
        w = W.flat[support]
        solution = minimize(
            split_l1(smooth, l1_weight) if l1_weight else smooth,
            np.concatenate([np.maximum(w, 0.0), np.maximum(-w, 0.0)]) if l1_weight else w,
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(0.0, np.inf) if l1_weight else None,
            options={"maxiter": max_iterations, "maxfun": 10 * max_iterations + 100},
        )
        if not np.isfinite(solution.x).all() or not np.isfinite(solution.fun):
            raise DivergenceError("the global step left the finite numbers")
        result.flat[support] = solution.x[: w.size] - solution.x[w.size :] if l1_weight else solution.x
    return result


def split_l1(smooth: Objective, l1_weight: float) -> Objective:
    """Value and gradient of smooth(u - v) + lambda sum(u + v), over u and v >= 0 one after the other.

    At a minimum one of u_k, v_k is zero, so that the sum is the L1 norm of w = u - v.
    """

    def objective(halves: Matrix) -> tuple[float, Matrix]:
        u, v = np.split(halves, 2)
        value, gradient = smooth(u - v)
        return value + l1_weight * float(halves.sum()), np.concatenate([gradient + l1_weight, l1_weight - gradient])

    return objective
