"""Products with sparse matrices, and with the inverse of I - W for a DAG's weights W, without a d^3 anywhere.

Each variable has a few edges. With B = (I - W)^-1 the rows of Y = B X follow from each other: row i is that of X plus
w_ij times row j for each child j; and those of Y = B'X in the same way from the parents. So either takes one step an
edge and column, where a dense product takes d a row and column.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbnsl.sparse import Index, Matrix


class Rows(NamedTuple):
    """A sparse matrix by rows: row i has value[k] in column[k] for start[i] <= k < start[i + 1]."""

    start: Index
    column: Index
    value: Matrix

    @classmethod
    def of(cls, M: Matrix) -> "Rows":
        """The entries of a matrix that are not zero."""
        from fedbnsl_server.search.kernels.sparse_products import rows_of  # here: loads a compiler

        return cls(*rows_of(np.ascontiguousarray(M, dtype=np.float64)))

    def times(self, X: Matrix) -> Matrix:
        """Product with X, from the left."""
        from fedbnsl_server.search.kernels.sparse_products import times

        return np.asarray(times(self.start, self.column, self.value, np.ascontiguousarray(X)))


@dataclass(frozen=True, eq=False)
class TotalEffects:
    """B = (I - W)^-1 for (d, d) weights of a DAG.

    Attributes
    ----------
    order
        (d,) columns, parents first.
    children, parents
        W and its transpose.
    """

    order: Index
    children: Rows
    parents: Rows

    @classmethod
    def of(cls, W: Matrix) -> "TotalEffects":
        """Of these weights.

        Raises
        ------
        ValueError
            If they are those of a graph with a cycle.
        """
        from fedbnsl_server.search.kernels.sparse_products import parents_first

        children, parents = Rows.of(W), Rows.of(W.T)
        order = parents_first(children.start, children.column, parents.start)
        if order[-1] < 0:
            raise ValueError("the weights of a graph with a cycle have no finite total effects")
        return cls(order, children, parents)

    def times(self, X: Matrix) -> Matrix:
        """B X."""
        from fedbnsl_server.search.kernels.sparse_products import follow

        Y = np.array(X, dtype=np.float64, order="C")
        follow(self.order[::-1].copy(), *self.children, Y)
        return Y

    def transposed_times(self, X: Matrix) -> Matrix:
        """B'X."""
        from fedbnsl_server.search.kernels.sparse_products import follow

        Y = np.array(X, dtype=np.float64, order="C")
        follow(self.order, *self.parents, Y)
        return Y


def add_information(K: Matrix, x: Index, y: Index, half: Matrix, weight: float, information: Matrix) -> None:
    """Add half the inner products of the derivatives u v' + v u', times a weight.

    Parameters
    ----------
    K
        (N, N) inner products of vectors.
    x, y
        (m,) places of u and v among these.
    half
        (m,) factors of v.
    """
    from fedbnsl_server.search.kernels.sparse_products import add_squared

    add_squared(K, x, y, half, weight, information)
