"""The DAG of least score, searched at the coordinator from second moments that the sites sent once.

The score is that of a Gaussian network per row (BIC), a mean over the sites, each with regressions of its own, plus a
penalty for every edge. With v_j the residual variance of variable j given its parents at a site, there are two:

    equal noise variances:  d/2 log(mean over j of v_j) + penalty * edges,
    free noise variances:   sum over j of 1/2 log(v_j)  + penalty * (edges + d - 1).

With equal noise variances the true DAG alone has the least first score in the limit of many rows (Peters and Buhlmann
2014); without, the second says no more than which edges there are, and the direction of some (Chickering 2002). So both
are searched, and the graph that explains the moments better is the answer: the first only where the data bear it out.

Either score is, for a given noise variance, a sum over families (a child and its parents), and a family needs the
moments of its members alone: where every child has few candidate parents, few of the d^2 moments are needed
(`fedbnsl.family_moments`). A search starts from graphs that are given, and from the order in which each next variable
has the least variance given those before it (Chen, Drton and Wang 2019); then it descends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.descent import Loss, descend
from fedbnsl_server.families import Families


@dataclass(frozen=True, eq=False)
class FoundGraph:
    """What a search ends with.

    Attributes
    ----------
    dag
        (d, d) edges i -> j.
    weights
        (d, d) mean over the sites of their least-squares weights on `dag`, zero elsewhere.
    residual_variance
        (d,) mean over the sites, in squared units of the variables.
    score
        Of the DAG that was found, before its edges of small weight were dropped.
    equal_variances
        Whether that is the score of equal noise variances.
    """

    dag: Mask
    weights: Matrix
    residual_variance: Matrix
    score: float
    equal_variances: bool


def search(
    moments: Sequence[Matrix],
    *,
    starts: Sequence[Mask],
    candidates: Mask,
    required: Mask,
    penalty: float,
    threshold: float,
    ridge: float = 1e-9,
) -> FoundGraph:
    """Find a DAG of small score, and the weights of its edges.

    Parameters
    ----------
    moments
        One (d, d) symmetric X'X / n a site, or one of all; read only where `needed_moments` of the candidates is True.
    starts
        (d, d) DAGs to start from; edges that are no candidates are left out.
    candidates
        (d, d) edges that the DAG may have; never the diagonal.
    required
        (d, d) DAG of edges that it must have, all of them candidates; no other candidate may close a cycle with them.
    penalty
        Of an edge: 0.5 log(n) / n for n rows a site.
    threshold
        Edges whose weight is absolutely no more than this are dropped in the end, unless they are required.
    ridge
        Added to the moments' diagonal, as a share of it. Moments with noise may have negative eigenvalues: a ridge
        beyond the largest of these keeps all residual variances positive.
    """
    d = len(candidates)
    families = Families(np.stack(list(moments)), candidates, ridge=ridge)
    order = _least_variance_order(families, candidates, required)
    place = np.argsort(order)
    along = candidates & (place[:, None] < place[None, :])
    noise_variance = families.residual_variances(along).mean(axis=1)

    slope = 0.5 / (noise_variance * len(noise_variance))

    def equal(variance: Matrix) -> Matrix:  # the first score to first order, which is a sum over children
        return np.asarray(slope @ variance)

    def score_equal(dag: Mask) -> float:
        variance = families.residual_variances(dag)
        return 0.5 * d * float(np.log(variance.mean(axis=1)).mean()) + penalty * int(dag.sum())

    def score_free(dag: Mask) -> float:
        return float(_free(families.residual_variances(dag)).sum()) + penalty * (int(dag.sum()) + d - 1)

    def best(starts: Sequence[Mask], loss: Loss, score: Callable[[Mask], float]) -> tuple[Mask, float]:
        ends = [descend(families, dag, loss, required=required, penalty=penalty) for dag in starts]
        return min(((dag, score(dag)) for dag in ends), key=lambda end: end[1])

    given = [start & candidates for start in starts]
    with_equal = best([*given, _pruned(families, along, equal, required, penalty)], equal, score_equal)
    with_free = best([*given, with_equal[0]], _free, score_free)
    equal_variances = with_equal[1] <= with_free[1]
    dag, score = with_equal if equal_variances else with_free
    dag, weights = _without_small(families, dag, required, threshold)
    return FoundGraph(dag, weights, families.residual_variances(dag).mean(axis=0), score, equal_variances)


def _free(variance: Matrix) -> Matrix:
    """What residual variances (P, ...) add to the second score."""
    return np.asarray(0.5 * np.log(variance).mean(axis=0))


def _without_small(families: Families, dag: Mask, required: Mask, threshold: float) -> tuple[Mask, Matrix]:
    """Drop the edges of small weight, and again with the weights of the parents that stay; with the last weights."""
    while True:
        weights = families.weights(dag)
        small = dag & (np.abs(weights) <= threshold) & ~required
        if not small.any():
            return dag, weights
        dag = dag & ~small


def _least_variance_order(families: Families, candidates: Mask, required: Mask) -> list[int]:
    """Order of the variables: again and again the one of least variance given its candidates among those taken.

    No variable comes before a required parent.
    """
    d = len(required)
    taken = np.zeros(d, dtype=bool)
    left = families.residual_variances(np.zeros((d, d), dtype=bool)).mean(axis=0)
    order: list[int] = []
    for _ in range(d):
        ready = ~taken & ~(required & ~taken[:, None]).any(axis=0)
        i = int(np.argmin(np.where(ready, left, np.inf)))
        order.append(i)
        taken[i] = True
        for j in np.flatnonzero(candidates[i] & ~taken).tolist():
            parents = families.candidates[j]
            left[j] = families.residual_variance(j, parents[taken[parents]]).mean()
    return order


def _pruned(families: Families, dag: Mask, loss: Loss, required: Mask, penalty: float) -> Mask:
    """Drop one parent after the other from each child, the least important first, as long as that lowers the score."""
    dag = dag.copy()
    for j, candidates in enumerate(families.candidates):
        droppable = dag[candidates, j] & ~required[candidates, j]
        while droppable.any():
            before, after = families.toggled(j, np.flatnonzero(dag[:, j]))
            more = loss(after) - loss(before)
            k = int(np.argmin(np.where(droppable, more, np.inf)))
            if more[k] >= penalty:
                break
            droppable[k] = dag[candidates[k], j] = False
    return dag
