"""Mean products between two rows of a group, against loops over pairs of rows; gaps against whole conditional laws."""

from itertools import permutations

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.mapped_array import gathered, lies_in_file
from fedbnsl_client.losses.between_rows import FEWEST_GROUPS, between_rows, conditional_means

SIZES = np.array([1, 3, 200, 1, 2, 93, 2, 2, 3, 2, 4, 2, 2])
X = np.random.default_rng(0).standard_normal((SIZES.sum(), 3)) + np.repeat(np.arange(13.0), SIZES)[:, None]


def looped(X: Matrix, sizes: Index) -> tuple[Matrix, int]:
    total, n, start = np.zeros((X.shape[1], X.shape[1])), 0, 0
    for m in sizes.tolist():
        for i, j in permutations(range(start, start + m), 2):
            total += np.outer(X[i], X[j])
            n += 1
        start += m
    return total / n, n


def test_products_are_those_of_all_ordered_pairs_of_rows_of_a_group() -> None:
    expected, n = looped(X, SIZES)
    found = between_rows(X, SIZES, lambda block: block)
    assert found.n_pairs == n
    assert found.products == pytest.approx(expected)


def test_blocks_of_a_table_in_a_file_may_part_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 1)  # 64 rows
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 100)
    in_file = gathered(iter([X]), X.shape[1])
    assert lies_in_file(in_file)
    assert between_rows(in_file, SIZES, lambda block: block).products == pytest.approx(looped(X, SIZES)[0])


def test_the_order_of_groups_and_of_their_rows_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.permutation(part) for part in np.split(X, np.cumsum(SIZES)[:-1])]
    order = rng.permutation(len(SIZES))
    other = between_rows(np.concatenate([parts[k] for k in order]), SIZES[order], lambda block: block)
    assert other.products == pytest.approx(between_rows(X, SIZES, lambda block: block).products)


def test_rows_alone_have_no_products() -> None:
    found = between_rows(X, np.ones(len(X), dtype=np.int64), lambda block: block)
    assert found.n_pairs == 0
    assert not found.products.any()


def test_nothing_is_told_of_few_groups() -> None:
    """Of one group of two rows it would be these rows."""
    few = np.array([1] * 11 + [2] * (FEWEST_GROUPS - 1))
    found = between_rows(X[: few.sum()], few, lambda block: block)
    assert found.n_pairs == 0
    assert not found.products.any()
    assert between_rows(X[: few.sum() + 2], np.append(few, 2), lambda block: block).n_pairs == 2 * FEWEST_GROUPS


def test_a_gap_is_what_the_other_values_of_its_row_let_expect() -> None:
    rng = np.random.default_rng(2)
    half = rng.standard_normal((4, 4))
    S = np.zeros((5, 5))  # the last column does not vary
    S[:4, :4] = half @ half.T
    x = np.where(rng.random((40, 5)) < 0.4, np.nan, rng.standard_normal((40, 5)))
    found = conditional_means(x, S)
    for row, whole in zip(x, found, strict=True):
        known, gaps = (np.flatnonzero(one[:4]) for one in (~np.isnan(row), np.isnan(row)))
        expected = S[np.ix_(gaps, known)] @ np.linalg.pinv(S[np.ix_(known, known)]) @ row[known]
        assert whole[gaps] == pytest.approx(expected, abs=1e-6)
        assert (whole[known] == row[known]).all()
        assert whole[4] == (0.0 if np.isnan(row[4]) else row[4])
