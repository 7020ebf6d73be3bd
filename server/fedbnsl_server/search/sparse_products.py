"""Products with sparse matrices, and with the inverse of I - W for a DAG's weights W, without a d^3 anywhere.

Each variable has a few edges. With B = (I - W)^-1 the rows of Y = B X follow from each other: row i is that of X plus
w_ij times row j for each child j; and those of Y = B'X in the same way from the parents. So either takes one step an
edge and column, where a dense product takes d a row and column.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix


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

    @property
    def transposed(self) -> "Rows":
        """Of the transpose of a square matrix."""
        from fedbnsl_server.search.kernels.sparse_products import transposed

        return Rows(*transposed(*self))

    @property
    def dense(self) -> Matrix:
        """(d, d) the same."""
        d = len(self.start) - 1
        M = np.zeros((d, d))
        M[np.repeat(np.arange(d), np.diff(self.start)), self.column] = self.value
        return M

    def scaled(self, factor: float) -> "Rows":
        """All entries times a factor."""
        return self._replace(value=self.value * factor)

    def times(self, X: Matrix) -> Matrix:
        """Product with X, from the left."""
        from fedbnsl_server.search.kernels.sparse_products import times

        return np.asarray(times(*self, np.ascontiguousarray(X)))

    def around(self, X: Matrix) -> Matrix:
        """(d, d) M X M' for this matrix M and symmetric X."""
        return self.times(self.times(X).T)


@dataclass(frozen=True, eq=False)
class TotalEffects:
    """B = (I - W)^-1 for (d, d) weights of a DAG."""

    order: Index  # (d,) columns, parents first
    # children, parents: W and its transpose
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

        children = Rows.of(W)
        parents = children.transposed
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

    def around(self, X: Matrix) -> Matrix:
        """(d, d) B X B' for symmetric X."""
        return self.times(self.times(X).T)


class InnerProducts(NamedTuple):
    """(d, d) each: inner products of 2 d vectors, the rows of C and, after these, of Q: C C', C Q', Q C' and Q Q'.

    Two of these vectors, x and y, stand for the derivative x y' + y x'.
    """

    CC: Matrix
    CQ: Matrix
    QC: Matrix
    QQ: Matrix

    def add_information(self, x: Index, y: Index, half: Matrix, weight: float, information: Matrix) -> None:
        """Add half the inner products of derivatives, times a weight.

        Parameters
        ----------
        x, y
            (m,) places of their vectors.
        half
            (m,) factors of y.
        information
            (m, m), or larger: its first m rows and columns count.
        """
        from fedbnsl_server.search.kernels.sparse_products import add_squared

        add_squared(self, x, y, half, weight, information)

    def add_crossed(self, u: Index, v: Index, x: Index, y: Index, half: Matrix, weight: float, crossed: Matrix) -> None:
        """The same to (n, m), or more columns, between n derivatives, u and v, and m others, x and y times `half`."""
        from fedbnsl_server.search.kernels.sparse_products import add_crossed

        add_crossed(self, u, v, x, y, half, weight, crossed)

    def through(self, V: Rows, x: Index, y: Index) -> Matrix:
        """(m,) x'P y with P = C'V C."""
        from fedbnsl_server.search.kernels.sparse_products import through

        return np.asarray(through(self, V, x, y))


def warm_up() -> None:
    """Compile the loops, or load them from the cache, before a round waits for them."""
    one, place, half = TotalEffects.of(np.zeros((1, 1))), np.zeros(1, dtype=np.int64), np.ones(1)
    V = Rows.of(np.eye(1))
    K = InnerProducts(*(V.around(one.around(np.eye(1))),) * 4)
    K.add_information(place, place, half, 1.0, np.zeros((1, 1)))
    K.add_crossed(place, place, place, place, half, 1.0, np.zeros((1, 1)))
    K.through(V, place, place)
