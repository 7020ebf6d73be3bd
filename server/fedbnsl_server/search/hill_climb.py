"""Descent over DAGs: add, drop or reverse the edge that lowers the score most, until none lowers it; and good starts.

All of it is compiled (`kernels`).
"""

import numpy as np

from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.search.gaussian_families import GaussianFamilies
from fedbnsl_server.search.kernels import hill_climb as loops
from fedbnsl_server.search.kernels import start
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import Score
from fedbnsl_server.search.space import Space

# A move must lower the score by more than this share of an edge's penalty.
_LEAST_GAIN = 1e-6


def descend(families: GaussianFamilies, dag: Mask, score: Score, *, progress: Progress = UNWATCHED) -> Mask:
    """A DAG of candidates that no single move improves; or, once it is enough, one on the way there.

    It starts from a (V, V) DAG of candidates with all required edges; its score is at most that of the start.
    """
    graph = families.graph(dag)
    loops.descend(families.problem, score, families.room(), graph, _LEAST_GAIN * score.penalty, progress.asked)
    return families.dag(graph)


def pruned(families: GaussianFamilies, dag: Mask, score: Score) -> Mask:
    """Drop one parent after the other from each child, the least important first, as long as that lowers the score."""
    graph = families.graph(dag)
    start.prune(families.problem, score, families.room(), graph)
    return families.dag(graph)


def least_variance_order(families: GaussianFamilies, among: Mask) -> list[int]:
    """Order of the variables: each next one has the least variance given its candidates among those before it.

    No variable comes before a required parent.

    Parameters
    ----------
    among
        (V, V) the candidates that count here, all required edges among them.
    """
    problem, V = families.problem, len(families.sizes)
    order = np.empty(V, dtype=np.int64)
    counted = np.flatnonzero(among[problem.source, problem.child])
    by_source = counted[np.argsort(problem.source[counted], kind="stable")]
    out = np.searchsorted(problem.source[by_source], np.arange(V + 1))
    start.least_variance_order(
        problem, families.room(), families.graph(np.zeros((V, V), dtype=bool)), by_source, out, order
    )
    return order.tolist()


def warm_up() -> None:
    """Compile the descent, or load it from the cache: a coordinator that will need it does so while its sites join."""
    families = GaussianFamilies(np.eye(2)[None], Space(~np.eye(2, dtype=bool)), ridge=0.0)
    score = Score.near(np.ones(1), logarithmic=False, n_samples=2.0, penalty=1.0)
    dag = pruned(families, descend(families, np.zeros((2, 2), dtype=bool), score), score)
    families.residual_variances(dag)
    least_variance_order(families, ~np.eye(2, dtype=bool))
