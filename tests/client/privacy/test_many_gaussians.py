"""Numbers drawn at once are those that are drawn one by one from the same words."""

import random
from unittest import mock

import numpy as np
import pytest

from fedbnsl_client.privacy import many_gaussians, randomness
from fedbnsl_client.privacy.many_gaussians import Source, rounded_gaussians
from fedbnsl_client.privacy.noise import rounded_gaussian


class Listed:
    """A source of these words, which takes integers from them as `random.Random` does."""

    def __init__(self, words: list[int]) -> None:
        self._words, self.at = words, 0

    def __call__(self, n: int, /) -> int:
        number = n
        while number >= n:
            number, bits = 0, n.bit_length()
            for place in range(0, bits, 32):
                number += self._words[self.at] >> max(32 - (bits - place), 0) << place
                self.at += 1
        return number

    def words(self, n: int) -> bytes:
        taken = self._words[self.at : self.at + n]
        assert len(taken) == n, "more words than the test has"
        self.at += n
        return np.array(taken, dtype="<u4").tobytes()

    def unread(self, n: int) -> None:
        self.at -= n


def drawn_both_ways(variances: list[int], words: list[int]) -> None:
    many, one = Listed(words), Listed(words)
    found = rounded_gaussians(variances, np.arange(len(variances)), many)
    assert found.tolist() == [rounded_gaussian(variance, one) for variance in variances]
    assert many.at == one.at, "what follows must begin at the same word"


def test_numbers_drawn_at_once_are_those_drawn_one_by_one() -> None:
    rng = random.Random(1)
    sizes = [1, 2, 5, 40, 10**6, 10**12, 2**62, 2**64, 2**64 + 1, 10**40]
    drawn_both_ways(rng.choices(sizes, k=4000), [rng.getrandbits(32) for _ in range(200_000)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.long
def test_digits_that_do_not_decide_are_followed_by_more(seed: int) -> None:
    """Words of few values: equal digits, all ones, zeros and halves are common, which true words have once in 2^60."""
    rng = random.Random(seed)
    few = [0, 2**32 - 1, 2**31, 2**31 - 1, 2**32 - 16, 15]
    words = [rng.choice(few) if rng.random() < 0.7 else rng.getrandbits(32) for _ in range(300_000)]
    undecided = 0
    genuine = rounded_gaussian

    def counted(variance: int, randbelow: many_gaussians.Randbelow) -> int:
        nonlocal undecided
        undecided += 1
        return genuine(variance, randbelow)

    with mock.patch.object(many_gaussians, "rounded_gaussian", counted):
        drawn_both_ways(rng.choices([1, 4, 2**20, 2**40, 2**60, 2**64], k=1500), words)
    assert 10 < undecided < 1490, "both ways are taken"


def test_words_that_run_out_are_followed_by_more() -> None:
    rng = random.Random(3)
    words = [rng.getrandbits(32) for _ in range(20_000)]
    with mock.patch.multiple(many_gaussians, _MOST_WORDS=7, _MORE=3):
        drawn_both_ways([100] * 400, words)


def test_a_seed_gives_the_same_numbers_either_way_and_after() -> None:
    many, one = randomness.seeded("same"), randomness.seeded("same")
    found = rounded_gaussians((9, 10**10), np.arange(9000) % 2, many)
    assert found.tolist() == [rounded_gaussian((9, 10**10)[k % 2], one) for k in range(9000)]
    assert [many(10**9) for _ in range(5)] == [one(10**9) for _ in range(5)]


def test_the_systems_words_are_those_of_the_operating_system_and_none_comes_twice() -> None:
    given = random.Random("bytes")
    with mock.patch.object(random, "_urandom", given.randbytes):
        first = randomness.system.words(3)
        randomness.system.unread(3)
        second = randomness.system.words(2)
    again = random.Random("bytes")
    assert (first, second) == (again.randbytes(12), again.randbytes(8))
    assert isinstance(randomness.system, Source)


def test_a_source_of_single_integers_will_do() -> None:
    source = random.Random(4).randrange
    assert not isinstance(source, Source)
    found = rounded_gaussians((10**6,), np.zeros(5, dtype=np.int64), source)
    again = random.Random(4).randrange
    assert found.tolist() == [rounded_gaussian(10**6, again) for _ in range(5)]


def test_no_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="nonnegative"):
        rounded_gaussians((0, 4), np.ones(3, dtype=np.int64), randomness.system)
