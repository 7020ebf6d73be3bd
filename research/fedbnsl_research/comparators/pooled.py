"""Comparators that are not federated: each sees all rows in one place, or one site's rows alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.comparators.dagma_adapter import dagma, dagma_installed
from fedbnsl_research.comparators.notears import notears
from fedbnsl_research.comparators.orderings import equal_variance, sortnregress
from fedbnsl_workbench.scoring.evaluation import graph_of

TAU = 0.3
"""Cut of every comparator's weights, as of a plan's."""

NOTEARS_L1 = 0.1
DAGMA_L1 = 0.02

Comparator = Callable[[Matrix], Matrix]
"""(n, d) table of centred columns to (d, d) weights."""


@dataclass(frozen=True)
class Described:
    """A comparator with what a page says about its settings, and the most variables that it is run on."""

    weights: Comparator
    settings: dict[str, Any]
    chosen: str
    most_variables: int = 65_535


_NO_SETTINGS = "edges along the order by lasso with BIC: nothing to choose but the cut"


def by_notears(X: Matrix) -> Matrix:
    """NOTEARS with the L1 weight of its published example."""
    return notears(SecondMoments.of(X).S, lam=NOTEARS_L1)


def by_dagma(X: Matrix) -> Matrix:
    """DAGMA with the L1 weight of its published example."""
    return dagma(X, lam=DAGMA_L1)


def by_sortnregress(X: Matrix) -> Matrix:
    """Regressions along the order of variances."""
    return sortnregress(SecondMoments.of(X).S, len(X))


def by_equal_variance(X: Matrix) -> Matrix:
    """Regressions along the order that equal noise variances give."""
    return equal_variance(SecondMoments.of(X).S, len(X))


def comparators() -> dict[str, Described]:
    """By name in the rows; DAGMA only where its optional package is installed."""
    found = {
        "NOTEARS, pooled rows": Described(
            by_notears,
            {"lam": NOTEARS_L1, "threshold": TAU, "centred": True},
            "the value of the published code's example; the paper names none; not run at d=200, where one graph takes "
            "longer than all methods here together",
            most_variables=100,
        ),
        "sortnregress, pooled rows": Described(by_sortnregress, {"threshold": TAU, "centred": True}, _NO_SETTINGS),
        "equal variances, pooled rows": Described(by_equal_variance, {"threshold": TAU, "centred": True}, _NO_SETTINGS),
    }
    if dagma_installed():
        found["DAGMA, pooled rows"] = Described(
            by_dagma,
            {"lam": DAGMA_L1, "threshold": TAU, "centred": True},
            "the published code's example; not run at d=200, where a graph takes minutes",
            most_variables=100,
        )
    return found


def centred_rows(tables: Sequence[Matrix]) -> Matrix:
    """(n, d) rows of all tables together, without the means of their columns over all rows."""
    X = np.concatenate(tables)
    return np.asarray(X - X.mean(axis=0))


def pooled_graph(name: str, tables: Sequence[Matrix]) -> Mask:
    """(d, d) DAG of a comparator on the centred rows of all tables together."""
    return graph_of(comparators()[name].weights(centred_rows(tables)), TAU)
