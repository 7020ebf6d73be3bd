"""Scores of a network from the sums of `validation`: of all sites, or of one.

With n rows, values x and predicted probabilities p,

    R^2 = 1 - sum (x - mean given the parents)^2 / sum (x - mean)^2,
    AUC = the share of pairs of rows with different levels in which the row with the second one has the larger p.

Rows whose p fall into one bin count as half ordered: the AUC of the unbinned ones lies within `auc_error` of this one.
"""

import math
from typing import Any

import numpy as np

from fedbnsl.network.families import Family, Number
from fedbnsl.network.own_fit import marginal_log_likelihood
from fedbnsl.network.validation import N_BINS, N_SCORES, Sums, levels_of
from fedbnsl.protocol.sparse import Index


def scores_of(family: Family, sums: Sums, centre: float) -> dict[str, Any]:
    """Scores of one variable; those that rows or sites do not tell are None.

    Parameters
    ----------
    centre
        What sums of the number are about; of no meaning for levels.

    Returns
    -------
    rows, left_out
        As in `Sums`.
    log_likelihood, of_independence, own
        Natural logarithms, a row: under the network; without parents, with the mean and spread, or the shares, of these
        rows; and under the own fits of the sites to these rows.
    r2, within, pit
        Of a number: R^2, the share of rows within their 95 % interval, and (10,) shares of rows by bins of the
        probability integral transform, all 0.1 if the network is right.
    levels, calibration, auc, auc_error
        Of levels: their shares; by bins of the predicted probability, forecasts, their mean, and the share that came
        true; and of two levels the AUC.
    """
    n, K = sums.rows, levels_of(family)
    told: dict[str, Any] = {"rows": n, "left_out": sums.left_out}
    if not n:
        return told
    alone = _of_shares(sums.counts[:K]) if K else _of_mean(family, sums, centre)
    told |= {
        "log_likelihood": sums.log_likelihood / n,
        "of_independence": None if alone is None else alone / n,
        "own": None if sums.own is None else sums.own / n,
    }
    return told | (_of_levels(sums, K) if K else _of_number(sums))


def _of_shares(counts: Index) -> float | None:
    n = int(counts.sum())
    return sum(k * math.log(k / n) for k in counts.tolist() if k) if n else None


def _of_mean(family: Family, sums: Sums, centre: float) -> float | None:
    if not isinstance(family, Number):
        return None
    ends = family.low - centre, family.high - centre
    return marginal_log_likelihood(sums.rows, float(sums.numbers[0]), float(sums.numbers[1]), *ends)


def _of_number(sums: Sums) -> dict[str, Any]:
    n, (total, squares, error) = sums.rows, sums.numbers[:3].tolist()
    about = squares - total**2 / n
    pit = sums.numbers[3:]
    whole = float(pit.sum())
    return {
        "r2": 1.0 - error / about if about > 0.0 else None,
        "within": int(sums.counts[0]) / n if whole else None,
        "pit": (pit / whole).tolist() if whole else None,
    }


def _of_levels(sums: Sums, K: int) -> dict[str, Any]:
    counts = sums.counts
    shares, forecasts, hits = counts[:K], counts[K : K + N_BINS], counts[K + N_BINS : K + 2 * N_BINS]
    told: dict[str, Any] = {
        "levels": (shares / shares.sum()).tolist() if shares.any() else None,
        "calibration": [
            {"forecasts": m, "predicted": p / m, "came_true": k / m}
            for m, p, k in zip(forecasts.tolist(), sums.numbers.tolist(), hits.tolist(), strict=True)
            if m
        ],
    }
    if K == 2:
        told |= _of_two(*counts[K + 2 * N_BINS :].reshape(2, N_SCORES).astype(np.float64))
    return told


def _of_two(without: Any, with_it: Any) -> dict[str, float | None]:
    pairs = float(without.sum() * with_it.sum())
    if not pairs:
        return {"auc": None, "auc_error": None}
    below = np.cumsum(without) - without
    tied = float(without @ with_it)
    return {"auc": (float(below @ with_it) + tied / 2.0) / pairs, "auc_error": tied / 2.0 / pairs}
