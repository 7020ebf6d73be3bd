"""The test of straight lines: its level where they are straight, whatever the noise, and what it finds where not."""

import numpy as np
import pytest

from fedbnsl.rounds.curvature import STEPS
from fedbnsl.rounds.hinges import KNOTS
from fedbnsl_client.losses.curvature import Hinged, curvature_sums
from fedbnsl_server.inference.curvature import LEAST_SHARE, curvature_of

NAMES = ("a", "b", "c")
EDGE = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
PAIRS = np.array([[0, 1], [2, 1], [0, 2], [2, 0]])
NOISES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "t2": lambda rng, n: rng.standard_t(2, n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "larger where a is": None,
}


def found(X, sites=2):
    parts = [(x - x.mean(axis=0)) / X.std(axis=0) for x in np.array_split(X, sites)]
    straight = [Hinged.of(Z, np.empty(0, dtype=np.int64), np.array(KNOTS)) for Z in parts]
    return curvature_of(sum(curvature_sums(one, EDGE, PAIRS, np.array(STEPS)) for one in straight), PAIRS, NAMES)


def drawn(rng, n, noise, f):
    a, c = rng.standard_normal(n), rng.standard_normal(n)
    e = (1.0 + np.abs(a)) * rng.standard_normal(n) if NOISES[noise] is None else NOISES[noise](rng, n)
    return np.column_stack([a, f(a) + e, c])


@pytest.mark.parametrize("noise", NOISES)
def test_straight_lines_hardly_ever_raise_an_alarm(noise):
    alarms = 0
    for seed in range(150):
        told = found(drawn(np.random.default_rng(seed), 300, noise, lambda a: 0.7 * a))
        assert told.n_tested == 4
        alarms += bool(told.curves)
    assert alarms <= 7, "a level of 1 % gives as many with a chance below 1 in 1000"


CURVES = {"square": lambda a: a**2, "step": lambda a: 2.0 * (a > 0.5), "sine": lambda a: np.sin(2.0 * a)}


@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_is_found_and_named(curve):
    told = found(drawn(np.random.default_rng(1), 2000, "normal", CURVES[curve]))
    assert [one[:2] for one in told.curves] == [("a", "b")]
    assert 0.03 < told.curves[0].share < 0.7


def test_a_curve_that_explains_less_than_a_hundredth_is_not_told_however_sure_it_is():
    told = found(drawn(np.random.default_rng(1), 200_000, "normal", lambda a: a + 0.05 * a**2))
    assert not told.curves
    assert LEAST_SHARE == 0.01


def test_sums_of_nothing_test_nothing():
    told = curvature_of(np.zeros((4, 10)), PAIRS, NAMES)
    assert (told.n_tested, told.n_possible) == (0, 4)
    assert told.curves == ()
