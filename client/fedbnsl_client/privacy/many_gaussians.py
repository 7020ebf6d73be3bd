"""Many rounded Gaussian numbers at once, in compiled code: the numbers that `noise.rounded_gaussian` gives one by one.

A round of moments of 500 variables takes 125,250 of them at every site. The kernel reads the same words of 32 bits in
the same order, takes the same decisions, and stops where a decision needs more than one digit of a number: that draw
is then done by `rounded_gaussian` from these words. So there is one sampler to prove right, and this one is tested to
be equal to it, word by word.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedbnsl.compiled import compiled
from fedbnsl_client.privacy.noise import Integers, Randbelow, rounded_gaussian

Words = NDArray[np.uint32]
Numbers = NDArray[Any]


@runtime_checkable
class Source(Protocol):
    """A `Randbelow` that gives many words at once, too: uniform numbers of 32 bits."""

    def __call__(self, n: int, /) -> int:
        """Uniform on 0, ..., n - 1."""
        ...

    def words(self, n: int) -> bytes:
        """4 n bytes, the lowest of each word first."""
        ...

    def unread(self, n: int) -> None:
        """The last n words were not used. Only a source that is there to be repeated gives them again."""
        ...


# Words that a number takes about, a few more, and the most that are drawn at once.
_WORDS_A_NUMBER, _MORE, _MOST_WORDS = 20, 512, 2**16
# Sigma up to which the kernel's products stay within 63 bits.
_LARGEST_SIGMA = 2**32
_BASE = 2**60 - 1
_FIVE_DRAWS = 3840

# What `_draw` ends with.
_DONE, _NO_WORDS, _UNDECIDED = 0, 1, 2


def rounded_gaussians(variances: Sequence[int], which: Integers, randbelow: Randbelow) -> Numbers:
    """(n,) what `rounded_gaussian` gives for the variances, one number after the other.

    `which` is the (n,) place of the variance of each number. Returns integers of 64 bits, or of any size if one was not
    drawn by the kernel. Raises ValueError if a variance is below 1.
    """
    if not isinstance(randbelow, Source):
        return np.array([rounded_gaussian(variances[int(k)], randbelow) for k in which], dtype=object)
    sigmas = [math.isqrt(variance - 1) + 1 for variance in variances]
    of_kernel = np.array([sigma if sigma <= _LARGEST_SIGMA else 0 for sigma in sigmas], dtype=np.int64)[which]
    numbers, reader = np.zeros(which.size, dtype=np.int64), _Reader(randbelow)
    undecided = dict[int, int]()
    done, why = 0, _NO_WORDS
    while done < which.size:
        if why == _NO_WORDS:
            reader.fetch(min(_WORDS_A_NUMBER * (which.size - done) + _MORE, _MOST_WORDS))
        done, reader.at, why = _draw(of_kernel, numbers, done, reader.left, reader.at)
        if why == _UNDECIDED:
            undecided[done] = rounded_gaussian(variances[int(which[done])], reader)
            done += 1
    randbelow.unread(len(reader.left) - reader.at)
    if not undecided:
        return numbers
    of_any_size = numbers.astype(object)
    for place, number in undecided.items():
        of_any_size[place] = number
    return of_any_size


class _Reader:
    """The words of a source as a `Randbelow`, which takes them as Python's generators do."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # The words that were drawn, and the place of the next one.
        self.left: Words = np.empty(0, dtype=np.uint32)
        self.at = 0

    def fetch(self, n: int) -> None:
        """Draw n more words."""
        more = np.frombuffer(self._source.words(n), dtype="<u4")
        self.left, self.at = np.concatenate([self.left[self.at :], more]).astype(np.uint32), 0

    def __call__(self, n: int) -> int:
        """Uniform on 0, ..., n - 1: as many bits as n has, drawn again while they give n or more."""
        bits = n.bit_length()
        while True:
            number = self._bits(bits)
            if number < n:
                return number

    def _bits(self, bits: int) -> int:
        words = (bits + 31) // 32
        if self.at + words > len(self.left):
            self.fetch(words + _MORE)
        taken = self.left[self.at : self.at + words].tolist()
        self.at += words
        taken[-1] >>= 32 * words - bits
        return sum(word << 32 * place for place, word in enumerate(taken))


@compiled
def _draw(sigmas: Integers, numbers: Integers, done: int, words: Words, at: int) -> tuple[int, int, int]:
    """Draw numbers[done:] until all are there, words run out, or one cannot be decided here.

    Returns how many numbers are there, the place of the next word, and why no more.
    """
    place = np.empty(1, dtype=np.int64)
    while done < sigmas.size:
        place[0] = at
        why, number = _one(sigmas[done], words, place)
        if why != _DONE:
            return done, at, why
        numbers[done] = number
        done, at = done + 1, place[0]
    return done, at, _DONE


# Below, a number is negative where there is none: minus the reason.


@compiled
def _one(sigma: int, words: Words, place: Integers) -> tuple[int, int]:
    """`rounded_gaussian`, or why not."""
    if sigma == 0:
        return _UNDECIDED, 0
    while True:
        k = 0
        half = _exp_minus_half(words, place)
        while half == 1:
            k += 1
            half = _exp_minus_half(words, place)
        if half < 0:
            return -half, 0
        half = 1
        for _ in range(k * (k - 1)):
            half = _exp_minus_half(words, place)
            if half != 1:
                break
        if half < 0:
            return -half, 0
        if half == 0:
            continue
        x = _digit(words, place)
        if x < 0:
            return -x, 0
        kept = 1
        for _ in range(k + 1):
            kept = _is_kept(k, x, words, place)
            if kept != 1:
                break
        if kept < 0:
            return -kept, 0
        if kept == 0:
            continue
        magnitude = _nearest(k, x, sigma)
        if magnitude < 0:
            return -magnitude, 0
        positive = _below(2, words, place)
        if positive < 0:
            return -positive, 0
        return _DONE, magnitude if positive else -magnitude


@compiled
def _below(n: int, words: Words, place: Integers) -> int:
    """Uniform on 0, ..., n - 1; n < 2^32."""
    bits = 0
    while n >> bits:
        bits += 1
    while place[0] < words.size:
        number = np.int64(words[place[0]]) >> (32 - bits)
        place[0] += 1
        if number < n:
            return int(number)
    return -_NO_WORDS


@compiled
def _digit(words: Words, place: Integers) -> int:
    """Uniform on 0, ..., _BASE - 1."""
    while place[0] + 1 < words.size:
        number = np.int64(words[place[0]]) | ((np.int64(words[place[0] + 1]) >> 4) << 32)
        place[0] += 2
        if number < _BASE:
            return int(number)
    return -_NO_WORDS


@compiled
def _exp_minus_half(words: Words, place: Integers) -> int:
    """`noise._exp_minus_half`: 1 or 0."""
    draw = _below(_FIVE_DRAWS, words, place)
    if draw < 0:
        return draw
    if draw >= 1920:
        return 1
    if draw >= 480:
        return 0
    if draw >= 80:
        return 1
    if draw >= 10:
        return 0
    if draw:
        return 1
    k = 6
    while True:
        draw = _below(2 * k, words, place)
        if draw < 0:
            return draw
        if draw >= 1:
            return k % 2
        k += 1


@compiled
def _is_kept(k: int, x: int, words: Words, place: Integers) -> int:
    """`noise._is_kept`, where no two digits are equal: 1 or 0."""
    smallest, kept = x, 1
    while True:
        y = _digit(words, place)
        if y < 0:
            return y
        if y == smallest:
            return -_UNDECIDED
        if y > smallest:
            return kept
        digit = _below(2 * k + 2, words, place)
        if digit < 0:
            return digit
        digit -= 2 * k
        if digit == 1:
            return kept
        if digit == 0:
            z = _digit(words, place)
            if z < 0:
                return z
            if z == x:
                return -_UNDECIDED
            if z > x:
                return kept
        smallest, kept = y, 1 - kept


@compiled
def _nearest(k: int, x: int, sigma: int) -> int:
    """`noise._nearest`, where the first digit decides: sigma x is whole * _BASE + rest, and less than sigma more."""
    high, low = sigma * (x >> 30), sigma * (x & (2**30 - 1))  # below 2^62
    low += (high & (2**30 - 1)) << 30
    # sigma x = (high >> 30) 2^60 + low, and 2^60 = _BASE + 1
    whole = (high >> 30) + (low >> 60)
    rest = whole + (low & (2**60 - 1))  # or a little more than _BASE: then `up` adds the one
    up = 1 if 2 * rest >= _BASE else 0
    # The interval's end is not in it.
    if up != (2 * (rest + sigma) - 1 + _BASE) // (2 * _BASE):
        return -_UNDECIDED
    return sigma * k + whole + up


def warm_up() -> None:
    """Compile the kernel, or load it from the cache, before a round waits for it; no number is drawn."""
    nothing = np.zeros(0, dtype=np.int64)
    _draw(nothing, nothing, 0, np.zeros(0, dtype=np.uint32), 0)
