"""Gaussian differential privacy: what a total means as (epsilon, delta) where every release is Gaussian, or nearly so.

A release is mu-GDP if telling two neighbouring tables apart by it is at least as hard as telling N(0, 1) from N(mu, 1)
by one number (Dong, Roth, Su 2022). Gaussian noise of sigma on sums that one record moves by at most D in Euclidean
distance gives mu = D / sigma, and rounding afterwards changes nothing. Squares of mu add up over releases, also over
releases that are chosen in view of earlier ones (the same paper; Smith and Thakurta 2022).

Such a release costs mu^2 / 2 zCDP (`zcdp.gaussian_multiplier`), so that both are counted in the same units. zCDP
forgets that the releases were Gaussian: what is counted by mu needs 4 to 8 % less noise at usual epsilon and delta.

A selection by the exponential mechanism is not Gaussian, but what it and all later releases tell together is no more
than a Gaussian mechanism would: of tau and v, their mu^2 as if all were Gaussian, it takes a little more than tau + v.
`surcharge` is that little, over a run of private steps (docs/explanation/privacy.md#selections).
"""

import math
from functools import lru_cache

# `delta_of` is off by less than this share of it, wherever epsilon is at least 1e-6 or mu at least 1e-6; see the tests.
_ROUNDING = 1e-7


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta for which mu-GDP is (epsilon, delta)-differential privacy.

    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu): Dong, Roth, Su 2022, corollary 1; for one Gaussian
    release also Balle and Wang 2018, theorem 8.
    """
    if mu == 0.0:
        return 0.0
    from scipy.special import erfcx, log_ndtr  # here: a run without privacy needs no scipy at its sites

    near, far = epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0
    if near < -5.0:  # mu is far too large for this epsilon: delta is nearly 1
        return math.exp(log_ndtr(-near)) - math.exp(epsilon + log_ndtr(-far))
    # With Phi(-x) = exp(-x^2 / 2) erfcx(x / sqrt(2)) / 2, both terms have the same factor.
    mills = float(erfcx(near / math.sqrt(2.0)) - erfcx(far / math.sqrt(2.0)))
    return 0.5 * math.exp(-0.5 * near * near) * mills


def epsilon_of(zcdp: float, delta: float) -> float:
    """The smallest epsilon that Gaussian releases of this total cost keep at this delta, rounded up."""
    mu = math.sqrt(2.0 * zcdp)
    if delta_of(mu, 0.0) <= delta * (1.0 - _ROUNDING):
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(mu, high) > delta * (1.0 - _ROUNDING):
        low, high = high, 2.0 * high
    for _ in range(100):
        middle = 0.5 * (low + high)
        if delta_of(mu, middle) > delta * (1.0 - _ROUNDING):
            low = middle
        else:
            high = middle
    return high


def budget(epsilon: float, delta: float) -> float:
    """The largest total cost, in zCDP, at which Gaussian releases keep (epsilon, delta), rounded down."""
    low, high = 0.0, 1.0
    while delta_of(high, epsilon) < delta:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if delta_of(middle, epsilon) <= delta * (1.0 - 2.0 * _ROUNDING):  # `epsilon_of` finds no more than epsilon
            low = middle
        else:
            high = middle
    return 0.5 * low * low


# Steps that `surcharge` adds up one by one; for those before them in the run a bound in closed form is less than 2e-4
# of a step's cost too large.
_SUMMED = 10_000


@lru_cache(maxsize=256)
def surcharge(selection_share: float, steps: int) -> float:
    """What a run of private steps costs beyond the sum of its steps, in costs of one step, rounded up.

    A step is a selection of v = `selection_share`, twice its zCDP, and then a Gaussian release of mu^2 = 1 - v.
    If all that follows a selection is tau-dominated, tau >= 2 v, all from it on is tau^2 / (tau - v)-dominated:
    dominated by a Gaussian mechanism of this mu^2. So from the last step to the first, in which the k steps from one
    on come to k + e_k,

        e_0 = max(0, 3 v - 1),    e_k = e_(k-1) + v^2 / (k - 2 v + e_(k-1)).

    e_0 pays for a release after the end that never takes place, so that tau >= 2 v at the last selection. The proof is
    in docs/explanation/selections.md. Terms fall with k: their sum from m + 1 to n is at most
    v^2 log((n - 2 v + e_m) / (m - 2 v + e_m)).
    """
    v, summed = selection_share, min(steps, _SUMMED)
    excess = max(0.0, 3.0 * v - 1.0)
    for k in range(1, summed + 1):
        excess += v * v / (k - 2.0 * v + excess)
    excess += v * v * math.log1p((steps - summed) / (summed - 2.0 * v + excess))
    return excess * (1.0 + summed * 2.0**-50)  # a few roundings a term, each at most 2^-53 of the sum
