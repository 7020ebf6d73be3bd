"""The DAG that explains all released private steps best, after the last round.

A site pays for each step: for the choice of a coordinate, and for a noisy mean of gradients. B_p keeps of these what
the last steps have left. The likelihood of all of them keeps everything, and it is a function of what was released:
it costs no privacy. With equal noise variances, a parent that is missing shows as variance that nothing explains, and
so directions are told. If a variance for each column is worth its price, the steps contradict equal variances, and the
search goes on without that assumption. Moves of `likelihood_moves` end in local optima: they start from several graphs.
"""

from collections.abc import Sequence

import numpy as np

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.private.likelihood_moves import improved, pruned, with_edges_reversed
from fedbnsl_server.search.private.released_likelihood import Fit
from fedbnsl_server.search.private.released_steps import ReleasedSteps
from fedbnsl_server.search.private.steps_likelihood import StepsLikelihood
from fedbnsl_server.search.progress import UNWATCHED, Progress

# Of more variables, each move takes so long that only single edges of one start are dropped and added.
_MANY = 50


def search_steps(
    steps: ReleasedSteps,
    n_samples: float,
    mask: EdgeMask,
    W: Matrix,
    starts: Sequence[Mask],
    *,
    threshold: float,
    progress: Progress = UNWATCHED,
) -> Fit:
    """The best explanation of the steps, or the best so far once `progress` is told that it is enough.

    Parameters
    ----------
    n_samples
        Records of all sites.
    W
        (d, d) weights to start from.
    starts
        (d, d) DAGs, at least one, with the required edges.
    threshold
        Absolute weight that an edge has at least, unless it is required.
    """
    V = np.eye(len(W))
    likelihood = StepsLikelihood(steps, n_samples, mask, np.where(starts[0], W, 0.0), V)
    distinct = list({dag.tobytes(): dag for dag in starts}.values())
    progress.begin("search in the steps")
    if len(W) > _MANY:
        one = improved(likelihood, likelihood.explained(distinct[0], W, V), progress=progress)
        return pruned(likelihood, one, threshold)
    step = progress.step()
    moved = (improved(likelihood, likelihood.explained(dag, W, V), progress=step) for dag in distinct)
    ends = [with_edges_reversed(likelihood, one, progress=progress) for one in moved]
    best = min(ends, key=_score)
    apart = StepsLikelihood(steps, n_samples, mask, best.weights, best.covariance, fixed=False)
    free = apart.explained(best.dag, best.weights, best.covariance)
    if best.nll - free.nll * likelihood.share / apart.share > likelihood.penalty * (len(W) - 1):
        again = (apart.explained(one, best.weights, best.covariance) for one in (best.dag, *distinct))
        ends = [improved(apart, one, progress=step) for one in again]
        likelihood, best = apart, with_edges_reversed(apart, min(ends, key=_score), progress=progress)
    return pruned(likelihood, best, threshold)


def _score(found: Fit) -> float:
    return found.score
