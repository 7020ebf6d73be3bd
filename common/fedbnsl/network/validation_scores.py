"""Scores of a network from the sums of `validation`, of all sites or of one.

With n rows, values x and predicted probabilities p,

    R^2 = 1 - sum (x - mean given the parents)^2 / sum (x - mean)^2,
    AUC = the share of pairs of rows with different levels in which the row with the second one has the larger p.

Rows whose p fall into one bin count as half ordered: the AUC of the unbinned ones lies within `auc_error` of this one.
Where each site has its own means, the mean of R^2 and what independence rests on are those of each site, and the pairs
of the AUC are rows of one site.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbnsl.network.families import Count, Family, Number
from fedbnsl.network.own_fit import counted_log_likelihood, marginal_log_likelihood
from fedbnsl.network.sums import N_BINS, N_SCORES, Both, Sums
from fedbnsl.network.validation import levels_of
from fedbnsl.protocol.sparse import Index, Matrix


def scores_of(family: Family, told: Sequence[Sums], centre: float, *, own_means: bool = False) -> dict[str, Any]:
    """Scores of one variable; those that rows or sites do not tell are None.

    Parameters
    ----------
    told
        Of each site, one or more.
    centre
        What sums of the number are about; of no meaning for levels.
    own_means
        Whether the sums are those with the intercepts of each site.

    Returns
    -------
    rows, left_out
        As in `Sums`.
    log_likelihood, of_independence, own
        Natural logarithms, a row: under the network; without parents, with the mean and spread, or the shares, of the
        rows; and under the own fits of the sites to these rows.
    r2, within, pit
        Of a number: R^2, the share of rows within their 95 % interval, and (10,) shares of rows by bins of the
        probability integral transform, all 0.1 if the network is right.
    levels, calibration, calibration_error, auc, auc_error
        Of levels: their shares; by bins of the predicted probability, forecasts, their mean, and the share that came
        true; how far these two lie apart, in the mean over the forecasts; and of two levels the AUC.
    """
    whole, K = sum(told[1:], start=told[0]), levels_of(family)
    n = whole.rows
    found: dict[str, Any] = {"rows": n, "left_out": whole.left_out}
    if not n:
        return found
    apart = [one for one in told if one.rows] if own_means else [whole]
    alone = [_of_shares(one.counts[:K]) if K else _of_mean(family, one, centre) for one in apart]
    known = [one for one in alone if one is not None]
    found |= {
        "log_likelihood": whole.log_likelihood / n,
        "of_independence": sum(known) / n if len(known) == len(apart) else None,
        "own": None if whole.own is None else whole.own / n,
    }
    return found | (_of_levels(whole, apart, K) if K else _of_number(whole, apart))


def scores_of_both(family: Family, told: Sequence[Both], centre: float) -> dict[str, dict[str, Any]]:
    """Scores of one variable, of each site's sums: `own_means` and `common_means`; see `scores_of`."""
    return {
        "own_means": scores_of(family, [one.own_means for one in told], centre, own_means=True),
        "common_means": scores_of(family, [one.common_means for one in told], centre),
    }


def _of_shares(counts: Index) -> float | None:
    n = int(counts.sum())
    return sum(k * math.log(k / n) for k in counts.tolist() if k) if n else None


def _of_mean(family: Family, sums: Sums, centre: float) -> float | None:
    if isinstance(family, Count):
        total, of_factorials, *of_sizes = sums.numbers[3 + N_BINS :].tolist()
        return counted_log_likelihood(sums.rows, total, of_factorials, np.array(of_sizes))
    if not isinstance(family, Number):
        return None
    ends = family.low - centre, family.high - centre
    return marginal_log_likelihood(sums.rows, float(sums.numbers[0]), float(sums.numbers[1]), *ends)


def _of_number(whole: Sums, apart: Sequence[Sums]) -> dict[str, Any]:
    about = sum(float(one.numbers[1] - one.numbers[0] ** 2 / one.rows) for one in apart)
    pit = whole.numbers[3 : 3 + N_BINS]
    n = round(float(pit.sum()))
    return {
        "r2": 1.0 - float(whole.numbers[2]) / about if about > 0.0 else None,
        "within": int(whole.counts[0]) / n if n else None,
        "pit": (pit / pit.sum()).tolist() if n else None,
    }


def _of_levels(whole: Sums, apart: Sequence[Sums], K: int) -> dict[str, Any]:
    counts = whole.counts
    shares, forecasts, hits = counts[:K], counts[K : K + N_BINS], counts[K + N_BINS : K + 2 * N_BINS]
    gaps = sum(abs(k - p) for p, k in zip(whole.numbers.tolist(), hits.tolist(), strict=True))
    told: dict[str, Any] = {
        "levels": (shares / shares.sum()).tolist() if shares.any() else None,
        "calibration": [
            {"forecasts": m, "predicted": p / m, "came_true": k / m}
            for m, p, k in zip(forecasts.tolist(), whole.numbers.tolist(), hits.tolist(), strict=True)
            if m
        ],
        "calibration_error": gaps / int(forecasts.sum()) if forecasts.any() else None,
    }
    if K == 2:
        told |= _of_two([one.counts[K + 2 * N_BINS :].reshape(2, N_SCORES).astype(np.float64) for one in apart])
    return told


def _of_two(told: Sequence[Matrix]) -> dict[str, float | None]:
    """Of (2, 200) rows of either level by bins; pairs are within each of these."""
    pairs = ordered = tied = 0.0
    for without, with_it in told:
        pairs += float(without.sum() * with_it.sum())
        ordered += float((np.cumsum(without) - without) @ with_it)
        tied += float(without @ with_it)
    if not pairs:
        return {"auc": None, "auc_error": None}
    return {"auc": (ordered + tied / 2.0) / pairs, "auc_error": tied / 2.0 / pairs}
