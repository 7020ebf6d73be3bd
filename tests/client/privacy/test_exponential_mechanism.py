"""The exponential mechanism adds up its integer weights by digits and late: it must draw what the literal one draws."""

import numpy as np
import pytest

import oracles
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import ExponentialMechanism, Randbelow


def totals_of(draws: list[int], randbelow: Randbelow) -> Randbelow:
    """The source, which also notes the total weight that each draw asks for."""

    def noting(total: int) -> int:
        draws.append(total)
        return randbelow(total)

    return noting


def scores(rng: np.random.Generator, d: int, scale: float) -> Matrix:
    """From 0 over usual ones to some beyond what a weight can tell apart."""
    return np.asarray(rng.exponential(size=d) ** 4 * scale * (rng.random(d) < 0.8))


@pytest.mark.parametrize("d", [2, 5, 70])
@pytest.mark.parametrize("scale", [1e-9, 0.3, 40.0, 1e4, 1e200])
def test_draws_and_total_weights_are_those_of_the_literal_mechanism(d: int, scale: float) -> None:
    rng = np.random.default_rng(7)
    allowed = ~np.eye(d, dtype=bool) & (rng.random((d, d)) < 0.9)
    allowed[0, 1] = True
    ours, literal = (make(0.7, allowed) for make in (ExponentialMechanism, oracles.LiteralExponentialMechanism))
    asked: tuple[list[int], list[int]] = [], []
    sources = [totals_of(totals, randomness.seeded("draws")) for totals in asked]
    for j in range(d):
        for mechanism in (ours, literal):
            mechanism.set_column(j, scores(np.random.default_rng(j), d, scale))
    for step in range(60):
        for j in rng.integers(d, size=step % 4):  # none, one, several, now and then one twice
            column = scores(rng, d, scale)
            ours.set_column(int(j), column)
            literal.set_column(int(j), column)
        assert ours.draw(sources[0]) == literal.draw(sources[1])
    assert asked[0] == asked[1]


def test_every_weight_at_its_largest_is_counted() -> None:
    d = 300
    ours, totals = ExponentialMechanism(1.0, np.ones((d, d), dtype=bool)), list[int]()
    literal = oracles.LiteralExponentialMechanism(1.0, np.ones((1, 1), dtype=bool))
    literal.set_column(0, np.array([1e300]))
    for j in range(d):
        ours.set_column(j, np.full(d, 1e300))
    ours.draw(totals_of(totals, randomness.seeded("large")))
    assert totals == [d * d * literal.weights[0][0]]


def test_a_column_given_as_an_array_that_changes_later_is_weighed_as_it_was_given() -> None:
    allowed = np.ones((2, 2), dtype=bool)
    ours, column, totals = ExponentialMechanism(1.0, allowed), np.zeros(2), list[int]()
    ours.set_column(0, column)
    ours.set_column(1, column)
    column += 100.0
    ours.draw(totals_of(totals, randomness.seeded("later")))
    assert totals == [4 * 2**52]
