"""The loops of `sparse_products`, compiled."""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.search.sparse_products import InnerProducts, Rows


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
def transposed(start: Index, column: Index, value: Matrix) -> tuple[Index, Index, Matrix]:
    """The transpose of a square sparse matrix by rows."""
    d = start.size - 1
    of_columns = np.zeros(d + 1, dtype=np.int64)
    for k in range(column.size):
        of_columns[column[k] + 1] += 1
    for j in range(d):
        of_columns[j + 1] += of_columns[j]
    row, moved, filled = np.empty_like(column), np.empty_like(value), of_columns.copy()
    for i in range(d):
        for k in range(start[i], start[i + 1]):
            place = filled[column[k]]
            row[place], moved[place] = i, value[k]
            filled[column[k]] += 1
    return of_columns, row, moved


@compiled
def times(start: Index, column: Index, value: Matrix, X: Matrix) -> Matrix:
    """Product of a sparse matrix, by rows, and X."""
    Y = np.empty((start.size - 1, X.shape[1]))
    for i in range(start.size - 1):
        if start[i] == start[i + 1]:
            Y[i] = 0.0
        for k in range(start[i], start[i + 1]):
            row, w = X[column[k]], value[k]
            if k == start[i]:
                for j in range(X.shape[1]):
                    Y[i, j] = w * row[j]
            else:
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
def add_squared(K: InnerProducts, x: Index, y: Index, half: Matrix, weight: float, information: Matrix) -> None:
    """`InnerProducts.add_information`."""
    of_x, of_y = np.empty(2 * len(K.CC)), np.empty(2 * len(K.CC))
    for a in range(x.size):
        _fill(K, x[a], of_x)
        _fill(K, y[a], of_y)
        for b in range(a + 1):
            told = weight * half[a] * half[b] * (of_x[x[b]] * of_y[y[b]] + of_x[y[b]] * of_y[x[b]])
            information[a, b] += told
            if a != b:
                information[b, a] += told


@compiled
def add_crossed(
    K: InnerProducts, u: Index, v: Index, x: Index, y: Index, half: Matrix, weight: float, crossed: Matrix
) -> None:
    """`InnerProducts.add_crossed`."""
    of_u, of_v = np.empty(2 * len(K.CC)), np.empty(2 * len(K.CC))
    for a in range(u.size):
        _fill(K, u[a], of_u)
        _fill(K, v[a], of_v)
        for b in range(x.size):
            crossed[a, b] += weight * half[b] * (of_u[x[b]] * of_v[y[b]] + of_u[y[b]] * of_v[x[b]])


@compiled
def through(K: InnerProducts, V: Rows, x: Index, y: Index) -> Matrix:
    """`InnerProducts.through`."""
    d = len(K.CC)
    found, of_x, of_y, spread = np.empty(x.size), np.empty(2 * d), np.empty(2 * d), np.empty(d)
    for a in range(x.size):
        _fill(K, x[a], of_x)
        _fill(K, y[a], of_y)
        for i in range(d):
            spread[i] = 0.0
            for k in range(V.start[i], V.start[i + 1]):
                spread[i] += V.value[k] * of_y[V.column[k]]
        total = 0.0
        for i in range(d):
            total += of_x[i] * spread[i]
        found[a] = total
    return found


@compiled
def _fill(K: InnerProducts, a: int, products: Matrix) -> None:
    """The inner products of one vector with all: the first d are rows of C, the others are rows of Q."""
    d = len(K.CC)
    if a < d:
        for j in range(d):
            products[j], products[d + j] = K.CC[a, j], K.CQ[a, j]
    else:
        for j in range(d):
            products[j], products[d + j] = K.QC[a - d, j], K.QQ[a - d, j]
