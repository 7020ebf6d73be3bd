"""h(W) = tr(exp(W o W)) - d: zero exactly for acyclic W, with its gradient."""

import numpy as np
from scipy.linalg import expm

from fedbnsl.sparse import Matrix


def acyclicity(W: Matrix) -> tuple[float, Matrix]:
    """Value and (d, d) gradient exp(W o W)' o 2W of h at a (d, d) matrix."""
    E = expm(W * W)
    return float(np.trace(E)) - W.shape[0], E.T * (2.0 * W)
