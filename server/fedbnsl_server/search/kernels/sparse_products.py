"""The loops of `sparse_products`, compiled."""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.sparse import Index, Matrix


@compiled
def rows_of(M: Matrix) -> tuple[Index, Index, Matrix]:
    """Where the entries of each row begin, and columns and values of all that are not zero."""
    start, n = np.empty(len(M) + 1, dtype=np.int64), 0
    for i in range(len(M)):
        start[i] = n
        for j in range(M.shape[1]):
            n += M[i, j] != 0.0
    start[-1] = n
    column, value = np.empty(n, dtype=np.int64), np.empty(n)
    for i in range(len(M)):
        k = start[i]
        for j in range(M.shape[1]):
            if M[i, j] != 0.0:
                column[k], value[k] = j, M[i, j]
                k += 1
    return start, column, value


@compiled
def parents_first(start: Index, column: Index, of_parents: Index) -> Index:
    """(d,) nodes, parents first, of a graph with these children; the last is -1 if there is a cycle."""
    d = start.size - 1
    left, order = np.empty(d, dtype=np.int64), np.full(d, -1)
    found = 0
    for i in range(d):
        left[i] = of_parents[i + 1] - of_parents[i]
        if left[i] == 0:
            order[found] = i
            found += 1
    for place in range(d):
        i = order[place]
        if i < 0:
            break
        for k in range(start[i], start[i + 1]):
            left[column[k]] -= 1
            if left[column[k]] == 0:
                order[found] = column[k]
                found += 1
    return order


@compiled
def times(start: Index, column: Index, value: Matrix, X: Matrix) -> Matrix:
    """Product of a sparse matrix, by rows, and X."""
    Y = np.zeros((start.size - 1, X.shape[1]))
    for i in range(start.size - 1):
        for k in range(start[i], start[i + 1]):
            row, w = X[column[k]], value[k]
            for j in range(X.shape[1]):
                Y[i, j] += w * row[j]
    return Y


@compiled
def follow(order: Index, start: Index, column: Index, value: Matrix, Y: Matrix) -> None:
    """Add to each row, in this order, the rows that it follows from."""
    for i in order:
        for k in range(start[i], start[i + 1]):
            row, w = Y[column[k]], value[k]
            for j in range(Y.shape[1]):
                Y[i, j] += w * row[j]


@compiled
def add_squared(K: Matrix, x: Index, y: Index, half: Matrix, weight: float, information: Matrix) -> None:
    """`sparse_products.add_information`."""
    for a in range(x.size):
        for b in range(a + 1):
            crossed = K[x[a], y[b]] * K[y[a], x[b]]
            told = weight * half[a] * half[b] * (K[x[a], x[b]] * K[y[a], y[b]] + crossed)
            information[a, b] += told
            if a != b:
                information[b, a] += told
