"""Hill climbing with BIC and BDeu by the package pgmpy, where that is installed: it sees all rows in one place."""

import importlib
import importlib.util
import warnings
from typing import Any, Literal

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.protocol.sparse import Mask, Matrix

DiscreteScore = Literal["bic-d", "bdeu"]


def pgmpy_installed() -> bool:
    """Whether the package `pgmpy` can be used."""
    return importlib.util.find_spec("pgmpy") is not None


def hill_climbing(codes: Matrix, score: DiscreteScore) -> Mask:
    """(V, V) CPDAG of an (n, V) table of positions of levels; both directions are true where an edge is not directed.

    Raises
    ------
    SetupError
        If the package is not installed.
    """
    if not pgmpy_installed():
        raise SetupError(
            "the comparison with hill climbing needs the package pgmpy, which is not installed",
            remedy="Install it by `pip install pgmpy`.",
        )
    import pandas as pd  # here, as the package: few commands need them

    V = codes.shape[1]
    frame = pd.DataFrame(codes.astype(np.int64), columns=list(map(str, range(V)))).astype("category")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package: Any = importlib.import_module("pgmpy.estimators")
        found = package.HillClimbSearch(frame).estimate(scoring_method=score, show_progress=False)
    dag = np.zeros((V, V), dtype=bool)
    for source, target in found.edges():
        dag[int(source), int(target)] = True
    return cpdag(dag)
