"""Proximal greedy coordinate descent on the local objective (Eq. Bp), O(d) a step.

The smooth part is f(B) = 1/(2n) ||X - XB||^2 + <beta, B - W> + rho_2/2 ||B - W||^2 with gradient
G = S (B - I) + beta + rho_2 (B - W). A step changes one entry B_ij, hence only column j of G; the best scores of all
other columns do not change. Selection and stopping depend on the data: for non-private plans only.

The steps within a column do not depend on other columns. Once all scores are below `tol`, every column has taken the
steps that it would take alone. So the order of the columns matters only if `max_steps` ends the descent. Otherwise each
column descends by itself: its gradient follows from the non-zero entries of the column, and no other (d, d)
array of numbers is needed beside S. If the steps end, they are taken once more, in their order over all columns.
"""

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Index, Mask, Matrix, SparseMatrix, aligned
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.solvers.coordinate import score_column, soft
from fedbnsl_client.solvers.settings import Settings


def solve(
    loss: SecondMoments, B: SparseMatrix, W: SparseMatrix, beta: SparseMatrix, settings: Settings
) -> tuple[SparseMatrix, int]:
    """Minimise the local objective from B; W is the consensus and beta the dual, zero where a change is not allowed.

    Returns the new (d, d) B, without zeros, and how many steps were taken.
    """
    lam, rho_2, max_steps, tol = settings.lam, settings.rho_2, settings.max_steps, settings.tol
    d = B.n_variables
    index, (b, w, dual) = aligned(B, W, beta)
    # The kernels work on columns: keep each contiguous.
    rows, columns = np.divmod(index, d)
    by_column = np.argsort(columns, kind="stable")
    start = np.searchsorted(columns[by_column], np.arange(d + 1))
    row, value, pull = rows[by_column], b[by_column], (dual + rho_2 * (b - w))[by_column]
    free = np.ascontiguousarray(settings.allowed.T)
    problem = (
        start,
        row,
        value,
        pull,
        loss.S,
        loss.smoothness(rho_2),
        free,
        lam,
        rho_2,
        settings.gamma,
        max_steps,
        tol,
    )
    steps, place, found = _descend_by_columns(*problem)
    if steps < 0:  # the steps end on the way: their order counts
        columns_of_B = np.zeros((d, d))
        steps = _descend(columns_of_B, *problem)
        place = np.flatnonzero(columns_of_B)
        found = columns_of_B.flat[place]
    place = place % d * d + place // d
    order = np.argsort(place)
    return SparseMatrix(d, place[order], found[order]), int(steps)


def warm_up() -> None:
    """Compile the kernels, or load them from the cache on disk, so that the first round does not wait for it."""
    zero, free = SparseMatrix.zeros(2), ~np.eye(2, dtype=bool)
    for tol in (0.0, 1.0):  # the first has no steps left at once
        solve(SecondMoments(np.ones((2, 2))), zero, zero, zero, Settings(free, 0.0, 1.0, max_steps=0, tol=tol))


@compiled
def _first_largest(values: Matrix) -> int:
    """Index of the largest value, the first of equals."""
    best, index = values[0], 0
    for k in range(1, values.size):
        if values[k] > best:
            best, index = values[k], k
    return index


@compiled
def _step(b: Matrix, g: Matrix, S: Matrix, i: int, inverse_M: Matrix, t: Matrix, rho_2: float, gamma: float) -> bool:
    """Eq. update of entry i of a column, and its gradient; whether the entry moved."""
    new = soft(b[i] - gamma * g[i] * inverse_M[i], gamma * t[i])
    change = new - b[i]
    if change == 0.0:
        return False
    b[i] = new
    S_i = S[i]
    for k in range(b.size):
        g[k] += change * S_i[k]
    g[i] += rho_2 * change
    return True


@compiled
def _load(j: int, start: Index, row: Index, value: Matrix, pull: Matrix, S: Matrix, b: Matrix, g: Matrix) -> None:
    """Column j of B, and of the gradient, from the entries of the column alone."""
    for k in range(b.size):
        b[k] = 0.0
        g[k] = -S[j, k]
    for entry in range(start[j], start[j + 1]):
        amount = value[entry]
        if amount != 0.0:
            b[row[entry]] = amount
            S_i = S[row[entry]]
            for k in range(b.size):
                g[k] += amount * S_i[k]
    for entry in range(start[j], start[j + 1]):
        g[row[entry]] += pull[entry]


@compiled
def _weigh(root_M: Matrix, allowed: Mask, weight: Matrix) -> None:
    for i in range(weight.size):
        weight[i] = root_M[i] if allowed[i] else 0.0


# Compiled code takes arrays and numbers, not values that hold them: hence the many parameters of the next two.


@compiled
def _descend(
    B: Matrix,
    start: Index,
    row: Index,
    value: Matrix,
    pull: Matrix,
    S: Matrix,
    M: Matrix,
    allowed: Mask,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    tol: float,
) -> int:
    """Proximal greedy coordinate descent, into the transpose B[j, i]; returns the steps taken."""
    d = M.size
    inverse_M = 1.0 / M
    t = lam * inverse_M
    root_M = np.sqrt(M)
    G = np.empty((d, d))
    weight = np.empty(d)
    scores = np.empty(d)
    best = np.empty(d)
    best_row = np.empty(d, np.int64)
    for j in range(d):
        _load(j, start, row, value, pull, S, B[j], G[j])
        _weigh(root_M, allowed[j], weight)
        score_column(B[j], G[j], inverse_M, t, weight, scores)
        best_row[j] = _first_largest(scores)
        best[j] = scores[best_row[j]]
    for step in range(max_steps):
        j = _first_largest(best)
        if best[j] < tol or best[j] == 0.0:
            return step
        if not _step(B[j], G[j], S, best_row[j], inverse_M, t, rho_2, gamma):
            return step
        _weigh(root_M, allowed[j], weight)
        score_column(B[j], G[j], inverse_M, t, weight, scores)
        best_row[j] = _first_largest(scores)
        best[j] = scores[best_row[j]]
    return max_steps


@compiled
def _descend_by_columns(
    start: Index,
    row: Index,
    value: Matrix,
    pull: Matrix,
    S: Matrix,
    M: Matrix,
    allowed: Mask,
    lam: float,
    rho_2: float,
    gamma: float,
    max_steps: int,
    tol: float,
) -> tuple[int, Index, Matrix]:
    """As `_descend`, column by column: the steps, -1 if they end before; non-zero entries, at j d + i, and values."""
    d = M.size
    inverse_M = 1.0 / M
    t = lam * inverse_M
    root_M = np.sqrt(M)
    b, g, weight, scores = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    place, found, n_found = np.empty(d, np.int64), np.empty(d), 0
    steps = 0
    for j in range(d):
        _load(j, start, row, value, pull, S, b, g)
        _weigh(root_M, allowed[j], weight)
        while True:
            score_column(b, g, inverse_M, t, weight, scores)
            i = _first_largest(scores)
            if scores[i] < tol or scores[i] == 0.0:
                break
            if steps == max_steps or not _step(b, g, S, i, inverse_M, t, rho_2, gamma):
                return -1, place, found
            steps += 1
        if n_found + d > place.size:  # room for a whole column, twice as much each time
            place = np.concatenate((place, np.empty(place.size + d, np.int64)))
            found = np.concatenate((found, np.empty(found.size + d)))
        for i in range(d):
            if b[i] != 0.0:
                place[n_found], found[n_found] = j * d + i, b[i]
                n_found += 1
    return steps, place[:n_found], found[:n_found]
