"""Frank-Wolfe on the L1-penalised local objective (Eq. Bp), O(d^2) a step: Fed-BNSL-FW, a baseline of the paper.

Frank-Wolfe needs a bounded set. The epigraph form (Harchaoui, Juditsky and Nemirovski 2015) gives the penalty one:

    min f(B) + lambda s   over   ||B||_1 <= s <= D

with f as in `pgcd`. D is so large that the set contains every B no worse than the start: the squared loss is never
negative and <beta, B - W> + rho_2/2 ||B - W||^2 >= -||beta||^2 / (2 rho_2), so that with F = f + lambda ||.||_1

    lambda ||B||_1 <= F(B) + ||beta||^2 / (2 rho_2) <= F(B_start) + ||beta||^2 / (2 rho_2) =: lambda D.

The corners of the set are 0 and (+-D e_ij, s = D). A step goes towards the corner that lowers the linear model most; f
is quadratic, so the best length is known. Corner and stopping depend on the data: for non-private plans only.
"""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers.settings import Settings


def solve(loss: SecondMoments, B: Matrix, W: Matrix, beta: Matrix, settings: Settings) -> tuple[Matrix, int, float]:
    """Minimise the local objective from B; W is the consensus and beta the dual, zero where a change is not allowed.

    The L1 weight is above 0. Returns the new (d, d) B, how many steps were taken, and the duality gap at B: the most
    that its objective can be above the minimum.
    """
    lam, rho_2 = settings.lam, settings.rho_2
    gap = B - W
    residual = np.eye(len(B)) - B
    start = float(
        0.5 * (residual * (loss.S @ residual)).sum()
        + (beta * gap).sum()
        + 0.5 * rho_2 * (gap * gap).sum()
        + lam * np.abs(B).sum()
    )
    radius = max(0.0, start + float((beta * beta).sum()) / (2.0 * rho_2)) / lam
    G = loss.gradient(B) + beta + rho_2 * gap
    # The part of G that does not depend on B; the rest, S B + rho_2 B, scales with it.
    fixed = beta - rho_2 * W - loss.S
    # The kernel changes one column at a step: keep each contiguous.
    B_columns, G_columns = np.ascontiguousarray(B.T), np.ascontiguousarray(G.T)
    steps, duality_gap = _walk(
        B_columns,
        G_columns,
        np.ascontiguousarray(fixed.T),
        loss.S,
        np.ascontiguousarray(settings.allowed.T),
        lam,
        rho_2,
        radius,
        settings.max_steps,
        settings.tol,
    )
    return np.ascontiguousarray(B_columns.T), int(steps), float(duality_gap)


def warm_up() -> None:
    """As `pgcd.warm_up`."""
    zero = np.zeros((2, 2))
    solve(SecondMoments(np.eye(2)), zero, zero, zero, Settings(~np.eye(2, dtype=bool), 1.0, 1.0, max_steps=1))


# Compiled code takes arrays and numbers, not values that hold them: hence the many parameters.
@compiled
def _walk(
    B: Matrix,
    G: Matrix,
    fixed: Matrix,
    S: Matrix,
    allowed: Mask,
    lam: float,
    rho_2: float,
    radius: float,
    max_steps: int,
    tol: float,
) -> tuple[int, float]:
    """Steps in place on the transposes B[j, i] and G[j, i]; returns how many, and the duality gap where it ends."""
    d = S.shape[0]
    step = 0
    while True:
        steepest, i, j = 0.0, 0, 0
        slope_B, curvature_B, norm = 0.0, 0.0, 0.0  # <G, B>, <B, S B + rho_2 B>, ||B||_1
        for column in range(d):
            for row in range(d):
                b, g = B[column, row], G[column, row]
                slope_B += g * b
                curvature_B += (g - fixed[column, row]) * b
                norm += abs(b)
                if allowed[column, row] and abs(g) > abs(steepest):
                    steepest, i, j = g, row, column
        # s is ||B||_1, because a larger s only raises the objective.
        corner = 0.0
        if abs(steepest) > lam:
            corner = -radius if steepest > 0.0 else radius
        gap = slope_B + lam * norm - corner * steepest - lam * abs(corner)
        if gap <= tol or gap <= 0.0 or step == max_steps:
            return step, gap
        # Second derivative of f from B to the corner.
        curvature = curvature_B - 2.0 * corner * (G[j, i] - fixed[j, i]) + corner * corner * (S[i, i] + rho_2)
        share = 1.0 if curvature <= gap else gap / curvature
        for column in range(d):
            for row in range(d):
                B[column, row] *= 1.0 - share
                G[column, row] += share * (fixed[column, row] - G[column, row])
        change = share * corner
        B[j, i] += change
        for row in range(d):
            G[j, row] += change * S[i, row]
        G[j, i] += rho_2 * change
        step += 1
