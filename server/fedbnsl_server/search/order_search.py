"""A DAG of least BIC by a search over orders of the variables; needs no assumption about noise variances.

The score of a DAG, from second moments S of centred records, per row, is

    sum over j of log(v_j) / 2 + penalty * edges,

with v_j the residual variance of j given its parents. It is the same for all DAGs of a Markov equivalence class, and no
unit of a column changes it. A variable with several columns counts as a block (degenerate Gaussian: Andrews, Ramsey and
Cooper 2019): log(v_j) is the sum over its columns, and an edge counts for each pair of a column of either end.

Given an order, each variable gets parents among those before it by growing and shrinking, and the order is improved by
moving one variable to its best place (BOSS: Andrews et al. 2023). Where no move improves it, the neighbourhood of one
variable is shuffled and the search goes on (iterated local search, as in FLOP: Wienoebst, Henckel and Weichwald 2025).
Equally good orders are accepted, so the search walks through a class. All of it is compiled
(`kernels.order_search`), runs in one thread and depends on its seed alone. It takes O(V^2 + d^2) memory.

The search numbers the variables by the moments themselves (`canonical_order`), so that the same table with its columns
in another order, with other names, units or reference levels gives the same graph.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.progress import Progress
from fedbnsl_server.search.whitened import whitened

# Shuffles without a better graph after which a search ends, but for the least and the most passes over all variables.
_SHUFFLES, _LEAST_PASSES, _MOST_PASSES = 1000, 5, 40

# Rows that a penalty is for, at least: of fewer its logarithm would be 0 or less.
_FEWEST = 2.0
# A gain must be more than this share of an edge's penalty.
_LEAST_GAIN = 1e-6


def best_dag(
    S: Matrix,
    *,
    penalty: float,
    candidates: Mask,
    required: Mask,
    members: Sequence[Index] | None = None,
    seed: int,
    patience: int | None = None,
    start: Mask | Sequence[int] | None = None,
    most_parents: int | None = None,
    progress: Progress | None = None,
) -> Mask:
    """(V, V) DAG of least score among those that were tried.

    Parameters
    ----------
    S
        (d, d) symmetric second moments of centred columns; NaN for one that is unknown: no family has both columns.
    penalty
        What an edge adds to the score, per row, above 0: (log n) / (2 n) is that of BIC.
    candidates
        (V, V) edges that the DAG may have; never the diagonal.
    required
        (V, V) DAG of edges that it must have.
    members
        The columns of each variable; None: one each.
    seed
        Of the shuffles.
    patience
        Passes over all neighbourhoods without a better graph, after which the search ends; 0: no shuffles; None: 40, of
        more than 25 variables fewer, of 200 or more 5.
    start
        (V, V) DAG to start from; or an order of the V variables, each by its place in `canonical_order`; None: that.
    most_parents
        Columns that the parents of a variable may have, but for required ones; None: any number.
    progress
        Told how far the search is, if it finds nothing better; asked whether that is enough.

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

    V = len(candidates)
    blocks: list[Index] = [np.array([v]) for v in range(V)] if members is None else list(members)
    size = np.sqrt(S.diagonal())
    size = np.where(size > 0.0, size, 1.0)
    R = np.ascontiguousarray(S / size / size[:, None])
    canonical = canonical_order(R, blocks)
    ordered = np.ix_(canonical, canonical)
    candidates, required = (candidates | required)[ordered], required[ordered]
    problem = Problem.of(
        R,
        blocks_of([blocks[int(v)] for v in canonical]),
        candidates=candidates,
        required=required,
        penalty=penalty,
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
    progress = Progress() if progress is None else progress
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
    nothing = np.zeros((2, 2), dtype=bool)
    best_dag(np.eye(2), penalty=1.0, candidates=~np.eye(2, dtype=bool), required=nothing, seed=0, patience=1)


def bic_penalty(n_samples: float) -> float:
    """Penalty of an edge, per row (Schwarz 1978); above 0, as fewer than two rows count as two."""
    n = max(_FEWEST, n_samples)
    return 0.5 * math.log(n) / n


def extended_penalty(n_samples: float, n_variables: int, gamma: float = 0.5) -> float:
    """Penalty of an edge, per row, that also pays for choosing it among many (extended BIC: Foygel and Drton 2010).

    Parameters
    ----------
    n_samples
        Fewer than two count as two: noise may be larger than all else.
    gamma
        Theirs: 0 is BIC, 1 the most that it pays for choosing.
    """
    n = max(_FEWEST, n_samples)
    return (0.5 * math.log(n) + 2.0 * gamma * math.log(n_variables)) / n
