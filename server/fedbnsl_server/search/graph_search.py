"""The DAG of least score, searched at the coordinator from second moments that the sites sent once.

The score is that of a Gaussian network per row, a mean over the sites, each with regressions of its own (`score`).
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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import Score
from fedbnsl_server.search.space import Space

if TYPE_CHECKING:
    from fedbnsl_server.search.gaussian_families import GaussianFamilies

RIDGE = 1e-9
"""Added to the diagonal of moments, as a share of it: exact relations then leave residual variances above rounding."""


@dataclass(frozen=True, eq=False)
class FoundGraph:
    """The result of a search."""

    dag: Mask  # (V, V) edges i -> j between variables
    weights: Matrix  # (d, d) mean over the sites of the columns' least-squares weights on `dag`, zero elsewhere
    # (d,) of each column given the parents of its variable: mean over the sites, in squared units of the columns
    residual_variance: Matrix
    score: float  # of the DAG that was found, before its edges of small weight were dropped


def search(
    moments: Sequence[Matrix],
    space: Space,
    *,
    start: Mask,
    n_samples: float,
    threshold: float,
    penalty: float | None = None,
    size: Matrix | None = None,
    progress: Progress = UNWATCHED,
) -> FoundGraph:
    """Find a DAG of small score, and the weights of its edges.

    Parameters
    ----------
    moments
        One (d, d) symmetric X'X / n for each site, or one for all together; read only where
        `needed_moments` of the candidates is True.
    space
        Its candidates are the edges that the DAG probably has, with their reverses; others that are allowed are tried
        where their moments are known.
    start
        (V, V) DAG to start from, with the required edges; those that are no candidates are left out.
    n_samples
        Rows of a site; if they differ, their mean.
    threshold
        Edges whose weight is absolutely no more than this are dropped in the end, unless they are required.
    penalty
        What an edge costs in units of the score; None: that of BIC.
    size
        (d,) in which the threshold measures each column; None: in its own unit.
    """
    # Here: they load a compiler, which a run without a search does not need.
    from fedbnsl_server.search.gaussian_families import GaussianFamilies
    from fedbnsl_server.search.hill_climb import descend, least_variance_order, pruned

    candidates, columns = space.candidates, space.columns
    known, near = needed_moments(candidates, columns), needed_moments(candidates)
    known |= known.T
    reachable = replace(space, candidates=(near | near.T) & space.allowed)
    families = GaussianFamilies(np.where(known, np.stack(list(moments)), np.nan), reachable, ridge=RIDGE)
    order = least_variance_order(families, among=candidates)
    place = np.argsort(order)
    along = candidates & (place[:, None] < place[None, :])
    common = families.residual_variances(along).mean(axis=1)  # (P,) sigma^2
    cost = 0.5 * math.log(n_samples) / n_samples if penalty is None else penalty
    squared, logarithmic = (
        Score.near(common, logarithmic=exact, n_samples=n_samples, penalty=cost) for exact in (False, True)
    )

    def score(dag: Mask) -> float:
        return logarithmic.of_dag(dag, families.residual_variances(dag), families.sizes, families.explained)

    given = [start & candidates]
    if size is not None:
        mean = np.where(known, np.mean(list(moments), axis=0), np.nan)
        progress.begin("searching for an order")
        given.append(best_dag(mean, reachable, penalty=cost, seed=0, start=along, progress=progress))

    progress.begin("searching for the graph")
    ordered = pruned(families, along, squared)
    ways = [*((dag, True) for dag in given), *((dag, False) for dag in (*given, ordered))]

    def end(k: int) -> Mask:
        dag, is_near = ways[k]
        near = dag if is_near else descend(families, dag, squared, progress=progress)
        found = descend(families, near, logarithmic, progress=progress)
        progress.at((k + 1) / len(ways))
        return found

    dag = min(progress.each(end, range(len(ways))), key=score)
    least = score(dag)
    share = 1.0 if size is None else size[:, None] / size
    dag, weights = without_small(families, dag, space, threshold=threshold, share=share)
    return FoundGraph(dag, weights, families.column_variances(dag).mean(axis=0), least)


def without_small(
    families: "GaussianFamilies", dag: Mask, space: Space, *, threshold: float, share: Matrix | float
) -> tuple[Mask, Matrix]:
    """Drop edges of small weight and fit again, until none is left; return the DAG and its last weights.

    Parameters
    ----------
    share
        (d, d) what a weight is multiplied by before it is compared with the threshold.
    """
    while True:
        weights = families.weights(dag)
        small = dag & (np.abs(space.columns.largest(weights * share)) <= threshold) & ~space.required
        if not small.any():
            return dag, weights
        dag = dag & ~small


def warm_up() -> None:
    """Compile the descent, or load it from the cache: a coordinator that will need it does so while its sites join."""
    from fedbnsl_server.search import hill_climb

    hill_climb.warm_up()
