"""A small network, and noisy releases of moments of its residuals."""

import math

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.released_likelihood import Release, ReleasedLikelihood

NAMES = ("a", "b", "c", "d", "e")
D, ROWS = 5, 1e9
DAG = np.zeros((D, D), dtype=bool)
for i, j in ((0, 1), (1, 2), (0, 2), (3, 2), (3, 4)):
    DAG[i, j] = True
W = np.where(DAG, np.array([[0.0, 0.9, -0.7, 0, 0], [0, 0, 0.6, 0, 0], [0] * 5, [0, 0, 0.8, 0, -1.2], [0] * 5]), 0.0)
V = np.diag([1.0, 0.3, 2.0, 0.7, 0.1])
BLOCKED = Columns.of(NAMES, {"c": "levels", "d": "levels"})


def moments(W: Matrix, V: Matrix) -> Matrix:
    """(d, d) of the columns."""
    B = np.linalg.inv(np.eye(len(W)) - W)
    return B.T @ V @ B


def release(S: Matrix, *, std: float, seed: int, c: float = 1.0, exact: bool = False) -> Release:
    """In residuals of a wrong graph, c times as large; with noise of this size unless it is exact."""
    rng = np.random.default_rng(seed)
    A = (np.eye(D) - np.triu(rng.normal(0.0, 0.4, (D, D)), 1)) / rng.uniform(0.5, 2.0, D)
    E = rng.standard_normal((D, D))
    noise = 0.0 if exact else std * (E + E.T) / math.sqrt(2.0)
    return Release(c * A.T @ S @ A + noise, std, A, math.nan, math.inf, 0.0)


def mask(columns: Columns | None = None, **knowledge: tuple[tuple[str, str], ...]) -> EdgeMask:
    """What is known of the edges."""
    return EdgeMask(Knowledge(**knowledge), columns or Columns.of(NAMES))


def likelihood(*releases: Release, of: EdgeMask | None = None, fixed: bool = False) -> ReleasedLikelihood:
    """Of these releases."""
    return ReleasedLikelihood(releases, ROWS, of or mask(), fixed=fixed)
