"""SparseMatrix: the (d, d) matrices that sites and coordinator exchange, as (flat index, value)."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A real (d, d) matrix by its stored entries; all others are zero.

    Without diagonal, except for B_p and beta_p in a run with dense messages (`Plan.dense_messages`). They have
    the same form here; only their messages hold all d^2 entries, without an index.
    """

    n_variables: int  # d, at least 1
    index: Index  # (nnz,) flat row-major indices i * d + j, strictly increasing
    value: Matrix  # (nnz,) finite values

    @classmethod
    def zeros(cls, n_variables: int) -> Self:
        """The matrix without entries."""
        return cls(n_variables, np.empty(0, np.int64), np.empty(0, np.float64))

    @classmethod
    def from_dense(cls, dense: Matrix) -> Self:
        """The non-zero entries of a (d, d) array."""
        index = np.flatnonzero(dense)
        return cls(dense.shape[0], index, dense.ravel()[index])

    @classmethod
    def on_support(cls, dense: Matrix, support: Mask) -> Self:
        """The entries of a (d, d) array on a (d, d) support, zeros included."""
        index = np.flatnonzero(support)
        return cls(dense.shape[0], index, dense.ravel()[index])

    def support(self) -> Mask:
        """(d, d) where an entry is stored, whatever its value."""
        support = np.zeros((self.n_variables, self.n_variables), dtype=bool)
        support.flat[self.index] = True
        return support

    def to_dense(self) -> Matrix:
        """A new (d, d) array."""
        dense = np.zeros((self.n_variables, self.n_variables))
        dense.flat[self.index] = self.value
        return dense

    def without_zeros(self) -> Self:
        """The same matrix without stored zeros."""
        return self.keep(self.value != 0.0)

    def change_to(self, new: Self, tol: float) -> Self:
        """The entries of `new` that differ from this matrix by more than `tol`; a zero for an entry that disappears."""
        index, (before, after) = aligned(self, new)
        moved = np.abs(after - before) > tol
        return type(self)(self.n_variables, index[moved], after[moved])

    def changed_by(self, change: Self) -> Self:
        """The matrix with the entries of `change` replacing its own, without zeros. Repeating this has no effect."""
        kept = self.keep(~np.isin(self.index, change.index, assume_unique=True))
        index, values = aligned(kept, change)
        return type(self)(self.n_variables, index, values.sum(axis=0)).without_zeros()

    def plus(self, factor: float, A: Self, B: Self) -> Self:
        """The sum of this matrix and factor (A - B), without zeros."""
        index, (here, a, b) = aligned(self, A, B)
        return type(self)(self.n_variables, index, here + factor * (a - b)).without_zeros()

    def at(self, index: Index) -> Matrix:
        """The values at these flat indices, zero where no entry is stored."""
        if not self.nnz:
            return np.zeros(index.size)
        place = np.minimum(np.searchsorted(self.index, index), self.nnz - 1)
        return np.where(self.index[place] == index, self.value[place], 0.0)

    def keep(self, chosen: Mask) -> Self:
        """The matrix of some of the entries, (nnz,)."""
        return self if chosen.all() else type(self)(self.n_variables, self.index[chosen], self.value[chosen])

    def over(self, kept: Index) -> Self:
        """(k, k) the entries between some of the variables, zeros included."""
        both = np.ix_(kept, kept)
        return self.on_support(self.to_dense()[both], self.support()[both])

    def among(self, places: Index, n_variables: int) -> Self:
        """The same entries in a matrix of more variables, in which these have such places, ascending."""
        i, j = np.divmod(self.index, self.n_variables)
        return type(self)(n_variables, places[i] * n_variables + places[j], self.value)

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return int(self.index.size)

    def as_float32(self) -> Self:
        """The matrix with every value rounded to the nearest float32 (still held as float64)."""
        return type(self)(self.n_variables, self.index, self.value.astype(np.float32).astype(np.float64))

    def rounded_to(self, step: float) -> Self:
        """The matrix with every value rounded to a multiple of `step`, a power of two (exactly); zeros stay stored."""
        return type(self)(self.n_variables, self.index, np.rint(self.value / step) * step + 0.0)  # + 0.0: no -0

    def __eq__(self, other: object) -> bool:
        """Same shape and the same bits in every entry."""
        if not isinstance(other, SparseMatrix):
            return NotImplemented
        return (
            self.n_variables == other.n_variables
            and np.array_equal(self.index, other.index)
            and self.value.tobytes() == other.value.tobytes()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SparseMatrix({self.n_variables} x {self.n_variables}, {self.nnz} entries)"


def aligned(*matrices: SparseMatrix) -> tuple[Index, Matrix]:
    """The union of the stored entries, (nnz,), and every matrix's values there, (n_matrices, nnz)."""
    merged = np.concatenate([matrix.index for matrix in matrices])
    merged.sort(kind="stable")  # merges runs that are sorted already, in linear time; numpy.unique hashes them first
    is_first = np.ones(merged.size, dtype=bool)
    is_first[1:] = merged[1:] != merged[:-1]
    index = merged[is_first]
    values = np.zeros((len(matrices), index.size))
    for row, matrix in zip(values, matrices, strict=True):
        row[np.searchsorted(index, matrix.index)] = matrix.value
    return index, values


def formula_bytes(n_entries: int, n_variables: int, *, indexed: bool = True) -> int:
    """Bytes of a message as the paper counts them: 8 a value, and ceil(log2(d^2) / 8) an index if it has one."""
    return n_entries * (8 + (math.ceil(math.log2(n_variables**2) / 8) if indexed else 0))


def upper(S: Matrix) -> Matrix:
    """(d (d + 1) / 2,) entries of a symmetric (d, d) matrix, i <= j row by row."""
    return np.asarray(S[np.triu_indices(len(S))])


def symmetric_of(values: Matrix | Index, d: int) -> Matrix:
    """(d, d) symmetric matrix of such entries."""
    S = np.zeros((d, d))
    S[np.triu_indices(d)] = values
    return S + np.triu(S, k=1).T
