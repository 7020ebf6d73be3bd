"""How far W is from acyclic, h = tr(exp(W o W)) - d (NOTEARS, Zheng et al. 2018), with its gradient.

h is zero exactly if W is acyclic: it is a weighted sum of closed walks over the edges. No closed walk leaves a strongly
connected component: h is the sum over the components, and the derivative by an edge between two of them is zero.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from fedbnsl.graphs.graph import strong_components
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix

_DEGREES = (4, 8, 12, 16)
_TAYLOR = np.array([[1 / math.factorial(4 * i + j) for j in range(1, 5)] for i in range(4)])
_PRECISION = 2.0**-53
# In components of more nodes than _SMALL, of whose pairs at most one in _FEW is an edge, the walks are summed over the
# edges: as long as ||A||, which the number of terms grows with, is no more than _LARGEST_SUMMED.
_SMALL, _FEW, _LARGEST_SUMMED = 64, 8, 50.0


def acyclicity(W: Matrix) -> tuple[float, Matrix]:
    """Value and (d, d) gradient of h at a (d, d) matrix; infinity and a zero gradient beyond all numbers."""
    part = CyclicPart.of(np.flatnonzero(W), len(W))
    w = W.flat[part.edges]
    h, slope = part.measured(w * w)
    gradient = np.zeros_like(W)
    gradient.flat[part.edges] = 2.0 * w * slope
    return h, gradient


def acyclicity_of(W: SparseMatrix) -> float:
    """The value alone, without the gradient."""
    part = CyclicPart.of(W.index, W.n_variables)
    return part.measured(W.at(part.edges) ** 2)[0]


@dataclass(frozen=True, eq=False)
class _Components:
    """The strongly connected components of one size: a stack of (n, n) blocks."""

    shape: tuple[int, int, int]  # (k, n, n) for k components of n nodes
    edges: slice  # which of the part's edges are theirs
    # place, back: flat position in the stack of each edge, and of the edge in the opposite direction
    place: Index
    back: Index

    @cached_property
    def rows(self) -> tuple[Index, Index, Index]:
        """Order of the edges by first node, where those of each node begin, and their second nodes."""
        k, n, _ = self.shape
        order = np.argsort(self.place)
        node, second = np.divmod(self.place[order], n)
        return order, np.searchsorted(node, np.arange(k * n + 1)), node // n * n + second

    def measured(self, squares: Matrix) -> tuple[float, Matrix]:
        """As `CyclicPart.measured`, for the squared weights of these edges."""
        k, n, _ = self.shape
        if n > _SMALL and _FEW * squares.size <= k * n * n:
            order, start, second = self.rows
            weight = squares[order]
            norm = float(np.bincount(second, weight).max())
            if norm <= _LARGEST_SUMMED:
                # Here: it takes long to load, and only large graphs need it.
                from fedbnsl_server.algorithm.walks import closed_walks

                slope = np.empty_like(weight)
                h, slope[order] = closed_walks(start, second, weight, n, norm)
                return h, slope
        blocks = np.zeros(self.shape)
        blocks.flat[self.place] = squares
        h, derivative = _exponential(blocks)
        return h, derivative.flat[self.back]


@dataclass(frozen=True, eq=False)
class CyclicPart:
    """The edges of a graph that lie on cycles, sorted into strongly connected components once for many weights."""

    edges: Index  # (m,) flat indices of the edges, component by component of equal size
    components: tuple[_Components, ...]  # the components, one stack for each size

    @classmethod
    def of(cls, flat: Index, d: int) -> Self:
        """The cyclic part of a graph of d nodes, from the flat indices of its edges."""
        label = strong_components(flat, d)
        i, j = np.divmod(flat, d)
        flat = flat[label[i] == label[j]]
        nodes_of = np.bincount(label)
        # Nodes by component, components by size; then a node's place in its component is a difference of ranks.
        order = np.lexsort((label, nodes_of[label]))
        rank = np.empty(d, np.int64)
        rank[order] = np.arange(d)
        first = np.full(nodes_of.size, d)
        np.minimum.at(first, label, rank)
        size = nodes_of[label[flat // d]]
        flat = flat[np.argsort(size, kind="stable")]
        size = np.sort(size)
        groups: list[_Components] = []
        for n in np.unique(size):
            start, stop = np.searchsorted(size, [n, n + 1])
            i, j = np.divmod(flat[start:stop], d)
            base = first[label[i]]
            block = (base - base.min()) // n
            i, j = rank[i] - base, rank[j] - base
            groups.append(
                _Components(
                    (int(block.max()) + 1, int(n), int(n)),
                    slice(int(start), int(stop)),
                    (block * n + i) * n + j,
                    (block * n + j) * n + i,
                )
            )
        return cls(flat, tuple(groups))

    def measured(self, squares: Matrix) -> tuple[float, Matrix]:
        """h, and its derivatives by the (m,) squared weights of the edges; infinity and zeros beyond all numbers."""
        h = 0.0
        slope = np.zeros_like(squares)
        for group in self.components:
            value, slope[group.edges] = group.measured(squares[group.edges])
            if math.isinf(value):
                return math.inf, np.zeros_like(squares)
            h += value
        return h, slope


def _exponential(A: Matrix) -> tuple[float, Matrix]:
    """tr(exp(A) - I) over a stack, and exp(A)."""
    E = expm1(A)
    return float(np.trace(E, axis1=1, axis2=2).sum()), E + np.eye(A.shape[1])


def expm1(A: Matrix) -> Matrix:
    """exp(A) - I of a (k, n, n) stack of matrices with entries at least 0.

    A Taylor polynomial, evaluated as by Paterson and Stockmeyer (1973), of the least degree whose remainder is below
    2^-53 of the sum in the 1-norm; if degree 16 is not enough, that of A / 2^s, squared s times as
    (E + I)^2 - I = E^2 + 2 E.
    All terms are at least 0: nothing cancels, and a small trace is as exact as a large one.
    """
    powers = np.empty((4, *A.shape))
    powers[0] = A
    for k in range(1, 4):
        np.matmul(powers[k - 1], A, out=powers[k])
    degree, squarings = _degree(powers)
    if squarings < 0:
        return np.full_like(A, math.inf)
    scale = 0.5**squarings
    terms = degree // 4
    factors = _TAYLOR[:terms] * scale ** np.arange(1, 5)
    sums = (factors @ powers.reshape(4, -1)).reshape(terms, *A.shape)
    E: Matrix = sums[-1]
    fourth = powers[3] * scale**4 if squarings else powers[3]
    for term in sums[-2::-1]:
        E = np.matmul(fourth, E)
        E += term
    for _ in range(squarings):
        E = E @ E + 2.0 * E
    return E


def _degree(powers: Matrix) -> tuple[int, int]:
    """Degree of the polynomial and squarings, from A to A^4 in a (4, k, n, n) array; squarings -1: it overflows.

    With a = ||A||, the remainder after degree m is at most ||A^m|| a / (m + 1)! / (1 - a / (m + 2)), and ||A^m|| is
    the largest entry of 1' A^m.
    """
    norm = float(powers[0].sum(axis=1).max())
    walks = powers[3].sum(axis=1, keepdims=True)
    for degree in _DEGREES[:-1]:
        if float(walks.max()) <= _largest_power(degree, norm):
            return degree, 0
        walks = walks @ powers[3]
    degree, largest, squarings = _DEGREES[-1], float(walks.max()), 0
    if not math.isfinite(largest):
        return degree, -1
    while largest > _largest_power(degree, norm):
        squarings, norm, largest = squarings + 1, norm / 2, largest / 2**degree
    return degree, squarings


def _largest_power(degree: int, norm: float) -> float:
    """||A^m|| up to which the remainder after degree m is at most 2^-53 ||A||; below 0 where there is no such bound."""
    return _PRECISION * math.factorial(degree + 1) * (1.0 - norm / (degree + 2))
