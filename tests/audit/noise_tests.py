"""Tests of noise that was told apart from the sums it was added to: its law, and that no part of it comes twice.

Thresholds are fixed. Correct code fails one of all these tests in a run of the audit with a chance below 1e-6; a
planted bug fails by a wide margin.
"""

import math
from collections.abc import Iterable

import numpy as np
from scipy import stats

from fedbnsl.protocol.sparse import Matrix

FALSE_ALARM = 1e-9


def whole(noise: Matrix) -> Matrix:
    """The integers that were drawn: what rounding a message to floating point moved them by is far from a half."""
    drawn = np.rint(noise)
    off = float(np.abs(noise - drawn).max())
    assert off < 0.1, f"noise that is {off:.2f} from a whole number"
    return drawn


def check_gaussian(noise: Matrix) -> None:
    """Noise in standard deviations: no entry far out, the spread, the whole law."""
    furthest = float(np.abs(noise).max())
    assert furthest < 8.0, f"{furthest:.1f} standard deviations from the exact sum"
    spread = f"spread {noise.std():.3f} of what was paid for"
    assert FALSE_ALARM < stats.chi2.cdf(np.sum(noise**2), noise.size) < 1 - FALSE_ALARM, spread
    assert stats.kstest(noise.ravel(), "norm").pvalue > FALSE_ALARM, spread


def check_never_twice(noise: Iterable[Matrix]) -> None:
    """Whole numbers from so wide a law that two that are equal, or opposite, are no accident; three pairs never are."""
    whole = np.abs(np.concatenate([numbers.ravel() for numbers in noise]))
    twice = whole.size - np.unique(whole).size
    assert twice <= 2, f"{twice} of {whole.size} draws of noise came twice"


def check_uncorrelated(series: Iterable[Matrix]) -> None:
    """Series of at least 60 draws: none with its own next draws, none with another one."""
    kept: list[Matrix] = []
    for noise in series:
        pairs = [(noise[1:], noise[:-1]), *((noise, other) for other in kept)]
        for one, other in pairs:
            correlation = float(np.corrcoef(one, other)[0, 1])
            assert abs(correlation) * math.sqrt(one.size) < 6.5, f"correlation {correlation:.2f}"
        kept.append(noise)


def check_every_entry(noise: Matrix) -> None:
    """(k, m) noise of k releases in standard deviations: none of the m numbers goes without."""
    chances = stats.chi2.cdf((noise**2).sum(axis=0), len(noise))
    assert chances.min() > FALSE_ALARM * 1e-3, f"number {chances.argmin()} has less noise than was paid for"
