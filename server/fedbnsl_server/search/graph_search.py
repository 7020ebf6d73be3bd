"""The DAG of least score, searched at the coordinator from second moments that the sites sent once.

The score is that of a Gaussian network per row, a mean over the sites, each with regressions of its own. With v_j the
residual variance of variable j given its parents at a site of n rows it is

    sum over j of [ log(v_j) / 2 + log(v_j / sigma^2)^2 / (2 n) ] + edges * log(n) / (2 n).

A variable with several columns counts as a block: log(v_j) is the sum over its columns (see `families`), and an edge
counts once for each pair of a column of one end and one of the other.

Beside the penalty of BIC it has a prior, which weighs as much as one row: noise variances are near a common sigma^2,
log-normal around it with unit width. The moments decide where they can; without the prior, the score would be the same
for all directions of an edge that they leave open (Chickering 2002). If noise variances are equal, the true directions
alone make the residual variances so (Peters and Buhlmann 2014).

The score is a sum over families (a child and its parents), and a family needs the moments of its members alone: where
every child has few candidate parents, few of the d^2 moments are needed (`family_moments`). These include the moments
of two parents of one child. A sparse regression may miss an edge between the two, because the path over the child
cancels it: so the search tries all families of known moments, not only candidates.

The search starts from the given graphs and from graphs of small squared loss, which is least for the true graph if
noise variances are equal. One of these follows the order in which each next variable has the least variance given
those before it (Chen, Drton and Wang 2019). Where columns were scaled, noise variances in the tables' units may differ
by orders of magnitude, and descents from all these end early: a search over orders, which no unit changes, gives one
more start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.plan.columns import Columns
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.search.families import Families
from fedbnsl_server.search.hill_climb import Loss, descend
from fedbnsl_server.search.order_search import best_dag


@dataclass(frozen=True, eq=False)
class FoundGraph:
    """The result of a search.

    Attributes
    ----------
    dag
        (V, V) edges i -> j between variables.
    weights
        (d, d) mean over the sites of the columns' least-squares weights on `dag`, zero elsewhere.
    residual_variance
        (d,) of each column given the parents of its variable: mean over the sites, in squared units of the columns.
    score
        Of the DAG that was found, before its edges of small weight were dropped.
    """

    dag: Mask
    weights: Matrix
    residual_variance: Matrix
    score: float


def search(
    moments: Sequence[Matrix],
    *,
    starts: Sequence[Mask],
    candidates: Mask,
    allowed: Mask,
    required: Mask,
    n_samples: float,
    threshold: float,
    penalty: float | None = None,
    ridge: float = 1e-9,
    size: Matrix | None = None,
    columns: Columns | None = None,
) -> FoundGraph:
    """Find a DAG of small score, and the weights of its edges.

    Parameters
    ----------
    moments
        One (d, d) symmetric X'X / n for each site, or one for all together; read only where
        `needed_moments` of the candidates is True.
    starts
        (V, V) DAGs to start from, with the required edges; those that are no candidates are left out.
    candidates
        (V, V) edges, all of them allowed, that the DAG probably has, with their reverses.
    allowed
        (V, V) edges that it may have; never the diagonal.
    required
        (V, V) DAG of edges that it must have, all of them candidates.
    n_samples
        Rows of a site; if they differ, their mean.
    threshold
        Edges whose weight is absolutely no more than this are dropped in the end, unless they are required.
    penalty
        What an edge costs in units of the score; None: that of BIC.
    ridge
        Added to the moments' diagonal, as a share of it. Moments with noise may have negative eigenvalues: a ridge
        beyond the largest of these keeps all residual variances positive.
    size
        (d,) in which the threshold measures each column; None: in its own unit.
    columns
        Those of the V variables; None: one each.
    """
    known, near = needed_moments(candidates, columns), needed_moments(candidates)
    known |= known.T
    members = None if columns is None else columns.members()
    families = Families(
        np.where(known, np.stack(list(moments)), np.nan), (near | near.T) & allowed, ridge=ridge, members=members
    )
    sizes = families.sizes
    order = _least_variance_order(families, candidates, required)
    place = np.argsort(order)
    along = candidates & (place[:, None] < place[None, :])
    common = families.residual_variances(along).mean(axis=1)  # (P,) sigma^2
    cost = 0.5 * math.log(n_samples) / n_samples if penalty is None else penalty

    def squared(variance: Matrix) -> Matrix:
        """What the score changes by, to first order, where all variances are the common one."""
        return np.asarray((0.5 / common / len(common)) @ variance)

    def logarithmic(variance: Matrix) -> Matrix:
        apart = np.log(variance.T / common)
        return np.asarray((0.5 * np.log(variance.T) + 0.5 * apart * apart / n_samples).mean(axis=-1).T)

    def descended(dag: Mask, loss: Loss) -> Mask:
        return descend(families, dag, loss, required=required, penalty=cost)

    def score(dag: Mask) -> float:
        return float(logarithmic(families.residual_variances(dag)) @ sizes) + cost * int(sizes @ dag @ sizes)

    given = [start & candidates for start in starts]
    if size is not None:
        mean = np.where(known, np.mean(list(moments), axis=0), np.nan)
        reachable = (near | near.T) & allowed
        given.append(
            best_dag(mean, penalty=cost, candidates=reachable, required=required, members=members, seed=0, start=order)
        )
    ordered = _pruned(families, along, squared, required, cost)
    ends = [*given, *(descended(dag, squared) for dag in (*given, ordered))]
    dag = min((descended(dag, logarithmic) for dag in ends), key=score)
    least = score(dag)
    if columns is None:
        columns = Columns.of([str(j) for j in range(len(required))])
    share = 1.0 if size is None else size[:, None] / size
    dag, weights = without_small(families, dag, required, columns, threshold=threshold, share=share)
    return FoundGraph(dag, weights, families.column_variances(dag).mean(axis=0), least)


def without_small(
    families: Families, dag: Mask, required: Mask, columns: Columns, *, threshold: float, share: Matrix | float
) -> tuple[Mask, Matrix]:
    """Drop edges of small weight and fit again, until none is left; return the DAG and its last weights.

    Parameters
    ----------
    share
        (d, d) what a weight is multiplied by before it is compared with the threshold.
    """
    while True:
        weights = families.weights(dag)
        small = dag & (np.abs(columns.largest(weights * share)) <= threshold) & ~required
        if not small.any():
            return dag, weights
        dag = dag & ~small


def _least_variance_order(families: Families, candidates: Mask, required: Mask) -> list[int]:
    """Order of the variables: each next one has the least variance given its candidates among those before it.

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
            left[j] = families.residual_variance(j, np.flatnonzero(candidates[:, j] & taken)).mean()
    return order


def _pruned(families: Families, dag: Mask, loss: Loss, required: Mask, penalty: float) -> Mask:
    """Drop one parent after the other from each child, the least important first, as long as that lowers the score."""
    dag = dag.copy()
    for j, candidates in enumerate(families.candidates):
        droppable = dag[candidates, j] & ~required[candidates, j]
        while droppable.any():
            before, after = families.toggled(j, np.flatnonzero(dag[:, j]))
            more = (loss(after) - loss(before)) / families.sizes[candidates]  # as the penalty of an edge has them
            k = int(np.argmin(np.where(droppable, more, np.inf)))
            if more[k] >= penalty:
                break
            droppable[k] = dag[candidates[k], j] = False
    return dag
