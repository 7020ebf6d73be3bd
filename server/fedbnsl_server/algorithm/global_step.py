"""The coordinator's minimisation over W (Eq. W), by L-BFGS on the edges that may close a cycle.

With A = mean(B_p) + mean(beta_p) / rho_2 the objective is, up to a constant,

    P rho_2 / 2 ||W - A||_F^2 + alpha h(W) + rho_1 / 2 h(W)^2 + lambda ||W||_1.

Where A and the start are zero the gradient of the smooth part is zero too, so these entries stay zero. Of the others,
those between two strongly connected components do not enter h: their minimum is known. The last term is for a local
solver that has none of its own; otherwise lambda is 0 here. It is counted once, not once per site, as in
NOTEARS-ADMM (Ng and Zhang 2022); lambda ||B_p||_1 at every site is P times that.

h depends on W through its squares. If its derivatives by these are held fixed, the objective is a quadratic with one
curvature an entry, large where an edge runs against strong ones. L-BFGS uses units in which the start curvatures are 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedbnsl.errors import DivergenceError
from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix, aligned
from fedbnsl_server.algorithm.acyclicity import CyclicPart

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Objective = Callable[[Matrix], tuple[float, Matrix]]
"""Value and gradient at a vector."""


class Terms(NamedTuple):
    """Coefficients of the objective."""

    n_participants: int  # P
    rho_2: float  # consensus penalty
    alpha: float  # of h
    rho_1: float  # of h^2 / 2
    l1_weight: float = 0.0  # lambda on W


def global_step(
    A: SparseMatrix,
    W: SparseMatrix,
    terms: Terms,
    *,
    allowed: Mask,
    max_iterations: int,
    least_gain: float = 0.1,
) -> SparseMatrix:
    """Minimise over W from the last W, until an iteration gains little: the next round changes the problem.

    Parameters
    ----------
    A
        (d, d) mean(B_p) + mean(beta_p) / rho_2.
    W
        (d, d) start.
    allowed
        (d, d) coordinates that may be non-zero.
    max_iterations, least_gain
        Stop after so many L-BFGS iterations, or when one lowers the objective by at most this share of what all did.

    Returns
    -------
    W
        (d, d), without zeros.

    Raises
    ------
    DivergenceError
        If the minimiser is not finite.
    """
    weight, l1_weight, d = terms.n_participants * terms.rho_2, terms.l1_weight, A.n_variables
    index, (a, w) = aligned(A, W)
    may = allowed.flat[index]
    index, a, w = index[may], a[may], w[may]
    result = np.sign(a) * np.maximum(np.abs(a) - l1_weight / weight, 0.0)
    size = np.maximum(np.abs(a), np.abs(w))
    # The duals leave rounding errors behind, which would tie components together.
    part = CyclicPart.of(index[size > np.finfo(np.float64).eps * size.max(initial=0.0)], d)
    if part.edges.size:
        cyclic = np.searchsorted(index, part.edges)
        smooth = _Smooth(part, a[cyclic], weight, terms.alpha, terms.rho_1)
        result[cyclic] = _minimum(smooth, w[cyclic], l1_weight, max_iterations=max_iterations, least_gain=least_gain)
    if not np.isfinite(result).all():
        raise DivergenceError("the global step diverged: W is not finite")
    return SparseMatrix(d, index, result).without_zeros()


@dataclass(frozen=True, eq=False)
class _Smooth:
    """The objective without its L1 term, over the entries w of W on the cyclic part; a are those of A."""

    part: CyclicPart
    a: Matrix
    weight: float
    alpha: float
    rho_1: float

    def expansion(self, w: Matrix) -> tuple[float, Matrix, Matrix]:
        """Value, gradient, and the curvature of each entry at fixed derivatives of h by the squares."""
        with np.errstate(over="ignore", invalid="ignore"):  # a too long trial step: see `_minimum`
            h, slope = self.part.measured(w * w)
            gap = w - self.a
            value = 0.5 * self.weight * float(gap @ gap) + self.alpha * h + 0.5 * self.rho_1 * h * h
            curvature = self.weight + 2.0 * (self.alpha + self.rho_1 * h) * slope
            return value, curvature * w - self.weight * self.a, curvature

    def __call__(self, w: Matrix) -> tuple[float, Matrix]:
        """Value and gradient."""
        value, gradient, _ = self.expansion(w)
        return value, gradient


def _minimum(smooth: _Smooth, w: Matrix, l1_weight: float, *, max_iterations: int, least_gain: float) -> Matrix:
    """Entries near the minimum, from the start w.

    Raises
    ------
    DivergenceError
        If the objective is not finite at the start.
    """
    from scipy.optimize import Bounds, minimize  # here: see `warm_up`

    value, gradient, curvature = smooth.expansion(w)
    if not math.isfinite(value) or not np.isfinite(curvature).all():
        raise DivergenceError("the global step diverged: W is not finite")
    unit = np.sqrt(curvature)
    objective: Objective = smooth
    at_start: Objective = lambda _: (value, gradient)  # noqa: E731
    if l1_weight:
        w, unit = np.concatenate([np.maximum(w, 0.0), np.maximum(-w, 0.0)]), np.tile(unit, 2)
        objective, at_start = split_l1(objective, l1_weight), split_l1(at_start, l1_weight)
    start = w * unit
    first, _ = at_start(w)
    highest = lowest = first

    def scaled(z: Matrix) -> tuple[float, Matrix]:
        nonlocal highest
        value, slope = (at_start if np.array_equal(z, start) else objective)(z / unit)
        if not math.isfinite(value):  # h overflows there: a value above all others turns the line search back
            return highest + abs(highest) + 1.0, np.zeros_like(z)
        highest = max(highest, value)
        return value, slope / unit

    def settled(intermediate_result: "OptimizeResult") -> None:
        nonlocal lowest
        gain, lowest = lowest - intermediate_result.fun, intermediate_result.fun
        if gain <= least_gain * (first - lowest):
            raise StopIteration

    solution = minimize(
        scaled,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(0.0, np.inf) if l1_weight else None,
        callback=settled,
        options={"maxiter": max_iterations, "maxfun": 10 * max_iterations + 100},
    )
    w = solution.x / unit
    return w[: w.size // 2] - w[w.size // 2 :] if l1_weight else w


def warm_up() -> None:
    """Load what a step needs of scipy. A coordinator calls it while its sites join, after it has opened its port."""
    W, free = SparseMatrix(2, np.array([1, 2]), np.ones(2)), ~np.eye(2, dtype=bool)
    global_step(W, W, Terms(1, 1.0, 0.0, 1.0), allowed=free, max_iterations=1)


def split_l1(smooth: Objective, l1_weight: float) -> Objective:
    """Value and gradient of smooth(u - v) + lambda sum(u + v), over u and v >= 0 one after the other.

    At a minimum one of u_k, v_k is zero, so that the sum is the L1 norm of w = u - v.
    """

    def objective(halves: Matrix) -> tuple[float, Matrix]:
        u, v = np.split(halves, 2)
        value, gradient = smooth(u - v)
        return value + l1_weight * float(halves.sum()), np.concatenate([gradient + l1_weight, l1_weight - gradient])

    return objective
