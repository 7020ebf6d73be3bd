"""Matrices and numbers to protobuf and back. Decoded values are valid; anything else raises MalformedMessageError."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.protocol import rice
from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix, symmetric_of, upper
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import values_pb2 as values

_LEAST_EXPONENT = -64  # of packed values: below, a float would not be one on the way


class Encoding(NamedTuple):
    """How a run's numbers are sent: `Plan.value_type`, and whether B_p and W have all d^2 entries."""

    value_type: str
    dense: bool = False


_Values = values.SparseMatrix | values.DenseMatrix | values.Numbers


def _fill(wire: _Values, numbers: Matrix, value_type: str) -> None:
    (wire.value32 if value_type == "float32" else wire.value).extend(numbers.tolist())


def _read(wire: _Values) -> Matrix:
    if wire.value and wire.value32:
        raise MalformedMessageError("numbers in both precisions")
    return finite(wire.value32 or wire.value)


def _expect_variables(found: int, expected: int) -> None:
    if found != expected:
        raise MalformedMessageError(f"matrix over {found} variables; this run has {expected}")


def expect_form(found: str | None, expected: str) -> None:
    """Refuse a message without weights, or with weights in a form that the plan does not use."""
    if found != expected:
        raise MalformedMessageError(f"message with {found or 'no weights'}; expected {expected}")


def encode_matrix(matrix: SparseMatrix, *, value_type: str) -> values.SparseMatrix:
    """Wire form of a sparse matrix: gaps between flat indices, values in the plan's `value_type`.

    Or whole multiples of a power of two, if they are exactly that and take fewer bytes; see `Plan.send_step`.
    """
    wire = values.SparseMatrix(n_variables=matrix.n_variables)
    if not matrix.nnz:
        return wire
    wire.index_gap.extend(np.diff(matrix.index, prepend=0).tolist())
    _fill(wire, matrix.value, value_type)
    if (exponent := _common_exponent(matrix.value)) is not None:
        packed = _packed(matrix, exponent)
        if packed.ByteSize() < wire.ByteSize():
            return packed
    return wire


def _common_exponent(value: Matrix) -> int | None:
    """The largest e (at most 0) of which all values are multiples of 2^e; None if one is too large, -0 or no number."""
    if not np.isfinite(value).all() or (np.signbit(value) & (value == 0.0)).any():
        return None
    fraction, exponent = np.frexp(value)
    whole = np.ldexp(fraction, 53).astype(np.int64)  # times 2^(exponent - 53), exactly
    lowest_bit = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    common = min(int((exponent + lowest_bit - 53)[whole != 0].min(initial=0)), 0)
    if common < _LEAST_EXPONENT:
        return None
    with np.errstate(over="ignore"):
        largest = np.abs(np.ldexp(value, -common)).max()
    if largest >= rice.END // 2:
        return None
    return common


def _packed(matrix: SparseMatrix, exponent: int) -> values.SparseMatrix:
    """Wire form of a matrix whose values are multiples of 2^exponent."""
    multiple = np.ldexp(matrix.value, -exponent).astype(np.int64)
    gap = np.diff(matrix.index, prepend=-1) - 1
    packed = rice.pack(gap.astype(np.uint64)) + rice.pack(((multiple << 1) ^ (multiple >> 63)).astype(np.uint64))
    return values.SparseMatrix(n_variables=matrix.n_variables, packed=packed, n_packed=matrix.nnz, exponent=exponent)


def _unpacked(wire: values.SparseMatrix, most: int) -> tuple[Index, Matrix]:
    """Flat indices and values of a packed matrix with at most `most` entries."""
    if wire.index_gap or wire.value or wire.value32:
        raise MalformedMessageError("a matrix in two forms")
    if wire.n_packed > most or not _LEAST_EXPONENT <= wire.exponent <= 0:
        raise MalformedMessageError(f"a packed matrix with {wire.n_packed} entries, in units of 2^{wire.exponent}")
    gap, rest = rice.unpack(wire.packed, wire.n_packed)
    coded, rest = rice.unpack(rest, wire.n_packed)
    if rest:
        raise MalformedMessageError(f"{len(rest)} bytes after the last entry of a packed matrix")
    multiple = (coded >> np.uint64(1)).astype(np.int64) ^ -(coded & np.uint64(1)).astype(np.int64)
    return np.cumsum(gap.astype(np.int64) + 1) - 1, np.ldexp(multiple.astype(np.float64), wire.exponent)


def decode_matrix(wire: values.SparseMatrix, *, n_variables: int) -> SparseMatrix:
    """Sparse matrix from its wire form."""
    _expect_variables(wire.n_variables, n_variables)
    if wire.packed or wire.n_packed or wire.exponent:
        index, value = _unpacked(wire, n_variables * (n_variables - 1))
        return _in_range(n_variables, index, value)
    gap, value = np.array(wire.index_gap, dtype=np.int64), _read(wire)
    if gap.size != value.size:
        raise MalformedMessageError(f"matrix with {gap.size} indices and {value.size} values")
    if gap.size > n_variables * (n_variables - 1):
        raise MalformedMessageError(f"matrix with {gap.size} entries; {n_variables} variables have fewer pairs")
    if (gap[1:] < 1).any():
        raise MalformedMessageError("matrix whose indices do not increase")
    return _in_range(n_variables, np.cumsum(gap), value)


def _in_range(n_variables: int, index: Index, value: Matrix) -> SparseMatrix:
    if index.size and index[-1] >= n_variables**2:
        raise MalformedMessageError(f"matrix with index {index[-1]}; the last one is {n_variables**2 - 1}")
    if (index % (n_variables + 1) == 0).any():
        raise MalformedMessageError("matrix with an entry on the diagonal")
    return SparseMatrix(n_variables, index, value)


def encode_pairs(matrix: SparseMatrix) -> values.SparseMatrix:
    """Wire form of where a matrix has entries, without values."""
    return values.SparseMatrix(n_variables=matrix.n_variables, index_gap=np.diff(matrix.index, prepend=0).tolist())


def decode_pairs(wire: values.SparseMatrix, *, n_variables: int) -> SparseMatrix:
    """Matrix with ones where the wire form has an entry."""
    if wire.value or wire.value32 or wire.packed or wire.n_packed or wire.exponent:
        raise MalformedMessageError("pairs with values")
    ones = values.SparseMatrix(
        n_variables=wire.n_variables, index_gap=wire.index_gap, value=[1.0] * len(wire.index_gap)
    )
    return decode_matrix(ones, n_variables=n_variables)


def encode_dense(matrix: SparseMatrix, *, value_type: str) -> values.DenseMatrix:
    """Wire form of all d^2 entries of a matrix, in the plan's `value_type`."""
    wire = values.DenseMatrix(n_variables=matrix.n_variables)
    _fill(wire, matrix.to_dense().ravel(), value_type)
    return wire


def decode_dense(wire: values.DenseMatrix, *, n_variables: int) -> SparseMatrix:
    """Matrix with all d^2 entries, zeros and diagonal included, from its dense wire form."""
    _expect_variables(wire.n_variables, n_variables)
    value = _read(wire)
    if value.size != n_variables**2:
        raise MalformedMessageError(f"dense matrix with {value.size} values; expected {n_variables**2}")
    return SparseMatrix(n_variables, np.arange(n_variables**2), value)


def encode_numbers(numbers: Matrix, *, value_type: str) -> values.Numbers:
    """Wire form of a vector, in the plan's `value_type`."""
    wire = values.Numbers()
    _fill(wire, numbers, value_type)
    return wire


def decode_numbers(wire: values.Numbers, *, most: int) -> Matrix:
    """Vector from its wire form."""
    numbers = _read(wire)
    if numbers.size > most:
        raise MalformedMessageError(f"{numbers.size} numbers; expected at most {most}")
    return numbers


def decode_columns(wire: Sequence[int], n_variables: int) -> Index:
    """Ascending columns from their wire form."""
    if list(wire) != sorted(set(wire)) or max(wire, default=0) >= n_variables:
        raise MalformedMessageError("columns that are out of range or not ascending")
    return np.array(wire, dtype=np.int64)


def finite(numbers: Iterable[float]) -> Matrix:
    """The numbers as a vector."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is refused like any other, not warned of
        vector = np.array(numbers, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise MalformedMessageError("a number that is not finite")
    return vector


def as_sent(numbers: Matrix, value_type: str) -> Matrix:
    """A vector after the rounding of `value_type`: what the other side receives."""
    return numbers.astype(np.float32).astype(np.float64) if value_type == "float32" else numbers


def encode_covariances(told: Covariances | None) -> federation.Covariances | None:
    """Wire form; None for None."""
    return None if told is None else federation.Covariances(covariance=upper(told.S).tolist(), mean=told.means.tolist())


def decode_covariances(wire: federation.Covariances, n_variables: int) -> Covariances | None:
    """None for a message without an entry; a variance is at least 0, and 0 only of a column apart from all others."""
    values, means = finite(wire.covariance), finite(wire.mean)
    if not values.size and not means.size:
        return None
    if values.size != n_variables * (n_variables + 1) // 2 or means.size not in (0, n_variables):
        raise MalformedMessageError(f"{values.size} covariances and {means.size} means of {n_variables} columns")
    S = symmetric_of(values, n_variables)
    without = S.diagonal() == 0.0
    if (S.diagonal() < 0.0).any() or S[without].any():
        raise MalformedMessageError("a variance below 0, or a covariance of a column without a variance")
    return Covariances(S, means)
