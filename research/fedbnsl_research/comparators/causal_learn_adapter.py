"""BOSS (Andrews et al. 2023), GES (Chickering 2002) and FCI by the package causal-learn, where that is installed.

FCI finds a partial ancestral graph by tests of partial correlations (Spirtes et al. 1995, Zhang 2008). BOSS and GES
find the Markov equivalence class whose DAGs have the least

    sum over j of n/2 log(v_j) + lambda log(n) edges,

with v_j the residual variance of column j given its parents: BOSS by moves in an order of the variables, from one order
and without restarts, GES by adding and then removing edges of the class.
"""

import contextlib
import importlib
import importlib.util
import io
import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln, xlogy

from fedbnsl.errors import SetupError
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Marks
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_research.comparators.pgmpy_adapter import DiscreteScore

BOSS_LAMBDA = 2.0
"""The package's own value: four times the penalty of BIC."""

GES_LAMBDA = 0.5
"""The package's own value: that of BIC."""

FCI_LEVEL = 0.01

_SAMPLE_SIZE = 10.0  # of BDeu, as in `pgmpy`


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


def boss_of_categories(codes: Matrix, score: DiscreteScore, *, seed: int = 0) -> Mask:
    """As `boss`, of an (n, V) table of positions of levels, by the score that `discrete_score` has of its counts."""
    trees: Any = _module("search.PermutationBased.gst")
    moves: Any = _module("search.PermutationBased.BOSS")
    V = codes.shape[1]
    scored = _OfCounts(codes.astype(np.int64), score)
    grown, order = [trees.GST(v, scored) for v in range(V)], list(range(V))
    rng = np.random.default_rng(seed)
    while True:
        if not sum(moves.better_mutation(v, order, grown) for v in rng.permutation(V).tolist()):
            break
    dag = np.zeros((V, V), dtype=bool)
    for k, v in enumerate(order):
        parents: list[int] = []
        grown[v].trace(order[:k], parents)
        dag[parents, v] = True
    return cpdag(dag)


@dataclass(frozen=True)
class _OfCounts:
    """What the package's trees ask for the score of a variable given its parents."""

    data: Index
    score: DiscreteScore

    def score_nocache(self, vertex: int, parents: list[int]) -> float:
        """Larger is better."""
        return discrete_score(self.data, vertex, parents, self.score)


def discrete_score(codes: Index, child: int, parents: Sequence[int], score: DiscreteScore) -> float:
    """BIC, or BDeu with an equivalent sample size of 10, of a column of positions of levels given others."""
    sizes, n = codes.max(axis=0) + 1, len(codes)
    r, q, row = int(sizes[child]), 1, np.zeros(n, dtype=np.int64)
    for p in parents:
        row, q = row * int(sizes[p]) + codes[:, p], q * int(sizes[p])
    if q > n:  # most combinations do not occur
        row = np.unique(row, return_inverse=True)[1].ravel()
    counts = np.bincount(row * r + codes[:, child])
    counts = np.append(counts, np.zeros(-len(counts) % r, dtype=np.int64)).reshape(-1, r)
    of_rows = counts.sum(axis=1)
    if score == "bic-d":
        return _sum(xlogy(counts, counts)) - _sum(xlogy(of_rows, of_rows)) - 0.5 * math.log(n) * q * (r - 1)
    a = _SAMPLE_SIZE / q  # combinations without records add nothing
    return _sum(gammaln(a) - gammaln(a + of_rows)) + _sum(gammaln(a / r + counts) - gammaln(a / r))


def _sum(terms: Any) -> float:
    return float(np.asarray(terms, dtype=np.float64).sum())


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


def fci(X: Matrix) -> Marks:
    """(d, d) partial ancestral graph of an (n, d) table, by Fisher's z at level `FCI_LEVEL`.

    Raises
    ------
    SetupError
        If the package is not installed.
    """
    search: Any = _module("search.ConstraintBased.FCI").fci
    # The package prints edges whatever it is told.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        graph, _ = search(X, "fisherz", FCI_LEVEL, verbose=False, show_progress=False)
    # The package writes at [i, j] the mark at i.
    written = np.asarray(graph.graph).T
    marks: Marks = np.full(written.shape, NONE, dtype=np.int8)
    for number, mark in {-1: TAIL, 1: ARROW, 2: CIRCLE}.items():
        marks[written == number] = mark
    return marks


def _module(name: str) -> Any:
    if not causal_learn_installed():
        raise SetupError(
            "the comparison with BOSS, GES and FCI needs the package causal-learn, which is not installed",
            remedy="Install it by `pip install causal-learn`, or leave these out.",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"causallearn.{name}")


def _strength(penalty: float | None, default: float, n: int) -> float:
    return default if penalty is None else penalty / math.log(n)


def _marks(graph: Any) -> Mask:
    """The package writes -1 at [i, j] for the tail at i of an edge between i and j, and 1 for an arrow head there."""
    return np.asarray(graph.graph == -1, dtype=bool)
