"""Private steps by whoever sees every answer: the best that any adaptive choice of runs and steps can tell.

The hockey-stick divergence of what can still be released, sup over all strategies, as a function on a grid of epsilons:
for each answer so far the next move may be another one. Nothing here knows the lemma that the accounting rests on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtr

from fedbnsl.protocol.sparse import Matrix

_CELLS = 16  # of a grid, in the range of a selection
_OPEN_RUNS = 2
_REACH = 9.0  # epsilons that are looked at, on both sides of 0


@dataclass(frozen=True)
class Runs:
    """What runs may be opened: each has so many steps, of a selection and a Gaussian release, and costs 1 a step.

    Attributes
    ----------
    share
        v of a selection; the Gaussian release of a step has mu^2 = 1 - v.
    steps
        Of a whole run.
    charge
        What comes on top for the k-th step of a run, k = 0, 1, ...: the rule under test.
    """

    share: float
    steps: int
    charge: Callable[[int], float]


def largest_excess(runs: Runs, budget: float) -> float:
    """By how much, at any epsilon, a strategy within the budget exceeds a Gaussian mechanism of mu^2 = `budget`."""
    game = _Game(runs)
    best = game.divergence(budget, ())
    inside = np.abs(game.epsilons) <= _REACH / 3
    return float((best - gaussian_divergence(budget, game.epsilons))[inside].max())


def gaussian_divergence(mu_squared: float, epsilons: Matrix) -> Matrix:
    """Delta of a Gaussian mechanism at each of (n,) epsilons, of any sign."""
    mu = math.sqrt(mu_squared)
    return np.asarray(ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu))


@dataclass
class _Game:
    runs: Runs
    known: dict[tuple[float, tuple[int, ...]], Matrix] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.range = 2.0 * math.sqrt(self.runs.share)  # of a selection: v = range^2 / 4
        self.cell = self.range / _CELLS
        n = math.ceil(_REACH / self.cell)
        self.epsilons = self.cell * np.arange(-n, n + 1)
        self.nothing = np.maximum(-np.expm1(self.epsilons), 0.0)

    def divergence(self, budget: float, begun: tuple[int, ...]) -> Matrix:
        """Of all that may follow, where runs of which so many steps are taken are begun: at each epsilon, at most."""
        key = round(budget, 9), tuple(sorted(begun))
        if key not in self.known:
            moves = [self.nothing]
            if budget >= 0.5:
                moves.append(self._gaussian(0.5, self.divergence(budget - 0.5, begun)))
            if len(begun) < _OPEN_RUNS:
                moves += self._step(budget, begun, 0)
            for k in {k for k in begun if k < self.runs.steps}:
                others = list(begun)
                others.remove(k)
                moves += self._step(budget, tuple(others), k)
            self.known[key] = np.max(moves, axis=0)
        return self.known[key]

    def _step(self, budget: float, others: tuple[int, ...], k: int) -> list[Matrix]:
        left = budget - 1.0 - self.runs.charge(k)
        if left < -1e-9:
            return []
        rest = self.divergence(max(left, 0.0), (*others, k + 1))
        return [self._selection(self._gaussian(1.0 - self.runs.share, rest))]

    def _gaussian(self, mu_squared: float, rest: Matrix) -> Matrix:
        """A Gaussian release and then the rest: the mean of rest(epsilon - loss) under the law of the first table."""
        n = math.ceil(9.0 * math.sqrt(mu_squared) / self.cell)
        loss = self.cell * np.arange(-n, n + 1)
        tilted = np.exp(-loss * loss / (2.0 * mu_squared))
        law = tilted * np.exp(loss / 2.0)
        return np.convolve(self._extended(rest, n), law / law.sum(), "valid")

    def _selection(self, rest: Matrix) -> Matrix:
        """The worst selection and then the rest: its losses are t and t - range, for the worst t at each epsilon."""
        n, wide, found = len(rest), self._extended(rest, _CELLS), self.nothing
        for k in range(_CELLS + 1):
            t = k * self.cell
            high = (math.exp(self.range) - math.exp(t)) / math.expm1(self.range)
            up, down = (
                wide[_CELLS - k :][:n],
                wide[2 * _CELLS - k :][:n],
            )  # rest(epsilon - t), rest(epsilon - t + range)
            found = np.maximum(found, high * up + (1.0 - high) * down)
        return found

    def _extended(self, rest: Matrix, n: int) -> Matrix:
        """Beyond the grid, where two tables are told apart either way or not at all."""
        low = self.epsilons[0] - self.cell * np.arange(n, 0, -1)
        return np.concatenate([-np.expm1(low), rest, np.zeros(n)])


def charged(rule: str, runs: Runs, surcharge: float) -> Runs:
    """The runs, with their surcharge by this rule: `first`, `last`, `spread` over the steps, or `never`."""
    rules: dict[str, Callable[[int], float]] = {
        "first": lambda k: surcharge if k == 0 else 0.0,
        "last": lambda k: surcharge if k == runs.steps - 1 else 0.0,
        "spread": lambda k: surcharge / runs.steps,
        "never": lambda k: 0.0,
    }
    return replace(runs, charge=rules[rule])
