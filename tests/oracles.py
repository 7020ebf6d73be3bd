"""Reference implementations that read like the formulas: slow, literal, and of numpy and scipy alone."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components

Array = NDArray[np.float64]
Allowed = NDArray[np.bool_]


def literal_soft(x: float, t: float) -> float:
    """prox of t|.| at x."""
    return float(np.sign(x) * max(abs(x) - t, 0.0))


def literal_gradient(X: Array, B: Array, W: Array, beta: Array, rho_2: float) -> Array:
    """(d, d) gradient of the smooth part: S(B - I) + beta + rho_2 (B - W), S = X'X / n."""
    n, d = X.shape
    S = X.T @ X / n
    return S @ (B - np.eye(d)) + beta + rho_2 * (B - W)


def literal_local_objective(X: Array, B: Array, W: Array, beta: Array, lam: float, rho_2: float) -> float:
    """1/(2n) ||X - XB||^2 + <beta, B - W> + rho_2/2 ||B - W||^2 + lam ||B||_1, from the table itself."""
    n = X.shape[0]
    loss = np.sum((X - X @ B) ** 2) / (2 * n)
    return float(loss + np.sum(beta * (B - W)) + rho_2 / 2 * np.sum((B - W) ** 2) + lam * np.sum(np.abs(B)))


def literal_scores(B: Array, G: Array, M: Array, lam: float, allowed: Allowed) -> Array:
    """(d, d) S_ij = sqrt(M_i) |soft(B_ij - G_ij/M_i, lam/M_i) - B_ij| where allowed, -1 elsewhere."""
    M = M[:, None]
    step = B - G / M
    target = np.sign(step) * np.maximum(np.abs(step) - lam / M, 0.0)
    return np.where(allowed, np.sqrt(M) * np.abs(target - B), -1.0)


def literal_pgcd(
    X: Array,
    B: Array,
    W: Array,
    beta: Array,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    tol: float,
    allowed: Allowed,
) -> tuple[Array, int]:
    """Local solver of Algorithm 1: every step computes the whole gradient and all d^2 scores again.

    Stops after `max_steps`, when the best score falls below `tol`, or when the best coordinate does not move. Returns
    the (d, d) weights and the number of steps taken.
    """
    n, d = X.shape
    B = B.copy()
    S = X.T @ X / n
    M = np.diagonal(S) + rho_2
    for step in range(max_steps):
        G = S @ (B - np.eye(d)) + beta + rho_2 * (B - W)
        scores = literal_scores(B, G, M, lam, allowed)
        j, i = np.unravel_index(np.argmax(scores.T), scores.shape)  # equal scores: first column, then first row
        if scores[i, j] < tol:
            return B, step
        new = literal_soft(B[i, j] - gamma * G[i, j] / M[i], gamma * lam / M[i])
        if new == B[i, j]:
            return B, step
        B[i, j] = new
    return B, max_steps


def literal_acyclicity(W: Array) -> float:
    """tr(exp(W o W)) - d as the power series sum over k >= 1 of tr((W o W)^k) / k!."""
    A = W * W
    term = np.eye(W.shape[0])
    total = 0.0
    k = 0
    while True:
        k += 1
        term = term @ A / k
        total += float(np.trace(term))
        if not term.any() or (k > 2 * np.sum(A) and np.max(term) < 1e-18 * max(total, 1e-300)):
            return total


def dense_global_step(
    A: Array, W: Array, *, weight: float, alpha: float, rho_1: float, allowed: Allowed, max_iterations: int
) -> Array:
    """Minimum over W of weight / 2 ||W - A||^2 + alpha h + rho_1 / 2 h^2 by dense exponentials, from the start W."""
    support = np.flatnonzero(((A != 0) | (W != 0)) & allowed)
    d = A.shape[0]
    M = np.zeros_like(A)

    def objective(w: Array) -> tuple[float, Array]:
        M.flat[support] = w
        E = expm(M * M)
        h = float(np.trace(E)) - d
        gap = w - A.flat[support]
        value = weight / 2 * float(gap @ gap) + alpha * h + rho_1 / 2 * h * h
        return value, weight * gap + (alpha + rho_1 * h) * (E.T * 2.0 * M).flat[support]

    options = {"maxiter": max_iterations, "maxfun": 10 * max_iterations + 100}
    M.flat[support] = minimize(objective, W.flat[support], jac=True, method="L-BFGS-B", options=options).x
    return M


def literal_extract_dag(edges: Allowed, W: Array) -> tuple[Allowed, list[tuple[int, int]]]:
    """The weakest edge on a cycle is dropped until none is left: components anew for every edge."""
    dag = edges.copy()
    dropped: list[tuple[int, int]] = []
    while True:
        _, component = connected_components(dag.astype(np.int8), directed=True, connection="strong")
        flat = np.flatnonzero(dag & (component[:, None] == component[None, :]))
        if not flat.size:
            return dag, dropped
        i, j = divmod(int(flat[np.argmin(np.abs(W).flat[flat])]), dag.shape[0])
        dag[i, j] = False
        dropped.append((i, j))


def finite_difference(f: Callable[[Array], float], x: Array, *, step: float = 1e-6) -> Array:
    """Gradient of f at x by central differences, one entry after the other."""
    gradient = np.zeros_like(x)
    for position in np.ndindex(*x.shape):
        forward, backward = x.copy(), x.copy()
        forward[position] += step
        backward[position] -= step
        gradient[position] = (f(forward) - f(backward)) / (2 * step)
    return gradient


def literal_dp_pgcd(
    X: Array,
    B: Array,
    W: Array,
    beta: Array,
    M: Array,
    lam: float,
    rho_2: float,
    gamma: float,
    steps: int,
    clip: float,
    sharpness: float,
    noise_multiplier: float,
    rng: np.random.Generator,
) -> Array:
    """Algorithm 2 as it reads, every record's gradient clipped by itself, with floating-point noise; for timing.

    Every step computes all n d^2 clipped products and all d^2 noisy scores again.
    """
    n, d = X.shape
    B = B.copy()
    C = clip * np.sqrt(M / M.sum())
    sensitivity = 2 * clip / (n * np.sqrt(M.sum()))
    for _ in range(steps):
        R = X - X @ B
        G = np.empty((d, d))
        for j in range(d):
            G[:, j] = np.clip(-X * R[:, [j]], -C, C).mean(axis=0)
        G += beta + rho_2 * (B - W)
        scores = literal_scores(B, G, M, lam, ~np.eye(d, dtype=bool))
        noisy = scores + rng.gumbel(0.0, sensitivity / sharpness, scores.shape)
        noisy[np.diag_indices(d)] = -np.inf
        i, j = np.unravel_index(np.argmax(noisy), noisy.shape)
        slope = G[i, j] + rng.normal(0.0, noise_multiplier * 2 * C[i] / n)
        B[i, j] = literal_soft(B[i, j] - gamma * slope / M[i], gamma * lam / M[i])
    return B


class LiteralExponentialMechanism:
    """Every weight of a changed column as an integer of its own, at once."""

    def __init__(self, sharpness: float, allowed: Allowed) -> None:
        self.sharpness, self.allowed = sharpness, np.ascontiguousarray(allowed.T)
        self.weights = [[0] * len(allowed) for _ in allowed]
        self.columns = [0] * len(allowed)

    def set_column(self, j: int, scores: Array) -> None:
        logs = np.minimum(self.sharpness * scores, 2048.0)
        powers = np.floor(logs / np.log(2.0))
        mantissas = np.exp(logs - powers * np.log(2.0)) * 2.0**52 * self.allowed[j]
        pairs = zip(mantissas.astype(np.int64).tolist(), powers.astype(np.int64).tolist(), strict=True)
        self.weights[j] = [mantissa << power for mantissa, power in pairs]
        self.columns[j] = sum(self.weights[j])

    def draw(self, randbelow: Callable[[int], int]) -> tuple[int, int]:
        j, left = self.locate(self.columns, randbelow(sum(self.columns)))
        i, _ = self.locate(self.weights[j], left)
        return i, j

    @staticmethod
    def locate(weights: list[int], left: int) -> tuple[int, int]:
        for index, weight in enumerate(weights):
            if left < weight:
                return index, left
            left -= weight
        raise AssertionError("a draw beyond the total weight")
