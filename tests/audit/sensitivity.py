"""How far one record can move what the noise is added to. Every check raises AssertionError."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from audit import reference
from audit.reference import LATTICE
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.clipped import ClippedGradient
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.private_moments import Squared, Whole
from fedbnsl_client.solvers.settings import Settings

CLIPS = np.array([0.5, 2.0, 7.0])
EXTREMES = (1e308, -1e308, 1e100, np.nan, np.inf, -np.inf, 5e-324, 1e-200, 0.0, -0.0, 1.0, -3.0)
GAPS = [np.array(x) for x in itertools.product((np.nan, 1e4, -2.0), repeat=3)]
"""A record with every pattern of gaps."""
RECORDS = [np.array(x) for x in itertools.product((1e308, -1e308, np.nan, np.inf, 5e-324, 0.0, -2.0), repeat=3)]


def table(n: int = 12, d: int = 3) -> Matrix:
    return np.random.default_rng(3).normal(size=(n, d)) * 2


def weights(d: int = 3) -> list[Matrix]:
    """Some B: none, usual ones, huge ones."""
    some = np.random.default_rng(4).normal(size=(d, d)) * (1 - np.eye(d))
    return [np.zeros((d, d)), some, some * 1e30]


def replaced(X: Matrix, record: Matrix) -> Matrix:
    """The neighbour of X with another first record."""
    return np.vstack([record, X[1:]])


def sums_along_a_path(
    X: Matrix, B: Matrix, gradient: Callable[[Matrix, Matrix], Any] = ClippedGradient
) -> list[Matrix]:
    """The sums at B, after a step, and back at B."""
    seen = []
    moving = gradient(X, CLIPS)
    moving.move_to(B)
    seen.append(moving.sums.T.copy())
    moving.step(0, 1, 0.75)
    seen.append(moving.sums.T.copy())
    moving.move_to(B)
    seen.append(moving.sums.T.copy())
    return seen


def check_gradient_sums(gradient: Callable[[Matrix, Matrix], Any], records: list[Matrix] = RECORDS) -> None:
    X = table()
    for B in weights():
        base = sums_along_a_path(X, B, gradient)
        for record in records:
            for one, other in zip(base, sums_along_a_path(replaced(X, record), B, gradient), strict=True):
                moved = np.abs(one.astype(object) - other.astype(object)).max()
                assert moved <= 2 * LATTICE, f"{record} moved a sum by {moved / LATTICE} units"


def check_gradient_values(gradient: Callable[[Matrix, Matrix], Any]) -> None:
    """Against the definition, one record at a time; infinity and beyond, where the definition says nothing, apart."""
    X = table()
    records = [x for x in RECORDS if not (np.abs(x) >= 1e308).any()]
    for B in weights()[:2]:
        for record in [X[0], *records]:
            neighbour = replaced(X, record)
            sums = sums_along_a_path(neighbour, B, gradient)[0]
            assert np.abs(sums - reference.clipped_sums(neighbour, B, CLIPS)).max() <= 1, record


class Watched:
    """A selection that always picks the same coordinates and keeps the scores; the released sum is always the same."""

    def __init__(self) -> None:
        self.scores: list[Matrix] = []
        self._picks = itertools.cycle([(0, 1), (2, 1), (0, 1), (1, 2)])
        self.pick = (0, 0)

    def set_column(self, j: int, scores: Matrix) -> None:
        self.scores.append(scores.copy())

    def draw(self, randbelow: object) -> tuple[int, int]:
        self.pick = next(self._picks)
        return self.pick


def scores_of(make: Callable[..., Any], X: Matrix, B: Matrix, W: Matrix, *, M: Matrix, lam: float) -> Matrix:
    """All scores of four steps, in units of the declared sensitivity, with the same releases whatever X is."""
    watched, solver = Watched(), None

    def noise(_: object) -> int:
        i, j = watched.pick
        return LATTICE // 3 - int(solver._gradient.sums[j, i])

    settings = Settings(~np.eye(len(M), dtype=bool), lam, rho_2=3.0, max_steps=4, gamma=0.5)
    solver = make(X, M, settings, selection=watched, noise=noise, clip=5.0, randbelow=randomness.system)
    solver(B, W, np.zeros_like(B))
    return np.concatenate(watched.scores)


def check_scores(make: Callable[..., Any], records: list[Matrix] = RECORDS) -> None:
    X, M = table(), np.array([3.1, 40.0, 1e4])
    W = weights()[1]
    for B, lam in ((weights()[0], 0.0), (weights()[1], 0.0), (weights()[1], 0.05)):
        base = scores_of(make, X, B, W, M=M, lam=lam)
        for record in records:
            moved = np.abs(base - scores_of(make, replaced(X, record), B, W, M=M, lam=lam)).max()
            assert moved <= 1.0 + 2.0**-19, f"{record} moved a score by {moved} sensitivities"


def check_moments(release: Callable[..., Matrix], records: list[Matrix] = RECORDS) -> None:
    """The same seed gives both tables the same noise: what is left is what the record did."""
    X, bounds = table(), np.array([0.01, 4.0, 1e6])
    base = release(X, bounds, 9, randomness.seeded("m"))
    for record in records:
        moved = (release(replaced(X, record), bounds, 9, randomness.seeded("m")) - base) / bounds * len(X)
        assert np.abs(moved).max() <= 1.0 + 1e-9, f"{record} moved a second moment by {moved} bounds"


def check_covariance(release: Callable[..., Matrix], records: list[Matrix] = RECORDS, bound: float = 3.0) -> None:
    X = table(60) * bound
    base = release(X, bound, 2, randomness.seeded("c"))
    assert np.linalg.eigvalsh(base).min() > 0.1 * bound**2  # making it semidefinite changed nothing
    for record in records:
        moved = (release(replaced(X, record), bound, 2, randomness.seeded("c")) - base) * len(X) / bound**2 * LATTICE
        assert np.linalg.norm(moved) <= np.sqrt(2.0) * LATTICE + X.shape[1] + 0.1, f"{record} moved it by {moved}"


def check_residual_moments(release: Callable[..., Matrix], records: list[Matrix] = RECORDS) -> None:
    """For weights and scales of every kind, even such as no coordinator should send."""
    X, bound = table(60), 1.5
    broken = np.full((3, 3), np.nan), weights()[1] * 1e300
    for W in (*weights(), *broken):
        for scales in (np.ones(3), np.array([1e-3, 1.0, 50.0]), np.array([0.0, np.inf, -2.0])):
            base = release(X, W, scales, bound, 2, randomness.seeded("r"))
            assert np.isfinite(base).all()
            for record in records:
                other = release(replaced(X, record), W, scales, bound, 2, randomness.seeded("r"))
                moved = np.linalg.norm((other - base) * len(X) / bound**2 * LATTICE)
                assert moved <= np.sqrt(2.0) * LATTICE + X.shape[1] + 0.1, f"{record} moved it by {moved / LATTICE}"


def check_squares(release: Callable[..., Matrix], records: list[Matrix] = RECORDS) -> None:
    """With squares of two of the columns as further ones, for records of every kind and with every pattern of gaps."""
    X, D = table(60), 5
    squared = Squared(np.array([0, 2]), np.array([0.3, -1.0]), np.array([2.0, 0.5]))
    whole = Whole(np.array([1.0, 1.0, 1.0, 0.2, -0.1]), np.array([2.0, 1.0, 0.5, 1.0, 1.0]), np.full(D, 0.7), squared)
    W = np.triu(np.random.default_rng(4).normal(size=(D, D)), 1)
    furthest = 0.0
    for asked, scales in (
        (np.zeros((D, D)), np.ones(D)),
        (W, np.array([1.0, 1e-3, 1.0, 50.0, 1e-3])),
        (W * 1e30, W[0]),
    ):
        for bound in (1.5, 100.0):
            base = release(X, asked, scales, bound, 2, randomness.seeded("s"), whole)
            assert np.isfinite(base).all()
            assert base.shape == (D + 1, D + 1)
            for record in [*GAPS, *records]:
                other = release(replaced(X, record), asked, scales, bound, 2, randomness.seeded("s"), whole)
                moved = float(np.linalg.norm((other - base) * len(X) / bound**2 * LATTICE))
                assert moved <= np.sqrt(2.0) * LATTICE + D + 1.1, f"{record} moved it by {moved / LATTICE}"
                furthest = max(furthest, moved)
    assert furthest >= LATTICE, "the attack is none"


def check_completed_moments(release: Callable[..., Matrix], records: list[Matrix] = RECORDS) -> None:
    """The same of records that are completed, beside others with every pattern of gaps.

    For models of every kind, too: good ones, and such as no coordinator should send.
    """
    X = np.vstack([table(60), *GAPS])
    W = np.triu(weights()[1], 1)
    for scales, spreads in (
        (np.ones(3), np.full(3, 0.5)),
        (np.array([1e-3, 1.0, 50.0]), np.array([1.0, 30.0, 1e-3])),
        (np.array([0.0, np.inf, -2.0]), np.ones(3)),
        (np.ones(3), np.array([1e-200, np.nan, 1e200])),
    ):
        for asked in (W, weights()[2]):
            for bound in (1.5, 100.0):
                whole = Whole(np.ones(3), np.array([2.0, 1.0, 0.5]), spreads)

                base = release(X, asked, scales, bound, 2, randomness.seeded("g"), whole)
                assert np.isfinite(base).all()
                for record in [*GAPS, *records]:
                    other = release(replaced(X, record), asked, scales, bound, 2, randomness.seeded("g"), whole)
                    moved = np.linalg.norm((other - base) * len(X) / bound**2 * LATTICE)
                    assert moved <= np.sqrt(2.0) * LATTICE + len(base) + 0.1, f"{record} moved it by {moved / LATTICE}"
