"""The influence of a site: by the formula in loops, under hostile numbers, and for honest sites."""

import math
import statistics

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.influence import (
    LIMIT,
    MOST_VARIANCE,
    Compared,
    Influence,
    influences,
    sampling_variance,
)


def places(n: int) -> Matrix:
    return np.stack([np.arange(n), np.arange(n)], axis=1)


def compared(values: Matrix, rows: list[int], *, one_vote: bool = False) -> Compared:
    return Compared(values, sampling_variance(rows), places(values.shape[1]), one_vote=one_vote)


def slow(values: Matrix, rows: list[int], *, one_vote: bool) -> list[float]:
    """The docstring's formula, one number after the other."""
    middle = [statistics.median(column) for column in values.T.tolist()]

    def ratios(variances: list[float]) -> list[float]:
        D = [
            math.sqrt(statistics.mean((v - c) ** 2 / u for v, c in zip(row, middle, strict=True)))
            for row, u in zip(values.tolist(), variances, strict=True)
        ]
        return [D[p] / max(1.0, statistics.median(D[:p] + D[p + 1 :])) for p in range(len(D))]

    u = [1.0 / n for n in rows]
    common = statistics.median(u)
    own = [min(one, MOST_VARIANCE * common) for one in u] if one_vote else u
    return [min(pair) for pair in zip(ratios(own), ratios([common] * len(u)), strict=True)]


@pytest.mark.parametrize("n_sites", [3, 4, 8])
@pytest.mark.parametrize("spread", [0.01, 5.0])
@pytest.mark.parametrize("one_vote", [False, True])
def test_it_is_the_formula_of_the_docstring(n_sites: int, spread: float, *, one_vote: bool) -> None:
    rng = np.random.default_rng(n_sites)
    values, rows = spread * rng.standard_normal((n_sites, 7)), rng.integers(50, 500, n_sites).tolist()
    rows[0] = 20
    found = [one.ratio for one in influences([compared(values, rows, one_vote=one_vote)])]
    assert found == pytest.approx(slow(values, rows, one_vote=one_vote))


def test_the_largest_of_several_kinds_of_numbers_counts() -> None:
    calm, wild = np.zeros((3, 4)), np.zeros((3, 4))
    wild[1] = 50.0
    found = influences([compared(calm, [100] * 3), compared(wild, [100] * 3)])
    assert [one.ratio for one in found] == [0.0, 500.0, 0.0]


def test_the_variables_of_the_largest_distance_are_named_first_and_only_above_the_limit() -> None:
    values = np.zeros((3, 5))
    values[2] = [0.0, 7.0, 0.1, 9.0, 0.0]
    found = influences([compared(values, [100] * 3)])
    assert [one.variables for one in found] == [(), (), (3, 1)]
    values[2] *= 0.01
    assert influences([compared(values, [100] * 3)])[2].variables == ()


def test_a_number_about_a_pair_counts_for_both_variables() -> None:
    values = np.zeros((3, 3))
    values[0] = [0.0, 8.0, 8.0]
    pairs = np.array([[0, 1], [1, 2], [1, 3]])
    found = influences([Compared(values, sampling_variance([100] * 3), pairs, one_vote=True)])
    assert found[0].variables == (1, 2, 3)


@pytest.mark.parametrize("huge", [1e200, 1.7e308, -1.7e308])
def test_numbers_that_overflow_make_their_site_stand_out_and_no_other(huge: float) -> None:
    values = np.random.default_rng(1).standard_normal((3, 6)) / 10
    values[1] = huge
    found = influences([compared(values, [100] * 3)])
    assert math.isfinite(found[1].ratio)
    assert found[1].ratio > LIMIT
    assert max(found[0].ratio, found[2].ratio) < LIMIT


def test_two_sites_are_not_compared() -> None:
    assert influences([compared(np.array([[0.0], [9.0]]), [10, 10])]) == []


def test_nothing_sent_is_nothing_to_compare() -> None:
    assert influences([compared(np.zeros((3, 0)), [10] * 3)]) == []


@pytest.mark.parametrize("rows", [[1000] * 3, [50, 1000, 5000], [1000] * 8])
def test_sampling_alone_makes_no_site_stand_out(rows: list[int]) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        values = rng.standard_normal((len(rows), 30)) / np.sqrt(rows)[:, None]
        assert max(one.ratio for one in influences([compared(values, rows)])) < 3.0


def test_a_site_that_claims_few_rows_is_not_allowed_any_error() -> None:
    values = np.zeros((3, 4))
    values[0] = 100.0
    assert influences([compared(values, [1, 10_000, 10_000])])[0] == Influence(1000.0, (0, 1, 2, 3))


@pytest.mark.parametrize("claimed", [1, 10, 100, 1000])
def test_where_each_site_has_one_vote_few_rows_hide_no_shift_that_moves_the_mean(claimed: int) -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        values = rng.standard_normal((4, 50)) / math.sqrt(1000)
        values[0] += 1.2  # the mean of the four moves by 0.3
        found = [one.ratio for one in influences([compared(values, [claimed, 1000, 1000, 1000], one_vote=True)])]
        assert [ratio > LIMIT for ratio in found] == [True, False, False, False]


@pytest.mark.parametrize("n_sites", [3, 5, 8])
def test_honest_sites_of_100_to_10000_rows_do_not_stand_out_where_each_has_one_vote(n_sites: int) -> None:
    rng = np.random.default_rng(8)
    for _ in range(200):
        rows = np.exp(rng.uniform(math.log(100), math.log(10_000), n_sites)).astype(int).tolist()
        values = rng.standard_normal((n_sites, 30)) / np.sqrt(rows)[:, None]
        assert max(one.ratio for one in influences([compared(values, rows, one_vote=True)])) < LIMIT
