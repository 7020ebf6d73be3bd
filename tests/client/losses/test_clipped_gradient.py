"""Residuals and sums that follow B step by step are those of a fresh start there, and no pass is made twice."""

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses import clipped as clipped_gradient
from fedbnsl_client.losses.clipped import ClippedGradient

D = 6
CLIPS = np.linspace(0.5, 3.0, D)


@pytest.fixture
def passes() -> Iterator[mock.Mock]:
    """Counts the passes over the table."""
    with mock.patch.object(clipped_gradient, "_sum_clipped", wraps=clipped_gradient._sum_clipped) as counted:
        yield counted


def table(n: int = 400) -> Matrix:
    return np.random.default_rng(8).normal(size=(n, D)) * np.linspace(0.1, 4.0, D)


def fresh_sums(X: Matrix, B: Matrix) -> Matrix:
    fresh = ClippedGradient(X, CLIPS)
    fresh.move_to(B)
    return fresh.sums


def walk(gradient: ClippedGradient, B: Matrix, steps: int, rng: np.random.Generator) -> None:
    """Random steps, most of them on few columns, some back to zero."""
    for _ in range(steps):
        i, j = int(rng.integers(D)), int(rng.integers(2 if rng.random() < 0.7 else D))
        B[i, j] = 0.0 if rng.random() < 0.2 else rng.normal() / 3
        gradient.step(i, j, float(B[i, j]))


def test_after_thousands_of_steps_the_sums_are_those_of_a_fresh_start_but_for_a_rounding_at_one_half() -> None:
    X, B, rng = table(), np.zeros((D, D)), np.random.default_rng(9)
    gradient = ClippedGradient(X, CLIPS)
    gradient.move_to(B)
    for round_ in range(20):
        walk(gradient, B, 150, rng)
        assert np.abs(gradient.sums - fresh_sums(X, B)).max() <= 1
        B[:, round_ % D] = rng.normal(size=D) / 3  # what a step does not bring, `move_to` does
        gradient.move_to(B)
        assert np.abs(gradient.sums - fresh_sums(X, B)).max() <= 1


def test_a_round_that_starts_where_the_last_steps_ended_makes_no_pass(passes: mock.Mock) -> None:
    B, rng = np.zeros((D, D)), np.random.default_rng(10)
    gradient = ClippedGradient(table(), CLIPS)
    gradient.move_to(B)
    walk(gradient, B, 200, rng)
    passes.reset_mock()
    gradient.move_to(B.copy())
    assert passes.call_count == 0
    B[2, 3] += 1e-300 if B[2, 3] == 0 else B[2, 3] * 2.0**-50
    gradient.move_to(B)
    assert passes.call_count == 1
