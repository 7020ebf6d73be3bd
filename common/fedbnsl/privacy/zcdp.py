"""Zero-concentrated differential privacy: what each mechanism costs, and what a total means as (epsilon, delta).

A mechanism is zcdp-zCDP if its Renyi divergence of every order a > 1 between neighbouring tables is at most zcdp * a
(Bun and Steinke 2016). Costs add up over everything that is released, in any order, adaptively. Neighbours differ
in the content of one record (replace-one); the number of records is public.

Spending is counted in whole units of 1e-12 zCDP: integers do not drift.
"""

import math
from collections.abc import Sequence

UNITS_PER_ZCDP = 10**12


def zcdp_of(units: int) -> float:
    """Units as zCDP."""
    return units / UNITS_PER_ZCDP


def units_within(zcdp: float) -> int:
    """The most whole units that a budget holds: rounded down."""
    return math.floor(zcdp * UNITS_PER_ZCDP)


def gaussian_multiplier(zcdp: float) -> float:
    """Standard deviation / sensitivity at which the Gaussian mechanism, continuous or discrete, costs `zcdp`.

    It costs 1 / (2 multiplier^2): Bun and Steinke 2016, proposition 1.6; the discrete Gaussian costs the same (Canonne,
    Kamath, Steinke 2020). If everything that is counted together is continuous, `gaussian_dp` tells a smaller epsilon.
    """
    return math.sqrt(0.5 / zcdp)


# Bounds on the rounding error of the logarithm of a selection weight; the solver stops where it could be larger.
_SCORE_ROUNDING = 2.0**-19
_WEIGHT_ROUNDING = 2.0**-38


def selection(sharpness: float) -> float:
    """Cost of one draw with weights exp(score / scale), `sharpness` = sensitivity of every score / scale.

    Each logarithm moves by at most `sharpness`, so that the mechanism is (2 sharpness)-bounded range, hence
    (2 sharpness)^2 / 8 zCDP (Dong et al. 2020; Cesar and Rogers 2021). The sensitivity is taken a little larger than it
    is, which covers every rounding error between the scores' integer sums and the integer weights.
    """
    return 0.5 * (sharpness * (1.0 + _SCORE_ROUNDING) + _WEIGHT_ROUNDING) ** 2


def selection_sharpness(zcdp: float) -> float:
    """The sharpness whose cost is `zcdp`; 0 where rounding alone costs as much."""
    return max(0.0, (math.sqrt(2.0 * zcdp) - _WEIGHT_ROUNDING) / (1.0 + _SCORE_ROUNDING))


def pure(epsilon: float) -> float:
    """Cost of an epsilon-differentially private mechanism: epsilon^2 / 2 (Bun and Steinke 2016, proposition 1.4)."""
    return 0.5 * epsilon * epsilon


def epsilon_of(zcdp: float, delta: float) -> float:
    """The smallest epsilon for which zcdp-zCDP is known to give (epsilon, delta)-differential privacy.

    min over a > 1 of zcdp a + log(1 / (a delta)) / (a - 1) + log(1 - 1 / a): Canonne, Kamath, Steinke 2020, corollary
    13. Every a gives a valid epsilon, so that an inexact minimum errs on the safe side.
    """
    if zcdp == 0.0:
        return 0.0
    from scipy.optimize import minimize_scalar  # here: a run without privacy needs no scipy at its sites

    def bound(log_a_minus_1: float) -> float:
        a_minus_1 = math.exp(log_a_minus_1)
        a = 1.0 + a_minus_1
        return zcdp * a - (math.log(a) + math.log(delta)) / a_minus_1 - math.log1p(1.0 / a_minus_1)

    # The minimum lies near a - 1 = sqrt(log(1 / delta) / zcdp); 1e-5 of it in the logarithm changes nothing.
    centre = 0.5 * math.log(math.log(1.0 / delta) / zcdp)
    found = minimize_scalar(bound, bounds=(centre - 5.0, centre + 5.0), method="bounded", options={"xatol": 1e-7})
    return max(0.0, float(found.fun))


def epsilon_as_in_the_paper(zcdp: float, delta: float) -> float:
    """The simpler, larger epsilon zcdp + 2 sqrt(zcdp log(1 / delta)) of the paper's theorem 1."""
    return zcdp + 2.0 * math.sqrt(zcdp * math.log(1.0 / delta))


def budget(epsilon: float, delta: float) -> float:
    """The largest zCDP that `epsilon_of` turns into at most epsilon at this delta."""
    high = epsilon
    while epsilon_of(high, delta) < epsilon:
        high *= 2.0
    low = 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if epsilon_of(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def advanced_composition(mechanisms: Sequence[tuple[float, int]], delta: float) -> float:
    """Epsilon of many pure mechanisms together: sqrt(2 log(1/delta) sum e^2) + sum e (exp(e) - 1).

    Each epsilon comes with how often it occurs. Dwork, Rothblum, Vadhan 2010, theorem III.3, for unequal epsilons as in
    Kairouz, Oh, Viswanath 2015.
    """
    squares = sum(times * e * e for e, times in mechanisms)
    drift = sum(times * e * math.expm1(e) for e, times in mechanisms)
    return math.sqrt(2.0 * math.log(1.0 / delta) * squares) + drift
