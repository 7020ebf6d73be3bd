"""A DAG of least BIC by a search over orders of the variables; needs no assumption about noise variances.

The score (`score`) is the same for all DAGs of a Markov equivalence class, and no unit of a column changes it.

Given an order, each variable gets parents among those before it by growing and shrinking, and the order is improved by
moving one variable to its best place (BOSS: Andrews et al. 2023). Where no move improves it, the neighbourhood of one
variable is shuffled and the search goes on (iterated local search, as in FLOP: Wienoebst, Henckel and Weichwald 2025).
Equally good orders are accepted, so the search walks through a class. All of it is compiled
(`kernels.order_search`), runs in one thread and depends on its seed alone. It takes O(V^2 + d^2) memory.

The search numbers the variables by the moments themselves (`canonical_order`), so that the same table with its columns
in another order, with other names, units or reference levels gives the same graph.
"""

from collections.abc import Sequence

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import Score
from fedbnsl_server.search.space import Space
from fedbnsl_server.search.whitened import whitened

# Shuffles without a better graph after which a search ends, but for the least and the most passes over all variables.
_SHUFFLES, _LEAST_PASSES, _MOST_PASSES = 1000, 5, 40

# A gain must be more than this share of an edge's penalty.
_LEAST_GAIN = 1e-6


def best_dag(
    S: Matrix,
    space: Space,
    *,
    penalty: float,
    seed: int,
    patience: int | None = None,
    start: Mask | Sequence[int] | None = None,
    most_parents: int | None = None,
    explained: Mask | None = None,
    progress: Progress = UNWATCHED,
) -> Mask:
    """(V, V) DAG of least BIC among those that were tried.

    Parameters
    ----------
    S
        (d, d) symmetric second moments of centred columns; NaN for one that is unknown: no family has both columns.
    penalty
        What an edge adds to the score, per row, above 0: (log n) / (2 n) is that of BIC.
    patience
        Passes over all neighbourhoods without a better graph, after which the search ends; 0: no shuffles; None: 40, of
        more than 25 variables fewer, of 200 or more 5.
    start
        (V, V) DAG to start from; or an order of the V variables, each by its place in `canonical_order`; None: that.
    most_parents
        Columns that the parents of a variable may have, but for required ones; None: any number.
    explained
        (d,) columns that parents explain; the others only explain. None: all are explained.

    Raises
    ------
    ValueError
        If an edge costs nothing: the search would not end.
    """
    if not penalty > 0.0:
        raise ValueError(f"an edge must cost more than nothing, not {penalty:g}")
    # Here: it loads a compiler, which a run for another class of graphs does not need.
    from fedbnsl_server.search.kernels.family import blocks_of
    from fedbnsl_server.search.kernels.order_search import search
    from fedbnsl_server.search.kernels.order_state import Problem, Room, State

    V, blocks = len(space.candidates), space.columns.members()
    size = np.sqrt(S.diagonal())
    size = np.where(size > 0.0, size, 1.0)
    R = np.ascontiguousarray(S / size / size[:, None])
    canonical = canonical_order(R, blocks)
    ordered = np.ix_(canonical, canonical)
    problem = Problem.of(
        R,
        blocks_of([blocks[int(v)] for v in canonical], explained),
        candidates=(space.candidates | space.required)[ordered],
        required=space.required[ordered],
        score=Score.bic(penalty),
        least=_LEAST_GAIN * penalty,
        most=len(S) if most_parents is None else most_parents,
    )
    if isinstance(start, np.ndarray):
        start = topological_order(start[ordered])
    order = np.arange(V) if start is None else np.array(start, dtype=np.int64)
    draw = 1 + (2_654_435_761 * (seed + 1)) % (2**31 - 2)  # seeds that are near each other begin far apart
    n_edges = len(problem.source)
    best, tried, room = State.of(order, n_edges), State.of(order.copy(), n_edges), Room.of(V, len(S), n_edges)
    if patience is None:
        patience = min(max(_SHUFFLES // V, _LEAST_PASSES), _MOST_PASSES)
    search(problem, room, best, tried, patience, draw, progress.share, progress.asked)
    dag = np.zeros((V, V), dtype=bool)
    for j in range(V):
        first = problem.start[j]
        dag[canonical[best.parents[first : first + best.n_parents[j]]], canonical[j]] = True
    return dag


def canonical_order(R: Matrix, members: Sequence[Index]) -> Index:
    """(V,) variables by what they share with all others, least first; those that share nothing come last.

    What is shared is the sum of the squared canonical correlations with each other variable, which no order, name, unit
    or reference level changes.

    Parameters
    ----------
    R
        (d, d) moments in units of each column's size; NaN where unknown, which counts as 0.
    members
        The columns of each variable.
    """
    squares = whitened(R, members) ** 2
    with_others = [float(squares[block].sum() - squares[np.ix_(block, block)].sum()) for block in members]
    found = np.array(with_others)
    return np.asarray(np.lexsort((found, found == 0.0)))


def warm_up() -> None:
    """Compile the search, or load it from the cache: a coordinator that will need it does so while its sites join."""
    best_dag(np.eye(2), Space(~np.eye(2, dtype=bool)), penalty=1.0, seed=0, patience=1)
