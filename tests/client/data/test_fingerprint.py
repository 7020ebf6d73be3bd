"""What a column is known by: all of its values, in whatever order, under the key of a ledger."""

import numpy as np

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import fingerprint
from fedbnsl_client.data.fingerprint import recognised

KEY = b"k" * 32
TABLE = np.random.default_rng(3).normal(size=(50, 1))


def column(X: Matrix, key: bytes = KEY) -> str:
    (found,) = recognised(key, ("age",), X).columns
    return found


def with_other_bits(X: Matrix, change: list[int]) -> Matrix:
    """The first values with so much added to their bits, read as whole numbers."""
    bits = X.copy().view(np.uint64)
    bits[: len(change), 0] += np.array(change).astype(np.uint64)
    return bits.view(np.float64)


def test_a_column_is_known_in_any_order_and_by_every_bit_of_its_values() -> None:
    known = column(TABLE)
    assert column(TABLE[::-1]) == known != column(TABLE, b"j" * 32)
    assert column(with_other_bits(TABLE, [1])) != known


def test_changes_that_cancel_in_sums_of_bits_are_seen() -> None:
    """Also in twos and threes, and whichever of the two sums is looked at."""
    for change in ([1, -1], [5, -5], [2**20, -(2**20)], [1, -2, 1], [2**40, 2**40, -(2**41)]):
        changed = with_other_bits(TABLE, change)
        assert np.isfinite(changed).all()
        assert column(changed) != column(TABLE)


def test_the_sums_of_a_column_are_keyed_and_two() -> None:
    """Of a column, sums are all that is known."""
    called = [fingerprint._ColumnSums.of(key)(TABLE).sums[:, 0].tolist() for key in (KEY, b"j" * 32)]
    assert len({number for sums in called for number in sums}) == 4
