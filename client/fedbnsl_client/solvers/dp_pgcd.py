"""DP-PGCD (Algorithm 2): private proximal greedy coordinate descent on the local objective, O(n d) a step.

A step uses the table through two releases only: the coordinate (i, j) that a noisy selection among the scores picks,
and the clipped gradient of that coordinate plus noise. W, beta, B and M are public already. The gradient of the ADMM
terms holds no data and is added after clipping. There are K steps, fewer only after a released weight grows too large
for the noise: a stopping rule that looks at the table would be a release, too.
"""

from typing import NamedTuple

import numpy as np

from fedbnsl.errors import DivergenceError
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import lies_in_file
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.losses.blocked import BlockedGradient
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.privacy.noise import ExponentialMechanism, Noise, Randbelow, Selection
from fedbnsl_client.solvers.coordinate import score_column, soft
from fedbnsl_client.solvers.settings import Settings

# The accountant (zcdp.selection) allows for rounding errors of 2^-20 of a score sensitivity. Four terms of up to 2^28
# sensitivities each, with eight roundings of 2^-53 of their sum, stay below it.
_MOST_SENSITIVITIES = 2.0**28

_UNIFORM = 1e-9


def clips(M: Matrix, clip: float) -> Matrix:
    """(d,) C_i = C sqrt(M_i / sum M): thresholds that give all scores the same sensitivity."""
    return np.asarray(clip * np.sqrt(M / M.sum()))


def score_sensitivity(M: Matrix, *, clip: float, lam: float, n_samples: int) -> float:
    """How far one record can move a score: the same for all, but for rounding.

    Raises DivergenceError if M cannot be used: it must give every score the same sensitivity, and one that rounding
    errors do not reach.
    """
    bounds, root_M = clips(M, clip), np.sqrt(M)
    each = 2.0 * bounds / (n_samples * root_M)
    most = float(each.max())
    if not (np.isfinite(M).all() and each.min() >= (1.0 - _UNIFORM) * most > 0.0):
        raise DivergenceError("the second moments differ too much in size to share one score sensitivity")
    _require_small(max(float(np.max(bounds / root_M)), float(np.max(lam / root_M))), most)
    return most


class Steps(NamedTuple):
    """What the steps of a round have released, in their order: nothing of it is more than they have paid for."""

    coordinate: Index  # (K,) flat indices i d + j of the coordinates that were chosen
    gradient: Matrix  # (K,) noisy means of the clipped gradients of the loss there
    bound: Matrix  # (K,) C_i, which each record's gradient was clipped to; it follows from M
    weight: Matrix  # (K,) B_ij after the step


class DpPgcd:
    """Private local solver of one run at one site, for an (n, d) table.

    M are (d,) smoothness constants, public or released before; `clip` is C. `selection` picks a coordinate, `noise` is
    added to its integer gradient sum, both drawn from `randbelow`. Raises DivergenceError if M cannot be used: it must
    give every score the same sensitivity.
    """

    def __init__(
        self,
        X: Table,
        M: Matrix,
        settings: Settings,
        *,
        clip: float,
        selection: Selection,
        noise: Noise,
        randbelow: Randbelow,
    ) -> None:
        lam, allowed = settings.lam, settings.allowed
        self._bounds = bounds = clips(M, clip)
        self._sensitivity = score_sensitivity(M, clip=clip, lam=lam, n_samples=X.shape[0])
        rows = X.X if isinstance(X, PersonRows) else X
        self._gradient = BlockedGradient(X, bounds) if lies_in_file(rows) else ClippedGradient(X, bounds)
        self._M, self._inverse_M, self._root_M = M, 1.0 / M, np.sqrt(M)
        self._lam, self._rho_2, self._gamma = lam, settings.rho_2, settings.gamma
        self._threshold = lam * self._inverse_M
        self._steps = settings.max_steps if allowed.any() else 0
        self._selection, self._noise, self._randbelow = selection, noise, randbelow
        self._weight = np.where(allowed.T, self._root_M / self._sensitivity, 0.0)

    def __call__(self, B: Matrix, W: Matrix, beta: Matrix) -> Matrix:
        """K steps from B (Alg. 2); returns a new (d, d) array. See `released`."""
        return self.released(B, W, beta)[0]

    def released(self, B: Matrix, W: Matrix, beta: Matrix) -> tuple[Matrix, Steps]:
        """K steps from B (Alg. 2): a new (d, d) array, and what was released.

        Raises DivergenceError: see `require_usable`, which is called first.
        """
        require_usable(B, W, beta, M=self._M, rho_2=self._rho_2, sensitivity=self._sensitivity)
        gradient, M, rho_2 = self._gradient, self._M, self._rho_2
        gradient.move_to(B)
        # Columns are what a step changes: keep each contiguous.
        b, w, dual = (np.ascontiguousarray(matrix.T) for matrix in (B, W, beta))
        public = dual + rho_2 * (b - w)
        for j, slopes in enumerate(gradient.sums * gradient.unit + public):
            self._score(j, b, slopes)
        told: list[tuple[int, float, float, float]] = []
        for _ in range(self._steps):
            i, j = self._selection.draw(self._randbelow)  # Alg. 2, lines 3 and 4
            total = int(gradient.sums[j, i]) + self._noise(self._randbelow)
            released_slope = total * gradient.unit[i]
            slope = released_slope + public[j, i]
            new = soft(b[j, i] - self._gamma * slope / M[i], self._gamma * self._lam / M[i])  # line 5
            if new != b[j, i]:  # a released value: skipping the pass reveals nothing more
                pull = dual[j, i] + rho_2 * (new - w[j, i])
                if not self._is_small(new * self._root_M[i]) or not self._is_small(pull / self._root_M[i]):
                    break  # decided by released values alone; the steps before it are paid for and sent
                b[j, i], public[j, i] = new, pull
                gradient.step(i, j, new)
                self._score(j, b, gradient.sums[j] * gradient.unit + public[j])
            told.append((i * len(M) + j, released_slope, self._bounds[i], b[j, i]))
        numbers = np.array(told, dtype=np.float64).reshape(-1, 4).T
        return np.ascontiguousarray(b.T), Steps(numbers[0].astype(np.int64), *numbers[1:])

    def _score(self, j: int, b: Matrix, slopes: Matrix) -> None:
        """Eq. score with the clipped gradient, for column j, in units of the sensitivity."""
        scores = np.empty(self._M.size)
        score_column(b[j], slopes, self._inverse_M, self._threshold, self._weight[j], scores)
        self._selection.set_column(j, scores)

    def _is_small(self, value: float) -> bool:
        return abs(value) <= _MOST_SENSITIVITIES * self._sensitivity


def require_usable(B: Matrix, W: Matrix, beta: Matrix, *, M: Matrix, rho_2: float, sensitivity: float) -> None:
    """Refuse (d, d) values so large that the noise would not cover rounding errors. All are public, so nothing is paid.

    Raises DivergenceError if one is too large.
    """
    root_M = np.sqrt(M)[:, None]
    _require_small(np.max(np.abs(B * root_M)), sensitivity)
    _require_small(np.max(np.abs((beta + rho_2 * (B - W)) / root_M)), sensitivity)


def _require_small(largest: float, sensitivity: float) -> None:
    if not largest <= _MOST_SENSITIVITIES * sensitivity:
        raise DivergenceError("the released weights are beyond the size up to which the noise covers rounding errors")


def warm_up() -> None:
    """As `pgcd.warm_up`, for the kernels of private steps: one step on a table of ones, without noise."""
    zero, allowed = np.zeros((2, 2)), ~np.eye(2, dtype=bool)
    for X in (np.ones((2, 2)), PersonRows(np.ones((2, 2)), np.ones(2, dtype=np.int64))):
        DpPgcd(
            X, np.ones(2), Settings(allowed, 0.0, 1.0, max_steps=1), clip=1.0,
            selection=ExponentialMechanism(1.0, allowed), noise=lambda _: 0, randbelow=lambda _: 0,
        )(zero, zero, zero)  # fmt: skip
