"""Frequencies of the samplers against exact laws, at a false-alarm level that a lifetime of runs does not meet."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
from scipy import stats

from audit import noise_tests, reference
from audit.reference import LATTICE, exact_exp
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import Randbelow

FALSE_ALARM = 1e-6


def check_frequencies(draws: Iterable[Any], law: dict[Any, float]) -> None:
    """Chi-squared; outcomes with fewer than 10 expected draws are taken together."""
    counts = Counter(draws)
    n = sum(counts.values())
    usual = [x for x, p in law.items() if n * p >= 10]
    observed = [counts[x] for x in usual]
    expected = [n * law[x] for x in usual]
    rest = n - sum(expected)
    if rest >= 5:
        observed.append(n - sum(observed))
        expected.append(rest)
    else:
        assert n - sum(observed) <= 40, "outcomes that should hardly occur"
        expected = [e * sum(observed) / sum(expected) for e in expected]
    assert len(observed) > 1
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM, (observed, expected)


def check_gaussian(draw: Callable[[int, Randbelow], int], variance: int, n: int = 8000) -> None:
    reach = 12 * math.isqrt(variance) + 12
    law = dict(zip(range(-reach, reach + 1), reference.gaussian_law(variance, reach).tolist(), strict=True))
    randbelow = randomness.seeded(f"gaussian {variance}")
    check_frequencies((draw(variance, randbelow) for _ in range(n)), law)


def check_rounded_gaussian(draw: Callable[[int, Randbelow], int], variance: int, n: int = 8000) -> None:
    """The variance is that of the law if it is a square, otherwise the next square is."""
    sigma = math.ceil(math.sqrt(variance))
    reach = 12 * sigma
    law = reference.rounded_gaussian_law(sigma, reach)
    randbelow = randomness.seeded(f"rounded gaussian {variance}")
    draws = (draw(variance, randbelow) for _ in range(n))
    check_frequencies(draws, dict(zip(range(-reach, reach + 1), law.tolist(), strict=True)))


def check_wide_gaussian(draw: Callable[[int, Randbelow], int], sigma: int, n: int = 8000) -> None:
    """So wide that rounding cannot be seen."""
    randbelow = randomness.seeded(f"wide gaussian {sigma}")
    for variance in (sigma**2, sigma**2 - 1):  # the second one's root is rounded up
        noise_tests.check_gaussian(np.array([draw(variance, randbelow) / sigma for _ in range(n)]))


def check_laplace(draw: Callable[[int, Randbelow], int], scale: int, n: int = 8000) -> None:
    law = dict(zip(range(-40 * scale, 40 * scale + 1), reference.laplace_law(scale, 40 * scale).tolist(), strict=True))
    randbelow = randomness.seeded(f"laplace {scale}")
    check_frequencies((draw(scale, randbelow) for _ in range(n)), law)


def check_bernoulli(draw: Callable[[int, int, Randbelow], bool], numerator: int, denominator: int) -> None:
    p = math.exp(-numerator / denominator)
    randbelow = randomness.seeded("bernoulli")
    check_frequencies((draw(numerator, denominator, randbelow) for _ in range(8000)), {True: p, False: 1 - p})


SCORES = np.array([[0.0, 3.0, 0.5], [1.0, 0.0, 2.0], [0.0, 6.5, 0.0]])
ALLOWED = ~np.eye(3, dtype=bool)


def filled(selection: Any, scores: Matrix = SCORES) -> Any:
    for j in range(len(scores)):
        selection.set_column(j, scores[:, j] * 7)  # written over below
        selection.set_column(j, scores[:, j])
    return selection


def check_softmax(make: Callable[[float, Any], Any], sharpness: float = 0.4, n: int = 20_000) -> None:
    weights = np.exp(sharpness * SCORES) * ALLOWED
    law = {(i, j): float(weights[i, j] / weights.sum()) for i in range(3) for j in range(3) if i != j}
    selection, randbelow = filled(make(sharpness, ALLOWED)), randomness.seeded("softmax")
    check_frequencies((selection.draw(randbelow) for _ in range(n)), law)


def check_weights(make: Callable[[float, Any], Any]) -> None:
    """Every integer weight is 2^52 exp(sharpness score) up to half of what the accountant allows for two of them."""
    rng = np.random.default_rng(5)
    for sharpness in (1e-6, 0.01, 0.7, 30.0):
        scores = np.minimum(rng.exponential(size=(5, 5)) ** 6 * 10, 2040 / sharpness)
        mechanism = filled(make(sharpness, np.ones((5, 5), dtype=bool)), scores)
        mechanism.draw(randomness.seeded("any"))  # weighs the columns
        for i in range(5):
            for j in range(5):
                log = Decimal(sharpness) * Decimal(float(scores[i, j]))
                ideal = exact_exp(log) * 2**52
                assert abs(Decimal(list(mechanism._weights(j))[i]) / ideal - 1) <= Decimal(2.0**-39)


def check_noisy_max(make: Callable[[float, Any], Any], n: int = 20_000) -> None:
    """Three entries; ties go to the last one, as `max` of tuples has it."""
    sharpness = LATTICE / 60.0
    scores = np.array([[0.0, 40.0, 0.0], [0.0, 0.0, 60.0], [0.0, 0.0, 0.0]]) / LATTICE
    allowed = np.zeros((3, 3), dtype=bool)
    entries = [(0, 1), (0, 2), (1, 2)]
    allowed[tuple(zip(*entries, strict=True))] = True
    scale = math.ceil((LATTICE + 4) / sharpness)
    reach = 45 * scale
    law = reference.laplace_law(scale, reach)
    values = np.arange(-reach, reach + 1)
    below = np.concatenate([[0.0], np.cumsum(law)])  # P(noise < value) at index value + reach
    chances: dict[Any, float] = {}
    for k, entry in enumerate(entries):
        noisy = values + round(scores[entry] * LATTICE)
        chance = law.copy()
        for m, other in enumerate(entries):
            if m != k:  # the other is smaller; an earlier one may be equal
                at = noisy - round(scores[other] * LATTICE) + (m < k)
                chance *= below[np.clip(at + reach, 0, below.size - 1)]
        chances[entry] = float(chance.sum())
    assert abs(sum(chances.values()) - 1) < 1e-9
    selection, randbelow = filled(make(sharpness, allowed), scores), randomness.seeded("noisy max")
    check_frequencies((selection.draw(randbelow) for _ in range(n)), chances)
