"""The noise that protects a record: exact integer samplers over a given source of uniform integers.

A floating-point sampler leaks through its rounding (Mironov 2012): one number from it can tell two tables apart. Here
every probability is a ratio of integers, and every draw is decided by comparing integers.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedbnsl.compiled import compiled
from fedbnsl.privacy.calibration import LATTICE, SCORE_SENSITIVITY
from fedbnsl.protocol.sparse import Mask, Matrix

Integers = NDArray[np.int64]

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
    """Integer x with probability proportional to exp(-|x| / scale) (the same paper, algorithm 2)."""
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
    """Integer x with probability proportional to exp(-x^2 / (2 variance)) (the same paper, algorithm 3)."""
    scale = math.isqrt(variance) + 1
    while True:
        x = discrete_laplace(scale, randbelow)
        if bernoulli_exp((abs(x) * scale - variance) ** 2, 2 * variance * scale * scale, randbelow):
            return x


# Of the digits of a lazily drawn real number. For 2^60 itself, `secrets` would draw 61 bits, half of the time again.
_BASE = 2**60 - 1

# 2 x 4 x 6 x 8 x 10: the first five draws of `_exp_minus_half` at once.
_FIVE_DRAWS = 3840


def rounded_gaussian(variance: int, randbelow: Randbelow) -> int:
    """The integer nearest to sigma N, where N has exactly the standard normal law and sigma = ceil(sqrt(variance)).

    An integer sum plus this is the sum plus sigma N, rounded: the Gaussian mechanism and then post-processing. So its
    guarantee, mu = sensitivity / sigma, holds exactly (`fedbnsl.privacy.gaussian_dp`). Raises ValueError if the
    variance is below 1: no noise is no protection.

    Karney 2016, "Sampling exactly from the normal distribution", algorithm N: |N| = k + x. The digits of x in [0, 1)
    are drawn only as far as a comparison, or at last the rounding, needs them.
    """
    sigma = math.isqrt(variance - 1) + 1
    while True:
        k = 0  # steps N1 and N2: k with probability proportional to exp(-k^2 / 2)
        while _exp_minus_half(randbelow):
            k += 1
        if not all(_exp_minus_half(randbelow) for _ in range(k * (k - 1))):
            continue
        x = [randbelow(_BASE)]  # step N3
        if all(_is_kept(k, x, randbelow) for _ in range(k + 1)):  # step N4
            magnitude = _nearest(k, x, sigma, randbelow)
            return magnitude if randbelow(2) else -magnitude


def _exp_minus_half(randbelow: Randbelow) -> bool:
    """True with probability exp(-1/2): `bernoulli_exp(1, 2, randbelow)`, whose first five draws are digits of one."""
    draw = randbelow(_FIVE_DRAWS)
    if draw >= 1920:
        return True
    if draw >= 480:
        return False
    if draw >= 80:
        return True
    if draw >= 10:
        return False
    if draw:
        return True
    k = 6
    while randbelow(2 * k) < 1:
        k += 1
    return k % 2 == 1


def _is_kept(k: int, x: list[int], randbelow: Randbelow) -> bool:
    """True with probability exp(-x (2 k + x) / (2 k + 2)) (Karney's algorithm B)."""
    smallest, kept = x, True
    while True:
        y = [randbelow(_BASE)]
        if not _is_less(y, smallest, randbelow):
            return kept
        # A uniform number is below (2 k + x) / (2 k + 2): by its first digit to base 2 k + 2, or by those after it.
        digit = randbelow(2 * k + 2) - 2 * k
        if digit == 1 or (digit == 0 and not _is_less([randbelow(_BASE)], x, randbelow)):
            return kept
        smallest, kept = y, not kept


def _is_less(x: list[int], y: list[int], randbelow: Randbelow) -> bool:
    """Whether x < y, numbers in [0, 1) by the digits drawn so far; more are drawn, and kept, where those are equal."""
    if x[0] != y[0]:
        return x[0] < y[0]
    for n in count(1):
        for number in (x, y):
            if len(number) == n:
                number.append(randbelow(_BASE))
        if x[n] != y[n]:
            return x[n] < y[n]
    raise AssertionError  # pragma: no cover


def _nearest(k: int, x: list[int], sigma: int, randbelow: Randbelow) -> int:
    """Integer nearest to sigma (k + x), from as many digits of x as decide it."""
    numerator, denominator = k, 1
    for n in count():
        if n == len(x):
            x.append(randbelow(_BASE))
        numerator, denominator = numerator * _BASE + x[n], denominator * _BASE
        # k + x is at least numerator / denominator, and below (numerator + 1) / denominator.
        lowest = (2 * sigma * numerator + denominator) // (2 * denominator)
        if lowest == (2 * sigma * (numerator + 1) + denominator - 1) // (2 * denominator):
            return lowest
    raise AssertionError  # pragma: no cover


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


# Larger log weights are cut to this, which bounds the size of the integer weights.
_MAX_LOG_WEIGHT = 2048.0

_LOG_2 = math.log(2.0)

# Digits to base 2^32 that a sum of 2^32 weights needs, each below 2^53 << (2048 / log 2).
_DIGITS = 96


class ExponentialMechanism:
    """Entry (i, j) with probability proportional to exp(sharpness x score), the law of Gumbel-max, by integer weights.

    The weight is floor(2^52 exp(.)), relative to the fixed score 0: the largest score would depend on the data. One
    uniform integer picks the column, then the row: O(d) a draw and O(d) a changed column. The next draw weighs all
    changed columns together. The weights of a column are computed as integers only if it is picked. The sharpness is
    the sensitivity of a score / selection scale; (d, d) entries can be picked where allowed.
    """

    def __init__(self, sharpness: float, allowed: Mask) -> None:
        d = allowed.shape[0]
        self._sharpness = sharpness
        self._allowed = np.ascontiguousarray(allowed.T)
        self._scores = np.zeros((d, d))
        self._changed: set[int] = set()
        # Column by column, a weight is mantissa << power.
        self._mantissas = np.zeros((d, d), dtype=np.int64)
        self._powers = np.zeros((d, d), dtype=np.int64)
        self._columns = [0] * d

    def set_column(self, j: int, scores: Matrix) -> None:
        """See `Selection.set_column`."""
        self._scores[j] = scores
        self._changed.add(j)

    def draw(self, randbelow: Randbelow) -> tuple[int, int]:
        """See `Selection.draw`."""
        if self._changed:
            self._weigh(np.fromiter(self._changed, dtype=np.int64))
            self._changed.clear()
        columns: list[int] = list(accumulate(self._columns))
        left = randbelow(columns[-1])
        j = bisect_right(columns, left)
        left -= columns[j] - self._columns[j]
        rows: list[int] = list(accumulate(self._weights(j)))
        return bisect_right(rows, left), j

    def _weigh(self, columns: Integers) -> None:
        rests = np.empty((columns.size, len(self._columns)))
        _split(self._scores, columns, self._sharpness, self._powers, rests)
        digits = np.empty((columns.size, _DIGITS), dtype=np.uint32)
        _add_up(np.exp(rests), columns, self._allowed, self._mantissas, self._powers, digits)
        for j, column in zip(columns.tolist(), digits, strict=True):
            self._columns[j] = int.from_bytes(column.tobytes(), "little")

    def _weights(self, j: int) -> Iterator[int]:
        mantissas: list[int] = self._mantissas[j].tolist()
        powers: list[int] = self._powers[j].tolist()
        return map(int.__lshift__, mantissas, powers)


@compiled
def _split(scores: Matrix, columns: Integers, sharpness: float, powers: Integers, rests: Matrix) -> None:
    """Logarithms of the weights of some columns: log(2) powers + rests, with 0 <= rests < log(2) but for rounding."""
    for k, j in enumerate(columns):
        for i in range(scores.shape[1]):
            log = max(min(_MAX_LOG_WEIGHT, sharpness * scores[j, i]), 0.0)  # in this range even if it were NaN
            power = np.floor(log / _LOG_2)
            powers[j, i] = np.int64(power)
            rests[k, i] = log - power * _LOG_2


@compiled
def _add_up(
    factors: Matrix, columns: Integers, allowed: Mask, mantissas: Integers, powers: Integers, digits: NDArray[np.uint32]
) -> None:
    """Mantissas of some columns, and the exact sums of their weights to base 2^32, the lowest digit first."""
    ones = np.int64(2**32 - 1)
    sums = np.empty(digits.shape[1], dtype=np.int64)  # of digits: a column may have 2^31 of them
    for k, j in enumerate(columns):
        sums[:] = 0
        for i in range(factors.shape[1]):
            mantissa = np.int64(factors[k, i] * 2.0**52) if allowed[j, i] else np.int64(0)
            mantissas[j, i] = mantissa
            digit, shift = powers[j, i] >> 5, powers[j, i] & 31
            low, high = (mantissa & ones) << shift, (mantissa >> 32) << shift
            sums[digit] += low & ones
            sums[digit + 1] += (low >> 32) + (high & ones)
            sums[digit + 2] += high >> 32
        carry = np.int64(0)
        for digit in range(sums.size):
            carry += sums[digit]
            digits[k, digit] = carry & ones
            carry >>= 32


class NoisyMax:
    """The entry whose score is largest after discrete Laplace noise on every score: O(d^2) draws each time.

    Pure epsilon is 2 x sharpness under replace-one, because one score may rise while another falls. The sharpness is
    the sensitivity of a score / scale of the noise; (d, d) entries can be picked where allowed.
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
