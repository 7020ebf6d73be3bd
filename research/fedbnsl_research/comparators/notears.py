"""Linear NOTEARS (Zheng, Aragam, Ravikumar and Xing 2018) on second moments of one site, or of all sites pooled.

    min over W of  1/2 tr((I - W)' S (I - W)) + lambda ||W||_1   subject to   h(W) = tr(exp(W o W)) - d = 0

With S = X'X/n the first term is 1/(2n) ||X - X W||_F^2: an evaluation costs O(d^3), however many rows there are. The
augmented Lagrangian follows the authors' code: rho from 1 by factors of 10 until h falls to a quarter, then
alpha += rho h; each minimisation is L-BFGS-B on W = U - V with U, V >= 0, to its default convergence, from the last W.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import Bounds, minimize

from fedbnsl.errors import DivergenceError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.acyclicity import acyclicity
from fedbnsl_server.algorithm.global_step import Objective, split_l1

_PROGRESS = 0.25
_GROWTH = 10.0


def notears(
    S: Matrix,
    *,
    lam: float,
    h_tol: float = 1e-8,
    rho_max: float = 1e16,
    max_iterations: int = 100,
    follow: Callable[[Matrix], None] = lambda W: None,
) -> Matrix:
    """Minimise from W = 0.

    Parameters
    ----------
    S
        (d, d) second moments X'X/n; of centred data, where the model has an intercept.
    lam
        L1 weight.
    h_tol, rho_max, max_iterations
        Stop after the outer iteration in which h reaches h_tol or rho reaches rho_max, or after so many.
    follow
        Takes the (d, d) W of each outer iteration.

    Returns
    -------
    W
        (d, d) with a zero diagonal, not cut: the authors keep |W_ij| >= 0.3, and what is kept may still have a cycle.

    Raises
    ------
    DivergenceError
        If the second moments or a minimiser are not finite.
    """
    d = S.shape[0]
    rho, alpha, h = 1.0, 0.0, np.inf
    halves, W = np.zeros(2 * d * d), np.zeros((d, d))
    for _ in range(max_iterations):
        new, h_new = halves, h
        while rho < rho_max:
            new = _minimised(lagrangian(S, rho, alpha), halves, lam)
            h_new, _ = acyclicity(_difference(new))
            if h_new <= _PROGRESS * h:
                break
            rho *= _GROWTH
        halves, h = new, h_new
        W = _difference(halves)
        alpha += rho * h
        follow(W)
        if h <= h_tol or rho >= rho_max:
            break
    return W


def lagrangian(S: Matrix, rho: float, alpha: float) -> Objective:
    """Value and (d, d) gradient in W of 1/2 tr((I - W)' S (I - W)) + alpha h(W) + rho/2 h(W)^2."""
    identity = np.eye(S.shape[0])

    def smooth(W: Matrix) -> tuple[float, Matrix]:
        gap = W - identity
        with np.errstate(over="ignore", invalid="ignore"):  # a too long trial step: the line search shortens it
            slope = S @ gap
            h, h_slope = acyclicity(W)
            value = 0.5 * float((gap * slope).sum()) + alpha * h + 0.5 * rho * h * h
            return value, slope + (alpha + rho * h) * h_slope

    return smooth


def _minimised(smooth: Objective, halves: Matrix, lam: float) -> Matrix:
    """(2 d^2,) minimum of smooth(U - V) + lam sum(U + V) over U, V >= 0 without diagonals, warm-started."""
    d = _difference(halves).shape[0]

    def flat(w: Matrix) -> tuple[float, Matrix]:
        value, gradient = smooth(w.reshape(d, d))
        return value, gradient.ravel()

    upper = np.where(np.eye(d, dtype=bool), 0.0, np.inf).ravel()
    solution = minimize(
        split_l1(flat, lam), halves, jac=True, method="L-BFGS-B", bounds=Bounds(0.0, np.concatenate([upper, upper]))
    )
    if not np.isfinite(solution.x).all() or not np.isfinite(solution.fun):
        raise DivergenceError("NOTEARS diverged: bring the variables to comparable units")
    return np.asarray(solution.x)


def _difference(halves: Matrix) -> Matrix:
    """(d, d) W = U - V."""
    d = math.isqrt(halves.size // 2)
    return (halves[: d * d] - halves[d * d :]).reshape(d, d)
