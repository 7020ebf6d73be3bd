"""The noise that protects a record: exact integer samplers over a given source of uniform integers.

A floating-point sampler leaks through its rounding (Mironov 2012): one number from it can tell two tables apart. Here
every probability is a ratio of integers, and every draw is decided by comparing integers.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fedbnsl.price import LATTICE, SCORE_SENSITIVITY
from fedbnsl.sparse import Mask, Matrix

Randbelow = Callable[[int], int]
"""Uniform on 0, ..., n - 1 for a given n >= 1."""


def bernoulli_exp(numerator: int, denominator: int, randbelow: Randbelow) -> bool:
    """True with probability exp(-numerator / denominator) (Canonne, Kamath, Steinke 2020, algorithm 1)."""
    while numerator > denominator:
        if not bernoulli_exp(1, 1, randbelow):
            return False
        numerator -= denominator
    k = 1
    while randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def discrete_laplace(scale: int, randbelow: Randbelow) -> int:
    """Integer x with probability proportional to exp(-|x| / scale) (the same, algorithm 2)."""
    while True:
        low = randbelow(scale)
        if not bernoulli_exp(low, scale, randbelow):
            continue
        high = 0
        while bernoulli_exp(1, 1, randbelow):
            high += 1
        magnitude = low + scale * high
        if randbelow(2):
            return magnitude
        if magnitude:  # otherwise zero would come up twice as often
            return -magnitude


def discrete_gaussian(variance: int, randbelow: Randbelow) -> int:
    """Integer x with probability proportional to exp(-x^2 / (2 variance)) (the same, algorithm 3)."""
    scale = math.isqrt(variance) + 1
    while True:
        x = discrete_laplace(scale, randbelow)
        if bernoulli_exp((abs(x) * scale - variance) ** 2, 2 * variance * scale * scale, randbelow):
            return x


Noise = Callable[[Randbelow], int]
"""Draws what is added to an integer sum."""


class Selection(Protocol):
    """Picks one entry (i, j) of a matrix of scores, large ones more likely."""

    def set_column(self, j: int, scores: Matrix) -> None:
        """Replace column j by (d,) scores >= 0, in units of their sensitivity."""
        ...

    def draw(self, randbelow: Randbelow) -> tuple[int, int]:
        """Row and column of an entry, with the noise that the budget asks for."""
        ...


# An advantage beyond this is not told from a larger one: it bounds the size of the integer weights.
_MAX_LOG_WEIGHT = 2048.0


class ExponentialMechanism:
    """Entry (i, j) with probability proportional to exp(sharpness x score), the law of Gumbel-max, by integer weights.

    The weight is floor(2^52 exp(.)), against the fixed reference score 0 and not the largest score, which is data. One
    uniform integer picks the column, then the row: O(d) a draw and O(d) a changed column.

    Parameters
    ----------
    sharpness
        Sensitivity of a score / selection scale.
    allowed
        (d, d) entries that can be picked.
    """

    def __init__(self, sharpness: float, allowed: Mask) -> None:
        d = allowed.shape[0]
        self._sharpness = sharpness
        self._allowed = np.ascontiguousarray(allowed.T)
        self._weights = [[0] * d for _ in range(d)]
        self._columns = [0] * d
        self._total = 0

    def set_column(self, j: int, scores: Matrix) -> None:
        """See `Selection.set_column`."""
        logs = np.minimum(self._sharpness * scores, _MAX_LOG_WEIGHT)
        powers = np.floor(logs / math.log(2.0))
        mantissas = np.exp(logs - powers * math.log(2.0)) * 2.0**52 * self._allowed[j]
        pairs = zip(mantissas.astype(np.int64).tolist(), powers.astype(np.int64).tolist(), strict=True)
        weights = [mantissa << power for mantissa, power in pairs]
        column = sum(weights)
        self._total += column - self._columns[j]
        self._weights[j], self._columns[j] = weights, column

    def draw(self, randbelow: Randbelow) -> tuple[int, int]:
        """See `Selection.draw`."""
        left = randbelow(self._total)
        j, left = _locate(self._columns, left)
        i, _ = _locate(self._weights[j], left)
        return i, j


def _locate(weights: list[int], left: int) -> tuple[int, int]:
    """Index whose interval holds `left`, and how far into it `left` lies."""
    for index, weight in enumerate(weights):
        if left < weight:
            return index, left
        left -= weight
    raise AssertionError("a draw beyond the total weight")


class NoisyMax:
    """The entry whose score is largest after discrete Laplace noise on every score: O(d^2) draws each time.

    2 x sharpness pure epsilon under replace-one, for a score may rise where another falls.

    Parameters
    ----------
    sharpness
        Sensitivity of a score / scale of the noise.
    allowed
        (d, d) entries that can be picked.
    """

    def __init__(self, sharpness: float, allowed: Mask) -> None:
        self._scale = math.ceil(SCORE_SENSITIVITY / sharpness)
        self._scores = np.zeros(allowed.shape, dtype=np.int64)
        rows, columns = allowed.nonzero()
        self._entries = list(zip(rows.tolist(), columns.tolist(), strict=True))

    def set_column(self, j: int, scores: Matrix) -> None:
        """See `Selection.set_column`."""
        self._scores[:, j] = np.rint(scores * LATTICE)

    def draw(self, randbelow: Randbelow) -> tuple[int, int]:
        """See `Selection.draw`."""
        noisy = [(int(self._scores[i, j]) + discrete_laplace(self._scale, randbelow), i, j) for i, j in self._entries]
        _, i, j = max(noisy)
        return i, j
