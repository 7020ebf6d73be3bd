"""Proximal greedy coordinate descent on the local objective (Eq. Bp), O(d) a step.

The smooth part is f(B) = 1/(2n) ||X - XB||^2 + <beta, B - W> + rho_2/2 ||B - W||^2 with gradient
G = S (B - I) + beta + rho_2 (B - W). A step changes one entry B_ij, hence only column j of G; the best score of every
other column stays what it was. Selection and stopping look at the data: for non-private plans only.
"""

import numpy as np

from fedbnsl.sparse import Mask, Matrix
from fedbnsl_client.compiled import compiled
from fedbnsl_client.solvers.coordinate import score_column, soft
from fedbnsl_client.squared_loss import SecondMoments


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
    weight = np.where(allowed.T, np.sqrt(M), 0.0)
    steps = _descend(B_columns, G_columns, loss.S, M, weight, lam, rho_2, gamma, max_steps, tol)
    return np.ascontiguousarray(B_columns.T), int(steps)


def warm_up() -> None:
    """Compile the kernels, or load them from the cache on disk, so that the first round need not wait for it."""
    zero = np.zeros((2, 2))
    solve(
        SecondMoments(np.eye(2)), zero, zero, zero,
        lam=0.0, rho_2=1.0, gamma=1.0, max_steps=1, tol=0.0, allowed=~np.eye(2, dtype=bool),
    )  # fmt: skip


@compiled
def _first_largest(values: Matrix) -> int:
    """Index of the largest value, the first of equals."""
    best, index = values[0], 0
    for k in range(1, values.size):
        if values[k] > best:
            best, index = values[k], k
    return index


@compiled
def _descend(
    B: Matrix,
    G: Matrix,
    S: Matrix,
    M: Matrix,
    weight: Matrix,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    tol: float,
) -> int:
    """Algorithm PGCD in place on the transposes B[j, i], G[j, i]; returns the steps taken."""
    d = M.size
    inverse_M = 1.0 / M
    t = lam * inverse_M
    scores = np.empty(d)
    best = np.empty(d)
    row = np.empty(d, np.int64)
    for j in range(d):
        score_column(B[j], G[j], inverse_M, t, weight[j], scores)
        row[j] = _first_largest(scores)
        best[j] = scores[row[j]]
    for step in range(max_steps):
        j = _first_largest(best)
        if best[j] < tol or best[j] == 0.0:
            return step
        b, g, i = B[j], G[j], row[j]
        new = soft(b[i] - gamma * g[i] * inverse_M[i], gamma * t[i])  # Eq. update
        change = new - b[i]
        if change == 0.0:
            return step
        b[i] = new
        S_i = S[i]
        for k in range(d):
            g[k] += change * S_i[k]
        g[i] += rho_2 * change
        score_column(b, g, inverse_M, t, weight[j], scores)
        row[j] = _first_largest(scores)
        best[j] = scores[row[j]]
    return max_steps
