"""The search of a class in noisy moments of residuals: what noise hides, what it does not, and the units of it all."""

import math

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.search.noisy_class_search import (
    NoisyClassSearch,
    Released,
    cost_of,
    next_scales,
    released,
    with_released_weights,
)
from fedbnsl_server.search.order_search import best_dag, extended_penalty

D, ROWS = 8, 40_000.0


def network(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(d, d) weights in a random order, and the moments that they give with unequal noise variances."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(D)
    W = np.zeros((D, D))
    for a in range(D):
        for b in range(a + 1, D):
            if rng.random() < 0.3:
                W[order[a], order[b]] = rng.uniform(0.5, 1.5) * rng.choice([-1, 1])
    back = np.linalg.inv(np.eye(D) - W)
    return W, back.T @ np.diag(rng.uniform(0.25, 4.0, D)) @ back


def noise(rng: np.random.Generator, std: float) -> np.ndarray:
    """Symmetric; sqrt(2) times as large on the diagonal."""
    E = rng.standard_normal((D, D))
    return std * (E + E.T) / math.sqrt(2.0)


def asked_with(S: np.ndarray, W: np.ndarray, scales: np.ndarray, std: float, seed: int) -> Released:
    A = (np.eye(D) - W) / scales
    S_z = A.T @ S @ A + noise(np.random.default_rng(seed), std)
    return released(S_z, noise_std=std, n_samples=ROWS, W=W, scales=scales)


def mask(knowledge: Knowledge | None = None) -> EdgeMask:
    return EdgeMask(knowledge or Knowledge(), [f"x{k}" for k in range(D)])


@pytest.mark.parametrize("seed", range(6))
def test_little_noise_hides_nothing_even_if_the_residuals_were_those_of_an_empty_graph(seed: int):
    _, S = network(seed)
    scales = np.sqrt(S.diagonal())
    search = NoisyClassSearch(mask(), 1.5, 0.0, 0)
    found, _ = search.found(asked_with(S, np.zeros((D, D)), scales, 1e-4, seed))
    everything, penalty = ~np.eye(D, dtype=bool), 1.5 * extended_penalty(ROWS, D)
    exact = best_dag(S, penalty=penalty, candidates=everything, required=np.zeros((D, D), dtype=bool), seed=0)
    assert class_distance(cpdag(found.dag), cpdag(exact)) == 0


@pytest.mark.parametrize("seed", range(6))
def test_noise_that_would_hide_edges_of_the_columns_hides_none_in_residuals_of_the_true_graph(seed: int):
    W, S = network(seed)
    residual = ((np.eye(D) - W).T @ S @ (np.eye(D) - W)).diagonal()
    given = asked_with(S, W, np.sqrt(residual), 0.01, seed)
    found, of_residuals = NoisyClassSearch(mask(), 1.5, 0.0, 0).found(given)
    assert class_distance(cpdag(found.dag), cpdag(W != 0)) == 0
    assert of_residuals.noise_std == pytest.approx(given.noise_std, rel=0.2)


def test_the_noise_of_moments_of_other_residuals_is_that_of_many_draws():
    W, _ = network(3)
    rng, A = np.random.default_rng(0), np.eye(D) - 0.3 * W
    given = released(np.eye(D), noise_std=0.05, n_samples=ROWS, W=np.zeros((D, D)), scales=np.ones(D))
    draws = np.stack([A.T @ noise(rng, 0.05) @ A for _ in range(4000)])
    mapped = given.of(A)
    size = float(np.median((A.T @ A).diagonal()))
    off = ~np.eye(D, dtype=bool)
    assert mapped.noise[off] * size**2 == pytest.approx(draws.var(axis=0)[off], rel=0.35)
    assert mapped.of(np.eye(D)).moments == pytest.approx(np.eye(D), abs=1e-9)


def test_moments_as_they_came_give_the_weights_and_cleared_ones_do_not():
    _, S = network(1)
    scales = np.sqrt(S.diagonal())
    given = asked_with(S, np.zeros((D, D)), scales, 0.05, 4)
    search = NoisyClassSearch(mask(), 1.5, 0.0, 0)
    found, of_residuals = search.found(given)
    fitted = with_released_weights(found, of_residuals, mask())
    raw = given.of_columns
    for j in np.flatnonzero(found.dag.any(axis=0)):
        parents = np.flatnonzero(found.dag[:, j])
        expected = np.linalg.solve(raw[np.ix_(parents, parents)], raw[parents, j])
        assert fitted.weights[parents, j] == pytest.approx(expected, rel=1e-4)


def test_required_and_forbidden_edges_are_kept():
    W, S = network(2)
    i, j = np.argwhere(W != 0)[0].tolist()
    knowledge = Knowledge(forbidden=((f"x{i}", f"x{j}"),), required=((f"x{j}", f"x{i}"),))
    given = asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.01, 0)
    found, _ = NoisyClassSearch(mask(knowledge), 1.5, 0.0, 0).found(given)
    assert found.dag[j, i]
    assert not found.dag[i, j]


def test_a_scale_is_not_below_what_noise_lets_us_tell():
    _, S = network(5)
    given = asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.05, 0)
    found, _ = NoisyClassSearch(mask(), 1.5, 0.0, 0).found(given)
    scales = next_scales(found, given, np.sqrt(S.diagonal()))
    assert (scales**2 >= 3.0 * given.noise_std * S.diagonal() * (1 - 1e-12)).all()
    assert (scales**2 >= found.residual_variance * (1 - 1e-12)).all()


def test_an_edge_costs_less_once_the_residuals_are_nearly_right():
    assert [cost_of(step) for step in range(1, 6)] == sorted((cost_of(step) for step in range(1, 6)), reverse=True)
    assert cost_of(1) > cost_of(5)
