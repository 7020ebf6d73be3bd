"""The score of a family, compiled: all that the loops of a search know of `search.score`."""

import math

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.score import Score


@compiled
def share(score: Score, size: int, apart: Matrix, k: int) -> float:
    """What a child of `size` columns adds to the score, edges apart; infinite if a moment is unknown.

    Parameters
    ----------
    apart
        (P, K) residual variances at the sites, in units of the score's common ones; column k counts.
    """
    total, part = 0.0, size / len(apart)
    for site in range(len(apart)):
        v = apart[site, k]
        if math.isnan(v):
            return math.inf
        if score.logarithmic:
            x = math.log(v)
            total += (0.5 * x + 0.5 * x * x / score.n_samples + score.log_common[site]) * part
        else:
            total += 0.5 * v * part
    return total


@compiled
def fall(before: float, after: float) -> float:
    """By how much a score without a prior falls if less is left of a child."""
    return 0.5 * math.log(before / after)


@compiled
def share_left(gain: float) -> float:
    """What a fall by this much leaves of what was left of a child: the inverse of `fall`."""
    return math.exp(-2.0 * gain)


@compiled
def cost(score: Score, size: int, columns: int) -> float:
    """Of edges between two variables, or between a child and all columns of its parents."""
    return score.penalty * size * columns
