"""BOSS (Andrews et al. 2023) and GES (Chickering 2002) by the package causal-learn, where that is installed.

Both find the Markov equivalence class whose DAGs have the least

    sum over j of n/2 log(v_j) + lambda log(n) edges,

with v_j the residual variance of column j given its parents: BOSS by moves in an order of the variables, from one order
and without restarts, GES by adding and then removing edges of the class.
"""

import importlib
import importlib.util
import math
import random
import warnings
from typing import Any

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.protocol.sparse import Mask, Matrix

BOSS_LAMBDA = 2.0
"""The package's own value: four times the penalty of BIC."""

GES_LAMBDA = 0.5
"""The package's own value: that of BIC."""


def causal_learn_installed() -> bool:
    """Whether the package `causal-learn` can be used."""
    return importlib.util.find_spec("causallearn") is not None


def boss(X: Matrix, *, penalty: float | None = None, seed: int = 0) -> Mask:
    """(d, d) CPDAG of an (n, d) table; both directions are true where an edge is not directed.

    Parameters
    ----------
    penalty
        What an edge adds to the sum over j of n/2 log(v_j); None: `BOSS_LAMBDA` log(n).
    seed
        Of the order in which variables are moved.

    Raises
    ------
    SetupError
        If the package is not installed.
    """
    search: Any = _module("search.PermutationBased.BOSS").boss
    state = random.getstate()  # the package shuffles by the random numbers of the whole process
    random.seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = search(X, parameters={"lambda_value": _strength(penalty, BOSS_LAMBDA, len(X))}, verbose=False)
    finally:
        random.setstate(state)
    return _marks(found)


def ges(X: Matrix, *, penalty: float | None = None) -> Mask:
    """(d, d) CPDAG of an (n, d) table; both directions are true where an edge is not directed.

    Parameters
    ----------
    penalty
        What an edge adds to the sum over j of n/2 log(v_j); None: `GES_LAMBDA` log(n).

    Raises
    ------
    SetupError
        If the package is not installed.
    """
    search: Any = _module("search.ScoreBased.GES").ges
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        covariance = np.cov(X.T, ddof=0)
        found = search(cov=covariance, n=len(X), lambda_value=_strength(penalty, GES_LAMBDA, len(X)))
    return _marks(found["G"])


def _module(name: str) -> Any:
    if not causal_learn_installed():
        raise SetupError(
            "the comparison with BOSS and GES needs the package causal-learn, which is not installed",
            remedy="Install it by `pip install causal-learn`, or leave BOSS and GES out.",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"causallearn.{name}")


def _strength(penalty: float | None, default: float, n: int) -> float:
    return default if penalty is None else penalty / math.log(n)


def _marks(graph: Any) -> Mask:
    """The package writes -1 at [i, j] for the tail at i of an edge between i and j, and 1 for an arrow head there."""
    return np.asarray(graph.graph == -1, dtype=bool)
