"""FLOP (Wienöbst, Henckel and Weichwald 2026) by its authors' package, where that is installed.

It finds the Markov equivalence class whose DAGs have the least

    sum over j of n log(v_j) + lambda log(n) edges,

with v_j the residual variance of column j given its parents: a search over orders, from several starts. The package
takes no seed, so that two calls may find different classes.
"""

import importlib
import importlib.util
import math
from typing import Any

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.protocol.sparse import Mask, Matrix

LAMBDA = 2.0
"""What its authors recommend: twice the penalty of BIC."""

RESTARTS = 50
"""What its authors' example takes."""


def flop_installed() -> bool:
    """Whether the package `flopsearch` can be used."""
    return importlib.util.find_spec("flopsearch") is not None


def flop(X: Matrix, *, penalty: float | None = None, restarts: int = RESTARTS) -> Mask:
    """(d, d) CPDAG of an (n, d) table; both directions are true where an edge is not directed.

    Parameters
    ----------
    penalty
        What an edge adds to the sum over j of n/2 log(v_j); None: `LAMBDA` log(n) / 2.
    restarts
        Starts of the search after the first.

    Raises
    ------
    SetupError
        If the package is not installed.
    """
    if not flop_installed():
        raise SetupError(
            "the comparison with FLOP needs the package flopsearch, which is not installed",
            remedy="Install it by `pip install flopsearch`, or leave FLOP out.",
        )
    package: Any = importlib.import_module("flopsearch")
    strength = LAMBDA if penalty is None else 2.0 * penalty / math.log(len(X))
    # 1 for an edge that is directed, 2 at both entries of one that is not.
    found = package.flop(np.ascontiguousarray(X, dtype=np.float64), strength, restarts=restarts)
    return np.asarray(found, dtype=bool)
