"""tr(exp(A) - I) and its derivatives for a large sparse A >= 0, in time by edges and nodes: no power of A is kept.

A column of exp(A) is the sum of A^k e_i / k!, each term from the one before in one pass over the edges. All terms are
at least 0, so nothing cancels. Some columns at a time stay in the processor's cache, and only the entries on the edges
are kept of each.
"""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Index, Matrix

WIDTH = 64
"""Columns at a time: the loops over them use vector instructions."""

_PRECISION = 2.0**-53


@compiled
def closed_walks(start: Index, column: Index, weight: Matrix, size: int, norm: float) -> tuple[float, Matrix]:
    """tr(exp(A) - I), and for each edge i -> j the entry (j, i) of exp(A).

    The sum for some columns ends where the rest is below 2^-53 ||A|| in the 1-norm.

    Parameters
    ----------
    start, column, weight
        A by rows: its edges from node i are those from start[i] to start[i + 1].
    size
        Nodes of each component; they follow one another.
    norm
        ||A||, the largest sum of a column; the number of terms grows with it.
    """
    trace = 0.0
    slope = np.zeros(weight.size)
    term, following = np.empty((size, WIDTH)), np.empty((size, WIDTH))
    row, sums = np.empty(WIDTH), np.empty(WIDTH)
    for first in range(0, start.size - 1, size):
        for left in range(first, first + size, WIDTH):
            right = min(left + WIDTH, first + size)
            term[:] = 0.0
            for i in range(left, right):
                term[i - first, i - left] = 1.0
            k, largest = 0, 1.0
            # After term k, all others sum to at most term k times r + r^2 + ..., r = norm / (k + 1).
            while norm >= k + 1 or largest > _PRECISION * (k + 1 - norm):
                k += 1
                sums[:] = 0.0
                for i in range(size):
                    row[:] = 0.0
                    for edge in range(start[first + i], start[first + i + 1]):
                        if weight[edge] == 0.0:
                            continue
                        amount, known = weight[edge] / k, column[edge] - first
                        for c in range(WIDTH):
                            row[c] += amount * term[known, c]
                    for c in range(WIDTH):
                        following[i, c] = row[c]
                        sums[c] += row[c]
                term, following = following, term
                largest = sums.max()
                for i in range(left, right):
                    trace += term[i - first, i - left]
                    for edge in range(start[i], start[i + 1]):
                        slope[edge] += term[column[edge] - first, i - left]
    return trace, slope


def warm_up() -> None:
    """Compile the loop, or load it from the cache, before a round waits for it."""
    closed_walks(np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), 1, 0.0)
