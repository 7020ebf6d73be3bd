"""SparseMatrix against plain arrays."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.protocol.sparse import Matrix, SparseMatrix, aligned, formula_bytes

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def dense_matrices(draw: st.DrawFn) -> Matrix:
    d = draw(st.integers(1, 8))
    return draw(hnp.arrays(np.float64, (d, d), elements=st.one_of(st.just(0.0), FINITE)))


@given(dense_matrices())
def test_the_entries_of_an_array_are_its_non_zeros_row_by_row(dense: Matrix) -> None:
    matrix = SparseMatrix.from_dense(dense)
    d = len(dense)
    expected = [(i * d + j, dense[i, j]) for i in range(d) for j in range(d) if dense[i, j] != 0.0]
    assert list(zip(matrix.index.tolist(), matrix.value.tolist(), strict=True)) == expected
    assert matrix.nnz == len(expected)
    assert matrix.n_variables == d


@given(dense_matrices())
def test_an_array_comes_back(dense: Matrix) -> None:
    back = SparseMatrix.from_dense(dense).to_dense()
    assert back.shape == dense.shape
    assert np.array_equal(back, dense)


def test_entry_i_j_is_stored_at_i_d_plus_j() -> None:
    dense = np.zeros((4, 4))
    dense[1, 3] = 2.5
    assert SparseMatrix.from_dense(dense).index.tolist() == [7]


def test_changing_the_array_that_came_back_does_not_change_the_matrix() -> None:
    matrix = SparseMatrix(2, np.array([1]), np.array([2.0]))
    matrix.to_dense()[0, 1] = 9.0
    assert matrix.value.tolist() == [2.0]


def test_a_support_keeps_zeros_and_drops_what_is_off_it() -> None:
    dense = np.array([[0.0, 0.0, 5.0], [1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    support = np.array([[False, True, False], [True, False, False], [False, True, False]])
    matrix = SparseMatrix.on_support(dense, support)
    assert matrix.index.tolist() == [1, 3, 7]
    assert matrix.value.tolist() == [0.0, 1.0, 3.0]
    assert np.array_equal(matrix.support(), support)


@given(dense_matrices(), st.data())
def test_a_value_is_read_at_any_place(dense: Matrix, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, dense.size - 1)))
    read = SparseMatrix.from_dense(dense).at(np.array(places, dtype=np.int64))
    assert read.tolist() == [dense.ravel()[k] for k in places]


def test_a_multiple_of_a_difference_is_added_entry_by_entry_and_leaves_no_zeros() -> None:
    rng = np.random.default_rng(3)
    C, A, B = (np.where(rng.random((6, 6)) < 0.4, rng.standard_normal((6, 6)), 0.0) for _ in range(3))
    C[0, 1], A[0, 1], B[0, 1] = -4.0, 3.0, 1.0
    found = SparseMatrix.from_dense(C).plus(2.0, SparseMatrix.from_dense(A), SparseMatrix.from_dense(B))
    assert np.array_equal(found.to_dense(), C + 2.0 * (A - B))
    assert found.value.all()
    assert 1 not in found.index


def test_zeros_has_no_entries() -> None:
    matrix = SparseMatrix.zeros(3)
    assert matrix.nnz == 0
    assert not matrix.support().any()
    assert np.array_equal(matrix.to_dense(), np.zeros((3, 3)))


def test_float32_rounds_every_value_to_the_nearest() -> None:
    matrix = SparseMatrix(3, np.array([1, 2, 3]), np.array([0.1, 1.0, 16777217.0])).as_float32()
    assert matrix.index.tolist() == [1, 2, 3]
    assert matrix.value.tolist() == [13421773 / 2**27, 1.0, 16777216.0]
    assert matrix.value.dtype == np.float64
    assert matrix.as_float32() == matrix


@pytest.mark.parametrize(
    "other",
    [
        SparseMatrix(4, np.array([1, 5]), np.array([0.0, 2.0])),
        SparseMatrix(3, np.array([1, 6]), np.array([0.0, 2.0])),
        SparseMatrix(3, np.array([1, 5]), np.array([-0.0, 2.0])),
        SparseMatrix(3, np.array([1, 5]), np.array([0.0, math.nextafter(2.0, 3.0)])),
        SparseMatrix(3, np.array([1]), np.array([0.0])),
        SparseMatrix(3, np.array([5]), np.array([2.0])),
    ],
)
def test_matrices_are_equal_only_if_every_bit_is(other: SparseMatrix) -> None:
    matrix = SparseMatrix(3, np.array([1, 5]), np.array([0.0, 2.0]))
    assert matrix == SparseMatrix(3, np.array([1, 5]), np.array([0.0, 2.0]))
    assert matrix != other


def test_a_matrix_is_not_equal_to_something_else() -> None:
    assert SparseMatrix.zeros(2) != np.zeros((2, 2)).tolist()


@pytest.mark.parametrize(
    ("n_entries", "d", "expected"),
    [(0, 20, 0), (1, 2, 9), (10, 16, 90), (10, 17, 100), (3, 20, 30), (1, 256, 10), (1, 257, 11), (2, 1000, 22)],
)
def test_the_papers_formula_counts_8_bytes_a_value_and_whole_bytes_an_index(
    n_entries: int, d: int, expected: int
) -> None:
    assert formula_bytes(n_entries, d) == expected


def test_the_papers_formula_counts_no_index_in_a_dense_message() -> None:
    assert formula_bytes(20 * 20, 20, indexed=False) == 3200
    assert formula_bytes(0, 20, indexed=False) == 0


def test_an_index_of_the_formula_is_the_fewest_whole_bytes_that_tell_all_places_apart() -> None:
    for d in range(2, 5000):
        n_bytes = 1
        while 256**n_bytes < d * d:
            n_bytes += 1
        assert formula_bytes(1, d) == 8 + n_bytes, d


@given(dense_matrices(), st.data())
def test_a_change_holds_what_moved_and_leads_to_the_other_matrix(old: Matrix, data: st.DataObject) -> None:
    moves = st.sampled_from([0.0, 0.009, -0.011, 3.0])
    new = np.where(data.draw(hnp.arrays(np.bool_, old.shape)), 0.0, np.clip(old, -9, 9))
    new = new + data.draw(hnp.arrays(np.float64, old.shape, elements=moves))
    before, after = SparseMatrix.from_dense(old), SparseMatrix.from_dense(new)
    change = before.change_to(after, 0.01)
    assert (change.support() == (np.abs(new - old) > 0.01)).all()
    reached = before.changed_by(change)
    assert np.array_equal(reached.to_dense(), np.where(change.support(), new, old))
    assert (reached.value != 0.0).all()
    assert reached.changed_by(change) == reached
    assert before.changed_by(before.change_to(after, 0.0)) == after


def test_aligned_matrices_have_a_column_for_every_entry_of_any_of_them() -> None:
    index, values = aligned(
        SparseMatrix(3, np.array([1, 5]), np.array([1.0, 2.0])), SparseMatrix(3, np.array([3, 5]), np.array([4.0, 8.0]))
    )
    assert index.tolist() == [1, 3, 5]
    assert values.tolist() == [[1.0, 0.0, 2.0], [0.0, 4.0, 8.0]]
