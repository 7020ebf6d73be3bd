"""What one run of a mechanism tells of its privacy: a lower bound on mu of Gaussian differential privacy.

Mahloujifar, Melis and Chaudhuri (2025), "Auditing f-differential privacy in one run". Each of m canaries has a fair
coin, which says what record it is. Somebody who sees what was released guesses coins; the more guesses are right, the
less privacy there is.

Let p_i be the chance that exactly i of c' guesses are right, and G(x) = Phi(Phi^-1(x) + mu): by mu-GDP, an event has at
most the chance G(x) if it has the chance x after one coin was turned. Take the event that the guess about coin j is
right, and more than i guesses are. With the coin turned, this guess is wrong, and one guess less is right. G is
concave, so the mean over j and all coins gives for every i

    r_(i+1) <= G(h_i),    r_i = sum_(j >= i) j p_j / m,    h_i = sum_(j >= i) (c' - j) p_j / m.

A chance of at least c right guesses that admits no such p with sum 1 is refuted. The p with the least sum has all of
this chance at c, and below only what the bounds ask for (`_least_sum`): from any other p, moving what is more than that
from i to i - 1 raises each h_k and lowers each r_(k+1) with k < i, and keeps the sum.
"""

import math

from scipy.special import ndtr, ndtri

_MOST_MU = 50.0
_STEPS = 40


def is_refuted(mu: float, *, n_right: int, n_guesses: int, n_canaries: int, level: float = 0.05) -> bool:
    """Whether a mechanism with mu-GDP has less than this chance to let so many guesses be right.

    Parameters
    ----------
    n_right, n_guesses, n_canaries
        c, c' and m. How many guesses are made must not depend on the coins.
    level
        Chance to refute what is true.
    """
    return n_right > 0 and _least_sum(mu, n_right, n_guesses, n_canaries, level) > 1.0


def least_mu(*, n_right: int, n_guesses: int, n_canaries: int, level: float = 0.05) -> float:
    """A lower bound on mu that holds with confidence 1 - level; 0 if nothing is refuted."""
    low, high = 0.0, _MOST_MU
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        refuted = is_refuted(middle, n_right=n_right, n_guesses=n_guesses, n_canaries=n_canaries, level=level)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _least_sum(mu: float, c: int, n_guesses: int, n_canaries: int, chance: float) -> float:
    """The least sum of all p_i where those from c on sum to `chance`; infinite if there is none (their Algorithm 1)."""
    share = n_guesses / n_canaries  # r_0 + h_0 = share x sum of p
    r, h = chance * c / n_canaries, chance * (n_guesses - c) / n_canaries
    for i in range(c - 1, -1, -1):
        least = max(h, float(ndtr(ndtri(r) - mu)))  # h_i >= G^-1(r_(i+1)), and p_i >= 0
        r += i / (n_guesses - i) * (least - h)
        h = least
        if not r + h <= share:
            return math.inf
    return (r + h) / share
