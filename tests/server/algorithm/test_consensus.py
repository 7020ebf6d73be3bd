"""The robust rules, entry by entry against slow ones, and what a minority of sites can do to them."""

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_server.algorithm.consensus import RobustRule

Rule = Literal["median", "trimmed-mean"]
RULES: tuple[Rule, ...] = ("median", "trimmed-mean")


def counted_rows(rows: list[int]) -> list[int]:
    """Each row count, at most the lower median of all."""
    middle = sorted(rows)[(len(rows) - 1) // 2]
    return [min(n, middle) for n in rows]


def slow(values: list[float], rows: list[int], rule: Rule) -> float:
    """Every row stands in a line by its site's value; from each end, the same number of rows walks away."""
    line = sorted(
        value for value, n in zip(values, counted_rows(rows), strict=True) for _ in range(4 * n)
    )  # 4 n, so that a quarter of the rows is a whole number
    if rule == "median":
        return 0.5 * (line[len(line) // 2 - 1] + line[len(line) // 2])
    away = max(len(line) // 4, 4 * max(counted_rows(rows)))
    kept = line[away : len(line) - away]
    return sum(kept) / len(kept)


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 30)), min_size=3, max_size=9),
    st.sampled_from(RULES),
)
def test_every_entry_is_that_of_rows_in_a_line(sites: list[tuple[int, int]], rule: Rule) -> None:
    values, rows = [float(value) for value, _ in sites], [n for _, n in sites]
    found = RobustRule.of(rule, rows)(np.array([[value, -value] for value in values]))
    assert found[0] == pytest.approx(slow(values, rows, rule), abs=1e-9)
    assert found[1] == pytest.approx(slow([-value for value in values], rows, rule), abs=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_of_three_equal_sites_the_middle_one_counts(rule: Rule) -> None:
    values = np.array([[3.0, -1e300], [1.0, 0.5], [2.0, 1e300]])
    assert RobustRule.of(rule, [10, 10, 10])(values).tolist() == [2.0, 0.5]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rows", [[583, 1409, 775], [999, 1000, 1001, 10**6], [7, 11, 13, 17, 19]])
def test_nothing_is_left_of_a_value_that_is_cut_off(rule: Rule, rows: list[int]) -> None:
    """Shares of the weight are no whole numbers: rounding once left 1e-16 of a site, times whatever it sent."""
    for wrong in range(len(rows)):
        for huge in (1e300, -1e300, np.inf):
            values = np.ones((len(rows), 1))
            values[wrong] = huge
            assert RobustRule.of(rule, rows)(values).tolist() == [1.0]


@pytest.mark.parametrize("rule", RULES)
def test_an_infinite_value_counts_only_where_it_is_kept(rule: Rule) -> None:
    values = np.array([[np.inf, np.inf, -np.inf], [1.0, np.inf, 1.0], [2.0, np.inf, 2.0]])
    assert RobustRule.of(rule, [10, 10, 10])(values).tolist() == [2.0, np.inf, 1.0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("n_sites", "n_wrong"), [(3, 1), (4, 1), (8, 2)])
@pytest.mark.parametrize("claimed", [1, 50, 10**12])
def test_a_minority_moves_no_entry_beyond_the_honest_ones_whatever_rows_it_claims(
    rule: Rule, n_sites: int, n_wrong: int, claimed: int
) -> None:
    rng = np.random.default_rng(n_sites)
    values = rng.standard_normal((n_sites, 40))
    values[:n_wrong] = 1e200
    combined = RobustRule.of(rule, [claimed] * n_wrong + [50] * (n_sites - n_wrong))(values)
    honest = values[n_wrong:]
    assert (combined <= honest.max(axis=0) + 1e-12).all()
    assert (combined >= honest.min(axis=0) - 1e-12).all()


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=3, max_size=9), st.sampled_from(RULES))
def test_what_counts_is_the_weight_of_the_wrong_sites(sites: list[tuple[int, bool]], rule: Rule) -> None:
    rows = [n for n, _ in sites]
    weights = counted_rows(rows)
    wrong = sum(n for n, (_, is_wrong) in zip(weights, sites, strict=True) if is_wrong)
    if rule == "median":
        assume(2 * wrong < sum(weights))
    else:
        assume(wrong <= max(sum(weights) / 4, max(weights)))
    assume(not all(is_wrong for _, is_wrong in sites))
    combined = float(RobustRule.of(rule, rows)(np.array([1e9 if is_wrong else 1.0 for _, is_wrong in sites])))
    assert combined == pytest.approx(1.0, abs=1e-3)


def test_a_trimmed_mean_does_not_hold_against_all_that_a_median_holds_against() -> None:
    values = np.array([9.0, 9.0, 1.0, 1.0, 1.0])
    assert RobustRule.of("median", [10] * 5)(values) == 1.0
    assert RobustRule.of("trimmed-mean", [10] * 5)(values) > 1.0
    many_rows = np.array([9.0, 9.0] + [1.0] * 6)  # two of eight, with 40 % of the weight
    rule = RobustRule.of("trimmed-mean", [1000] * 5 + [1] * 3)
    assert rule(many_rows) > 1.0


@pytest.mark.parametrize("rule", RULES)
def test_the_noise_estimate_is_at_least_that_of_drawn_noise(rule: Rule) -> None:
    stds = [1.0, 1.0, 1.0, 1.0, 1.0]
    values = np.random.default_rng(3).standard_normal((5, 100_000))
    robust = RobustRule.of(rule, [100] * 5)
    drawn = float(robust(values).std())
    assert drawn <= robust.noise_std(stds) <= 1.3 * drawn
    assert robust.noise_std(stds) == pytest.approx(math.sqrt(math.pi / 2 / 5))


@pytest.mark.parametrize(
    ("rule", "distances", "kept"),
    [
        ("median", [1.0, 9.0, 2.0], [0, 2]),
        ("trimmed-mean", [1.0, 9.0, 2.0], [0, 2]),
        ("median", [9.0, 1.0, 2.0, 3.0, 8.0, 7.0, 6.0, 5.0], [1, 2, 3, 6, 7]),
        ("trimmed-mean", [9.0, 1.0, 2.0, 3.0, 8.0, 7.0, 6.0, 5.0], [1, 2, 3, 5, 6, 7]),
    ],
)
def test_whole_sites_are_left_out_from_the_farthest_on(rule: Rule, distances: list[float], kept: list[int]) -> None:
    assert RobustRule.of(rule, [10] * len(distances)).nearest(np.array(distances)) == kept


def test_the_entries_of_sparse_matrices_that_a_site_does_not_store_are_its_zeros() -> None:
    from fedbnsl_server.algorithm.admm import _robust_sum  # pyright: ignore[reportPrivateUsage]

    stored = [np.array([[0.0, b], [0.0, 0.0]]) for b in (5.0, 0.0, 2.0)]
    duals = [np.array([[0.0, 3.0], [0.0, 0.0]])] * 3
    A = _robust_sum(
        RobustRule.of("median", [1, 1, 1]),
        [SparseMatrix.from_dense(B) for B in stored],
        [SparseMatrix.from_dense(beta) for beta in duals],
        1.5,
    )
    assert A.to_dense().tolist() == [[0.0, 2.0 + 2.0], [0.0, 0.0]]
