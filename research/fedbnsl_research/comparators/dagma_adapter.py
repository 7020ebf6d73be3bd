"""DAGMA (Bello, Aragam and Ravikumar 2022) by its authors' package, where that is installed.

It is no dependency: its metadata asks for PyTorch, which its linear model does not use.
"""

import contextlib
import importlib
import importlib.util
import io
from typing import Any

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.protocol.sparse import Matrix

# How far W may be from acyclic in each of the five stages: the package's own values.
_DOMAINS = (1.0, 0.9, 0.8, 0.7, 0.6)


def dagma_installed() -> bool:
    """Whether `dagma` can be used: its package and the progress bar that it imports."""
    return all(importlib.util.find_spec(name) is not None for name in ("dagma", "tqdm"))


def dagma(X: Matrix, *, lam: float) -> Matrix:
    """(d, d) weights of an (n, d) table, centred by DAGMA, with its own settings but no cut.

    Parameters
    ----------
    X
        (n, d) table; it is not changed.
    lam
        L1 weight.

    Raises
    ------
    SetupError
        If the package is not installed.
    """
    if not dagma_installed():
        raise SetupError(
            "the comparison with DAGMA needs the packages dagma and tqdm, which are not installed",
            remedy="Install them by `pip install --no-deps dagma tqdm`, or leave DAGMA out.",
        )
    linear: Any = importlib.import_module("dagma.linear")
    # It writes a progress bar, centres the table in place, and changes the list of domains that it is given: its
    # default list would be another one at the next call.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        W = linear.DagmaLinear(loss_type="l2").fit(
            np.array(X, dtype=np.float64), lambda1=lam, w_threshold=0.0, s=list(_DOMAINS)
        )
    return np.asarray(W, dtype=np.float64)
