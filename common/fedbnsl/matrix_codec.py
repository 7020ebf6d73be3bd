"""Matrices and numbers to protobuf and back. Whatever decodes is valid: all else raises MalformedMessageError."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedbnsl.errors import MalformedMessageError
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl.wire import values_pb2 as values


class Encoding(NamedTuple):
    """How a run's numbers are sent: `Plan.value_type`, and whether B_p and W have all d^2 entries."""

    value_type: str
    dense: bool = False


def encode_matrix(matrix: SparseMatrix, *, value_type: str) -> values.SparseMatrix:
    """Wire form of a sparse matrix: gaps between flat indices, values in the plan's `value_type`."""
    wire = values.SparseMatrix(n_variables=matrix.n_variables)
    if matrix.nnz:
        wire.index_gap.extend(np.diff(matrix.index, prepend=0).tolist())
        (wire.value32 if value_type == "float32" else wire.value).extend(matrix.value.tolist())
    return wire


def decode_matrix(wire: values.SparseMatrix, *, n_variables: int) -> SparseMatrix:
    """Sparse matrix from its wire form.

    Raises
    ------
    MalformedMessageError
        Unless n_variables is as expected, there is one gap for each value, values are finite, gaps after the first are
        at least 1 and every index is in range and off the diagonal.
    """
    if wire.n_variables != n_variables:
        raise MalformedMessageError(f"matrix over {wire.n_variables} variables; this run has {n_variables}")
    if wire.value and wire.value32:
        raise MalformedMessageError("matrix with values in both precisions")
    gap = np.array(wire.index_gap, dtype=np.int64)
    value = np.array(wire.value32 or wire.value, dtype=np.float64)
    if gap.size != value.size:
        raise MalformedMessageError(f"matrix with {gap.size} indices and {value.size} values")
    if gap.size > n_variables * (n_variables - 1):
        raise MalformedMessageError(f"matrix with {gap.size} entries; {n_variables} variables have fewer pairs")
    if (gap[1:] < 1).any():
        raise MalformedMessageError("matrix whose indices do not increase")
    index = np.cumsum(gap)
    if index.size and index[-1] >= n_variables**2:
        raise MalformedMessageError(f"matrix with index {index[-1]}; the last one is {n_variables**2 - 1}")
    if (index % (n_variables + 1) == 0).any():
        raise MalformedMessageError("matrix with an entry on the diagonal")
    if not np.isfinite(value).all():
        raise MalformedMessageError("matrix with a value that is not finite")
    return SparseMatrix(n_variables, index, value)


def encode_dense(matrix: SparseMatrix, *, value_type: str) -> values.DenseMatrix:
    """Wire form of all d^2 entries of a matrix, in the plan's `value_type`."""
    wire = values.DenseMatrix(n_variables=matrix.n_variables)
    (wire.value32 if value_type == "float32" else wire.value).extend(matrix.to_dense().ravel().tolist())
    return wire


def decode_dense(wire: values.DenseMatrix, *, n_variables: int) -> SparseMatrix:
    """Matrix with all d^2 entries, zeros and diagonal included, from its dense wire form.

    Raises
    ------
    MalformedMessageError
        Unless n_variables is as expected and there are d^2 finite values in one precision.
    """
    if wire.n_variables != n_variables:
        raise MalformedMessageError(f"matrix over {wire.n_variables} variables; this run has {n_variables}")
    if wire.value and wire.value32:
        raise MalformedMessageError("matrix with values in both precisions")
    value = np.array(wire.value32 or wire.value, dtype=np.float64)
    if value.size != n_variables**2:
        raise MalformedMessageError(f"dense matrix with {value.size} values; expected {n_variables**2}")
    if not np.isfinite(value).all():
        raise MalformedMessageError("matrix with a value that is not finite")
    return SparseMatrix(n_variables, np.arange(n_variables**2), value)


def encode_numbers(numbers: Matrix, *, value_type: str) -> values.Numbers:
    """Wire form of a vector, in the plan's `value_type`."""
    wire = values.Numbers()
    (wire.value32 if value_type == "float32" else wire.value).extend(numbers.tolist())
    return wire


def decode_numbers(wire: values.Numbers, *, most: int) -> Matrix:
    """Vector from its wire form.

    Raises
    ------
    MalformedMessageError
        For numbers in both precisions, more of them than `most`, or one that is not finite.
    """
    if wire.value and wire.value32:
        raise MalformedMessageError("numbers in both precisions")
    numbers = wire.value32 or wire.value
    if len(numbers) > most:
        raise MalformedMessageError(f"{len(numbers)} numbers; there can be {most}")
    return finite(numbers)


def finite(numbers: Iterable[float]) -> Matrix:
    """The numbers as a vector.

    Raises
    ------
    MalformedMessageError
        If one is not finite.
    """
    vector = np.array(numbers, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise MalformedMessageError("a number that is not finite")
    return vector


def as_sent(numbers: Matrix, value_type: str) -> Matrix:
    """A vector after the rounding of `value_type`: what the other side will have."""
    return numbers.astype(np.float32).astype(np.float64) if value_type == "float32" else numbers
