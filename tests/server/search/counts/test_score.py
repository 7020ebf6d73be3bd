"""The gain of parents, against the definition: maximised likelihoods, and regrets summed over all possible tables."""

import itertools
import math

import numpy as np
import pytest

from fedbnsl.graphs.contingency import VariableSet
from fedbnsl_server.search.counts.redrawn import Records
from fedbnsl_server.search.counts.score import Gains, log_regret


def regret(cells: int, n: int) -> float:
    """The sum over all tables of n records of their largest likelihood."""
    total = 0.0
    for table in itertools.product(range(n + 1), repeat=cells):
        if sum(table) == n:
            ways = math.factorial(n)
            for k in table:
                ways //= math.factorial(k)
            total += ways * math.prod((k / n) ** k for k in table)
    return total


def set_score(codes: np.ndarray) -> float:
    """Q of all columns together, from the definition; levels that occur nowhere are no levels."""
    _, counts = np.unique(codes, axis=0, return_counts=True)
    cells = math.prod(len(np.unique(column)) for column in codes.T)
    n = len(codes)
    return sum(k * math.log(k / n) for k in counts.tolist()) - math.log(regret(cells, n))


@pytest.mark.parametrize(("cells", "n"), [(1, 4), (2, 1), (2, 9), (3, 7), (5, 4), (6, 3)])
def test_the_regret_is_the_sum_over_all_tables(cells: int, n: int) -> None:
    assert log_regret(cells, n) == pytest.approx(math.log(regret(cells, n)), abs=1e-12)


def test_the_approximate_regret_of_two_cells_continues_the_exact_sum() -> None:
    below, at, above = (log_regret(2, n) for n in (999, 1000, 1001))
    assert above - at == pytest.approx(at - below, abs=2e-6)
    n = 3000
    terms = (
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        + sum(m * math.log(m / n) for m in (k, n - k) if m)
        for k in range(n + 1)
    )  # fmt: skip
    exact = math.fsum(map(math.exp, terms))
    assert log_regret(2, 3000) == pytest.approx(math.log(exact), abs=1e-6)


@pytest.mark.parametrize("parents", [(1,), (0, 1), (1, 3)])
def test_the_gain_is_that_of_the_definition(parents: VariableSet) -> None:
    rng = np.random.default_rng(len(parents))
    codes = np.column_stack([rng.integers(0, 2, 7), rng.integers(0, 2, 7), rng.integers(0, 2, 7), np.ones(7, int)])
    levels = np.array([2, 3, 2, 3])  # one of a column, and two of another one, occur nowhere
    child = 2
    expected = (
        set_score(codes[:, sorted((child, *parents))])
        - set_score(codes[:, list(parents)])
        - set_score(codes[:, [child]])
    )
    assert Gains(Records(codes.T, levels), levels)(child, parents) == pytest.approx(expected, abs=1e-10)


def test_a_table_beyond_the_limit_has_no_gain_and_is_not_looked_up() -> None:
    levels = np.array([70, 70, 70])
    assert Gains(Records([np.zeros(3, int)] * 3, levels), levels)(0, (1, 2)) == -math.inf
