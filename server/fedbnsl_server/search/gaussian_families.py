"""Gaussian regressions of a child on some of its candidate parents, at all sites at once, from second moments.

A variable may be a block of columns, such as the indicators of a nominal one (degenerate Gaussian: Andrews, Ramsey and
Cooper 2019). Then its residual variance is the generalised one: the determinant of the residual covariance of its k
columns, to the power of 1 / k. By the chain rule, k times its logarithm is the sum over the block of the logarithms of
the columns' residual variances given the parents and the columns before.
"""

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.kernels.change import Graph, Problem, residuals
from fedbnsl_server.search.kernels.family import LEAST_RESIDUAL, Given, blocks_of, room_for
from fedbnsl_server.search.linear_network import pseudo_inverse
from fedbnsl_server.search.space import Space


class GaussianFamilies:
    """Residual variances of V children given some of their candidate parents.

    Parameters
    ----------
    moments
        (P, d, d) symmetric second moments of the columns at P sites. NaN stands for an unknown moment: no regression
        has both columns. Those on the diagonal are known.
    ridge
        Added to the diagonal, as a share of it.
    explained
        (d,) columns that parents explain; the others only explain. None: all are explained.

    Attributes
    ----------
    problem
        The same for compiled loops.
    """

    def __init__(self, moments: Matrix, space: Space, *, ridge: float, explained: Mask | None = None) -> None:
        size = np.sqrt(np.diagonal(moments, axis1=1, axis2=2))
        self._size: Matrix = np.where(size > 0.0, size, 1.0)
        # In units of each column's size: otherwise one on a small scale counts as rounding error of a large one.
        R = moments / self._size[:, :, None]
        R /= self._size[:, None, :]
        diagonal = np.einsum("pii->pi", R)
        diagonal += ridge
        candidates, self._members = space.candidates, space.columns.members()
        child, source = np.nonzero(candidates.T)
        ends = np.cumsum([0, *candidates.sum(axis=0)])
        blocks = blocks_of(self._members, explained)
        counted = [blocks.columns[first : first + n] for first, n in zip(blocks.first, blocks.explained, strict=True)]
        self.problem = Problem(
            R=R,
            unit=np.stack([np.exp(2.0 * np.log(self._size[:, block]).mean(axis=1)) for block in counted], axis=1),
            blocks=blocks,
            start=ends.astype(np.int64),
            source=source.astype(np.int64),
            at=blocks.columns[blocks.first[source]],
            child=child.astype(np.int64),
            reverse=_reverse(source, child, len(candidates)),
            fixed=space.required[source, child],
        )

    @property
    def sizes(self) -> Index:
        """(V,) columns of each variable."""
        sizes: Index = self.problem.blocks.sizes
        return sizes

    @property
    def explained(self) -> Index:
        """(V,) how many of them its parents explain."""
        explained: Index = self.problem.blocks.explained
        return explained

    def room(self) -> Given:
        """For factorisations in compiled loops."""
        return room_for(self.problem.R.shape[1])

    def graph(self, dag: Mask) -> Graph:
        """A (V, V) DAG of candidates for compiled loops."""
        graph = Graph.room(len(self.problem.source), len(dag))
        graph.present[:] = dag[self.problem.source, self.problem.child]
        return graph

    def dag(self, graph: Graph) -> Mask:
        """(V, V) edges of a graph."""
        dag = np.zeros((len(self._members), len(self._members)), dtype=bool)
        dag[self.problem.source[graph.present], self.problem.child[graph.present]] = True
        return dag

    def residual_variances(self, dag: Mask) -> Matrix:
        """(P, V) of every variable given its parents in a DAG of candidates, in squared units of the variables."""
        found = np.empty((len(self._size), len(dag)))
        residuals(self.problem, self.room(), self.graph(dag), found)
        return found

    def column_variances(self, dag: Mask) -> Matrix:
        """(P, d) of every column given the columns of its variable's parents, and of no other of its own variable."""
        found = np.empty(self._size.shape)
        for j, columns in enumerate(self._members):
            given = self._columns(np.flatnonzero(dag[:, j]))
            for c in columns.tolist():
                variance = np.maximum(self._regression(c, given)[1], LEAST_RESIDUAL)
                found[:, c] = variance * self._size[:, c] ** 2
        return found

    def weights(self, dag: Mask) -> Matrix:
        """(d, d) mean over the sites of the columns' least-squares weights on a (V, V) DAG of candidates."""
        W = np.zeros(self.problem.R.shape[1:])
        for j in np.flatnonzero(dag.any(axis=0)).tolist():
            given = self._columns(np.flatnonzero(dag[:, j]))
            for c in self._members[j].tolist():
                coefficients = self._regression(c, given)[0]
                W[given, c] = (coefficients * self._size[:, [c]] / self._size[:, given]).mean(axis=0)
        return W

    def _columns(self, variables: Index) -> Index:
        if not len(variables):
            return np.empty(0, dtype=np.int64)
        blocks: list[Index] = [self._members[v] for v in variables.tolist()]
        return np.concatenate(blocks)

    def _regression(self, column: int, given: Index) -> tuple[Matrix, Matrix]:
        """(P, k) coefficients on k columns, and (P,) residual variances, in units of size."""
        R = self.problem.R
        b = R[:, given, column]
        coefficients: Matrix = np.asarray((pseudo_inverse(R[:, given[:, None], given]) @ b[:, :, None])[:, :, 0])
        return coefficients, np.asarray(R[:, column, column] - (b * coefficients).sum(axis=1))


def _reverse(source: Index, child: Index, n_variables: int) -> Index:
    """(m,) where each edge the other way stands among edges that are sorted by child and source; -1: nowhere."""
    number, reverse = child * n_variables + source, source * n_variables + child
    place = np.minimum(np.searchsorted(number, reverse), max(len(number) - 1, 0))
    return np.where(number[place] == reverse, place, -1) if len(number) else place
