"""The releases of moments on tables of several blocks and many variables, against a loop over the records.

The noise is narrow here, so that a single record too many or too few stands out of it by many standard deviations.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

import numpy as np

from audit import noise_tests, reference
from audit.reference import LATTICE
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import mapped_array
from fedbnsl_client.losses import blocked, clipped
from fedbnsl_client.privacy import private_moments, randomness

# In memory four blocks; in a file two, each of two more.
N, D, FILE_BLOCK = 3109, 20, 1536
VARIANCE, BOUND = 20_000, 1.5
SCALES = np.geomspace(0.01, 50.0, D)
W = np.triu(np.random.default_rng(11).normal(size=(D, D)) * 0.3, 1)
SHAPES = {"long and short": (-1.0, 1.0), "all short": (-2.0, -1.3)}
"""Decimal logarithms of the least and the largest norm of a record's residuals, as shares of the bound."""


@cache
def residuals(shape: str) -> Matrix:
    """(N, D) scaled residuals of a table."""
    rng = np.random.default_rng(12)
    Z = rng.normal(size=(N, D))
    return Z / np.linalg.norm(Z, axis=1)[:, None] * BOUND * 10 ** rng.uniform(*SHAPES[shape], size=(N, 1))


@cache
def table(shape: str) -> Matrix:
    return np.linalg.solve((np.eye(D) - W).T, (residuals(shape) * SCALES).T).T


@contextmanager
def small_blocks() -> Iterator[None]:
    """A table goes into a file, of which so many rows are read at a time."""
    with mock.patch.multiple(mapped_array, MAPPED_BYTES=0, BLOCK_BYTES=8 * D * FILE_BLOCK):
        yield


def kept_both_ways(X: Matrix) -> tuple[Matrix, Matrix]:
    return X, mapped_array.gathered([X], D)


def check_noise(release: Callable[[Matrix, int], Matrix], X: Matrix, exact: Matrix, n_releases: int) -> None:
    """Releases of matrices, in fixed-point grid units, from the table in memory and in a file."""
    on_diagonal = np.eye(D, dtype=bool)
    sigma = np.sqrt(np.where(on_diagonal, VARIANCE, VARIANCE / 2))
    with small_blocks():
        for kept in kept_both_ways(X):
            released = np.array([release(kept, k) for k in range(n_releases)])
            noise = (released - exact) / sigma
            apart = np.abs(released - released.transpose(0, 2, 1)).max()
            assert apart < 1.0, "an entry and its transpose were drawn apart: their mean has less noise"
            for part in (on_diagonal, np.triu(~on_diagonal)):
                noise_tests.check_gaussian(noise[:, part])
                noise_tests.check_every_entry(noise[:, part])


@cache
def exact_residual_moments(shape: str) -> Matrix:
    return reference.moment_sums(table(shape), W, SCALES, BOUND)


def check_residual_moments(n_releases: int = 20) -> None:
    for shape in SHAPES:

        def release(X: Matrix, k: int, shape: str = shape) -> Matrix:
            source = randomness.seeded(f"{shape} {k}")
            moments = private_moments.release_residual_moments(X, W, SCALES, BOUND, VARIANCE, source)
            return moments * N * LATTICE / BOUND**2

        check_noise(release, table(shape), exact_residual_moments(shape), n_releases)


@cache
def exact_covariance(shape: str) -> Matrix:
    return reference.moment_sums(residuals(shape), np.zeros((D, D)), np.ones(D), BOUND)


def check_covariance(n_releases: int = 20) -> None:
    for shape in SHAPES:
        assert np.linalg.eigvalsh(exact_covariance(shape)).min() > 20 * D**0.5 * VARIANCE**0.5, "or it is projected"

        def release(X: Matrix, k: int, shape: str = shape) -> Matrix:
            source = randomness.seeded(f"{shape} {k}")
            covariance = private_moments.release_covariance(X, BOUND, VARIANCE, source)
            return covariance * N * LATTICE / BOUND**2

        check_noise(release, residuals(shape), exact_covariance(shape), n_releases)


@cache
def exact_second_moments(shape: str) -> Matrix:
    return reference.square_sums(table(shape), SCALES**2)


def check_second_moments(n_releases: int = 20) -> None:
    for shape in SHAPES:
        with small_blocks():
            for X in kept_both_ways(table(shape)):
                released = np.array(
                    [
                        private_moments.release_second_moments(
                            X, SCALES**2, VARIANCE, randomness.seeded(f"{shape} {k}")
                        )
                        for k in range(n_releases)
                    ]
                )
                noise = released * N * LATTICE / SCALES**2 - exact_second_moments(shape)
                noise_tests.check_gaussian(noise / VARIANCE**0.5)
                noise_tests.check_every_entry(noise / VARIANCE**0.5)


def check_gradients() -> None:
    """The integer sums of private steps, at a B and after a step from it."""
    X, clips, B = residuals("long and short"), np.full(D, 0.5), W.copy()
    moved = B.copy()
    moved[2, 5] = 0.75
    with small_blocks():
        in_memory, in_file = kept_both_ways(X)
        for gradient in (clipped.ClippedGradient(in_memory, clips), blocked.BlockedGradient(in_file, clips)):
            gradient.move_to(B)
            check_sums(gradient.sums.T, X, B, clips)
            gradient.step(2, 5, 0.75)
            check_sums(gradient.sums.T, X, moved, clips)


def check_sums(sums: Matrix, X: Matrix, B: Matrix, clips: Matrix) -> None:
    """A term that lies between two integers may go either way: never as many of them as one record counts."""
    off = np.abs(sums - reference.clipped_sums(X, B, clips)).max()
    assert off <= 8, f"a sum is {off:.0f} from that of the definition"
