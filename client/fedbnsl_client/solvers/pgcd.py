"""Proximal greedy coordinate descent on the local objective (Eq. Bp), O(d) a step.

The smooth part is f(B) = 1/(2n) ||X - XB||^2 + <beta, B - W> + rho_2/2 ||B - W||^2 with gradient
G = S (B - I) + beta + rho_2 (B - W). A step changes one entry B_ij, hence only column j of G; the best score of every
other column stays what it was. Selection and stopping look at the data: for non-private plans only.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from fedbnsl.sparse import Mask, Matrix
from fedbnsl_client.squared_loss import SecondMoments

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


def _compiled(kernel: _Kernel) -> _Kernel:
    """Machine code, cached on disk; without fastmath, so that every run gives the same bits."""
    return cast(_Kernel, numba.njit(cache=True, nogil=True)(kernel))


def solve(
    loss: SecondMoments,
    B: Matrix,
    W: Matrix,
    beta: Matrix,
    *,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    tol: float,
    allowed: Mask,
) -> tuple[Matrix, int]:
    """Minimise the local objective, warm-started at B.

    Parameters
    ----------
    loss
        Second moments of the table.
    B, W, beta
        (d, d) start, consensus and dual, zero where not `allowed`.
    lam, rho_2, gamma
        L1 weight, consensus penalty, step size in (0, 1].
    max_steps, tol
        Stop after so many steps, or when the best score falls below `tol`.
    allowed
        (d, d) coordinates that may change.

    Returns
    -------
    B
        (d, d) new array.
    steps
        Steps that were taken.
    """
    G = loss.gradient(B) + beta + rho_2 * (B - W)
    M = loss.smoothness(rho_2)
    # The kernel works on columns: keep each contiguous.
    B_columns = np.ascontiguousarray(B.T)
    G_columns = np.ascontiguousarray(G.T)
    allowed_columns = np.ascontiguousarray(allowed.T)
    steps = _descend(B_columns, G_columns, loss.S, M, allowed_columns, lam, rho_2, gamma, max_steps, tol)
    return np.ascontiguousarray(B_columns.T), int(steps)


def warm_up() -> None:
    """Compile the kernels, or load them from the cache on disk, so that the first round need not wait for it."""
    zero = np.zeros((2, 2))
    solve(
        SecondMoments(np.eye(2)), zero, zero, zero,
        lam=0.0, rho_2=1.0, gamma=1.0, max_steps=1, tol=0.0, allowed=~np.eye(2, dtype=bool),
    )  # fmt: skip


@_compiled
def _soft(x: Any, t: Any) -> Any:
    """Prox of t|.|: sign(x) max(|x| - t, 0)."""
    if x > t:
        return x - t
    if x < -t:
        return x + t
    return 0.0


@_compiled
def _best_of_column(b: Matrix, g: Matrix, M: Matrix, sqrt_M: Matrix, allowed: Mask, lam: float) -> tuple[float, int]:
    """Largest score of one column (Eq. score) and its row."""
    best, row = -1.0, 0
    for i in range(b.size):
        if allowed[i]:
            score = sqrt_M[i] * abs(_soft(b[i] - g[i] / M[i], lam / M[i]) - b[i])
            if score > best:
                best, row = score, i
    return best, row


@_compiled
def _descend(
    B: Matrix,
    G: Matrix,
    S: Matrix,
    M: Matrix,
    allowed: Mask,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    tol: float,
) -> int:
    """Algorithm PGCD in place on the transposes B[j, i], G[j, i]; returns the steps taken."""
    d = M.size
    sqrt_M = np.sqrt(M)
    best = np.empty(d)
    row = np.empty(d, np.int64)
    for j in range(d):
        best[j], row[j] = _best_of_column(B[j], G[j], M, sqrt_M, allowed[j], lam)
    for step in range(max_steps):
        j = int(np.argmax(best))
        if best[j] < tol:
            return step
        i = row[j]
        new = _soft(B[j, i] - gamma * G[j, i] / M[i], gamma * lam / M[i])  # Eq. update
        change = new - B[j, i]
        if change == 0.0:
            return step
        B[j, i] = new
        for k in range(d):
            G[j, k] += change * S[i, k]
        G[j, i] += rho_2 * change
        best[j], row[j] = _best_of_column(B[j], G[j], M, sqrt_M, allowed[j], lam)
    return max_steps
