"""Gaussian differential privacy: what a total means as (epsilon, delta) if every release is a Gaussian mechanism.

A release is mu-GDP if telling two neighbouring tables apart by it is at least as hard as telling N(0, 1) from N(mu, 1)
by one number (Dong, Roth, Su 2022). Gaussian noise of sigma on sums that one record moves by at most D in Euclidean
distance gives mu = D / sigma, and rounding afterwards changes nothing. Squares of mu add up over releases, also over
releases that are chosen in view of earlier ones (the same paper; Smith and Thakurta 2022).

Such a release costs mu^2 / 2 zCDP (`zcdp.gaussian_multiplier`), so that both are counted in the same units. zCDP
forgets that the releases were Gaussian: what is counted by mu needs 4 to 8 % less noise at usual epsilon and delta.
"""

import math

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
