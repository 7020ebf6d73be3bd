"""One coordinate and one column of a proximal greedy step, compiled: what all coordinate solvers share."""

from typing import Any

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Matrix


@compiled
def soft(x: Any, t: Any) -> Any:
    """Prox of t|.|, of one number: sign(x) max(|x| - t, 0), without a branch."""
    return max(x - t, 0.0) + min(x + t, 0.0)


@compiled
def score_column(b: Matrix, g: Matrix, inverse_M: Matrix, t: Matrix, weight: Matrix, scores: Matrix) -> None:
    """Eq. score for one column, into `scores`; `t` is lam / M and `weight` sqrt(M), or 0 where not allowed."""
    for i in range(b.size):
        scores[i] = weight[i] * abs(soft(b[i] - g[i] * inverse_M[i], t[i]) - b[i])
