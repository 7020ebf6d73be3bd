"""Proximal greedy coordinate descent on the local objective (Eq. Bp), O(d) a step.

The smooth part is f(B) = 1/(2n) ||X - XB||^2 + <beta, B - W> + rho_2/2 ||B - W||^2 with gradient
G = S (B - I) + beta + rho_2 (B - W). A step changes one entry B_ij, hence only column j of G; the best scores of all
other columns do not change. Selection and stopping depend on the data: for non-private plans only.

The steps within a column do not depend on other columns. Once all scores are below some level, every column has taken
the steps that it would take alone down to that level. So the order of the columns matters only if `max_steps` ends the
descent. Working column by column is faster, because a column's entries stay in the processor's cache.
"""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers.coordinate import score_column, soft

_LEVELS = tuple(4.0**k for k in range(7, -1, -1))
"""Levels, in units of `tol`: all columns descend below one level before any continues to the next."""


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
        Stop after `max_steps` steps, or when the best score falls below `tol`.
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
    problem = (loss.S, M, weight, lam, rho_2, gamma)
    steps = 0
    for level in _LEVELS:
        before = B_columns.copy(), G_columns.copy()
        taken = int(_descend_by_columns(B_columns, G_columns, *problem, max_steps - steps, level * tol))
        if taken < 0:  # the steps end on the way to this level
            B_columns, G_columns = before
            steps += int(_descend(B_columns, G_columns, *problem, max_steps - steps, tol))
            break
        steps += taken
    return np.ascontiguousarray(B_columns.T), steps


def warm_up() -> None:
    """Compile the kernels, or load them from the cache on disk, so that the first round does not wait for it."""
    zero = np.zeros((2, 2))
    solve(
        SecondMoments(np.ones((2, 2))), zero, zero, zero,
        lam=0.0, rho_2=1.0, gamma=1.0, max_steps=0, tol=0.0, allowed=~np.eye(2, dtype=bool),
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
def _step(b: Matrix, g: Matrix, S: Matrix, i: int, inverse_M: Matrix, t: Matrix, rho_2: float, gamma: float) -> bool:
    """Eq. update of entry i of a column, and its gradient; whether the entry moved."""
    new = soft(b[i] - gamma * g[i] * inverse_M[i], gamma * t[i])
    change = new - b[i]
    if change == 0.0:
        return False
    b[i] = new
    S_i = S[i]
    for k in range(b.size):
        g[k] += change * S_i[k]
    g[i] += rho_2 * change
    return True


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
    """Proximal greedy coordinate descent in place on the transposes B[j, i], G[j, i]; returns the steps taken."""
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
        if not _step(B[j], G[j], S, row[j], inverse_M, t, rho_2, gamma):
            return step
        score_column(B[j], G[j], inverse_M, t, weight[j], scores)
        row[j] = _first_largest(scores)
        best[j] = scores[row[j]]
    return max_steps


@compiled
def _descend_by_columns(
    B: Matrix,
    G: Matrix,
    S: Matrix,
    M: Matrix,
    weight: Matrix,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    level: float,
) -> int:
    """As `_descend`, column by column until all scores are below `level`; -1 if the steps end before."""
    inverse_M = 1.0 / M
    t = lam * inverse_M
    scores = np.empty(M.size)
    steps = 0
    for j in range(M.size):
        b, g = B[j], G[j]
        while True:
            score_column(b, g, inverse_M, t, weight[j], scores)
            i = _first_largest(scores)
            if scores[i] < level or scores[i] == 0.0:
                break
            if steps == max_steps or not _step(b, g, S, i, inverse_M, t, rho_2, gamma):
                return -1
            steps += 1
    return steps
