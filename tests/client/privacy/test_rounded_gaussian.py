"""Digits of a normal deviate are drawn until its rounding is decided, and what was drawn is kept."""

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from fedbnsl_client.privacy import noise, randomness
from fedbnsl_client.privacy.noise import rounded_gaussian

BASE = noise._BASE
MIDDLE = (BASE - 1) // 2  # the digit within which one half lies


def scripted(*digits: int) -> tuple[Callable[[int], int], Iterator[int]]:
    """A source that gives these numbers, and what is left of them."""
    left = iter(digits)
    return lambda n: next(left), left


def number(digits: list[int]) -> Fraction:
    return sum((Fraction(digit, BASE ** (place + 1)) for place, digit in enumerate(digits)), Fraction())


@pytest.mark.parametrize("ties", [0, 1, 5])
@pytest.mark.parametrize(("last", "nearest"), [(0, 3), (MIDDLE - 1, 3), (MIDDLE + 1, 4), (BASE - 1, 4)])
def test_at_one_half_digits_are_drawn_until_they_tell(ties: int, last: int, nearest: int) -> None:
    source, left = scripted(*[MIDDLE] * ties, last, 7)
    assert noise._nearest(3, [MIDDLE], 1, source) == nearest
    assert list(left) == [7], "no digit more than it takes"


def test_what_is_decided_draws_nothing() -> None:
    source, _ = scripted()
    assert noise._nearest(3, [0], 1, source) == 3
    assert noise._nearest(3, [BASE - 1], 1, source) == 4
    assert noise._nearest(0, [BASE - 1, 0], BASE, source) == BASE - 1


def test_an_interval_that_ends_at_one_half_is_decided() -> None:
    """With sigma = BASE the second digit is the fraction: it ends at one half where its own second half would begin."""
    source, _ = scripted()
    assert noise._nearest(0, [7, MIDDLE - 1], BASE, source) == 7
    assert noise._nearest(0, [7, MIDDLE + 1], BASE, source) == 8
    assert noise._nearest(0, [0], BASE // 3 * 2 + 1, scripted(0, 0)[0]) == 0


def test_the_nearest_integer_is_that_of_the_whole_number() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        digits = [rng.choice([0, MIDDLE, BASE - 1, rng.randrange(BASE)]) for _ in range(4)]
        sigma, k = rng.choice([1, 2, 3, 1000, BASE - 1, BASE, BASE + 1, 2**60, 2**130]), rng.randrange(4)
        source, left = scripted(*digits[1:], *[rng.randrange(BASE) for _ in range(5)])
        x = digits[:1]
        found = noise._nearest(k, x, sigma, source)
        exact = sigma * (k + number(x + list(left)))
        assert found == math.floor(exact + Fraction(1, 2)), (sigma, k, digits)


def test_equal_digits_are_followed_by_more_which_both_numbers_keep() -> None:
    x, y = [5], [5, 9]
    source, left = scripted(9, 2, 3, 8)
    assert noise._is_less(x, y, source)
    assert (x, y) == ([5, 9, 2], [5, 9, 3])
    assert list(left) == [8]
    assert not noise._is_less(y, x, source)


def test_half_of_an_exponential_is_decided_by_one_draw_as_by_five() -> None:
    """Every outcome of the digits below 2, 4, 6, 8 and 10: the run of zeros, and whether its end is at an odd place."""
    for draw in range(1, 3840):
        digits, rest = [], draw
        for weight in (1920, 480, 80, 10, 1):
            digits.append(rest // weight)
            rest %= weight
        first = next(place for place, digit in enumerate(digits, start=1) if digit)
        assert noise._exp_minus_half(scripted(draw)[0]) == (first % 2 == 1), draw
    assert not noise._exp_minus_half(scripted(0, 1)[0])
    assert noise._exp_minus_half(scripted(0, 0, 1)[0])


@pytest.mark.parametrize("variance", [0, -1])
def test_no_noise_is_refused(variance: int) -> None:
    with pytest.raises(ValueError, match="nonnegative"):
        rounded_gaussian(variance, randomness.system)


def test_the_standard_deviation_is_never_below_what_was_paid_for() -> None:
    """The same numbers of the source with the next larger square give the same draw."""
    for root in (1, 2, 10**6, 2**53 + 1, 10**40):
        draws = [rounded_gaussian(variance, randomness.seeded("same")) for variance in (root**2 + 1, (root + 1) ** 2)]
        assert draws[0] == draws[1]
