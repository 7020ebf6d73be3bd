"""Compiled regressions of a child on parents, from second moments.

Names follow the mathematics: R (d, d) moments in units of size; a family is a child j with its parents. Residual
variances come from a Cholesky factorisation whose pivots are the parents' columns, one after the other: L[x, t] is what
pivot t explains of column x. A candidate's gain then takes one more row, not a new regression.

A variable may be a block of columns. What its family leaves of it is the product of its columns' residual variances,
each given the parents and the columns before: the determinant of their residual covariance. Those of its columns that
only explain others, as squares do, are no part of that.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.compiled import compiled
from fedbnsl.protocol.sparse import Index, Mask, Matrix

Ints = Any
"""Arrays of int64, whose entries are int in compiled code."""

LEAST_SHARE = 1e-7
"""If what is given leaves less than this share of a column, it is determined by it, and explains nothing more."""

CLEAR_SHARE = 1e-4
"""A pivot that leaves less than this share of itself magnifies rounding errors too much to be taken off or put back."""

LEAST_RESIDUAL = 1e-12
"""The least residual variance in units of size: noisy moments may give less than zero."""


class Blocks(NamedTuple):
    """The columns of each variable."""

    # first, sizes, columns: (V,) where the columns of a variable begin in `columns`, and how many it has; (d,)
    # all columns by variable
    first: Ints
    sizes: Ints
    columns: Ints
    explained: Ints  # (V,) how many of them, the first ones, its parents explain; the others only explain


def blocks_of(members: Sequence[Index], explained: Mask | None = None) -> Blocks:
    """The columns of each variable, for compiled loops; `explained`: (d,) those that parents explain, None: all."""
    sizes = np.array([block.size for block in members], dtype=np.int64)
    counts = sizes.copy()
    if explained is not None:
        counts = np.array([explained[block].sum() for block in members], dtype=np.int64)
        members = [np.concatenate((block[explained[block]], block[~explained[block]])) for block in members]
    first = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    return Blocks(first, sizes, np.concatenate(members).astype(np.int64), counts)


class Given(NamedTuple):
    """Room for a factorisation: (d, d + 1) L and (d + 1,) pivots."""

    L: Matrix
    pivots: Ints


def room_for(d: int) -> Given:
    """Room for the factorisation of d columns."""
    return Given(np.empty((d, d + 1)), np.empty(d + 1, np.int64))


@compiled
def extend(R: Matrix, given: Given, x: int, known: int, n: int) -> None:
    """Continue row x of L from `known` pivots to n."""
    L, pivots = given
    for t in range(known, n):
        p = pivots[t]
        rest = R[x, p]
        for q in range(t):
            rest -= L[x, q] * L[p, q]
        L[x, t] = rest / L[p, t]


@compiled
def left(R: Matrix, given: Given, x: int, n: int) -> float:
    """What n pivots leave of the variance of column x, whose row is known so far."""
    L = given.L
    rest: float = R[x, x]
    for q in range(n):
        rest -= L[x, q] * L[x, q]
    return rest


@compiled
def add_pivot(R: Matrix, given: Given, x: int, n: int) -> None:
    """Make x, whose row is known up to n, pivot n."""
    rest = left(R, given, x, n)
    given.pivots[n] = x
    # An infinite pivot explains nothing. A NaN goes on into all that depends on it.
    given.L[x, n] = math.inf if rest <= LEAST_SHARE else math.sqrt(rest)


@compiled
def add_variable(R: Matrix, blocks: Blocks, given: Given, i: int, known: int, n: int) -> int:
    """Make the columns of variable i pivots after n others; their rows are known up to `known`. Return how many."""
    first, sizes, columns = blocks.first, blocks.sizes, blocks.columns
    for k in range(sizes[i]):
        x = columns[first[i] + k]
        extend(R, given, x, known, n + k)
        add_pivot(R, given, x, n + k)
    m: int = n + sizes[i]
    return m


@compiled
def condition(R: Matrix, blocks: Blocks, given: Given, parents: Ints, m: int, without: int) -> int:
    """Make the columns of the first m parents pivots, but for those of one variable; return how many there are."""
    n = 0
    for s in range(m):
        if parents[s] != without:
            n = add_variable(R, blocks, given, parents[s], 0, n)
    return n


@compiled
def child_left(R: Matrix, blocks: Blocks, given: Given, j: int, known: int, n: int) -> float:
    """What n pivots leave of variable j, whose rows are known up to `known`; NaN if a moment is unknown."""
    first, columns = blocks.first, blocks.columns
    product = 1.0
    for k in range(blocks.explained[j]):
        c = columns[first[j] + k]
        extend(R, given, c, known, n + k)
        rest = left(R, given, c, n + k)
        if rest < LEAST_RESIDUAL:
            rest = LEAST_RESIDUAL
        product *= rest
        given.pivots[n + k] = c
        given.L[c, n + k] = math.sqrt(rest)
    return product


@compiled
def left_with(R: Matrix, blocks: Blocks, given: Given, i: int, known: int, j: int, n: int) -> float:
    """What would be left of child j, whose rows are known up to n, if variable i joined the n pivots.

    The rows of i are known up to `known`.
    """
    return child_left(R, blocks, given, j, n, add_variable(R, blocks, given, i, known, n))


class Beside(NamedTuple):
    """Candidate columns side by side."""

    # own, shared: (w,) what pivots leave of the variance of each candidate, and of its moment with a child
    own: Matrix
    shared: Matrix
    rows: Matrix  # (d + 1, w) what each pivot explains of each candidate column


@compiled
def line_up(R: Matrix, own: Matrix, shared: Matrix, at: Ints, c: int) -> None:
    """Begin with candidate columns `at` and no pivots, for a child's column c; for the others see `Beside`."""
    for k in range(len(at)):
        own[k] = R[at[k], at[k]]
    for k in range(len(at)):
        shared[k] = R[c, at[k]]


@compiled
def add_row(R: Matrix, L: Matrix, rows: Matrix, at: Ints, p: int, t: int) -> None:
    """Fill in what pivot t, column p, explains of candidate columns `at`, beyond those before it."""
    for k in range(len(at)):
        rows[t, k] = R[p, at[k]]
    for q in range(t):
        part = L[p, q]
        for k in range(len(at)):
            rows[t, k] -= part * rows[q, k]
    scale = 1.0 / L[p, t]
    for k in range(len(at)):
        rows[t, k] *= scale


@compiled
def explain(R: Matrix, L: Matrix, own: Matrix, shared: Matrix, rows: Matrix, at: Ints, c: int, p: int, t: int) -> None:
    """Take off what pivot t, column p, explains; those before it are taken off."""
    add_row(R, L, rows, at, p, t)
    explained = L[c, t]
    for k in range(len(at)):
        x = rows[t, k]
        own[k] -= x * x
        shared[k] -= x * explained


@compiled
def explain_blocks(
    R: Matrix, blocks: Blocks, given: Given, beside: Beside, at: Ints, j: int, known: int, n: int
) -> None:
    """Take off what pivots from `known` to n explain, for a child j of any number of columns.

    `shared` becomes, for each candidate column, the sum of the squares of its moments with the child's columns: each
    given the pivots and those before it, and in units of what is left of it.
    """
    own, shared, rows = beside
    for t in range(known, n):
        add_row(R, given.L, rows, at, given.pivots[t], t)
        for k in range(len(at)):
            own[k] -= rows[t, k] * rows[t, k]
    for k in range(len(at)):
        shared[k] = 0.0
    for t in range(n, n + blocks.explained[j]):
        add_row(R, given.L, rows, at, given.pivots[t], t)
        for k in range(len(at)):
            shared[k] += rows[t, k] * rows[t, k]


@compiled
def is_clear(given: Given, n: int) -> bool:
    """Whether each of n pivots, all of single columns, leaves enough of itself for `move_pivot`."""
    for t in range(n):
        size = given.L[given.pivots[t], t]
        if not CLEAR_SHARE < size * size < math.inf:
            return False
    return True


# More parameters than elsewhere, here and in `explain`: both are called for each pivot and block of candidates, and
# numba hands over a tuple of arrays by copying the description of every array in it.
@compiled
def move_pivot(
    R: Matrix, given: Given, own: Matrix, shared: Matrix, at: Ints, c: int, s: int, n: int, sign: float, weight: Matrix
) -> None:
    """Take off what pivot s of n clear ones explains beyond the others (`sign` -1), or put it back (+1).

    With q its row of the inverse moments of all pivots, that is the square, or the product, of q'R[pivots, k] for a
    candidate and for the child's column c, over q_s. It takes n operations a candidate, where going through all pivots
    again takes n^2 / 2.

    Parameters
    ----------
    at, own, shared
        Candidates; see `Beside`.
    weight
        Room for n numbers, and for the candidates.
    """
    L, pivots = given
    for t in range(s):
        weight[t] = 0.0
    for t in range(s, n):  # column s of L^-1
        x = 1.0 if t == s else 0.0
        for q in range(s, t):
            x -= L[pivots[t], q] * weight[q]
        weight[t] = x / L[pivots[t], t]
    for t in range(n - 1, -1, -1):
        x = weight[t]
        for q in range(t + 1, n):
            x -= L[pivots[q], t] * weight[q]
        weight[t] = x / L[pivots[t], t]
    beyond, with_child = weight[n : n + len(at)], 0.0
    for k in range(len(at)):
        beyond[k] = 0.0
    for t in range(n):
        w, row = weight[t], R[pivots[t]]
        with_child += w * row[c]
        for k in range(len(at)):
            beyond[k] += w * row[at[k]]
    scale = sign / weight[s]
    for k in range(len(at)):
        own[k] += scale * beyond[k] * beyond[k]
        shared[k] += scale * beyond[k] * with_child


@compiled
def left_beside(own: float, shared: float, residual: float) -> float:
    """What would be left of a child, of which pivots leave `residual`, with a candidate; NaN: unknown."""
    rest = residual
    if own > LEAST_SHARE:
        rest -= shared * shared / own
    elif math.isnan(own) or math.isnan(shared):
        rest = math.nan
    return LEAST_RESIDUAL if rest < LEAST_RESIDUAL else rest


@compiled
def left_without(
    R: Matrix, blocks: Blocks, given: Given, j: int, parents: Ints, m: int, inverse: Matrix, lone: Matrix
) -> None:
    """Fill in `lone`: what is left of child j without each of its first m parents; `inverse` is room for as many."""
    n = condition(R, blocks, given, parents, m, -1)
    left_without_each(R, blocks, given, j, parents, m, child_left(R, blocks, given, j, 0, n), inverse, lone)


# Room for work is a parameter, too: an allocation in here would take as long as the rest.
@compiled
def left_without_each(
    R: Matrix,
    blocks: Blocks,
    given: Given,
    j: int,
    parents: Ints,
    m: int,
    residual: float,
    inverse: Matrix,
    lone: Matrix,
) -> None:
    """The same where the parents are pivots, which leave `residual` of the child."""
    L, pivots = given
    # Of what is less than the least residual, the formula below would add to another number than that.
    plain = blocks.explained[j] == 1 and residual > LEAST_RESIDUAL
    for s in range(m):
        plain = plain and blocks.sizes[parents[s]] == 1 and not math.isinf(L[pivots[s], s])
    if not plain:
        for s in range(m):
            n = condition(R, blocks, given, parents, m, parents[s])
            lone[s] = child_left(R, blocks, given, j, 0, n)
        return
    # Without s, the residual variance grows by b_s^2 / (R^-1)_ss, with b the coefficients and R of the parents alone.
    c = blocks.columns[blocks.first[j]]
    for s in range(m):
        coefficient = precision = 0.0
        for t in range(s, m):  # column s of L^-1
            x = 1.0 if t == s else 0.0
            for q in range(s, t):
                x -= L[pivots[t], q] * inverse[q]
            inverse[t] = x / L[pivots[t], t]
            coefficient += inverse[t] * L[c, t]
            precision += inverse[t] * inverse[t]
        lone[s] = max(residual + coefficient * coefficient / precision, LEAST_RESIDUAL)
