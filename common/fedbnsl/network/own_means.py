"""A family at one site, whose rows may lie higher or lower than those of others: all but its intercept stays.

The intercept is the one with which the variable has the mean, or its levels have the shares, that they have in the
rows. Sites differ in means where instruments or patients do; that the network's weights hold there is another question.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.optimize import brentq

from fedbnsl.families.categorical import Categorical
from fedbnsl.families.profile import best_intercepts
from fedbnsl.network.families import Count, Family, Grade, Levels, Number, positions
from fedbnsl.protocol.sparse import Matrix

_FURTHEST = 12  # doublings of a step, of a variable's spread, up to which an intercept is looked for
_IMPOSSIBLE = 50.0  # of the logarithm of odds of a level that no row has


def with_own_mean(family: Family, X: Matrix) -> Family:
    """On (n, d) rows without a gap in the family, n at least 1; a table of levels has no intercept, and stays."""
    if isinstance(family, Levels):
        return _levels(family, X)
    if isinstance(family, Number) and not np.isfinite([family.low, family.high]).any():
        return replace(family, intercept=family.intercept + float((X[:, family.column] - family.mean(X)[:, 0]).mean()))
    if isinstance(family, Count):
        return _count(family, X)
    if isinstance(family, Number | Grade):
        return _additive(family, X)
    return family


def _additive(family: Number | Grade, X: Matrix) -> Family:
    mean, step = float(X[:, family.column].mean()), float(X[:, family.column].std()) or 1.0

    def excess(intercept: float) -> float:
        return float(replace(family, intercept=intercept).mean(X).mean()) - mean

    return replace(family, intercept=_root(excess, family.intercept, step))


def _count(family: Count, X: Matrix) -> Family:
    mean, at = float(family.counts(X).mean()), family.location(X)

    def excess(shift: float) -> float:
        return float(family.rates(at + shift).mean()) - mean

    return replace(family, intercept=family.intercept + _root(excess, 0.0, float(at.std()) or 1.0))


def _root(excess: Callable[[float], float], start: float, step: float) -> float:
    """Where an increasing function is 0; how far it was followed, if it is nowhere."""
    at = excess(start)
    end, further = start, -step if at > 0.0 else step
    for _ in range(_FURTHEST):
        end, further = end + further, 2.0 * further
        if (excess(end) > 0.0) != (at > 0.0):
            return float(brentq(excess, min(start, end), max(start, end)))  # pyright: ignore[reportArgumentType]
    return end


def _levels(family: Levels, X: Matrix) -> Family:
    K = len(family.columns) + 1
    y = positions(X, family.columns, K)
    if not family.by_odds:
        left = X[:, family.columns] - family.mean(X)
        return replace(family, intercepts=family.intercepts + left.mean(axis=0))
    of_site = Categorical(Categorical.totals(y, K))
    eta = np.pad(X[:, family.parents] @ family.weights, ((0, 0), (1, 0)))
    about = eta.mean(axis=0)  # far from zero it would take many steps, and digits
    sums = partial(of_site.sums, X[:, :0], y, eta - about)
    shift = np.full(K, -_IMPOSSIBLE)
    shift[of_site.present] = [0.0, *(best_intercepts(of_site, sums).tolist() if of_site.varies else ())]
    shift -= about
    return replace(family, intercepts=shift[1:] - shift[0])
